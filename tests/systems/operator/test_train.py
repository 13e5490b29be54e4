"""Training: a stopped and resumed run equals an uninterrupted one."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.systems.common.training.recording_card import RecordingCard

from pinchpoint.core.errors import BadInput, Diverged, Missing
from pinchpoint.systems.common.budgets import BudgetChoice
from pinchpoint.systems.common.training import logs, recording
from pinchpoint.systems.common.training.checkpoints import Checkpoints
from pinchpoint.systems.common.training.progress import show_progress
from pinchpoint.systems.common.training.recorder import recordings_bytes, with_recordings
from pinchpoint.systems.common.training.training_loop import Report
from pinchpoint.systems.operator.data.dataset import open_dataset
from pinchpoint.systems.operator.data.loading import Supply, tensor_bytes
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.train import train
from pinchpoint.systems.operator.training.recorded_steps import (
    RecordedSteps,
    recorded_steps_of,
    refuse_unrecordable,
)
from pinchpoint.systems.operator.training.runs import Run, begin, read_settings
from pinchpoint.systems.operator.training.training_step import Stepper

STEPS = 8


def at_step(number: int, act: Callable[[], None]) -> Callable[[Report], None]:
    """A callback that acts once, after that step."""

    def watch(report: Report) -> None:
        if report.stage == "train" and report.done == number:
            act()

    return watch


def last_state(run: Path) -> dict[str, Any]:
    checkpoints = Checkpoints(run / "checkpoints")
    entry = checkpoints.last()
    assert entry is not None
    return checkpoints.load(entry)


def same(one: Any, other: Any, where: str = "state") -> None:
    """Assert that all tensors and numbers are identical, except times."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, dict):
        assert set(one) == set(other), where
        for key in one:
            if key != "seconds":
                same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            same(a, b, f"{where}[{at}]")
    else:
        assert one == other, where


def with_steps(settings: dict[str, Any]) -> dict[str, Any]:
    return {**settings, "steps": STEPS, "accumulate": 2, "ema": 0.9, "validation": 1, "checkpoint_every": 4}


@pytest.fixture
def choices(tiny_model: dict[str, Any]) -> dict[str, Any]:
    return with_steps(tiny_model)


