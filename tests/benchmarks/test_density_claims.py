"""The claims of the density report: the rebuilt program computes our densities, and indices are tried."""

from __future__ import annotations

import importlib
import json
import re
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


def test_the_page_has_the_figures_of_the_record() -> None:
    root = FOLDER.parents[1]
    parts = json.loads((root / "benchmarks/results/density_claims_h200.json").read_text("utf-8"))["parts"]
    page = (root / "docs/reports/density.md").read_text("utf-8")
    whole, copies, rows = parts["whole"], parts["copies"], parts["batch"]["rows"]
    ratio, low, high = whole["speed_up"]
    figures = [
        f"{whole['batches_per_s']:.1f} batches per second, {whole['all_batches_s']:.1f} s for all",
        f"{ratio:.0f} times as fast [{low:.0f}, {high:.0f}]",
        f"{copies['unused_bytes']:,} of {sum(copies['bytes'].values()):,} bytes",
        f"{parts['unused']['created_per_batch']['median_s'] * 1e3:.2f} ms of the "
        f"{whole['batch']['median_s'] * 1e3:.0f} ms of a batch",
        f"{rows[-1]['peak_allocated_bytes'] / 2**30:.1f} GiB and fail",
    ]
    for part, name in ((copies["loop_of_two_batches"], "non_blocking"), (parts["unused"], "inference_mode")):
        ratio, low, high = part[name]["speed_up"]
        figures.append(f"speed-up {ratio:.3f} [{low:.3f}, {high:.3f}]")
    figures.append(
        ", ".join(f"{row['speed_up'][0]:.2f}" for row in parts["indices"]["operations"].values())[:16]
    )
    assert [text for text in figures if text not in page] == []
    assert [row["under_cap"] == "ok" for row in rows] == [True, True, True, False]


def test_the_page_has_the_errors_of_a_pair_as_recorded() -> None:
    root = FOLDER.parents[1]
    record = json.loads((root / "benchmarks/results/density_pair_h200.json").read_text("utf-8"))
    page = (root / "docs/systems/density.md").read_text("utf-8")
    for splits in record["summary"].values():
        test, heldout = (f"{splits[split][0] * 100:.3f} %" for split in ("test", "heldout"))
        assert re.search(f"{test}( on new geometries)? and {heldout}", page)
