"""The claims of the density report: the rebuilt program computes our densities, and indices are tried."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="density models are torch's")
pytest.importorskip("e3nn", reason="the program of the report uses e3nn")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "density"


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    return importlib.import_module("claims")


def test_the_program_of_the_report_computes_the_densities_of_the_scalar_form(claims: ModuleType) -> None:
    program = claims.Program("cpu", tiny=True)
    batches = [program.host_batch(first, 40) for first in (0, 700)]
    assert set(claims.UNUSED) < set(batches[0]) and len(batches[0]["probe_target"]) == 40
    graph = program.graph
    with torch.no_grad():
        fields = program.model.fields(graph)
        expected = []
        for first in (0, 700):
            apart = program.points[first : first + 40, None] - program.images.positions
            vectors = torch.from_numpy(apart).float()[None]
            near = torch.from_numpy(program.images.atom)[None]
            expected.append(program.model(fields, graph.species, near, vectors)[0, :, 0].numpy())
    for how in ({}, {"non_blocking": True, "skip": claims.UNUSED}):
        values = program.predict(batches, **how)
        assert np.linalg.norm(values - np.concatenate(expected)) < 1e-4 * np.linalg.norm(expected)
    rows = claims.measure_indices(program, 1)["operations"]
    assert "Error" in rows["scatter_add_"]["int32"], "this operation takes no 32-bit indices"
    assert rows["index_add_"]["int32"] == "ok" and rows["index_add_"]["difference"] == 0


def test_the_summary_of_a_pair_is_the_mean_and_range_over_seeds() -> None:
    pair = importlib.import_module("pair")
    rows = [
        {"variant": variant, "seed": seed, "test": {"nmae": seed / 10}, "heldout": {"nmae": 1.0}}
        for variant in pair.VARIANTS
        for seed in (1, 2, 6)
    ]
    assert pair.summary_of(rows)["pair"] == {
        "test": [pytest.approx(0.3), 0.1, 0.6],
        "heldout": [1.0, 1.0, 1.0],
    }


def test_steps_of_crystals_and_molecules_learn_and_those_of_a_pair_keep_the_first_network() -> None:
    steps = importlib.import_module("steps")
    crystals = steps.samples_of("crystals")[:1]
    assert [len(sample.species) for sample in steps.samples_of("crystals")] == [12, 24, 48]
    for pair in (False, True):
        run = steps.Steps(crystals, "cpu", pair=pair)
        run.settings = steps.replace(run.settings, probes=8)
        before = {name: value.clone() for name, value in run.stepper.model.state_dict().items()}
        run()
        changed = {
            name for name, value in run.stepper.model.state_dict().items() if (value != before[name]).any()
        }
        assert changed and (not pair or all(name.startswith("local.") for name in changed))
