"""`pinchpoint scan`: what is printed, exit codes, choices, settings, and files that are not Python."""

from __future__ import annotations

import json
import subprocess
import sys
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


def test_sarif_names_rule_place_and_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "slow.py", "--format", "sarif"]) == 1
    log = json.loads(capsys.readouterr().out)
    assert log["version"] == "2.1.0"
    (result,) = log["runs"][0]["results"]
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert rules[result["ruleIndex"]]["id"] == result["ruleId"] == "PP101"
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "slow.py"
    assert place["region"] == {"startLine": 5, "startColumn": 13}


def test_github_annotations_are_one_line_each(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scan", "slow.py", "--format", "github"]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("::warning file=slow.py,line=5,col=13,title=PP101 sync-in-loop::")


FIXABLE = """import torch


def padding(batch, device):  # größe
    return torch.zeros(
        batch,  # rows
        4,  # columns
    ).to(device)
"""
FIXED = """import torch


def padding(batch, device):  # größe
    return torch.zeros(
        batch,  # rows
        4,  # columns
        device=device,
    )
"""


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_fix_keeps_comments_layout_line_ends_and_permissions(folder: Path, ending: str) -> None:
    file = folder / "fixable.py"
    file.write_bytes(FIXABLE.replace("\n", ending).encode())
    file.chmod(0o755)
    assert run(["scan", "fixable.py", "--fix"]) == 0
    assert file.read_bytes().decode() == FIXED.replace("\n", ending)
    assert file.stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in folder.iterdir()) == ["fixable.py", "pyproject.toml", "slow.py"]
    assert run(["scan", "fixable.py", "--fix"]) == 0
    assert file.read_bytes().decode() == FIXED.replace("\n", ending)


def test_a_dtype_goes_with_the_device(folder: Path) -> None:
    file = folder / "typed.py"
    file.write_text("import torch\nx = torch.zeros(3).to(device=device, dtype=dtype)\n", encoding="utf-8")
    assert run(["scan", "typed.py", "--fix"]) == 0
    assert file.read_text(encoding="utf-8").endswith("x = torch.zeros(3, device=device, dtype=dtype)\n")


def test_a_name_that_was_imported_alone_is_fixed_where_torch_is_imported(folder: Path) -> None:
    file = folder / "amp.py"
    text = "import torch\nfrom torch.cuda.amp import autocast\n\nwith autocast(enabled=use):\n    pass\n"
    file.write_text(text, encoding="utf-8")
    assert run(["scan", "amp.py", "--fix"]) == 0
    fixed = text.replace("with autocast(", 'with torch.amp.autocast("cuda", ')
    assert file.read_text(encoding="utf-8") == fixed


def test_an_unsafe_fix_is_made_only_when_asked_for(folder: Path) -> None:
    file = folder / "load.py"
    text = "import torch\n\nweights = torch.load('x.pt', weights_only=False)\n"
    file.write_text(text, encoding="utf-8")
    assert run(["scan", "load.py", "--fix"]) == 1
    assert file.read_text(encoding="utf-8") == text
    assert run(["scan", "load.py", "--unsafe-fixes"]) == 0
    assert "weights_only=True" in file.read_text(encoding="utf-8")


def test_an_allowed_finding_is_not_fixed(folder: Path) -> None:
    file = folder / "allowed.py"
    text = "import torch\n\nx = torch.zeros(3).to(device)  # pinchpoint: allow created-on-host\n"
    file.write_text(text, encoding="utf-8")
    assert run(["scan", "allowed.py", "--fix"]) == 0
    assert file.read_text(encoding="utf-8") == text


def notebook(*cells: str | list[str]) -> str:
    return json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "metadata": {}, "source": ["# torch"]},
                *(
                    {
                        "cell_type": "code",
                        "metadata": {},
                        "outputs": [],
                        "execution_count": None,
                        "source": cell,
                    }
                    for cell in cells
                ),
            ],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        indent=1,
    )


