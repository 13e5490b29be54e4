"""Recorded training steps: padded to one shape, they are the same steps."""

from __future__ import annotations

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.common.training import logs  # noqa: E402
from pinchpoint.systems.common.training.checkpoints import Checkpoints  # noqa: E402
from pinchpoint.systems.density.data.batches import (  # noqa: E402
    choose_structures,
    common_shape,
    item_of,
    step_batch,
)
from pinchpoint.systems.density.data.dataset import open_dataset  # noqa: E402
from pinchpoint.systems.density.data.stacked_items import StackedItems  # noqa: E402
from pinchpoint.systems.density.model.config import DensityConfig  # noqa: E402
from pinchpoint.systems.density.settings import Settings  # noqa: E402
from pinchpoint.systems.density.train import train  # noqa: E402
from pinchpoint.systems.density.training.training_step import new_model  # noqa: E402

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
    with pytest.raises(BadInput, match="cannot be predicted"):
        train(density_data, tmp_path / "recorded", resume=True, steps=6, record_steps=True, budget="8GiB")


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


@pytest.mark.gpu
def test_a_recorded_run_on_a_gpu_is_near_the_cpu(density_data: Path, tmp_path: Path) -> None:
    train(density_data, tmp_path / "cpu", **CHOICES)
    train(density_data, tmp_path / "cuda", **{**CHOICES, "device": "cuda", "record_steps": True})
    found, wanted = ([row.loss for row in logs.read(tmp_path / name / "log.csv")] for name in ("cuda", "cpu"))
    assert found == pytest.approx(wanted, rel=1e-2)
