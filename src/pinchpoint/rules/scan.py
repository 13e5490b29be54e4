"""Scan: run the rules over files and folders, and fix what can be fixed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.findings import Finding, Findings, Unreadable
from pinchpoint.rules.engine.allowances import allowances, is_allowed
from pinchpoint.rules.engine.catalog import choose_rules, find_rule
from pinchpoint.rules.engine.reading import CannotRead, File, find_files, read_file
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.settings import read_settings
from pinchpoint.rules.engine.source import Source

# Files without any of these words are parsed, but no rule can apply to them.
_WORDS = ("torch", "jax", "XLA_FLAGS", "lightning")
_FILES_PER_PROCESS = 40  # below this, starting a process takes longer than the scan


@dataclass(frozen=True)
class Job:
    """One file, the names of the rules to run, and which fixes to make."""

    path: str
    rules: tuple[str, ...]
    fix: bool
    unsafe: bool


@dataclass(frozen=True)
class Result:
    findings: list[Finding]
    unreadable: Unreadable | None = None
    fixed: int = 0


def scan(
    *paths: str | Path,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fix: bool = False,
    unsafe_fixes: bool = False,
    workers: int | None = None,
) -> Findings:
    """Scan files and folders for slow, wasteful, or wrong PyTorch and JAX code.

    select, ignore: rules by number (PP101), name (sync-in-loop) or family (PP1, waits); they are added to
    those of `[tool.pinchpoint.scan]` in pyproject.toml, where a `select` given here replaces the file's.
    exclude: patterns of files and folders to leave out. fix: rewrite what can be fixed without changing
    results; unsafe_fixes: make the other fixes as well. The findings that remain are returned. workers:
    processes; by default one per core.
    """
    jobs = find_jobs(
        paths, select=select, ignore=ignore, exclude=exclude, fix=fix or unsafe_fixes, unsafe=unsafe_fixes
    )
    results = _run(jobs, workers)
    findings = sorted(
        (finding for result in results for finding in result.findings),
        key=lambda finding: (finding.file, finding.line, finding.column, finding.rule),
    )
    unreadable = tuple(result.unreadable for result in results if result.unreadable is not None)
    fixed = sum(result.fixed for result in results)
    return Findings(tuple(findings), files=len(jobs), unreadable=unreadable, fixed=fixed)


def find_jobs(
    paths: Sequence[str | Path],
    *,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    exclude: Sequence[str] = (),
    fix: bool = False,
    unsafe: bool = False,
) -> list[Job]:
    """The files at and below the paths, each with the rules that the options and settings choose for it."""
    if not paths:
        raise BadInput("There is nothing to scan.", hint="Give at least one file or folder.")
    jobs: dict[str, Job] = {}
    for path in map(str, paths):
        if not os.path.exists(path):
            raise BadInput(f"There is no file or folder {path}.", hint="Check the path.")
        settings = read_settings(path)
        rules = choose_rules(select or settings.select, (*settings.ignore, *ignore))
        names = tuple(rule.name for rule in rules)
        for file in find_files([path], (*settings.exclude, *exclude)):
            jobs.setdefault(file, Job(file, names, fix, unsafe))
    return list(jobs.values())


def _run(jobs: list[Job], workers: int | None) -> list[Result]:
    count = min(workers or os.cpu_count() or 1, len(jobs) // _FILES_PER_PROCESS)
    if count < 2 or "fork" not in get_all_start_methods():
        return [scan_job(job) for job in jobs]
    # Forked processes need no `if __name__ == "__main__"` in the caller's script and have the rules loaded.
    with ProcessPoolExecutor(count, mp_context=get_context("fork")) as pool:
        return list(pool.map(scan_job, jobs, chunksize=8))


def scan_job(job: Job) -> Result:
    """Scan one file and fix it where that is asked for."""
    rules = tuple(find_rule(name) for name in job.rules)
    try:
        file = read_file(job.path)
        findings = find_in(file, rules)
        if not job.fix or not any(finding.fixable for finding in findings):
            return Result(findings)
        from pinchpoint.rules.engine import fixing

        text, count = fixing.fix_text(file, rules, matches_in, unsafe=job.unsafe)
        if count:
            fixing.write_fixed(file, text)
            file = read_file(job.path)
            findings = find_in(file, rules)
        return Result(findings, fixed=count)
    except CannotRead as error:
        return Result([], Unreadable(job.path, str(error)))


def find_in(file: File, rules: Sequence[Rule]) -> list[Finding]:
    """The findings in a file that no comment allows."""
    return [to_finding(file, source, rule, match) for source, rule, match in matches_in(file, rules)]


def matches_in(file: File, rules: Sequence[Rule]) -> list[tuple[Source, Rule, Match]]:
    if not any(word in file.text for word in _WORDS):
        return []
    matches: list[tuple[Source, Rule, Match]] = []
    rule = None
    try:
        source = Source(file.path, file.text, file.tree)
        allowed = allowances(source)
        for rule in rules:
            places = {}  # a rule may reach a place in two ways
            for match in rule.check(source):
                if not is_allowed(source, rule, match, allowed):
                    key = (match.node.lineno, match.node.col_offset, *match.values.values())
                    places.setdefault(key, match)
            matches += [(source, rule, match) for match in places.values()]
    except RecursionError as error:
        raise CannotRead("its expressions are nested too deeply") from error
    except Exception as error:  # one file must not end the scan of the others; the file is named
        name = rule.name if rule is not None else "reading"
        raise CannotRead(
            f"{name} failed with {type(error).__name__}: {error}; this is a bug in pinchpoint"
        ) from error
    return matches


def to_finding(file: File, source: Source, rule: Rule, match: Match) -> Finding:
    cell, line = file.place(match.node.lineno)
    message = rule.message.format(**match.values)
    return Finding(
        rule=rule.code,
        name=rule.name,
        file=file.path,
        line=line,
        column=source.characters(match.node.lineno, match.node.col_offset) + 1,
        message=message if cell is None else f"Cell {cell}: {message}",
        hint=rule.hint.format(**match.values),
        fixable=rule.fix is not None and match.fixable,
    )
