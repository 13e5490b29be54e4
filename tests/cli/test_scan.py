"""`pinchpoint scan`: what is printed, exit codes, choices, settings, and files that are not Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinchpoint.cli.main import run

SLOW = """import torch

def sizes(points, device):
    counts = torch.bincount(points.to(device))
    return [counts[cell].item() for cell in range(len(counts))]
"""
LAST = SLOW.splitlines()[-1]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("", encoding="utf-8")
    (tmp_path / "slow.py").write_text(SLOW, encoding="utf-8")
    return tmp_path


def names(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [finding["name"] for finding in json.loads(capsys.readouterr().out)["findings"]]


def test_a_finding_has_a_place_a_sentence_and_a_hint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", "slow.py"]) == 1
    captured = capsys.readouterr()
    assert captured.out == (
        "slow.py:5:13: PP101 sync-in-loop: `counts[cell].item()` waits for the device in every turn of the"
        " loop.\n"
        "  hint: Read all values with one `.tolist()` or `.cpu()` outside the loop, or keep them on the"
        " device.\n"
    )
    assert captured.err == "1 finding in 1 file.\n"


def test_json_has_only_the_findings_with_the_keys_of_the_contract(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scan", ".", "--format", "json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert list(data) == ["findings"]
    assert list(data["findings"][0]) == [
        "rule",
        "name",
        "file",
        "line",
        "column",
        "message",
        "hint",
        "fixable",
    ]
    assert data["findings"][0]["file"] == "slow.py"
    assert (data["findings"][0]["line"], data["findings"][0]["column"]) == (5, 13)
    assert data["findings"][0]["fixable"] is False


def test_a_file_without_findings_exits_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slow.py").write_text("import torch\n", encoding="utf-8")
    assert run(["scan", "slow.py", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"findings": []}


@pytest.mark.parametrize("word", ["PP101", "pp101", "sync-in-loop", "PP1", "PP1xx", "waits", "PP2,PP1"])
def test_rules_are_chosen_by_number_name_or_family(
    folder: Path, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert run(["scan", "slow.py", "--format", "json", "--select", word]) == 1
    assert names(capsys) == ["sync-in-loop"]
    assert run(["scan", "slow.py", "--format", "json", "--ignore", word]) == 0


def test_settings_come_from_the_nearest_pyproject(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pyproject.toml").write_text('[tool.pinchpoint.scan]\nignore = ["waits"]\n', encoding="utf-8")
    assert run(["scan", "."]) == 0
    (folder / "pyproject.toml").write_text('[tool.pinchpoint.scan]\nexclude = ["slow*"]\n', encoding="utf-8")
    assert run(["scan", "."]) == 0
    (folder / "pyproject.toml").write_text('[tool.pinchpoint.scan]\nselect = ["PP2"]\n', encoding="utf-8")
    assert run(["scan", "."]) == 0
    assert run(["scan", ".", "--select", "PP1"]) == 1
    (folder / "pyproject.toml").write_text('[tool.pinchpoint.scan]\nignored = ["PP1"]\n', encoding="utf-8")
    assert run(["scan", "."]) == 2
    assert "unknown setting tool.pinchpoint.scan.ignored" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        f"{LAST}  # pinchpoint: allow sync-in-loop",
        f"{LAST}  # pinchpoint: allow unsafe-load, PP101",
        f"    # pinchpoint: allow sync-in-loop\n{LAST}",
        "    return [\n        counts[cell].item()\n        for cell in range(len(counts))\n"
        "    ]  # pinchpoint: allow sync-in-loop",
    ],
)
def test_a_comment_allows_a_finding(folder: Path, line: str) -> None:
    lines = SLOW.splitlines()
    (folder / "slow.py").write_text("\n".join([*lines[:-1], line, ""]), encoding="utf-8")
    assert run(["scan", "slow.py"]) == 0


def test_a_comment_for_another_rule_allows_nothing(folder: Path) -> None:
    (folder / "slow.py").write_text(
        SLOW.rstrip() + "  # pinchpoint: allow created-on-host\n", encoding="utf-8"
    )
    assert run(["scan", "slow.py"]) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.py"], "There is no file or folder missing.py."),
        (["slow.py", "--select", "sync-in-lop"], "Did you mean sync-in-loop?"),
        (["slow.py", "--format", "xml"], "There is no format 'xml'."),
        ([], "The argument PATH... is missing."),
    ],
)
def test_bad_usage_exits_with_2_and_a_hint(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    assert run(["scan", *arguments]) == 2
    captured = capsys.readouterr()
    assert text in captured.err and "hint:" in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"import torch\nprint 'old'\n",
        b"import torch\n\x00\n",
        b"# coding: utf-8\nx = '\xff'  # torch\n",
        b"# coding: no-such-code\n",
        b"x = " + b"(" * 3000 + b"\n",
        b"\x7fELF torch",
    ],
)
def test_a_file_that_is_not_python_is_named_and_the_others_are_scanned(
    folder: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    (folder / "odd.py").write_bytes(data)
    assert run(["scan", "odd.py"]) == 2
    assert "odd.py was not scanned: " in capsys.readouterr().err
    assert run(["scan", ".", "--format", "json"]) == 1
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)["findings"]) == 1
    assert "odd.py was not scanned: " in captured.err


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n" + "x = " + "+".join(["torch.y"] * 5000) + "\n",
        "import torch\n" + "x = " + "-" * 900 + "torch.y\n",
        "import torch\nx = torch.y" + ".z()" * 900 + "\n",
        "import torch\n" + "".join("    " * i + "if x:\n" for i in range(90)) + "    " * 90 + "pass\n",
        "",
        "\ufeffimport torch\n",
        "import torch\r\nfor i in range(99):\r\n    torch.mm(a, b).item()\r\n",
        "import torch\n\x0cdef f(): pass\n",
    ],
)
def test_odd_but_valid_files_do_not_crash_the_scan(folder: Path, text: str) -> None:
    (folder / "odd.py").write_text(text, encoding="utf-8", newline="")
    assert run(["scan", "odd.py"]) in (0, 1, 2)


def test_columns_count_characters(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "slow.py").write_text(
        "import torch\nfor i in range(99):\n    s = 'größe'; torch.mm(a, b).item()\n", encoding="utf-8"
    )
    assert run(["scan", "slow.py"]) == 1
    assert capsys.readouterr().out.startswith("slow.py:3:18: PP101")


def test_a_rule_is_explained_with_both_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "PP101"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PP101 sync-in-loop: A loop or comprehension reads")
    assert "Bad:" in out and "Good:" in out and "# pinchpoint: allow sync-in-loop" in out
    assert run(["explain", "PP999"]) == 2