@pytest.fixture(scope="module")
def finished_run(
    tiny_data: Path, tiny_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("train") / "whole"
    train(tiny_data, folder, **with_steps(tiny_settings))
    return folder


@pytest.fixture
def whole(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, which a test may change."""
    return Path(shutil.copytree(finished_run, tmp_path / "whole"))


@pytest.mark.parametrize(
    ("number", "exception", "code"),
    [(signal.SIGTERM, SystemExit, 143), (signal.SIGINT, KeyboardInterrupt, None)],
)
def test_a_run_stopped_by_a_signal_and_resumed_equals_an_uninterrupted_one(
    tiny_data: Path,
    tmp_path: Path,
    choices: dict[str, Any],
    whole: Path,
    number: int,
    exception: Any,
    code: int | None,
) -> None:
    run, before = tmp_path / "run", signal.getsignal(number)
    with pytest.raises(exception) as excinfo:
        train(tiny_data, run, progress=at_step(3, lambda: os.kill(os.getpid(), number)), **choices)
    assert getattr(excinfo.value, "code", None) == code
    assert signal.getsignal(number) is before
    stop_step = last_state(run)["step"]
    assert 3 <= stop_step < STEPS
    record = train(tiny_data, run, resume=True)
    assert record.step == STEPS and record.complete
    same(last_state(whole), last_state(run))
    assert [(row.step, row.loss) for row in logs.read(run / "log.csv")] == [
        (row.step, row.loss) for row in logs.read(whole / "log.csv")
    ]


def test_a_run_that_died_between_checkpoints_is_resumed_from_the_last_one(
    tiny_data: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    def die() -> None:
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError, match="the power went"):
        train(tiny_data, tmp_path / "run", progress=at_step(6, die), **choices)
    assert last_state(tmp_path / "run")["step"] == 4
    train(tiny_data, tmp_path / "run", resume=True)
    same(last_state(whole), last_state(tmp_path / "run"))
    assert [row.step for row in logs.read(tmp_path / "run" / "log.csv")] == list(range(1, STEPS + 1))


def test_resuming_a_finished_run_does_nothing(tiny_data: Path, choices: dict[str, Any], whole: Path) -> None:
    before = last_state(whole)
    assert train(tiny_data, whole, resume=True).step == STEPS
    same(before, last_state(whole))


def test_a_run_can_be_resumed_with_other_chunks_but_not_with_other_steps(
    tiny_data: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(
            tiny_data,
            tmp_path / "run",
            progress=at_step(3, lambda: os.kill(os.getpid(), signal.SIGINT)),
            **choices,
        )
    # The learning rate depends on the number of steps, so the steps taken so far would have been different.
    with pytest.raises(BadInput, match=r"steps \(was 8, is 16\)") as excinfo:
        train(tiny_data, tmp_path / "run", resume=True, steps=2 * STEPS)
    assert "Finish it with --resume alone" in excinfo.value.hint
    with pytest.raises(BadInput, match=r"precision \(was fp32, is bf16\)"):
        train(tiny_data, tmp_path / "run", resume=True, precision="bf16")
    record = train(tiny_data, tmp_path / "run", resume=True, memory="checkpoint", chunk=40)
    assert record.complete and record.chunk == 40 and read_settings(tmp_path / "run").memory == "checkpoint"
    rows, expected_rows = (logs.read(folder / "log.csv") for folder in (tmp_path / "run", whole))
    assert [row.loss for row in rows] == pytest.approx([row.loss for row in expected_rows], rel=1e-3)


def test_a_finished_run_is_extended_with_the_cosine_of_its_new_length(tiny_data: Path, whole: Path) -> None:
    last = last_state(whole)
    with pytest.raises(BadInput, match="is of 8 steps and cannot be made shorter"):
        train(tiny_data, whole, resume=True, steps=4)
    record = train(tiny_data, whole, resume=True, steps=12)
    assert (record.step, record.complete, read_settings(whole).steps) == (12, True, 12)
    rates = [row.lr for row in logs.read(whole / "log.csv")]
    assert rates[STEPS:] == pytest.approx(
        [replace(Settings(), steps=12).rate(step) for step in range(STEPS + 1, 13)], rel=1e-5
    )
    before, after = (state["optimizer"]["state"][0]["step"] for state in (last, last_state(whole)))
    assert (int(before), int(after)) == (STEPS, 12), "the state of the optimizer is kept"


def test_an_extended_run_killed_before_its_next_checkpoint_can_be_resumed(
    tiny_data: Path, whole: Path
) -> None:
    def die() -> None:
        raise RuntimeError("the power went")

    with pytest.raises(RuntimeError, match="the power went"):
        train(tiny_data, whole, resume=True, steps=100, progress=at_step(STEPS + 1, die), checkpoint_every=50)
    assert last_state(whole)["step"] == STEPS and read_settings(whole).steps == 100
    with pytest.raises(KeyboardInterrupt):
        train(
            tiny_data,
            whole,
            resume=True,
            progress=at_step(STEPS + 2, lambda: os.kill(os.getpid(), signal.SIGINT)),
        )
    assert last_state(whole)["step"] >= STEPS + 2


def test_a_stop_while_graphs_are_computed_leaves_a_run_to_resume(
    tiny_data: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    reports: list[Report] = []

    def watch(report: Report) -> None:
        reports.append(report)
        if report.stage == "graphs" and report.done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tiny_data, tmp_path / "run", progress=watch, **choices)
    assert (reports[-1].stage, reports[-1].done) == ("stopped", 0)
    assert len(list((tmp_path / "run" / "graphs").iterdir())) == 2, "finished graphs are kept"
    train(tiny_data, tmp_path / "run", resume=True)
    same(last_state(whole), last_state(tmp_path / "run"))


def test_a_run_folder_contains_the_expected_files(whole: Path) -> None:
    assert {path.name for path in whole.iterdir()} == {
        "config.json",
        "log.csv",
        "record.json",
        "checkpoints",
        "graphs",
    }
    record = json.loads((whole / "record.json").read_text(encoding="utf-8"))
    assert record["kind"] == "operator-training" and record["complete"]
    assert record["parameters"] == sum(value.numel() for value in last_state(whole)["model"].values())
    assert all(row.memory_bytes > 0 for row in logs.read(whole / "log.csv"))
    assert read_settings(whole).validation == 1


def test_another_configuration_is_refused_with_the_names_of_what_differs(
    tiny_data: Path, choices: dict[str, Any], whole: Path
) -> None:
    with pytest.raises(BadInput, match=r"lr \(was 0\.002, is 0\.1\); channels \(was 8, is 4\)") as excinfo:
        train(tiny_data, whole, resume=True, lr=0.1, model={"channels": 4})
    assert "another -o" in excinfo.value.hint


def test_checkpoints_of_another_run_are_refused(
    tiny_data: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    train(tiny_data, tmp_path / "other", **{**choices, "lr": 0.1})
    for path in (whole / "checkpoints").iterdir():
        path.unlink()
    for path in (tmp_path / "other" / "checkpoints").iterdir():
        path.rename(whole / "checkpoints" / path.name)
    with pytest.raises(BadInput, match=r"was written with other settings: lr \(was 0\.1, is 0\.002\)"):
        train(tiny_data, whole, resume=True)


def test_a_run_is_not_started_over_another_or_resumed_without_one(
    tiny_data: Path, tmp_path: Path, choices: dict[str, Any], whole: Path
) -> None:
    with pytest.raises(BadInput, match="already holds a run") as excinfo:
        train(tiny_data, whole, **choices)
    assert "--resume" in excinfo.value.hint
    with pytest.raises(BadInput, match="no run in"):
        train(tiny_data, tmp_path / "nothing", resume=True)
    assert not (tmp_path / "nothing").exists()


def test_a_nan_loss_stops_the_run_and_names_the_last_good_checkpoint(
    tiny_data: Path, tmp_path: Path, tiny_model: dict[str, Any]
) -> None:
    with pytest.raises(
        Diverged, match=r"at step \d+\. The last good checkpoint is step-00000001\.pt\. .* learning rate"
    ) as excinfo:
        train(tiny_data, tmp_path / "run", **tiny_model, steps=20, lr=1e30, warmup=1, checkpoint_every=1)
    assert excinfo.value.exit_code == 1
    assert "--lr" in excinfo.value.hint
    for tensor in last_state(tmp_path / "run")["model"].values():
        assert torch.isfinite(tensor).all()


def test_tf32_is_refused_on_a_cpu_and_cuda_without_a_gpu(
    tiny_data: Path, tmp_path: Path, tiny_model: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match="tf32 is not available on cpu"):
        train(tiny_data, tmp_path / "run", **tiny_model, precision="tf32")
    if not torch.cuda.is_available():
        with pytest.raises(Missing):
            train(tiny_data, tmp_path / "run", **{**tiny_model, "device": "cuda"})
    assert not (tmp_path / "run").exists(), "a run that cannot start leaves no folder"


def test_bf16_trains_and_keeps_its_weights_in_fp32(
    tiny_data: Path, tmp_path: Path, tiny_model: dict[str, Any]
) -> None:
    train(tiny_data, tmp_path / "run", **tiny_model, steps=3, precision="bf16")
    assert {tensor.dtype for tensor in last_state(tmp_path / "run")["model"].values()} == {torch.float32}
    assert all(row.loss < 10 for row in logs.read(tmp_path / "run" / "log.csv"))


@pytest.mark.parametrize("memory", ["eager", "checkpoint"])
def test_the_memory_mode_does_not_change_the_result(
    tiny_data: Path, tmp_path: Path, tiny_model: dict[str, Any], memory: str
) -> None:
    train(tiny_data, tmp_path / "flat", **tiny_model, steps=3, chunk=50)
    train(tiny_data, tmp_path / memory, **tiny_model, steps=3, memory=memory)
    flat, other = (logs.read(tmp_path / name / "log.csv") for name in ("flat", memory))
    assert [row.loss for row in flat] == pytest.approx([row.loss for row in other], rel=1e-4)


def test_points_count_by_their_areas_or_alike(tiny_data: Path, tiny_model: dict[str, Any]) -> None:
    data = open_dataset(tiny_data)
    config = OperatorConfig.preset(
        "small", low=data.low, high=data.high, in_features=7, **tiny_model["model"]
    )
    sample, graph = Supply(data, config).get(data.names("train")[0])
    losses = {}
    for weighting in ("areas", "points"):
        stepper = Stepper(config, Settings(weighting=weighting), "cpu")
        with torch.no_grad():
            off = (stepper.model(sample.points, sample.features, sample.areas, graph) - sample.target).abs()
        weights = sample.areas if weighting == "areas" else torch.ones_like(sample.areas)
        losses[weighting] = float(stepper.step([(sample, graph)], number=1)[0])
        assert losses[weighting] == pytest.approx(float(weights @ off[:, 0] / weights.sum()), rel=1e-5)
    assert losses["areas"] != pytest.approx(losses["points"], rel=1e-3), "the panels differ in area"


def test_accumulation_takes_the_mean_over_its_bodies(tiny_data: Path, tiny_model: dict[str, Any]) -> None:
    data = open_dataset(tiny_data)
    config = OperatorConfig.preset(
        "small", low=data.low, high=data.high, in_features=7, **tiny_model["model"]
    )
    supply, settings = Supply(data, config), Settings(seed=3)
    two = [supply.get(name) for name in data.names("train")[:2]]

    def gradients(stepper: Stepper) -> list[torch.Tensor]:
        return [p.grad.clone() for p in stepper.model.parameters() if p.grad is not None]

    both = Stepper(config, replace(settings, accumulate=2, clip=1e9), "cpu")
    loss = both.step(two, number=1)[0]
    apart = [Stepper(config, replace(settings, clip=1e9), "cpu") for _ in two]
    losses = [stepper.step([body], number=1)[0] for stepper, body in zip(apart, two, strict=True)]
    assert float(loss) == pytest.approx(float(sum(losses)) / 2, rel=1e-6)
    for whole, one, other in zip(gradients(both), gradients(apart[0]), gradients(apart[1]), strict=True):
        torch.testing.assert_close(whole, (one + other) / 2, rtol=1e-4, atol=1e-6)


def test_bodies_that_do_not_fit_in_memory_are_computed_again_identically(
    tiny_data: Path, tiny_model: dict[str, Any]
) -> None:
    data = open_dataset(tiny_data)
    config = OperatorConfig.preset(
        "small", low=data.low, high=data.high, in_features=7, **tiny_model["model"]
    )
    name = data.names("train")[0]
    cached, uncached = Supply(data, config), Supply(data, config, cache_bytes=0)
    assert cached.get(name) is cached.get(name)
    assert uncached.get(name) is not uncached.get(name)
    assert torch.equal(uncached.get(name)[1].encoder[0].sources, cached.get(name)[1].encoder[0].sources)


def test_cached_bodies_for_a_gpu_are_pinned_completely_and_unchanged(
    tiny_data: Path, tiny_model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_dataset(tiny_data)
    config = OperatorConfig.preset(
        "small", low=data.low, high=data.high, in_features=7, **tiny_model["model"]
    )
    name, plain = data.names("train")[0], Supply(data, config).get(data.names("train")[0])
    pinned_addresses: list[int] = []
    monkeypatch.setattr(
        torch.Tensor, "pin_memory", lambda self: pinned_addresses.append(self.data_ptr()) or self
    )
    cached = Supply(data, config, pinned=True).get(name)

    def tensors(sample: Any, graph: Any) -> list[torch.Tensor]:
        edges = [
            part for edges in (*graph.encoder, *graph.decoder) for part in (edges.offsets, edges.sources)
        ]
        statistics = [*graph.token_statistics, *graph.point_statistics]
        return [sample.points, sample.features, sample.target, sample.areas, *edges, *statistics]

    assert {tensor.data_ptr() for tensor in tensors(*cached)} <= set(pinned_addresses)
    assert all(torch.equal(a, b) for a, b in zip(tensors(*cached), tensors(*plain), strict=True))


def test_a_cached_graph_is_read_from_disk_and_computed_again_if_it_is_damaged(
    tiny_data: Path, tiny_model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = open_dataset(tiny_data)
    config = OperatorConfig.preset(
        "small", low=data.low, high=data.high, in_features=7, **tiny_model["model"]
    )
    name = data.names("train")[0]
    graph = Supply(data, config, graphs=tmp_path).get(name)[1]
    (file,) = tmp_path.iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(
            "pinchpoint.systems.operator.data.loading.graph_of",
            lambda *args, **options: pytest.fail("made again"),
        )
        read = Supply(data, config, graphs=tmp_path).get(name)[1]
    for one, other in zip((*graph.encoder, *graph.decoder), (*read.encoder, *read.decoder), strict=True):
        assert torch.equal(one.sources, other.sources) and torch.equal(one.offsets, other.offsets)
    for one, other in zip(
        (*graph.token_statistics, *graph.point_statistics),
        (*read.token_statistics, *read.point_statistics),
        strict=True,
    ):
        assert torch.equal(one, other)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9])
    Supply(data, config, graphs=tmp_path).get(name)
    assert file.read_bytes() == whole
    other = replace(config, radii=(config.radii[0] * 1.1, *config.radii[1:]))
    Supply(data, other, graphs=tmp_path).get(name)
    assert len(list(tmp_path.iterdir())) == 2, "another radius is another graph"


class _Card(RecordingCard):
    def steps(self, *, bodies: int, last_step: int = 10**6, most_bytes: int | None = None) -> RecordedSteps:
        return RecordedSteps(
            bodies=bodies, last_step=last_step, most_bytes=most_bytes, note=self.notes.append
        )

    def take(self, steps: RecordedSteps, body: tuple[Sample, Graph], *, number: int = 1) -> None:
        loss = steps.run(
            *body,
            lambda body_on_device: body_on_device[0].areas.sum(),
            number=number,
            clear=lambda: self.calls.append("clear"),
            device="cpu",
        )
        assert loss == body[0].areas.sum()


@pytest.fixture
def native_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")


@pytest.fixture
def tiny_run(tiny_data: Path, tiny_model: dict[str, Any]) -> Run:
    choices = {**tiny_model, "steps": 9, "ema": 0.9}
    return begin(Path("unused"), open_dataset(tiny_data), resume=False, choices=choices)


@pytest.fixture
def three_bodies(tiny_data: Path, tiny_run: Run) -> list[tuple[Sample, Graph]]:
    data = open_dataset(tiny_data)
    return [Supply(data, tiny_run.config).get(name) for name in data.names("train")[:3]]


def test_bodies_are_recorded_when_all_of_them_were_run_and_there_is_room(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = three_bodies
    sizes = [tensor_bytes(*body) for body in three_bodies]
    card = _Card(monkeypatch, free=10**12, step=10**6)
    # Room for two bodies and their graphs beside the memory in which they compute.
    most_bytes = sizes[0] + sizes[1] + recordings_bytes(10**6, 2)
    steps = card.steps(bodies=3, most_bytes=most_bytes)
    for body in (first, second, second, third):  # the second one comes again before the third is known
        card.take(steps, body)
    assert card.calls == ["aside"] * 4
    card.calls.clear()
    for body in (first, second, third, first, third):
        card.take(steps, body)
    recorded = ["clear", "recorded", "replayed", "clear", "recorded in the pool", "replayed"]
    # The memory is looked at once, when gradients do not hide what is free.
    assert card.calls == ["clear", *recorded, "aside", "replayed", "aside"]
    assert steps.recorded_bodies == 2
    (note,) = card.notes
    assert note.startswith("2 bodies are recorded; the steps of the others stay eager: ")


def test_steps_that_are_replayed_train_as_eager_ones_do(
    tiny_run: Run, three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = _Card(monkeypatch, free=10**12, step=10**6)
    results = []
    for recorded_steps in (None, card.steps(bodies=3)):
        stepper = Stepper(tiny_run.config, tiny_run.settings, "cpu", recorded_steps=recorded_steps)
        losses = [
            float(stepper.step([body], number=3 * turn + place)[0])
            for turn in range(3)
            for place, body in enumerate(three_bodies, start=1)
        ]
        results.append((losses, stepper.predict(*three_bodies[0])))
    assert card.calls.count("replayed") == 6
    (eager, predicted), (recorded, predicted_too) = results
    assert recorded == pytest.approx(eager, rel=1e-4)
    torch.testing.assert_close(predicted_too, predicted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_nothing_is_recorded_without_room_for_the_activations_of_another_step(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch, missing_bytes: int
) -> None:
    step = 7 * 10**8
    need = tensor_bytes(*three_bodies[0]) + recordings_bytes(step, 1)
    card = _Card(monkeypatch, free=2 * (need - missing_bytes), step=step)  # half of it may be used
    steps = card.steps(bodies=1)
    for _ in range(3):
        card.take(steps, three_bodies[0])
    recorded = ["recorded", "replayed", "replayed"]
    assert card.calls == ["aside", "clear", *(["aside"] * 2 if missing_bytes else ["clear", *recorded])]
    assert steps.most_bytes == need - missing_bytes
    assert [note.partition(":")[0] for note in card.notes] == ["No step is recorded"] * missing_bytes


def test_recordings_larger_than_expected_leave_less_room(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = three_bodies
    both = tensor_bytes(*first) + tensor_bytes(*second)
    most_bytes = both + recordings_bytes(10**6, 2)
    for graph, last in ((1000, "replayed"), (recordings_bytes(10**6, 1) + 1, "aside")):
        with monkeypatch.context() as patch:
            card = _Card(patch, free=10**12, step=10**6, graph=graph)
            steps = card.steps(bodies=2, most_bytes=most_bytes)
            for body in (first, second, first, second):
                card.take(steps, body)
            assert card.calls[-1] == last


@pytest.mark.parametrize("over_bytes", [0, 1])
def test_recordings_that_took_more_than_they_may_are_dropped_and_none_follows(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch, over_bytes: int
) -> None:
    first, second, _ = three_bodies
    left_bytes = recordings_bytes(10**6, 2)
    # The second recording makes the memory of both grow.
    card = _Card(monkeypatch, free=10**12, step=10**6, taken=[1000, left_bytes - 1000 + over_bytes])
    steps = card.steps(bodies=2, most_bytes=tensor_bytes(*first) + tensor_bytes(*second) + left_bytes)
    for body in (first, second, first):
        card.take(steps, body)
    card.calls.clear()
    for body in (second, first, second):
        card.take(steps, body)
    again = ["clear", "recorded in the pool"]
    if over_bytes:
        # The memory is free only when the gradients and both recordings are gone.
        assert card.calls == [*again, "clear", "released", "aside", "aside", "aside"]
        (note,) = card.notes
        assert note.startswith("All further steps are eager: recorded steps take ")
    else:
        assert card.calls == [*again, "replayed", "replayed", "replayed"] and not card.notes
    assert steps.recorded_bodies == (0 if over_bytes else 2)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("not permitted\nwhen capturing")]
)
def test_steps_are_eager_after_a_recording_that_failed(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    first, second, _ = three_bodies
    card = _Card(monkeypatch, free=10**12, step=10**6)
    steps = card.steps(bodies=2)
    for body in (first, second, first):
        card.take(steps, body)
    assert steps.recorded_bodies == 1
    card.calls.clear()
    card.error = error
    for body in (second, first, second):
        card.take(steps, body)
    assert card.calls == ["clear", "clear", "released", "aside", "aside", "aside"]
    assert steps.recorded_bodies == 0
    why = str(error).splitlines()[0].rstrip(".")
    assert card.notes == [f"All further steps are eager: a step could not be recorded ({why})."]


def test_a_body_without_memory_beside_recordings_is_copied_again_without_them(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = three_bodies
    card = _Card(monkeypatch, free=10**12, step=10**6)
    steps = card.steps(bodies=2)
    for body in (first, second, first):
        card.take(steps, body)
    assert steps.recorded_bodies == 1
    copy, missing = Graph.to, [False, True]

    def copy_with_luck(graph: Graph, device: str) -> Graph:
        if missing.pop():
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return copy(graph, device)

    monkeypatch.setattr(Graph, "to", copy_with_luck)
    card.calls.clear()
    card.take(steps, second)
    assert card.calls == ["clear", "released", "aside"] and steps.recorded_bodies == 0
    assert card.notes == ["All further steps are eager: the run ran out of memory beside the recorded steps."]


@pytest.mark.parametrize(("number", "is_recorded"), [(6, True), (7, False)])
def test_a_body_is_recorded_only_if_it_is_replayed_in_two_more_passes(
    three_bodies: list[tuple[Sample, Graph]],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    is_recorded: bool,
) -> None:
    card = _Card(monkeypatch, free=10**12, step=10**6)
    steps = card.steps(bodies=2, last_step=10)
    for body in three_bodies[:2]:
        card.take(steps, body)
    card.take(steps, three_bodies[0], number=number)
    assert steps.recorded_bodies == is_recorded


def test_the_prediction_of_a_budget_includes_recorded_steps(native_allocator: None) -> None:
    settings = Settings(record_steps=True, steps=77)
    choice = BudgetChoice(64, 10**9, 4 * 10**9, live_bytes=5 * 10**8)
    steps = recorded_steps_of(settings, 3, choice, device="cuda")
    assert steps is not None and (steps.most_bytes, steps.last_step) == (3 * 10**9, 77)
    predicted = with_recordings(choice, 1234, 3)
    assert predicted.predicted_bytes == 10**9 + 1234 + recordings_bytes(round(1.1 * 5 * 10**8), 3)
    most = with_recordings(choice, 4 * 10**9, 3)
    assert most.predicted_bytes == most.budget_bytes
    assert recorded_steps_of(replace(settings, record_steps=False), 3, None, device="cuda") is None


@pytest.mark.parametrize("asked", [None, True])
def test_steps_are_eager_with_an_allocator_that_does_not_tell_what_it_holds(
    asked: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    notes: list[str] = []
    assert recorded_steps_of(Settings(record_steps=asked), 3, None, device="cuda", note=notes.append) is None
    assert len(notes) == 1 and "`cudaMallocAsync`" in notes[0]


@pytest.mark.parametrize(
    ("choices", "device", "is_recorded"),
    [
        ({}, "cuda", True),
        ({}, "cpu", False),
        ({"accumulate": 2}, "cuda", False),
        ({"memory": "checkpoint"}, "cuda", False),
        ({"record_steps": False}, "cuda", False),
    ],
)
def test_steps_are_recorded_on_a_gpu_unless_settings_forbid_it(
    choices: dict[str, Any], device: str, is_recorded: bool, native_allocator: None
) -> None:
    notes: list[str] = []
    settings = Settings(**choices)
    refuse_unrecordable(settings)
    steps = recorded_steps_of(settings, 3, None, device=device, note=notes.append)
    assert (steps is not None) == is_recorded and not notes


@pytest.mark.parametrize("missing_bytes", [0, 1])
def test_with_a_budget_steps_are_recorded_by_default_only_if_all_recordings_fit(
    missing_bytes: int, native_allocator: None
) -> None:
    need_bytes = 10**9 + 1234 + recordings_bytes(round(1.1 * 5 * 10**8), 3)
    choice = BudgetChoice(64, 10**9, need_bytes - missing_bytes, live_bytes=5 * 10**8)
    notes: list[str] = []
    steps = recorded_steps_of(Settings(), 3, choice, device="cuda", body_bytes=1234, note=notes.append)
    assert (steps is None) == bool(missing_bytes) and len(notes) == missing_bytes


def test_a_budget_that_leaves_nothing_for_recordings_gives_a_note(
    three_bodies: list[tuple[Sample, Graph]], monkeypatch: pytest.MonkeyPatch
) -> None:
    card = _Card(monkeypatch, free=10**12, step=10**6)
    choice = BudgetChoice(64, 10**9, 10**9 + 10**7, live_bytes=5 * 10**8)
    steps = recorded_steps_of(Settings(record_steps=True), 1, choice, device="cuda", note=card.notes.append)
    assert steps is not None
    for number in range(1, 5):
        card.take(steps, three_bodies[0], number=number)
    assert "recorded" not in card.calls
    (note,) = card.notes
    assert note.startswith("No step is recorded: ") and note.endswith("; the limit is 9.54 MiB.")


@pytest.mark.parametrize(
    ("setting", "option", "instead"),
    [
        ({"accumulate": 2}, "--accumulate 2", "--accumulate 1"),
        ({"memory": "checkpoint"}, "--memory checkpoint", "--memory flat"),
    ],
)
def test_recorded_steps_are_refused_with_settings_that_they_do_not_support(
    tiny_data: Path,
    tmp_path: Path,
    tiny_model: dict[str, Any],
    setting: dict[str, Any],
    option: str,
    instead: str,
) -> None:
    with pytest.raises(BadInput, match=f"record_steps=true cannot be combined with {option}") as excinfo:
        train(tiny_data, tmp_path / "run", **tiny_model, steps=2, record_steps=True, **setting)
    assert instead in excinfo.value.hint and not (tmp_path / "run").exists()


def test_a_run_on_a_cpu_notes_that_no_step_is_recorded(
    tiny_data: Path, tmp_path: Path, tiny_model: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress() as watch:
        record = train(tiny_data, tmp_path / "run", **tiny_model, steps=2, record_steps=True, progress=watch)
    said = "note: No step is recorded: record_steps needs a GPU, and the run is on cpu."
    assert capsys.readouterr().err.splitlines().count(said) == 1
    assert record.recorded_bodies is None and record.peak_reserved_bytes is None
    assert "reserved" not in dict(record.summary())["peak"]
    on_gpu = replace(record, device="cuda", peak_bytes=2**20, peak_reserved_bytes=3 * 2**20)
    assert dict(on_gpu.summary())["peak"] == "1.00 MiB allocated, 3.00 MiB reserved"


def test_replays_of_a_run_need_no_body_and_its_record_counts_the_recorded_ones(
    tiny_run: Run,
    tiny_data: Path,
    tmp_path: Path,
    tiny_model: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = replace(tiny_run.settings, validation=4)
    names, _ = replace(tiny_run, settings=settings).split_names(open_dataset(tiny_data).names("train"))
    choices = {**tiny_model, "validation": 4, "steps": 4 * len(names)}
    train(tiny_data, tmp_path / "eager", **choices)
    card = _Card(monkeypatch, free=10**12, step=10**6)
    monkeypatch.setattr(
        "pinchpoint.systems.operator.train.recorded_steps_of",
        lambda *args, **options: recorded_steps_of(*args, **{**options, "device": "cuda"}),
    )
    loads: list[str] = []
    get = Supply.get
    monkeypatch.setattr(Supply, "get", lambda self, name: loads.append(name) or get(self, name))
    record = train(tiny_data, tmp_path / "recorded", **choices, record_steps=True)
    assert card.calls.count("replayed") == 3 * len(names)
    # Each body for its graph, its eager step and its recording; the record needs the largest one.
    counts = sorted(loads.count(name) for name in names)
    assert counts[:-1] == [3] * (len(names) - 1) and counts[-1] <= 4
    assert record.recorded_bodies == len(names)
    assert dict(record.summary())["recorded steps"] == f"of {len(names)} of {len(names)} bodies"
    losses, expected_losses = (
        [row.loss for row in logs.read(tmp_path / name / "log.csv")] for name in ("recorded", "eager")
    )
    assert losses == pytest.approx(expected_losses, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("memory", ["eager", "flat"])
def test_recorded_steps_on_a_gpu_are_near_those_on_the_cpu(
    tiny_data: Path,
    tmp_path: Path,
    tiny_model: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    memory: str,
) -> None:
    replays: list[recording.Recording] = []
    replay = recording.Recording.replay
    monkeypatch.setattr(recording.Recording, "replay", lambda self: replays.append(self) or replay(self))
    # At most three bodies, so that all of them are recorded soon after the run was resumed.
    short = {**tiny_model, "validation": 3, "memory": memory}
    losses: dict[tuple[str, str], list[float]] = {}
    for device in ("cpu", "cuda"):
        recorded: dict[str, Any] = {"record_steps": None}  # the default
        whole, resumed = (tmp_path / device / name for name in ("whole", "resumed"))
        train(tiny_data, whole, **{**short, "device": device, "steps": 20, **recorded})
        # A run may be resumed with recorded steps or without them.
        train(tiny_data, resumed, **{**short, "device": device, "steps": 5, "record_steps": False})
        count = len(replays)
        record = train(tiny_data, resumed, resume=True, steps=20, **recorded)
        if device == "cuda":
            assert record.recorded_bodies == record.bodies
            assert count >= 14 and len(replays) - count >= 8, "most steps of both runs are replayed"
            assert record.peak_reserved_bytes is not None
            assert record.peak_reserved_bytes >= record.peak_bytes
        for folder in (whole, resumed):
            losses[device, folder.name] = [row.loss for row in logs.read(folder / "log.csv")]
    for name in ("whole", "resumed"):
        assert len(losses["cuda", name]) == 20
        assert losses["cuda", name] == pytest.approx(losses["cpu", name], rel=1e-2)
