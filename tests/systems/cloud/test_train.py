"""Training: a run that is stopped and resumed equals an uninterrupted run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.systems.common.training.recording_card import RecordingCard

from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.settings import Settings
from pinchpoint.systems.cloud.train import _decide_recorded_steps, _Learner, train
from pinchpoint.systems.cloud.training import recorded_steps
from pinchpoint.systems.cloud.training.breakdown import Log, Row
from pinchpoint.systems.cloud.training.budget import ViewsModeChoice
from pinchpoint.systems.cloud.training.recorded_steps import RecordedSteps, may_record
from pinchpoint.systems.cloud.training.runs import load_trained, read_settings
from pinchpoint.systems.cloud.training.training_step import Stepper
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.checkpoints import Checkpoints
from pinchpoint.systems.common.training.training_loop import NOTE, Report

STEPS = 6


def at_step(number: int, act: Callable[[], None]) -> Callable[[Report], None]:
    """Return a progress callback that calls `act` once, after that step."""

    def watch(report: Report) -> None:
        if report.stage == "train" and report.done == number:
            act()

    return watch


def last_state(run: Path) -> dict[str, Any]:
    record = Checkpoints(run / "checkpoints")
    entry = record.last()
    assert entry is not None
    return record.load(entry)


def assert_same(one: Any, other: Any, where: str = "state") -> None:
    """Assert that all tensors and numbers are identical, except for times."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert set(one) == set(other), where
        for key in one:
            if key != "seconds":
                assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_same(a, b, f"{where}[{at}]")
    else:
        assert one == other, where


@pytest.fixture
def choices(tiny_net: dict[str, Any]) -> dict[str, Any]:
    model = {**tiny_net["model"], "norm": "per-view"}
    views = ["dense", "log-uniform:0.2:1"]
    return {
        **tiny_net,
        "model": model,
        "views": views,
        "consistency": "kl",
        "steps": STEPS,
        "ema": 0.9,
        "validation": 1,
        "checkpoint_every": 3,
    }


@pytest.fixture
def whole(tiny_rooms: Path, tmp_path: Path, choices: dict[str, Any]) -> Path:
    train(tiny_rooms, tmp_path / "whole", **choices)
    return tmp_path / "whole"


