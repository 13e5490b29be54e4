"""Scan source files for slow, wasteful, or wrong PyTorch and JAX code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

import pinchpoint
from pinchpoint.console import printing
from pinchpoint.core.errors import BadInput

if TYPE_CHECKING:
    from pinchpoint.core.findings import Finding, Findings

FORMATS = ("text", "json", "sarif", "github")


def command(
    paths: list[str] = typer.Argument(..., metavar="PATH...", help="Files, notebooks and folders to scan."),
    select: list[str] = typer.Option(
        None, "--select", metavar="RULES", help="Only these rules: PP101, sync-in-loop, or PP1 for a family."
    ),
    ignore: list[str] = typer.Option(None, "--ignore", metavar="RULES", help="Leave out these rules."),
    exclude: list[str] = typer.Option(
        None, "--exclude", metavar="PATTERN", help="Leave out files and folders such as tests or *_pb2.py."
    ),
    fix: bool = typer.Option(False, "--fix", help="Rewrite what can be fixed without changing results."),
    unsafe_fixes: bool = typer.Option(
        False, "--unsafe-fixes", help="Make the other fixes too; they may change results. Review the changes."
    ),
    form: str = typer.Option(
        "text", "--format", metavar="|".join(FORMATS), help="How to print the findings."
    ),
) -> int:
    """Find slow, wasteful, or wrong PyTorch and JAX code: waits, recompiles, memory, copies, wrong answers.

    Nothing is imported or run. The exit code is 1 if there are findings. A comment
    `# pinchpoint: allow NAME` on the line allows one; `pinchpoint explain NAME` describes a rule.
    """
    from pinchpoint.rules.engine.formats import to_github, to_sarif
    from pinchpoint.rules.scan import scan

    if form not in FORMATS:
        raise BadInput(f"There is no format {form!r}.", hint=f"Use one of: {', '.join(FORMATS)}.")
    findings = scan(
        *paths,
        select=_words(select),
        ignore=_words(ignore),
        exclude=exclude or (),
        fix=fix,
        unsafe_fixes=unsafe_fixes,
    )
    if form == "text":
        _show(findings)
    elif form == "json":
        printing.show_json(findings.to_json())
    elif form == "sarif":
        printing.show_json(to_sarif(findings, pinchpoint.__version__))
    else:
        sys.stdout.write(to_github(findings))
    for fault in findings.unreadable:
        printing.say(f"{fault.file} was not scanned: {fault.reason}.")
    return 1 if findings.findings else 2 if findings.unreadable else 0


def _words(values: list[str] | None) -> list[str]:
    """The words of an option that is given several times or with commas."""
    return [word for value in values or () for word in value.replace(",", " ").split()]


def _show(findings: Findings) -> None:
    for finding in findings:
        printing.show(_line(finding))
        printing.show(f"  hint: {finding.hint}")
    count, files = len(findings), findings.files
    if findings.fixed:
        printing.say(f"{findings.fixed} fixed.")
    printing.say(f"{count} finding{'' if count == 1 else 's'} in {files} file{'' if files == 1 else 's'}.")


def _line(finding: Finding) -> str:
    place = f"{finding.file}:{finding.line}:{finding.column}"
    return f"{place}: {finding.rule} {finding.name}: {finding.message}"
