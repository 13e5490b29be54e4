"""The comparison with PaiNN: the peer is correct, the contest is fair, and bad input is rejected."""

from __future__ import annotations

import copy
import importlib
import json
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the density models need torch")

from pinchpoint.core.errors import BadInput, TargetFailed  # noqa: E402
from pinchpoint.systems.density.data.batches import batch_of, choose_probes, item_of  # noqa: E402
from pinchpoint.systems.density.data.dataset import make_data, open_dataset  # noqa: E402
from pinchpoint.systems.density.data.molecules import molecule  # noqa: E402
from pinchpoint.systems.density.data.sample import Sample  # noqa: E402
from pinchpoint.systems.density.model import painn  # noqa: E402
from pinchpoint.systems.density.model.config import DensityConfig  # noqa: E402
from pinchpoint.systems.density.model.model import DensityModel  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "density"
CONFIG = DensityConfig.preset("small", ("C", "H", "O"), mul=8, lmax=1, hidden=8, head=8)
TOY = [
    "--steps",
    "4",
    "--tune-steps",
    "2",
    "--judge",
    "200",
    "--probes",
    "32",
    "--molecules",
    "2",
    "--validation",
    "1",
]
TOY += [
    "--device",
    "cpu",
    "--set",
    "mul=8",
    "--set",
    "lmax=1",
    "--set",
    "hidden=8",
    "--rates",
    "0.002",
    "0.01",
]


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    pytest.importorskip("pyscf", reason="densities are computed with PySCF")
    where = tmp_path_factory.mktemp("density") / "data"
    make_data(where, preset="tiny", jobs=1)
    return where


def sample_at(positions: np.ndarray, species: tuple[str, ...], probes: np.ndarray) -> Sample:
    zeros = np.zeros(len(probes))
    return Sample(
        "x", "methanol", species, positions, None, probes, zeros.astype(np.float32), zeros + 1.0, 14.0
    )


def methanol(seed: int = 0) -> tuple[np.ndarray, tuple[str, ...], np.ndarray]:
    result = molecule("methanol")
    probes = np.random.default_rng(seed).normal(size=(12, 3)) * 1.5
    return result.positions, result.species, probes


def densities(model: Any, positions: np.ndarray, species: tuple[str, ...], probes: np.ndarray) -> Any:
    item = item_of(sample_at(positions, species, probes), CONFIG, dtype=torch.float64)
    batch = batch_of([item], CONFIG)
    return model(model.fields(batch.atoms), batch.atoms.species, batch.neighbours, batch.vectors)[0, :, 0]


def peer(**options: Any) -> Any:
    return painn.PaiNN(CONFIG, **{"width": 6, "seed": 3} | options).double()


def test_the_peer_is_invariant_to_rotation_reflection_translation_and_atom_order() -> None:
    model, (positions, species, probes) = peer(), methanol()
    truth = densities(model, positions, species, probes)
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    for sign in (1, -1):
        transformed = densities(model, sign * positions @ turn + 3.0, species, sign * probes @ turn + 3.0)
        assert torch.allclose(transformed, truth, rtol=1e-9, atol=1e-12)
    order = np.random.default_rng(2).permutation(len(species))
    shuffled = densities(model, positions[order], tuple(species[i] for i in order), probes)
    assert torch.allclose(shuffled, truth, rtol=1e-9, atol=1e-12)
    assert truth.std() > 1e-3


def test_a_probe_depends_on_directions_through_vectors() -> None:
    # The probe is equally far from every atom of a straight and of a bent molecule. Only the messages between
    # atoms differ.
    model = peer()
    probe = np.array([[0.0, 0, 1.0]])
    straight, bent = (
        np.array([[0.0, 0, 0], [0, 0, -1.0], other]) for other in ([0.0, 0, 2.0], [1.0, 0, 1.0])
    )
    assert abs(np.linalg.norm(probe - straight, axis=1) - np.linalg.norm(probe - bent, axis=1)).max() < 1e-12
    result = [densities(model, x, ("C", "O", "H"), probe) for x in (straight, bent)]
    assert (result[0] - result[1]).abs() > 1e-6


