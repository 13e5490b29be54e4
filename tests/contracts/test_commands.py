"""Every command of the documentation runs and prints what the page says, or says why it is not run."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.contracts.commands import ROOT, Block, arguments, blocks, contradictions, differences, pages

from pinchpoint.cli.main import build

LANGUAGES = {"sh", "console", "python", "json", "toml", "yaml", "text", "diff", "html", "markdown"}
SHOWN = [block for page in pages() for block in blocks(page)]
RUN = sorted({block.page for block in SHOWN if block.language in ("sh", "console") and not block.why_not_run})


def test_every_block_names_its_language() -> None:
    assert [(str(b.page.relative_to(ROOT)), b.text[:50]) for b in SHOWN if b.language not in LANGUAGES] == []


def test_every_command_has_only_options_that_exist() -> None:
    application: Any = typer.main.get_command(build())
    top = application.make_context("pinchpoint", [], resilient_parsing=True)
    wrong = []
    for block in [*SHOWN, *blocks(ROOT / "README.md"), *blocks(ROOT / "README.zh.md")]:
        for line, _ in block.commands() if block.language in ("sh", "console", "") else ():
            words = arguments(line)
            if not words or words[0] != "pinchpoint":
                continue
            part, context, rest = application, top, words[1:]
            try:
                while hasattr(part, "commands"):
                    _, part, rest = part.resolve_command(context, rest)
                part.make_parser(context).parse_args(rest)
            except Exception as error:
                wrong.append(f"{block.page.relative_to(ROOT)}: {line}: {error!r}")
    assert wrong == []


def test_pages_with_the_same_command_show_the_same_output() -> None:
    assert contradictions([*SHOWN, *blocks(ROOT / "README.md"), *blocks(ROOT / "README.zh.md")]) == []


def test_an_output_that_differs_from_another_page_is_listed() -> None:
    whole = Block(Path("a.md"), "console", "$ pinchpoint list\none  1\ntwo  2\nthree  3\n", 0, "")
    shorter = Block(Path("b.md"), "console", "$ pinchpoint list -o x.json\none  1\n...\nthree  3\n", 0, "why")
    older = Block(Path("c.md"), "console", "$ pinchpoint list\ntwo  4\n", 0, "why")
    assert contradictions([whole, shorter]) == []
    assert contradictions([whole, shorter, older]) == ["c.md: pinchpoint list: two  4"]


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = differences(page, tmp_path)
    if lines:
        command = f"python tests/contracts/commands.py {page.relative_to(ROOT)}"
        pytest.fail("\n".join([f"The page differs from what is printed; run {command}", *lines]))
    if page.stem == "out-of-memory":
        pytest.importorskip("PIL", reason="the screenshots are read with Pillow")
        screenshots = runpy.run_path(str(ROOT / "docs" / "hooks" / "screenshots.py"))
        assert screenshots["outdated"](tmp_path / "before.json", tmp_path / "after.json") == []