def test_a_run_stopped_by_a_signal_and_resumed_equals_an_uninterrupted_run(
    tiny_rooms: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(tiny_rooms, run, progress=at_step(2, lambda: os.kill(os.getpid(), signal.SIGINT)), **choices)
    assert 2 <= last_state(run)["step"] < STEPS
    record = train(tiny_rooms, run, resume=True)
    assert record.step == STEPS and record.complete
    assert_same(last_state(whole), last_state(run))
    assert [row.loss for row in logs.read(run / "log.csv")] == [
        row.loss for row in logs.read(whole / "log.csv")
    ]


def test_the_record_and_the_log_contain_the_times_and_points(tiny_rooms: Path, whole: Path) -> None:
    record = train(tiny_rooms, whole, resume=True)  # the run is complete, so nothing is trained
    rows = [row for row in Log.read(whole / "log.csv") if isinstance(row, Row)]
    assert len(rows) == STEPS
    for row in rows:
        assert all(
            value is not None and value > 0 for value in (row.sampling_s, row.forward_s, row.consistency_s)
        )
        parts = [
            row.data_s,
            row.sampling_s,
            row.forward_s,
            row.consistency_s,
            row.backward_s,
            row.optimizer_s,
        ]
        assert 0 < sum(part or 0 for part in parts) < 60
    assert set(record.breakdown) == {"data", "sampling", "forward", "consistency", "backward", "optimizer"}
    # There are two scenes of 400 points, with all points in the dense view and 20 to 100 % in the other.
    assert 1.2 * 800 * STEPS <= record.points_seen <= 2 * 800 * STEPS
    assert record.validation is not None and 0 < record.validation < 1
    summary = dict(record.summary())
    assert summary["held back"].startswith(f"mIoU {1 - record.validation:.1%} at step")
    assert "sampling" in summary["a step"] and summary["views"] == "dense, log-uniform:0.2:1; batched"


def test_averaged_weights_keep_the_statistics_of_the_current_weights(whole: Path) -> None:
    state = last_state(whole)
    names = [name for name in state["ema"] if "running" in name]
    assert names and all(torch.equal(state["ema"][name], state["model"][name]) for name in names)
    assert any(state["ema"][name].abs().sum() > 0 for name in names if "mean" in name)
    assert load_trained(whole).step == STEPS


def test_a_run_can_be_resumed_with_another_views_mode_but_not_with_other_views(
    tiny_rooms: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(
            tiny_rooms,
            tmp_path / "run",
            progress=at_step(2, lambda: os.kill(os.getpid(), signal.SIGINT)),
            **choices,
        )
    with pytest.raises(BadInput, match=r"views \(was .*, is \['dense'\]\)"):
        train(tiny_rooms, tmp_path / "run", resume=True, views="dense")
    record = train(tiny_rooms, tmp_path / "run", resume=True, views_mode="accumulate")
    assert record.views_mode == "accumulate" == read_settings(tmp_path / "run").views_mode
    rows, expected_rows = (logs.read(folder / "log.csv") for folder in (tmp_path / "run", whole))
    assert [row.loss for row in rows] == pytest.approx([row.loss for row in expected_rows], rel=1e-3)


def test_views_alternate_between_steps_and_cells_may_be_flat(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    views, cell = ["dense", "one-per-cell"], (0.8, 0.8, 0.2)
    choices = {**tiny_net, "views": views, "schedule": "alternate", "scenes": 1, "augment": False}
    choices["model"] = {**tiny_net["model"], "norm": "per-view"}
    record = train(tiny_rooms, tmp_path / "run", steps=2, cell=cell, **choices)
    both = train(tiny_rooms, tmp_path / "both", steps=2, cell=0.2, **{**choices, "schedule": "together"})
    # The dense view has 400 points in each of two steps, or in the first of them only.
    assert 400 < record.points_seen < 800 < both.points_seen
    assert dict(record.summary())["views"] == "dense, one-per-cell; one per step, in turn"
    assert record.settings["cell"] == [0.8, 0.8, 0.2] or record.settings["cell"] == cell
    assert train(None, tmp_path / "run", resume=True, steps=3, cell=cell).step == 3
    assert train(None, tmp_path / "both", resume=True, steps=3, cell=(0.2,)).step == 3
    with pytest.raises(BadInput, match="cell"):
        train(None, tmp_path / "run", resume=True, steps=4, cell=(0.8, 0.8, 0.3))


def test_bf16_trains_and_differs_from_fp32(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    losses = []
    for precision in ("fp32", "bf16"):
        record = train(tiny_rooms, tmp_path / precision, steps=2, precision=precision, **tiny_net)
        losses.append(record.loss)
    assert losses[0] == pytest.approx(losses[1], rel=0.05) and losses[0] != losses[1]


def test_a_budget_that_is_too_small_is_rejected_before_a_run_is_created(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    with pytest.raises(DoesNotFit, match=r"the budget is 1\.00 MiB") as error:
        train(tiny_rooms, tmp_path / "run", budget="1MiB", steps=2, **tiny_net)
    assert "--budget" in error.value.hint and not (tmp_path / "run" / "config.json").exists()
    with pytest.raises(BadInput, match="There is no card 'much'"):
        train(tmp_path / "not_read", tmp_path / "run", budget="much")
    record = train(tiny_rooms, tmp_path / "run", budget="64GiB", steps=2, **tiny_net)
    assert (
        record.views_mode == "batched"
        and (record.predicted_bytes or 0) < (record.budget_bytes or 0) == 64 * 2**30
    )


@pytest.mark.parametrize("choices", [{"cell": 1e-7}, {"model": {"cell": 1e-7}}])
def test_cells_that_are_too_small_leave_no_run(
    tiny_rooms: Path, tmp_path: Path, choices: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=r"cells of 1e-07 long") as error:
        train(tiny_rooms, tmp_path / "run", steps=1, device="cpu", **choices)
    assert "Give cells of at least" in error.value.hint and not (tmp_path / "run").exists()


WORKER = """
import sys
import torch
torch.set_num_threads(1)
from pinchpoint.systems.cloud.train import train
choices = eval(sys.argv[3])
made = train(sys.argv[1], sys.argv[2], **choices)
assert made.complete and made.settings["ranks"] == 2, made
made = train(sys.argv[1], sys.argv[2], resume=True, steps=choices["steps"] + 1)
assert made.complete and made.step == choices["steps"] + 1, made
"""


@pytest.mark.slow
def test_torchrun_trains_two_processes_as_one_run_and_resumes_it(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    (tmp_path / "work.py").write_text(WORKER, encoding="utf-8")
    choices = {**tiny_net, "steps": 3, "validation": 1, "scenes": 1, "checkpoint_every": 1}
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            str(tmp_path / "work.py"),
            str(tiny_rooms),
            str(tmp_path / "run"),
            repr(choices),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert process.returncode == 0, process.stderr
    assert [row.step for row in logs.read(tmp_path / "run" / "log.csv")] == [1, 2, 3, 4]
    assert last_state(tmp_path / "run")["step"] == 4
    with pytest.raises(BadInput, match=r"ranks \(was 2, is 1\)"):
        train(tiny_rooms, tmp_path / "run", resume=True)


def test_torchrun_with_one_process_is_a_plain_run(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert train(tiny_rooms, tmp_path / "run", steps=1, **tiny_net).complete
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(BadInput, match="WORLD_SIZE is 'two'"):
        train(tiny_rooms, tmp_path / "other", steps=1, **tiny_net)
    assert not (tmp_path / "other").exists()
    assert replace(read_settings(tmp_path / "run"), steps=2).ranks == 1


@pytest.mark.parametrize(
    ("setting", "option"),
    [
        ({"model": {"norm": "batch"}}, "--set norm=batch"),
        ({"views_mode": "accumulate"}, "--set views_mode=accumulate"),
    ],
)
def test_recorded_steps_are_refused_with_settings_that_they_do_not_support(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any], setting: dict[str, Any], option: str
) -> None:
    model = {**tiny_net["model"], **setting.get("model", {})}
    choices = {**tiny_net, **setting, "model": model, "steps": 1, "record_steps": True}
    with pytest.raises(BadInput, match=f"record_steps=true cannot be combined with {option}"):
        train(tiny_rooms, tmp_path / "run", **choices)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("asked", [None, True])
@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        (None, None),
        (ViewsModeChoice("batched", 9 * 2**30, 10 * 2**30, 5 * 2**30, 9 * 2**30), None),
        (
            ViewsModeChoice("batched", 4 * 2**30, 8 * 2**30, 0, 9 * 2**30),
            "with recorded steps, the run would need 9.00 GiB of memory, and the budget is 8.00 GiB.",
        ),
        (
            ViewsModeChoice("accumulate", 4 * 2**30, 8 * 2**30),
            "to fit into the budget, the views are processed one after another.",
        ),
    ],
)
def test_steps_are_recorded_if_the_budget_has_room_and_otherwise_a_note_says_why_not(
    asked: bool | None, choice: ViewsModeChoice | None, reason: str | None
) -> None:
    notes: list[str] = []
    tell = lambda report: notes.append(report.note)  # noqa: E731
    assert _decide_recorded_steps(asked, choice, tell) is (reason is None)
    assert notes == ([] if reason is None else [f"No step is recorded: {reason}"])
    notes.clear()
    assert not _decide_recorded_steps(False, choice, tell) and not notes


def test_the_choice_of_recorded_steps_is_not_stored_with_a_run(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    """A run that began on a CPU records its steps when it is resumed on a GPU."""
    train(tiny_rooms, tmp_path / "run", steps=1, **tiny_net)
    assert read_settings(tmp_path / "run").record_steps is None
    # Settings that cannot be recorded are possible later, because nobody asked for recorded steps.
    train(tiny_rooms, tmp_path / "run", resume=True, steps=2, views_mode="accumulate")
    assert read_settings(tmp_path / "run").record_steps is None


def test_a_run_whose_budget_leaves_no_room_for_recorded_steps_can_be_resumed(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views one after another cannot be recorded, and a run that asks for both is refused."""
    one_by_one = ViewsModeChoice("accumulate", 2**30, 2**33)
    monkeypatch.setattr("pinchpoint.systems.cloud.train.views_mode_for", lambda *_, **__: one_by_one)
    choices = {**tiny_net, "views": ["dense", "one-per-cell"], "record_steps": True}
    train(tiny_rooms, tmp_path / "run", steps=1, budget="8GiB", **choices)
    record = train(tiny_rooms, tmp_path / "run", resume=True, steps=2)
    assert (record.step, record.views_mode) == (2, "accumulate")


def test_a_validation_beside_recorded_steps_uses_the_memory_of_eager_ones(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded steps are stand-ins; on a GPU, eager ones have a stream of their own."""
    calls: list[str] = []
    card = RecordingCard(monkeypatch, free=10**9, step=10**6)
    monkeypatch.setattr(recorded_steps, "release_memory", lambda: calls.append("released"))
    own, steps = _Learner._validate, RecordedSteps()
    as_recorded = property(lambda stepper: steps, lambda stepper, value: None)
    monkeypatch.setattr(Stepper, "recorded_steps", as_recorded, raising=False)
    monkeypatch.setattr(_Learner, "_validate", lambda learner: calls.append(card.calls[-1]) or own(learner))
    record = train(tiny_rooms, tmp_path / "run", steps=1, **{**tiny_net, "validation": 1})
    assert card.calls == ["aside"] * 2, "the step and the validation"
    assert calls == ["aside", "released"] and record.validation is not None


def test_a_draw_without_memory_beside_recordings_is_made_again_without_them(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=10**6)
    steps = RecordedSteps(note=card.notes.append)
    steps._recorder.record("one", lambda: torch.zeros(2), clear=lambda: None)
    as_recorded = property(lambda stepper: steps, lambda stepper, value: None)
    monkeypatch.setattr(Stepper, "recorded_steps", as_recorded, raising=False)
    own, attempts = _Learner._prepare, []

    def prepare(learner: _Learner, number: int) -> Any:
        attempts.append(number)
        if attempts == [1, 2]:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return own(learner, number)

    monkeypatch.setattr(_Learner, "_prepare", prepare)
    record = train(tiny_rooms, tmp_path / "run", steps=2, **tiny_net)
    assert record.complete and attempts == [1, 2, 2]
    assert steps.recorded_sizes == 0
    assert card.notes == ["All further steps are eager: the run ran out of memory beside the recorded steps."]


def test_the_record_has_the_peak_of_the_reserved_memory(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pinchpoint.systems.cloud.train.peak_reserved_bytes", lambda device: 3 * 2**20)
    record = train(tiny_rooms, tmp_path / "run", steps=1, **tiny_net)
    assert dict(record.summary())["peak"].endswith(", 3.00 MiB reserved")


def test_the_summary_names_the_recorded_sizes_and_their_memory(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    record = train(tiny_rooms, tmp_path / "run", steps=1, **tiny_net)
    for sizes, text in ((7, "7 sizes, 2.00 GiB"), (1, "1 size, 2.00 GiB")):
        recorded = replace(record, recorded_sizes=sizes, recorded_bytes=2 * 2**30)
        assert dict(recorded.summary())["recorded steps"] == text


@pytest.mark.parametrize(
    ("device", "processes", "changes", "possible"),
    [
        ("cuda", 1, {}, True),
        ("cuda", 1, {"record_steps": True}, True),
        ("cuda", 1, {"record_steps": False}, False),
        ("cpu", 1, {}, False),
        ("cuda", 2, {}, False),
        ("cuda", 1, {"target": "lang_feat"}, False),
        ("cuda", 1, {"views_mode": "accumulate"}, False),
    ],
)
def test_steps_may_be_recorded_on_a_gpu_in_one_process(
    device: str, processes: int, changes: dict[str, Any], possible: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
    config = CloudConfig(in_features=0, classes=2, cell=0.1)
    settings = replace(Settings(), **changes)
    assert may_record(config, settings, device=device, processes=processes) is possible
    assert not may_record(replace(config, norm="batch"), settings, device=device, processes=processes)
    notes: list[str] = []
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert not may_record(config, settings, device=device, processes=processes, note=notes.append)
    assert [note.partition(":")[0] for note in notes] == ["No step is recorded"] * possible


def test_a_run_on_a_cpu_notes_that_no_step_is_recorded(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    notes: list[str] = []
    choices = {**tiny_net, "record_steps": True, "steps": 1, "budget": "8GiB"}
    record = train(tiny_rooms, tmp_path / "run", progress=lambda report: notes.append(report.note), **choices)
    assert "No step is recorded: record_steps needs a GPU, and the run is on cpu." in notes
    assert record.recorded_sizes is None and "recorded steps" not in dict(record.summary())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_run_with_recorded_steps_on_a_gpu_learns_as_an_eager_one_does(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    choices = {**tiny_net, "device": "cuda", "validation": 1, "views": "dense"}
    notes: list[str] = []
    losses = {}
    for records in (False, True):
        folder = tmp_path / str(records)
        train(tiny_rooms, folder, steps=12, record_steps=records, **choices)
        # A run may be resumed with recorded steps or without them.
        record = train(
            tiny_rooms,
            folder,
            resume=True,
            steps=30,
            record_steps=records,
            progress=lambda report: notes.append(report.note) if report.stage == NOTE else None,
        )
        losses[records] = [row.loss for row in Log.read(folder / "log.csv")]
    assert record.recorded_sizes == 1  # pyright: ignore[reportPossiblyUnboundVariable]
    assert dict(record.summary())["recorded steps"].startswith("1 size, ")
    assert losses[True] == pytest.approx(losses[False], rel=1e-2)
    assert not notes
    # The default records steps, with a budget that has room for them, too.
    for budget in (None, "24GiB"):
        folder = tmp_path / f"default-{budget}"
        record = train(tiny_rooms, folder, steps=20, budget=budget, **choices)
        assert record.recorded_sizes and record.recorded_bytes
        assert read_settings(folder).record_steps is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_some_steps_are_timed_and_sampling_is_a_small_part(
    tiny_rooms: Path, tmp_path: Path, tiny_net: dict[str, Any]
) -> None:
    choices = {
        **tiny_net,
        "device": "cuda",
        "validation": 1,
        "views": "dense,log-uniform:0.2:1",
        "consistency": "kl",
    }
    choices["record_steps"] = False  # recorded steps have no parts
    record = train(tiny_rooms, tmp_path / "run", steps=20, precision="bf16", **choices)
    rows = [row for row in Log.read(tmp_path / "run" / "log.csv") if isinstance(row, Row)]
    assert [row.step for row in rows if row.sampling_s is not None] == [10, 20]
    assert record.complete and record.breakdown["sampling"] < 0.5 * sum(record.breakdown.values())
