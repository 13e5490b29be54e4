"""The examples of docs/systems/density.md run as they stand and give what is said of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="density models are torch's")

from pinchpoint.systems.density.files.poscar import poscar_text
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.predict import predict

PAGE = Path(__file__).parents[3] / "docs" / "systems" / "density.md"
WATER = np.array([[4.0, 4.0, 4.1173], [4.0, 4.7572, 3.5308], [4.0, 3.2428, 3.5308]])


def example(word: str) -> dict[str, Any]:
    """Run the block of Python that holds a word; what it defines."""
    (found,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if word in block
    ]
    names: dict[str, Any] = {}
    exec(compile(found, str(PAGE), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a POSCAR of water."""
    (tmp_path / "POSCAR").write_text(
        poscar_text(Structure(np.eye(3) * 8.0, ("O", "H", "H"), WATER / 8), "water")
    )
    monkeypatch.chdir(tmp_path)


def test_the_prediction_of_the_page() -> None:
    made = example("from pinchpoint.systems.density.predict import predict")["result"]
    assert made.volume.total.shape == (40, 40, 40) and made.electrons_raw == pytest.approx(8, rel=0.01)
    assert made.electrons_neutral == 8 and made.notes == ()


def test_the_probes_of_the_page_have_the_density_of_a_grid() -> None:
    names = example("atom_graph")
    wanted = predict("POSCAR", weights=names["model"], grid=8, device="cpu", knots=None).volume.total
    points = names["probes"].numpy()
    found = names["density"].detach().numpy()[0, :, 0]
    for point, value in zip(points, found, strict=True):
        assert value == pytest.approx(
            wanted[tuple(np.rint(point).astype(int))], abs=1e-5 * np.abs(wanted).max()
        )
