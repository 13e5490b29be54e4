"""The ladder: every rung has the defect that it names, and the recorded ladder is ordered."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from pinchpoint.core.errors import BadInput  # noqa: E402
from pinchpoint.systems.radiance.metrics.features import Extractor  # noqa: E402
from pinchpoint.systems.radiance.metrics.metrics import hue_coverage  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"
RECORD = FOLDER.parent / "results" / "radiance_ladder_cpu.json"


def script() -> ModuleType:
    return importlib.import_module("ladder")


@pytest.fixture(scope="module")
def rungs():
    return script().rungs(images=16, size=24, seed=0)


def test_each_rung_has_the_defect_it_names(rungs) -> None:
    good = rungs["same"]
    assert all(values.shape == (16, 3, 24, 24) and values.abs().max() <= 1 for values in rungs.values())
    assert len(torch.unique(rungs["collapse"], dim=0)) == 8
    assert hue_coverage(rungs["grey"]) == 0 < hue_coverage(good)
    roughness = {name: (values.diff(dim=3)).abs().mean() for name, values in rungs.items()}
    assert (
        roughness["blur 2 px"]
        < roughness["blur 1 px"]
        < roughness["same"]
        < roughness["noise 0.05"]
        < roughness["noise 0.1"]
    )
    assert torch.allclose(
        rungs["blur 2 px"].mean(dim=(1, 2, 3)), good.mean(dim=(1, 2, 3)), atol=0.02
    )  # light is kept
    changed = (rungs["no wheels"] != good).any(dim=1).float().mean(dim=(1, 2))
    assert changed.max() < 0.25 and changed.mean() > 0.002  # only wheels and arches differ
    assert not torch.equal(rungs["reference"], good)


def test_the_ladder_measures_every_rung_against_the_reference() -> None:
    def mean_colour(images: torch.Tensor) -> torch.Tensor:
        return images.mean(dim=(2, 3))

    reports: list[tuple[int, int]] = []
    rungs_measured = script().ladder(
        Extractor("efflite0", 16, 3, mean_colour, torch.device("cpu")),
        images=16,
        size=16,
        progress=lambda *a: reports.append(a),
    )
    assert [rung.rung for rung in rungs_measured][:4] == [
        "same",
        "collapse",
        "no wheels",
        "grey",
    ] and reports[0] == (
        0,
        len(rungs_measured),
    )
    assert all(set(rung.distances) == {"KD-efflite0", "FD-efflite0"} for rung in rungs_measured)
    values = {rung.rung: rung.distances["KD-efflite0"] for rung in rungs_measured}
    # On white, noise can only darken.
    assert values["noise 0.1"] > values["noise 0.05"]


def test_too_few_images_are_rejected() -> None:
    with pytest.raises(BadInput, match="A ladder of 7 images"):
        script().rungs(images=7, size=16, seed=0)


def test_the_recorded_ladder_is_ordered_for_every_seed() -> None:
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    rows = {row["rung"]: row["KD-efflite0"] for row in record["rows"]}
    assert (
        record["images"] == 128
        and record["features"] == "efflite0"
        and "benchmarks/radiance/ladder.py" in record["command"]
    )
    for values in zip(
        *(rows[name] for name in ("same", "collapse", "no wheels", "grey", "noise 0.1")), strict=True
    ):
        assert list(values) == sorted(values) and abs(values[0]) < 0.25 * values[2]