def test_a_layer_equals_a_loop_over_neighbours() -> None:
    """Compute one interaction of one probe from the published equations with plain loops."""
    config = DensityConfig.preset("small", ("C", "H", "O"), interactions=1)
    model = painn.PaiNN(config, width=5, seed=1).double()
    rng = np.random.default_rng(0)
    scalars, vectors = torch.tensor(rng.normal(size=(3, 15))), torch.tensor(rng.normal(size=(3, 3, 5)))
    vectors_to_atoms = torch.tensor(rng.normal(size=(1, 1, 3, 3)))
    fields = torch.cat([scalars, vectors.flatten(1)], dim=1)
    result = model(fields, torch.zeros(3, dtype=torch.int64), torch.arange(3)[None], vectors_to_atoms)[
        0, 0, 0
    ]
    s, v = torch.zeros(5).double(), torch.zeros(3, 5).double()
    for atom in range(3):
        r = vectors_to_atoms[0, 0, atom].norm()
        basis = torch.tensor([math.sin(n * math.pi * r / 4.0) / r for n in range(1, 21)]).double()
        linear = model.probe_filters[0].map
        weight = (linear.weight @ basis + linear.bias) * 0.5 * (math.cos(math.pi * r / 4.0) + 1)
        one, other, third = (weight * scalars[atom]).split(5)
        s += one
        for axis in range(3):
            v[axis] += other * vectors[atom, axis] + third * vectors_to_atoms[0, 0, atom, axis] / r

    def apply_update(s: Any, v: Any) -> Any:
        update = model.probe_updates[0]
        left, right = (v @ part.T for part in update.both.weight.split(5))
        own, across, _ = update.net(torch.cat([s, (right.square().sum(0) + 1e-8).sqrt()])).split(5)
        return s + own + across * (left * right).sum(0)

    empty = apply_update(torch.zeros(5).double(), torch.zeros(3, 5).double())
    with torch.no_grad():
        truth = float(model.read(apply_update(s, v)) - model.read(empty))
    assert float(result.detach()) == pytest.approx(truth, rel=1e-5)


def test_the_peer_is_exactly_zero_at_far_probes_and_in_unused_slots() -> None:
    model, (positions, species, probes) = peer(), methanol()
    assert (densities(model, positions, species, probes + 50.0) == 0).all()
    fields = torch.zeros(2, 6 * 6 * 3).double()
    none = model(
        fields,
        torch.zeros(2, dtype=torch.int64),
        torch.zeros(4, 0, dtype=torch.int64),
        torch.zeros(4, 2, 0, 3).double(),
    )
    assert none.shape == (4, 2, 1) and (none == 0).all()


def test_probes_of_one_tile_and_tiles_of_one_probe_agree() -> None:
    model, (positions, species, probes) = peer(), methanol()
    item = item_of(sample_at(positions, species, probes), CONFIG, dtype=torch.float64)
    shared = batch_of([item], CONFIG)
    fields = model.fields(shared.atoms)
    alone = model(
        fields, shared.atoms.species, shared.neighbours.expand(len(probes), -1), shared.vectors[0][:, None]
    )
    truth = model(fields, shared.atoms.species, shared.neighbours, shared.vectors)
    assert torch.allclose(alone[:, 0], truth[0], rtol=1e-10, atol=1e-13)


def test_every_parameter_of_the_peer_that_matters_receives_a_gradient() -> None:
    model, (positions, species, probes) = peer(), methanol()
    densities(model, positions, species, probes).square().sum().backward()
    without_gradient = [
        name
        for name, parameter in model.named_parameters()
        if parameter.grad is None or not parameter.grad.any()
    ]
    # The constant of the read-out cancels, because the output of an empty probe is subtracted.
    assert without_gradient == ["read.2.bias"]


def test_the_peer_has_as_many_parameters_as_ours() -> None:
    config = DensityConfig.preset("small", ("C", "H", "N", "O"))
    ours = painn.parameter_count(DensityModel(config))
    width = painn.width_for(config, ours)
    counts = [painn.parameter_count(painn.PaiNN(config, width=w)) for w in (width - 1, width, width + 1)]
    assert (
        abs(counts[1] - ours) == min(abs(count - ours) for count in counts)
        and abs(counts[1] / ours - 1) < 0.05
    )
    with pytest.raises(BadInput, match="A width of 0"):
        painn.PaiNN(config, width=0)


def test_both_models_start_as_superposed_atoms_and_see_the_same_batches(data, monkeypatch) -> None:
    contest = load("contest")
    choices = {
        "steps": 2,
        "molecules": 2,
        "probes": 16,
        "validation": 1,
        "model": {"mul": 8, "lmax": 1, "hidden": 8},
    }
    contest_under_test = contest.Contest(open_dataset(data), choices, judge=300, say=lambda text: None)
    base = contest_under_test.superposition()["test"]["samples"]
    for name in ("ours", "painn"):
        first = contest_under_test.errors(
            contest_under_test.build(name, seed=0).eval(), contest_under_test.data.names("test")
        )
        # The difference is due to tables of 401 knots that end at the cutoff, and a small random read-out.
        assert first == pytest.approx(base, abs=0.06)
    batches: list[Any] = []

    def record_batch(items, config, *, probe_indices, **options):
        batches.append([(item.name, of.tolist()) for item, of in zip(items, probe_indices, strict=True)])
        return batch_of(items, config, probe_indices=probe_indices, **options)

    monkeypatch.setattr("pinchpoint.systems.density.data.batches.batch_of", record_batch)
    for name in ("ours", "painn"):
        contest_under_test.train(name, seed=1, lr=1e-3)
    assert batches[:2] == batches[2:] and batches[0] != batches[1]
    assert (
        batches[0][0][1]
        == choose_probes(contest_under_test.items[batches[0][0][0]], 16, seed=1, step=1).tolist()
    )
    assert not set(contest_under_test.validation_names) & {name for batch in batches for name, _ in batch}


