from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.records import Verdict, load
from pinchpoint.verification import verify as verdict_module

PASS = Verdict(
    target="field",
    mode="train",
    size=4096,
    baseline="eager",
    variant="checkpoint",
    status="pass",
    reason="same results, 1.50x as fast",
    worst_error=1e-7,
    where="output values [3]",
    speedup=1.5,
    speedup_low=1.4,
    speedup_high=1.6,
    baseline_s=0.3,
    variant_s=0.2,
    comparisons=(
        {
            "name": "values",
            "what": "output",
            "error": 1e-7,
            "tolerance": 1e-5,
            "ok": True,
            "where": "[3]",
            "reason": "",
        },
    ),
    notes=("said beside it",),
)
FAIL = replace(
    PASS,
    status="fail",
    reason="gradient w: a zero gradient where the baseline has one",
    comparisons=(
        {
            "name": "w",
            "what": "gradient",
            "error": None,
            "tolerance": 1e-4,
            "ok": False,
            "where": "[0]",
            "reason": "zero",
        },
    ),
)
UNSURE = replace(PASS, status="inconclusive", reason="no measurable change")


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Verdict]:
    """The verdicts that `verify` returns for the field's two variants."""
    matches = {"checkpoint": PASS, "chunked": PASS}

    def verify(target: str, *, variant: str, **_: Any) -> Verdict:
        return replace(matches[variant], variant=variant)

    monkeypatch.setattr(verdict_module, "verify", verify)
    return matches


@pytest.mark.parametrize(
    ("one", "other", "plain", "strict"),
    [
        (PASS, PASS, 0, 0),
        (PASS, UNSURE, 0, 1),
        (UNSURE, UNSURE, 0, 1),
        (FAIL, PASS, 1, 1),
        (UNSURE, FAIL, 1, 1),
    ],
)
def test_the_worst_verdict_determines_the_exit_code(
    verdicts: dict[str, Verdict], one: Verdict, other: Verdict, plain: int, strict: int
) -> None:
    verdicts |= {"checkpoint": one, "chunked": other}
    assert run(["verify", "field"]) == plain
    assert run(["verify", "field", "--strict"]) == strict


def test_one_variant_writes_the_named_file_and_several_write_one_file_each(
    verdicts: dict[str, Verdict], tmp_path: Path
) -> None:
    path = tmp_path / "verdict.json"
    assert run(["verify", "field", "--variant", "chunked", "-o", str(path)]) == 0
    assert load(path) == replace(PASS, variant="chunked")
    path.unlink()
    assert run(["verify", "field", "-o", str(path)]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["verdict-checkpoint.json", "verdict-chunked.json"]


def test_failed_comparisons_are_listed(
    verdicts: dict[str, Verdict], capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts["chunked"] = FAIL
    assert run(["verify", "field", "--variant", "chunked"]) == 1
    shown = capsys.readouterr()
    for part in ("Keep eager, chunked failed: gradient w", "1.50 [1.40, 1.60]", "zero"):
        assert part in shown.out
    assert "said beside it" in shown.err


def test_json_prints_one_record_or_a_list(
    verdicts: dict[str, Verdict], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "field", "--variant", "chunked", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["variant"] == "chunked"
    assert run(["verify", "field", "--json"]) == 0
    assert [item["variant"] for item in json.loads(capsys.readouterr().out)] == ["checkpoint", "chunked"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("verify nowhere", "no target 'nowhere'"),
        ("verify field --variant nope", "has no variant 'nope'"),
        ("verify field --variant eager", "is the baseline itself"),
        ("verify field --variant chunked --size zero", "size 'zero'"),
        ("verify field --variant chunked --mode fly", "has no mode 'fly'"),
        ("verify field --variant chunked --repeats 2", "2 repeats"),
    ],
)
def test_bad_input_exits_2_in_two_lines(line: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert what in error
    assert hint.startswith("  hint: ")


def test_a_plain_factory_and_a_script_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def step_of(size, device):\n    return lambda: None\n")
    assert run(["verify", f"{tmp_path}/mine.py:step_of"]) == 2
    assert "is a plain factory" in capsys.readouterr().err
    assert run(["verify", f"{tmp_path}/mine.py"]) == 2
    assert "is a script" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_any_work(
    verdicts: dict[str, Verdict], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", "field", "-o", str(tmp_path / "absent" / "v.json")]) == 2
    assert "Cannot write" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
