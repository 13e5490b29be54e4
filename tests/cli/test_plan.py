from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.records import Plan, load
from pinchpoint.core.units import GIB, MIB
from pinchpoint.planning import plan as plan_module
from pinchpoint.planning.checkpointing import plan_checkpointing

MADE = Plan(
    target="field",
    mode="train",
    budget_bytes=24 * GIB,
    size=2_000_000,
    chunk=None,
    variant="checkpoint",
    margin_bytes=500 * MIB,
    peak_bytes=23 * GIB,
    tried=(
        {"size": 2_000_000, "variant": "checkpoint", "chunk": None, "total_bytes": 23 * GIB, "fits": True},
    ),
    choices=(
        {"variant": "eager", "size": None, "chunk": None, "peak_bytes": None, "why": "does not fit"},
        {"variant": "checkpoint", "size": 2_000_000, "chunk": None, "peak_bytes": 23 * GIB, "why": ""},
    ),
    cards=(
        {
            "card": "t4",
            "budget_bytes": 14 * GIB,
            "size": 1_000_000,
            "variant": "checkpoint",
            "chunk": None,
            "how": "interpolated",
        },
        {
            "card": "l4",
            "budget_bytes": 22 * GIB,
            "size": None,
            "variant": "checkpoint",
            "chunk": None,
            "how": "unknown",
        },
    ),
    notes=("said beside it",),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    def plan(target: str, **options: Any) -> Plan:
        calls.append({"target": target, **options})
        return MADE

    monkeypatch.setattr(plan_module, "plan", plan)
    return calls


def test_the_plan_is_printed_and_written(
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    assert run(["plan", "field", "--budget", "24GiB", "-o", str(path)]) == 0
    assert load(path) == MADE
    shown = capsys.readouterr()
    for part in (
        "2M",
        "checkpoint",
        "23.00 GiB",
        "500.00 MiB",
        "does not fit",
        "t4",
        "1M",
        "interpolated",
        "not found",
    ):
        assert part in shown.out
    assert "said beside it" in shown.err


def test_json_prints_only_the_record(asked: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "field", "--budget", "24GiB", "--json"]) == 0
    assert Plan.from_dict(json.loads(capsys.readouterr().out)) == MADE


def test_every_option_reaches_the_plan(asked: list[dict[str, Any]]) -> None:
    line = (
        "plan train.py --budget 24GiB --mode infer --cards all --vary --bs={} --multiple 8 --up-to 1k"
        " --world-size 8,16 --rank all --local-world-size 4"
        " --set mlp=64,64 --seed 3 --timeout 9 -- --lr 1 --mode x"
    )
    assert run(line.split()) == 0
    (call,) = asked
    call.pop("progress")
    call.pop("on_result")
    assert call == {
        "target": "train.py",
        "budget": "24GiB",
        "mode": "infer",
        "size": None,
        "variant": None,
        "cards": "all",
        "vary": "--bs={}",
        "args": ["--lr", "1", "--mode", "x"],
        "world_size": "8,16",
        "rank": "all",
        "local_world_size": 4,
        "multiple": "8",
        "up_to": "1k",
        "seed": 3,
        "timeout_s": 9.0,
        "settings": {"mlp": ("64,64",)},
        "model": None,
        "script": None,
        "allow_network": False,
        **dict.fromkeys(("task", "batch", "sequence", "new_tokens", "optimizer", "precision", "sharding")),
    }


def test_an_unknown_answer_exits_1_with_its_reasons(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = {"size": None, "how": "unknown", "possible_size": 48}
    doubtful = replace(
        MADE,
        target="train.py",
        size=None,
        variant=None,
        axis="batch size",
        possible_size=64,
        reasons=("a device value decides when the loop at train.py:9 ends",),
        choices=(),
        cards=(MADE.cards[1] | unknown,),
    )
    monkeypatch.setattr(plan_module, "plan", lambda target, **_: doubtful)
    assert run(["plan", "train.py", "--budget", "24GiB", "--vary", "--batch-size {}"]) == 1
    shown = capsys.readouterr()
    assert "unknown which batch size fits" in shown.out and "unknown up to 48" in shown.out
    assert "at most         64" in shown.out and "points" not in shown.out
    assert "the peak may be higher: a device value decides when the loop at train.py:9" in shown.err


def test_a_plan_is_readable_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    why = "the variant raised RuntimeError: " + "a long message of torch " * 4
    path = "/home/someone/" + "folder/" * 12 + "train.py"
    wide = replace(MADE, target=path, choices=(MADE.choices[0] | {"why": why}, MADE.choices[1]))
    monkeypatch.setattr(plan_module, "plan", lambda target, **_: wide)
    assert run(["plan", "train.py", "--budget", "24GiB", "--vary", "--batch-size {}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count("torch") == 4  # nothing is cut
    assert lines[0].startswith("Use size 2M, the variant checkpoint: the predicted total is 23.00 GiB")
    assert lines[3].endswith("folder/train.py")


def test_answers_are_saved_before_the_plan_is_complete(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(target: str, *, on_result: Any, **_: Any) -> Plan:
        on_result(replace(MADE, complete=False))
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_module, "plan", stopped)
    path = tmp_path / "plan.json"
    assert run(["plan", "field", "--cards", "all", "-o", str(path)]) == 130
    record = load(path)
    assert isinstance(record, Plan) and record.size == MADE.size and not record.complete
    assert f"are in {path}" in capsys.readouterr().err


def test_a_plan_that_does_not_fit_exits_1_with_an_error_and_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(target: str, **_: Any) -> Plan:
        raise DoesNotFit("field needs 5 GiB", hint="raise --budget")

    monkeypatch.setattr(plan_module, "plan", refuse)
    assert run(["plan", "field", "--budget", "4GiB"]) == 1
    assert capsys.readouterr().err.splitlines()[-2:] == ["error: field needs 5 GiB", "  hint: raise --budget"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("plan field", "A plan needs a budget or cards"),
        ("plan nowhere --budget 8GiB", "no target 'nowhere'"),
        ("plan field --budget 24", "not a number of bytes"),
        ("plan field --budget rtx9999", "There is no card"),
        ("plan field --budget 8GiB --size -3", "size '-3'"),
        ("plan field --budget 8GiB --variant nope", "has no variant 'nope'"),
    ],
)
def test_bad_input_exits_2_in_two_lines(line: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    error, hint = capsys.readouterr().err.splitlines()[-2:]
    assert error.startswith("error: ")
    assert what in error
    assert hint.startswith("  hint: ")


def test_a_folder_that_cannot_be_written_is_refused_before_any_run(
    asked: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "field", "--budget", "8GiB", "-o", str(tmp_path / "absent" / "plan.json")]) == 2
    assert run(["plan", "field", "--budget", "8GiB", "-o", str(tmp_path)]) == 2
    assert "Cannot write" in capsys.readouterr().err
    assert asked == []
    assert list(tmp_path.iterdir()) == []


def test_checkpointing_prints_the_modules_and_the_code(
    samples: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result, calls = samples["checkpointing"], []
    monkeypatch.setattr(
        plan_checkpointing, "plan_checkpointing", lambda target, **how: calls.append((target, how)) or result
    )
    path = tmp_path / "plan.json"
    line = ["plan", "train.py", "--budget", "rtx4090", "--checkpointing", "auto", "-o", str(path), "--", "-x"]
    assert run(line) == 0
    assert load(path) == result
    ((target, how),) = calls
    assert (target, how["budget"], how["args"]) == ("train.py", "rtx4090", ["-x"])
    shown = capsys.readouterr().out
    for part in (
        "blocks.0-1",
        "22.00 GiB",
        "10.00 ms per step, 5%",
        "    from torch.utils.checkpoint import",
    ):
        assert part in shown
    monkeypatch.setattr(
        plan_checkpointing, "plan_checkpointing", lambda target, **_: replace(result, fits=None)
    )
    assert run([*line[:6], "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--checkpointing", "all", "--budget", "24GiB"], "--checkpointing 'all' is not known"),
        (["--checkpointing", "auto"], "needs a budget"),
        (["--checkpointing", "auto", "--budget", "24GiB", "--vary", "-b {}"], "together with --vary"),
        (["--checkpointing", "auto", "--budget", "24GiB", "--cards", "all"], "together with --cards"),
        (["--checkpointing", "auto", "--budget", "24GiB", "--task", "lora"], "together with --task"),
    ],
)
def test_options_that_do_not_go_with_checkpointing_are_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "train.py", *options]) == 2
    assert message in capsys.readouterr().err