def test_a_toy_comparison_runs_and_can_be_resumed(data, tmp_path, capsys) -> None:
    main = load("compare").main
    part, record = tmp_path / "part.json", tmp_path / "record.json"
    assert (
        main(
            ["run", str(data), "-o", str(part), *TOY, "--only", "superposition", "tune", "ours:0", "painn:0"]
        )
        == 0
    )
    first = json.loads(part.read_text())
    assert main(["run", str(data), "-o", str(part), *TOY, "--only", "ours:0", "painn-6:1"]) == 0
    second = json.loads(part.read_text())
    assert second["runs"]["ours:0"] == first["runs"]["ours:0"] and set(second["runs"]) == {
        "ours:0",
        "painn:0",
        "painn-6:1",
    }
    assert set(second["tuned"]["painn"]["tried"]) == {"0.002", "0.01"}
    assert second["runs"]["painn:0"]["lr"] == second["tuned"]["painn"]["lr"]
    for run in second["runs"].values():
        assert len(run["test"]["samples"]) == 2 and list(run["heldout"]["molecules"]) == ["methanol"]
        assert all(0 < error < 1 for error in run["test"]["samples"].values())
    assert main(["merge", str(part), "-o", str(record)]) == 0
    assert "| superposed atoms | - | 0 | - |" in record.with_suffix(".md").read_text()
    capsys.readouterr()
    assert main(["run", str(data), "-o", str(part), *TOY, "--steps", "5", "--only", "ours:0"]) == 2
    err = capsys.readouterr().err
    assert "The parts belong to different comparisons: steps is 5 in one and 4 in another" in err


def test_means_and_bars_are_computed_from_the_runs() -> None:
    results = load("results")
    splits = [
        {"test": {"mean": a}, "heldout": {"mean": b}}
        for a, b in ((0.008, 0.02), (0.012, 0.04), (0.009, 0.03))
    ]
    runs = {
        f"ours:{seed}": {"parameters": 5, "lr": 0.01, "step_s": 0.1, **split}
        for seed, split in enumerate(splits)
    }
    part = {"about": {"steps": 3, "molecules": 2, "probes": 9}, "superposition": {}, "runs": runs}
    assert results.means(part, "ours")["test"] == pytest.approx((0.029 / 3, 0.008, 0.012, 3))
    text = results.table(part)
    assert (
        "| NMAE, test | 1.200% | 1.0% | missed |" in text
        and "| NMAE, heldout | 4.000% | 3.0% | missed |" in text
    )
    better = copy.deepcopy(part)
    better["runs"] = {"ours:0": runs["ours:0"]}
    assert results.table(better).count("holds") == 2


def test_unknown_work_and_foreign_files_are_rejected(tmp_path) -> None:
    pieces, read = load("compare").pieces, load("results").read
    assert list(pieces(["tune", "painn-64:0,2"])) == [("tune", None), ("painn-64", 0), ("painn-64", 2)]
    for word in ("gino:0", "ours", "ours:x", "painn-0:1"):
        with pytest.raises(BadInput, match="--only"):
            list(pieces([word]))
    (tmp_path / "other.json").write_text('{"what": "operator against GINO"}')
    with pytest.raises(BadInput, match="is not a part of this comparison"):
        read(tmp_path / "other.json")


class Diverging:
    """A contest in which every rate above `most` diverges."""

    def __init__(self, most: float) -> None:
        self.most, self.tried = most, []

    def run(self, name: str, *, seed: int, lr: float) -> dict[str, Any]:
        self.tried.append(lr)
        if lr > self.most:
            raise TargetFailed("The loss is nan at step 600.", hint="Use a lower learning rate.")
        return {"lr": lr}


def test_a_diverging_run_is_repeated_at_half_the_rate() -> None:
    compare, contest = load("compare"), Diverging(most=0.006)
    assert compare.train_at_rate(contest, "painn", seed=0, lr=0.02) == {"lr": 0.005, "diverged": [0.02, 0.01]}
    assert compare.train_at_rate(Diverging(1.0), "ours", seed=0, lr=0.02) == {"lr": 0.02, "diverged": []}
    hopeless = Diverging(most=0.0)
    with pytest.raises(TargetFailed, match="nan"):
        compare.train_at_rate(hopeless, "painn", seed=0, lr=0.02)
    assert len(hopeless.tried) == 4
