"""Recorded training steps: padded to one shape, they are the same steps."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from tests.systems.common.training.recording_card import RecordingCard  # noqa: E402

from pinchpoint.backends.torch import measurement  # noqa: E402
from pinchpoint.systems.common.training import logs  # noqa: E402
from pinchpoint.systems.common.training.checkpoints import Checkpoints  # noqa: E402
from pinchpoint.systems.common.training.recorder import room_for_recordings  # noqa: E402
from pinchpoint.systems.common.training.training_loop import NOTE, Report  # noqa: E402
from pinchpoint.systems.density.data.batches import (  # noqa: E402
    Item,
    choose_structures,
    common_shape,
    item_of,
    step_batch,
)
from pinchpoint.systems.density.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.density.data.stacked_items import StackedItems  # noqa: E402
from pinchpoint.systems.density.model.atom_network import AtomGraph  # noqa: E402
from pinchpoint.systems.density.model.config import DensityConfig  # noqa: E402
from pinchpoint.systems.density.settings import Settings  # noqa: E402
from pinchpoint.systems.density.train import train  # noqa: E402
from pinchpoint.systems.density.training import budget as budget_module  # noqa: E402
from pinchpoint.systems.density.training.budget import chunk_for  # noqa: E402
from pinchpoint.systems.density.training.training_step import (  # noqa: E402
    RecordedStep,
    Stepper,
    new_model,
    values_at,
)

TINY: dict[str, Any] = {
    "mul": 16,
    "lmax": 1,
    "gaussians": 10,
    "hidden": 16,
    "head": 16,
    "interactions": 2,
    "train_knots": 64,
}
CHOICES: dict[str, Any] = {
    "model": TINY,
    "device": "cpu",
    "steps": 8,
    "molecules": 2,
    "probes": 32,
    "checkpoint_every": 4,
    "validation": 2,
    "ema": 0.9,
}


def last_state(run: Path) -> dict[str, Any]:
    checkpoints = Checkpoints(run / "checkpoints")
    entry = checkpoints.last()
    assert entry is not None
    return checkpoints.load(entry)


def test_padding_to_one_shape_changes_neither_loss_nor_gradient(density_data: Path) -> None:
    data = open_dataset(density_data)
    config = DensityConfig(("C", "H", "O"), mean_neighbours=3.0, prior=True, **TINY)
    names = data.names("train")
    items = {name: item_of(data.sample(name), config, dtype=torch.float64) for name in names}
    for probes in (32, 10**6):  # tiles that share their slots; a tile for each of all probes
        few = {
            name: replace(item, probes=item.probes[:40], values=item.values[:40], weights=item.weights[:40])
            for name, item in items.items()
        }
        settings = Settings(molecules=2, probes=probes, steps=4, ema=0.0)
        shape = common_shape(few, names, settings, config)
        assert shape.shared == (probes == 32)
        models = [new_model(config, seed=0).double() for _ in range(2)]
        for model, padding in zip(models, (None, shape), strict=True):
            batch = step_batch(few, names, settings, config, number=1, shape=padding)
            if padding is not None:
                assert len(batch.atoms.source) == shape.edges and batch.weights.shape[0] == shape.tiles
            output = model(model.fields(batch.atoms), batch.atoms.species, batch.neighbours, batch.vectors)
            (batch.weights * (output - batch.values).abs().sum(-1)).sum().backward()
        for one, other in zip(*(model.parameters() for model in models), strict=True):
            assert one.grad is not None and other.grad is not None
            assert torch.allclose(one.grad, other.grad, rtol=1e-9, atol=1e-12)


def test_a_batch_gathered_from_stacked_structures_is_the_padded_batch(density_data: Path) -> None:
    data = open_dataset(density_data)
    config = DensityConfig(("C", "H", "O"), mean_neighbours=3.0, prior=True, **TINY)
    names = data.names("train")
    items = {name: item_of(data.sample(name), config) for name in names}
    # Of one structure fewer probes are stored.
    items[names[0]] = replace(
        items[names[0]],
        **{key: getattr(items[names[0]], key)[:50] for key in ("probes", "values", "weights")},
    )
    settings = Settings(molecules=3, probes=16, steps=6)
    shape = common_shape(items, names, settings, config)
    stacked = StackedItems.of(items, names, config)
    for number in range(1, 7):
        wanted = step_batch(items, names, settings, config, number=number, shape=shape)
        batch = stacked.batch(
            *choose_structures(lambda name: len(items[name].probes), names, settings, number=number), shape
        )
        for own, other in zip(batch.tensors(), wanted.tensors(), strict=True):
            assert own.dtype == other.dtype and torch.equal(own, other)


def test_every_step_of_a_run_fits_the_common_shape_and_one_fills_it(density_data: Path) -> None:
    data = open_dataset(density_data)
    config = DensityConfig(("C", "H", "O"), mean_neighbours=3.0, prior=True, **TINY)
    names = data.names("train")
    items = {name: item_of(data.sample(name), config) for name in names}
    settings = Settings(molecules=4, probes=16, steps=7)
    shape = common_shape(items, names, settings, config)
    batches = [step_batch(items, names, settings, config, number=at) for at in range(1, 8)]
    assert max(len(batch.atoms.source) for batch in batches) == shape.edges
    assert max(len(batch.atoms.species) for batch in batches) == shape.atoms
    assert (shape.tiles, shape.shared) == (4, True)


def test_recorded_steps_are_the_same_steps_and_a_run_resumes_with_or_without_them(
    density_data: Path, tmp_path: Path
) -> None:
    short = {**CHOICES, "steps": 4, "checkpoint_every": 2}
    plain = train(density_data, tmp_path / "plain", **short)
    recorded = train(density_data, tmp_path / "recorded", **short, record_steps=True)
    assert recorded.validation == pytest.approx(plain.validation, rel=1e-4)
    one, other = (
        [row.loss for row in logs.read(tmp_path / name / "log.csv")] for name in ("plain", "recorded")
    )
    assert one == pytest.approx(other, rel=1e-4)
    for name, then in (("plain", True), ("recorded", False)):
        more = train(density_data, tmp_path / name, resume=True, steps=5, record_steps=then)
        assert more.complete and more.step == 5
    ends = [last_state(tmp_path / name)["model"] for name in ("plain", "recorded")]
    assert all(torch.allclose(ends[0][key], ends[1][key], rtol=1e-2, atol=1e-4) for key in ends[0])
    said: list[Report] = []
    train(
        density_data,
        tmp_path / "recorded",
        resume=True,
        steps=6,
        record_steps=True,
        budget="64GiB",
        progress=said.append,
    )
    notes = [report.note for report in said if report.stage == NOTE]
    assert notes == ["No step is recorded: record_steps needs a GPU, and the run is on cpu."]


def test_structures_are_not_kept_beside_their_joint_tensors(
    density_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, gather = StackedItems.of, StackedItems.batch
    references: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def stack_and_note(items: dict[str, Any], *others: Any) -> StackedItems:
        references.extend(weakref.ref(item) for item in items.values())
        return stack(items, *others)

    def gather_and_count(*arguments: Any) -> Any:
        alive.append(sum(reference() is not None for reference in references))
        return gather(*arguments)

    monkeypatch.setattr(StackedItems, "of", stack_and_note)
    monkeypatch.setattr(StackedItems, "batch", gather_and_count)
    train(density_data, tmp_path / "run", **{**CHOICES, "steps": 2}, record_steps=True)
    assert references and alive == [0, 0]


def test_a_validation_beside_recorded_steps_uses_the_memory_of_eager_ones(
    density_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = RecordingCard(monkeypatch, free=10**12, step=10**6)
    module = "pinchpoint.systems.density.train"
    monkeypatch.setattr(f"{module}.can_record", lambda *_, **__: True)
    monkeypatch.setattr(f"{module}.release_memory", lambda: None)
    monkeypatch.setattr(f"{module}.peak_reserved_bytes", lambda device: None)
    places: list[bool] = []

    def noted(*arguments: Any, **named: Any) -> Any:
        places.append(card.is_aside)
        return values_at(*arguments, **named)

    monkeypatch.setattr(f"{module}.values_at", noted)
    record = train(density_data, tmp_path / "run", **{**CHOICES, "steps": 2}, record_steps=True)
    assert places and all(places) and record.validation is not None
    assert card.calls == ["aside"] * 3, "two steps and a validation"


def steps_on(card: RecordingCard, items: dict[str, Item], config: DensityConfig, count: int) -> list[float]:
    """The losses of some recorded steps with one structure."""
    settings = Settings(molecules=1, probes=8, steps=count, record_steps=True)
    names = list(items)
    shape = common_shape(items, names, settings, config)
    step = RecordedStep(note=card.notes.append)
    stepper = Stepper(new_model(config, seed=0), settings, "cpu", recorded_step=step)
    return [
        float(stepper.step(step_batch(items, names, settings, config, number=at, shape=shape), number=at)[0])
        for at in range(1, count + 1)
    ]


@pytest.mark.parametrize("error", [None, RuntimeError("not permitted\nwhen capturing")])
def test_a_step_is_recorded_after_three_and_a_run_goes_on_without_if_that_fails(
    density_data: Path, monkeypatch: pytest.MonkeyPatch, error: RuntimeError | None
) -> None:
    config = DensityConfig(("C", "H", "O"), mean_neighbours=3.0, prior=True, **TINY)
    data = open_dataset(density_data)
    items = {name: item_of(data.sample(name), config) for name in data.names("train")[:1]}
    card = RecordingCard(monkeypatch, free=10**12, step=10**6)
    card.error = error
    losses = steps_on(card, items, config, 6)
    if error is None:
        assert card.calls == ["aside"] * 3 + ["recorded"] + ["replayed"] * 3 and not card.notes
    else:
        assert card.calls == ["aside"] * 3 + ["released"] + ["aside"] * 3
        assert card.notes == ["All further steps are eager: a step could not be recorded (not permitted)."]
    full = RecordingCard(monkeypatch, free=10**6, step=10**6)
    assert losses == pytest.approx(steps_on(full, items, config, 6), rel=1e-5)
    assert full.calls == ["aside"] * 6
    (note,) = full.notes
    assert note.startswith("No step is recorded: the recordings would need ")


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_budget_counts_what_recorded_steps_take_besides(
    device: str, density_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget_module, "resident_bytes", lambda: 10**9)
    config = DensityConfig(("C", "H", "O"), mean_neighbours=3.0, **TINY)
    data = open_dataset(density_data)
    names = data.names("train")[:2]
    items = {name: item_of(data.sample(name), config) for name in names}
    settings = Settings(molecules=2, probes=64, record_steps=True, steps=3)
    shape = common_shape(items, names, settings, config)
    batch = step_batch(items, names, settings, config, number=1, shape=shape)
    eager, recorded = (
        chunk_for(
            config,
            replace(settings, record_steps=records),
            list(items.values()),
            budget="8GiB",
            device=device,
            padded=batch if records else None,
        )
        for records in (False, True)
    )
    stored = sum(tensor.nbytes for item in items.values() for tensor in (item.probes, item.values))
    own = sum(tensor.nbytes for tensor in batch.tensors())
    more = recorded.predicted_bytes - eager.predicted_bytes
    if device == "cuda":
        assert more > stored + own
        assert recorded.live_bytes > eager.live_bytes > 0, "products in parts"
    else:  # where nothing is recorded, but batches are gathered from joint tensors too
        assert more >= stored + recorded.live_bytes - eager.live_bytes
    assert room_for_recordings(recorded) == recorded.budget_bytes - recorded.predicted_bytes


def test_a_budget_counts_the_evaluation_of_a_large_structure_that_is_held_back(density_data: Path) -> None:
    """Steps with small structures take less than an evaluation of a large one."""
    config = DensityConfig(("C", "H", "O"), mean_neighbours=3.0, **TINY)
    data = open_dataset(density_data)
    name = data.names("train")[0]
    small = item_of(data.sample(name), config)
    atoms = small.atoms
    many = [getattr(atoms, part) for part in ("species", "source", "destination", "vectors")]
    large = replace(small, atoms=AtomGraph(*(part.repeat(300, *[1] * (part.dim() - 1)) for part in many)))
    settings = Settings(molecules=1, probes=32, record_steps=True, steps=3, ema=0.0)
    shape = common_shape({name: small}, [name], settings, config)
    batch = step_batch({name: small}, [name], settings, config, number=1, shape=shape)
    without, beside = (
        chunk_for(
            config,
            settings,
            [small, *held_back],
            budget="8GiB",
            device="cuda",
            padded=batch,
            held_back=held_back,
        )
        for held_back in ([], [large])
    )
    model = new_model(config, seed=0).eval()
    peak_bytes = measurement.account(lambda: values_at(model, large, chunk=32)) or 0
    assert without.live_bytes < peak_bytes < beside.live_bytes
    weight_bytes = sum(weight.nbytes for weight in model.parameters())
    # The weights, a gradient and two numbers of the optimizer for each, and an allowance of 2 %.
    assert beside.live_bytes == pytest.approx(1.02 * (peak_bytes + 4 * weight_bytes), rel=0.05)


@pytest.mark.gpu
def test_a_recorded_run_on_a_gpu_is_near_the_cpu(density_data: Path, tmp_path: Path) -> None:
    train(density_data, tmp_path / "cpu", **CHOICES)
    train(density_data, tmp_path / "cuda", **{**CHOICES, "device": "cuda", "record_steps": True})
    found, wanted = ([row.loss for row in logs.read(tmp_path / name / "log.csv")] for name in ("cuda", "cpu"))
    assert found == pytest.approx(wanted, rel=1e-2)