def test_a_notebook_is_scanned_as_one_program_with_lines_of_its_cells(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = notebook(
        ["%matplotlib inline\n", "!pip install torch\n", "import torch"],
        "%%bash\nfor x in y; do echo; done",
        [
            "%%time\n",
            "counts = torch.bincount(points.to(device))\n",
            "sizes = [counts[i].item() for i in cells]",
        ],
        "x = torch.zeros(3).to(device)\nprint?\n",
    )
    (folder / "demo.ipynb").write_text(text, encoding="utf-8")
    assert run(["scan", "demo.ipynb", "--format", "json"]) == 1
    first, second = json.loads(capsys.readouterr().out)["findings"]
    assert (first["name"], second["name"]) == ("created-on-host", "sync-in-loop")
    assert (second["line"], second["column"]) == (3, 10)
    assert second["message"].startswith("Cell 4: ")
    assert (first["line"], first["file"]) == (1, "demo.ipynb")


def test_a_fix_in_a_notebook_changes_only_its_line(folder: Path) -> None:
    text = notebook(["%matplotlib inline\n", "import torch\n", "x = torch.zeros(3).to(device)\n", "!ls"])
    (folder / "demo.ipynb").write_text(text, encoding="utf-8")
    assert run(["scan", "demo.ipynb", "--fix"]) == 0
    changed = text.replace("torch.zeros(3).to(device)", "torch.zeros(3, device=device)")
    assert (folder / "demo.ipynb").read_text(encoding="utf-8") == changed


def test_a_fix_in_a_notebook_may_remove_a_line(folder: Path) -> None:
    cell = [
        "%time\n",
        "import torch\n",
        "for x in data:\n",
        "    !ls\n",
        "    f(x)\n",
        "    torch.cuda.empty_cache()",
    ]
    text = notebook(cell, "y = 1\n")
    (folder / "demo.ipynb").write_text(text, encoding="utf-8")
    assert run(["scan", "demo.ipynb", "--unsafe-fixes"]) == 0
    sources = [c["source"] for c in json.loads((folder / "demo.ipynb").read_text(encoding="utf-8"))["cells"]]
    assert sources == [["# torch"], [*cell[:4], "    f(x)"], "y = 1\n"]


def test_a_failing_rule_names_the_file_and_spares_the_others(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinchpoint.rules.waits import sync_in_loop

    def fail(source: object, node: object) -> bool:
        raise KeyError("lost")

    (folder / "other.py").write_text("import torch\nx = torch.zeros(3).to(device)\n", encoding="utf-8")
    monkeypatch.setattr(sync_in_loop, "is_tensor", fail)
    assert run(["scan", ".", "--format", "json"]) == 1
    captured = capsys.readouterr()
    assert [finding["file"] for finding in json.loads(captured.out)["findings"]] == ["other.py"]
    assert "slow.py was not scanned: sync-in-loop failed with KeyError" in captured.err


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', "{", '{"cells": [1, {"cell_type": "code"}]}'])
def test_an_odd_notebook_does_not_crash_the_scan(folder: Path, text: str) -> None:
    (folder / "odd.ipynb").write_text(text, encoding="utf-8")
    assert run(["scan", "odd.ipynb"]) in (0, 2)


def test_many_files_are_scanned_by_several_processes_with_the_same_result(folder: Path) -> None:
    from pinchpoint import scan

    for number in range(90):
        (folder / f"part{number:02}.py").write_text(SLOW, encoding="utf-8")
    together = scan(folder, workers=2)
    assert together == scan(folder, workers=1)
    assert len(together) == 91


def test_a_scan_loads_no_framework_and_no_rewriter(folder: Path) -> None:
    code = "import sys; from pinchpoint.cli.main import run; run(['scan', 'slow.py']); print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "jax", "numpy", "libcst"} & set(process.stdout.split())
