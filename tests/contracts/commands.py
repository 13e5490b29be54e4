"""The command blocks of the documentation: found, parsed, and run.

A block of `sh` holds commands; a block of `console` holds commands after `$ ` with what they print. A block
with the comment `<!-- not run: why -->` above it is only parsed. The others run in the order of the page, in
one folder that holds the files of examples/, and a `diff` block changes the file that it names. Times in what
a command prints may differ, and a line of `...` stands for any lines.

    python tests/contracts/commands.py docs/tutorials/out-of-memory.md     # write what the commands print now

With --all, blocks that are not run by the tests run too.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
WHY = re.compile(r"<!-- not run: (\S.*?) -->\s*$")


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str
    start: int  # of the text in the page
    why_not_run: str  # empty if it runs

    def commands(self) -> list[tuple[str, str]]:
        """Return every command with what the page says it prints."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if not self.text.startswith("$ "):
            return [(line, "") for line in lines if line.strip() and not line.startswith("#")]
        commands: list[tuple[str, list[str]]] = []
        for line in lines:
            if line.startswith("$ "):
                commands.append((line.removeprefix("$ "), []))
            elif commands:
                commands[-1][1].append(line)
        return [(command, "\n".join(printed).strip("\n")) for command, printed in commands]


def pages() -> list[Path]:
    return [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for fence in FENCE.finditer(text):
        mark = WHY.search(text, 0, fence.start())
        yield Block(page, fence[2], fence[3], fence.start(3), mark[1] if mark else "")


def arguments(command: str) -> list[str]:
    """Split a command as a shell does, without its comment."""
    return shlex.split(command, comments=True)


def run(command: str, folder: Path) -> str:
    """Run one command in the folder and return what it prints; only what the pages need is supported."""
    from pinchpoint.cli.main import run as pinchpoint

    words = arguments(command)
    if words[0] == "cp":
        shutil.copy(folder / words[1], folder / words[2])
        return ""
    assert words[0] == "pinchpoint", f"the tests cannot run {words[0]}; mark the block: <!-- not run: why -->"
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        code = pinchpoint(words[1:])
    assert code in (0, 1), f"{command} ended with exit code {code}"
    return printed.getvalue().strip("\n")


def apply(diff: str, folder: Path) -> None:
    """Change a file as a diff block says, which starts with `--- name`."""
    name = diff.partition("\n")[0].removeprefix("--- ")
    text = (folder / name).read_text(encoding="utf-8")
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] in " -")
        after = "".join(line[1:] for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"the diff does not apply to {name}:\n{hunk}"
        text = text.replace(before, after)
    (folder / name).write_text(text, encoding="utf-8")


def differences(page: Path, folder: Path) -> list[str]:
    """Run the blocks of a page in the folder and list where they print something else."""
    differ = []
    for command, printed, now in _results(page, folder):
        parts = re.split(r"^\.\.\.\n", _comparable(printed), flags=re.MULTILINE)
        pattern = ".*".join(map(re.escape, parts))
        if printed and not re.fullmatch(pattern, _comparable(now), re.DOTALL):
            differ += difflib.unified_diff(
                printed.splitlines(), now.splitlines(), "page", command, lineterm=""
            )
    return differ


def contradictions(shown: list[Block]) -> list[str]:
    """List the lines of a command that the longest output shown for it does not have, in that order.

    A page may leave lines out of what a command prints, and writing a record (`-o FILE`) does not change it.
    """
    outputs: dict[str, list[tuple[Path, list[str]]]] = {}
    for block in shown:
        for command, printed in block.commands() if block.text.startswith("$ ") else ():
            lines = [line for line in _comparable(printed).splitlines() if line not in ("", "...")]
            outputs.setdefault(re.sub(r" -o \S+", "", command), []).append((block.page, lines))
    wrong = []
    for command, pages_with_it in outputs.items():
        longest = max((lines for _, lines in pages_with_it), key=len)
        for page, lines in pages_with_it:
            rest = iter(longest)
            wrong += [f"{page.name}: {command}: {line}" for line in lines if line not in rest]
    return wrong


def _results(page: Path, folder: Path, *, every: bool = False) -> Iterator[tuple[str, str, str]]:
    for path in (ROOT / "examples").iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
    for block in blocks(page):
        if block.language == "diff":
            apply(block.text, folder)
        elif block.language in ("sh", "console") and (every or not block.why_not_run):
            for command, printed in block.commands():
                yield command, printed, run(command, folder)


def _comparable(text: str) -> str:
    lines = (line.rstrip() for line in re.sub(r"\d+(\.\d+)? (m|µ)?s\b", "TIME", text).splitlines())
    return "\n".join(lines) + "\n"


def rewrite(page: Path, folder: Path, *, every: bool = False) -> None:
    """Write what the commands of the page print now into it; blocks with a line of `...` stay as they are."""
    text = page.read_text(encoding="utf-8")
    for command, printed, now in _results(page, folder, every=every):
        if printed and not re.search(r"^\.\.\.$", printed, re.MULTILINE):
            shown = "\n".join(line.rstrip() for line in now.splitlines())
            text = text.replace(f"$ {command}\n{printed}", f"$ {command}\n{shown}")
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    os.environ["COLUMNS"] = "80"
    names = [name for name in sys.argv[1:] if name != "--all"]
    for name in names:
        with tempfile.TemporaryDirectory() as scratch:
            rewrite(Path(name).resolve(), Path(scratch), every="--all" in sys.argv)
