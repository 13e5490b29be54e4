"""The density in `pinchpoint demo`: a crystal outside the training data, compared with superposed atoms."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinchpoint.core.demo import Picture, Show

if TYPE_CHECKING:
    from pinchpoint.systems.density.predict import Prediction

# The original form is slow to build, here and in a forecast, so it is narrow and of low degree.
SHOW = Show(
    "density",
    needs=("torch", "e3nn"),
    order=10,
    task="512 probes of HfO2",
    picture="the electrons of HfO2",
    variant="scalar",
    verify_size=512,
    verify_mode="infer",
    cost_s=25,
    settings={"mul": "24", "lmax": "1"},
)
NAME = "hfo2-orthorhombic"  # not in the training data
SPACING_A = 0.15


@dataclass(frozen=True, eq=False)
class Example:
    """The predicted density of a crystal, and how much bonding changes it."""

    name: str
    prediction: Prediction
    change: float  # sum |predicted - superposed atoms| / sum |superposed atoms|
    picture: Path


def example(volume: Path, picture: Path, *, device: str = "auto") -> Example:
    """Predict the density of the crystal; write it to the CHGCAR file `volume`, and slices to `picture`."""
    from pinchpoint.systems.density.data.atomic import superpose
    from pinchpoint.systems.density.data.crystals.polymorphs import polymorph
    from pinchpoint.systems.density.evaluate import draw_slices, nmae_of
    from pinchpoint.systems.density.files.volume import Volume, grid_points
    from pinchpoint.systems.density.predict import predict

    structure = polymorph(NAME)
    prediction = predict(structure, output=volume, spacing_a=SPACING_A, device=device)
    points = grid_points(prediction.volume.grid) @ structure.lattice
    apart = superpose(structure.species, structure.cartesian, points, structure.lattice)
    before = Volume(structure, apart.reshape(prediction.volume.grid))
    x, y, z = structure.positions[0]  # through a metal atom
    draw_slices(
        picture,
        prediction.volume.total,
        before,
        at=(float(x), float(y), float(z)),
        title="orthorhombic HfO2: predicted density, superposed atoms as reference, change by bonding",
    )
    change = nmae_of(prediction.volume.total, before.total)
    return Example(NAME, prediction, change, picture)


def draw(output: Path, *, device: str, seed: int) -> Picture:
    """Predict the crystal with the packaged weights; `seed` is not used."""
    with tempfile.TemporaryDirectory() as folder:
        result = example(Path(folder, "CHGCAR"), output / "density.png", device=device)
    prediction = result.prediction
    return Picture(
        result.picture,
        "density: the valence electrons of orthorhombic HfO2",
        "Predicted by the packaged network, which was trained on two other polymorphs of HfO2: "
        f"{prediction.probes:,} probes in {prediction.probes_s:.1f} s on {prediction.device}, "
        f"{prediction.electrons_raw:.5g} electrons where the cell has {prediction.electrons_neutral}. "
        f"Bonding changes the density of the superposed atoms by {result.change:.0%}.",
    )
