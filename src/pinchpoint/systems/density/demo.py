"""The density in `pinchpoint demo`: a molecule outside the training data, compared with superposed atoms."""

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
    picture="the electrons of ethanol",
    variant="scalar",
    verify_size=512,
    verify_mode="infer",
    cost_s=25,
    settings={"mul": "24", "lmax": "1"},
)
NAME = "ethanol"  # not in the training data
SPACING_A, PADDING_A = 0.2, 4.0  # the padding is the model's cutoff, so that no density is cut off


@dataclass(frozen=True, eq=False)
class Example:
    """The predicted density of a molecule, and how much bonding changes it."""

    name: str
    electrons: int  # valence electrons of the molecule
    prediction: Prediction
    change: float  # sum |predicted - superposed atoms| / sum |superposed atoms|
    picture: Path


def example(volume: Path, picture: Path, *, device: str = "auto") -> Example:
    """Predict the density of the molecule; write it to the CHGCAR file `volume`, and slices to `picture`."""
    import numpy as np

    from pinchpoint.systems.density.data.atomic import superpose
    from pinchpoint.systems.density.data.molecules import molecule
    from pinchpoint.systems.density.evaluate import centre_of_charge, draw_slices, nmae_of
    from pinchpoint.systems.density.files.volume import Volume, grid_points
    from pinchpoint.systems.density.grid.structure import Structure
    from pinchpoint.systems.density.predict import predict

    subject = molecule(NAME)
    low, high = subject.positions.min(axis=0) - PADDING_A, subject.positions.max(axis=0) + PADDING_A
    structure = Structure(np.diag(high - low), subject.species, (subject.positions - low) / (high - low))
    prediction = predict(structure, output=volume, spacing_a=SPACING_A, device=device)
    points = grid_points(prediction.volume.grid) @ structure.lattice
    apart = superpose(structure.species, structure.cartesian, points)
    before = Volume(structure, apart.reshape(prediction.volume.grid))
    draw_slices(
        picture,
        prediction.volume.total,
        before,
        at=centre_of_charge(prediction.volume.total),
        title=f"{NAME}: predicted density, superposed atoms as reference, and the change by bonding",
    )
    change = nmae_of(prediction.volume.total, before.total)
    return Example(NAME, subject.electrons, prediction, change, picture)


def draw(output: Path, *, device: str, seed: int) -> Picture:
    """Predict the molecule with the packaged weights; `seed` is not used."""
    with tempfile.TemporaryDirectory() as folder:
        result = example(Path(folder, "CHGCAR"), output / "density.png", device=device)
    prediction = result.prediction
    return Picture(
        result.picture,
        f"density: the valence electrons of {result.name}",
        f"Predicted by the packaged network, which was not trained on {result.name}: "
        f"{prediction.probes:,} probes in {prediction.probes_s:.1f} s on {prediction.device}, "
        f"{prediction.electrons_raw:.5g} electrons where the molecule has {result.electrons}. "
        f"Bonding changes the density of the superposed atoms by {result.change:.0%}.",
    )
