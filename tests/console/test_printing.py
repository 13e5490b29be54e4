"""Printing: results go to stdout and remarks to stderr; what is narrow has 80 columns when piped."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.console import printing
from pinchpoint.core.records import Record
from pinchpoint.core.units import show_size


def test_a_summary_is_one_line_per_pair_and_keeps_brackets(
    capsys: pytest.CaptureFixture[str], samples: dict[str, Record]
) -> None:
    printing.show_summary(samples["verdict"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(samples["verdict"].summary())
    assert any(
        line.split() == ["size", f"{show_size(samples['verdict'].size)},", samples["verdict"].mode]
        for line in lines
    )
    assert any(line.startswith("speed-up") and line.endswith("1.50 [1.40, 1.60]") for line in lines)


def test_a_command_can_be_copied_whatever_the_name_of_the_folder() -> None:
    assert (
        printing.shell_command("vmc", "eval", Path("my run"), "-o", "e.json")
        == "pinchpoint vmc eval 'my run' -o e.json"
    )
    again = printing.shell_command("radiance", "train", "cars", "-o", "my run", "--resume", processes="2")
    assert again == "torchrun --nproc-per-node 2 -m pinchpoint radiance train cars -o 'my run' --resume"


def test_a_line_number_is_not_an_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    printing.show("train.py:100:31: waits")
    assert capsys.readouterr().out == "train.py:100:31: waits\n"


def test_a_piped_line_is_never_wrapped_unless_it_is_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    text = "word " * 39 + "word"
    printing.show(text)
    printing.say(text)
    shown = capsys.readouterr()
    assert shown.out == shown.err == f"{text}\n"
    printing.show_narrow(text)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= 80
    printing.show_narrow("x" * 1000)
    assert capsys.readouterr().out == "x" * 1000 + "\n"


def test_a_path_is_shortened_in_the_middle_and_its_name_is_kept() -> None:
    path = "/home/someone/projects/vision/task/train.py:12"
    assert printing.shorten_path(path, 80) == path
    assert printing.shorten_path(path, 40) == "/home/.../vision/task/train.py:12"
    assert printing.shorten_path(path, 32) == "/home/.../task/train.py:12"
    assert printing.shorten_path(path, 20) == ".../task/train.py:12"
    assert printing.shorten_path(path, 10) == ".../train.py:12"


def test_a_summary_is_readable_at_80_columns(
    capsys: pytest.CaptureFixture[str], samples: dict[str, Record]
) -> None:
    verdict: Any = samples["verdict"]
    path = "/very/long/" + "folder/" * 20 + "train.py"
    printing.show_summary(replace(verdict, target=path, where="because " * 20))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    words = lines[0].split()
    assert (
        words[0] == "target" and words[1].startswith("/very/.../folder/") and words[1].endswith("/train.py")
    )
    assert " ".join(lines).count("because") == 20


def test_a_wide_table_has_80_columns_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("a" * 30, 123_456_789, "one two three four five six seven eight nine ten " * 3)]
    printing.show_narrow_table(("name", "bytes", "why"), rows, right=("bytes",))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(lines)
    assert "a" * 30 in shown and "123456789" in shown and shown.count("ten") == 3
    numbers = tuple(f"number {n}" for n in range(12))
    printing.show_narrow_table(("name", *numbers), [("row", *(10**9 + n for n in range(12)))], right=numbers)
    header, row = capsys.readouterr().out.splitlines()
    assert all(name in header for name in numbers) and "1000000011" in row


def test_a_piped_table_has_one_row_per_line_and_no_escape_codes(capsys: pytest.CaptureFixture[str]) -> None:
    printing.show_table(("name", "bytes"), [("[bold]a[/bold]", 12), ("b", 3)], right=("bytes",))
    out = capsys.readouterr().out
    assert "\x1b" not in out
    header, first, second = out.splitlines()
    assert first.startswith("[bold]a[/bold]")
    assert len(first.rstrip()) == len(second.rstrip()) == len(header.rstrip())


def test_piped_progress_is_one_line_per_stage_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with printing.progress("study") as tell:
        tell("1k points")
        tell("2k points")
    records_seen = capsys.readouterr()
    assert records_seen.out == ""
    assert [line.split("study: ")[1] for line in records_seen.err.splitlines()] == ["1k points", "2k points"]


def test_json_is_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    text = '{"a": "' + "y" * 500 + ' [red]"}'
    printing.show_json(text)
    assert capsys.readouterr().out == text + "\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_lines_are_wrapped_between_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout", out := Terminal())
    printing.show(
        "  flat train: declared flat, but grows by 12 B/point"
        " at /a/long/path/that/is/never/cut/in/two/whatever\n\nend"
    )
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["  flat train: declared flat, but grows", "    by 12 B/point at"]
    assert lines[2:] == ["    /a/long/path/that/is/never/cut/in/two/whatever", "", "end"]


def test_a_piped_table_has_no_blanks_at_the_end_of_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    printing.show_table(("name", "about", ""), [("a", "long enough", "x"), ("b", "short", "")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines == [line.rstrip() for line in lines]
