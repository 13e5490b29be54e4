"""An example prediction for `pinchpoint demo`: a molecule outside the training data, and superposed atoms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pinchpoint.core.demo import Show

if TYPE_CHECKING:
    from pinchpoint.systems.density.predict import Prediction, Progress

# The original form is slow to build, here and in a forecast, so it is narrow, of low degree, and not studied.
SHOW = Show(
    "density",
    needs=("torch", "e3nn"),
    order=30,
    verify_size=1_024,
    verify_mode="infer",
    verify_s=2.0,
    settings={"mul": "40", "lmax": "1"},
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


def example(folder: str | Path, *, device: str = "auto", progress: Progress | None = None) -> Example:
    """Predict the density of the molecule and write CHGCAR and slices.png to the folder."""
    import numpy as np

    from pinchpoint.core.files import make_folder
    from pinchpoint.systems.density.data.atomic import superpose
    from pinchpoint.systems.density.data.molecules import molecule
    from pinchpoint.systems.density.evaluate import centre_of_charge, draw_slices, nmae_of
    from pinchpoint.systems.density.files.volume import Volume, grid_points
    from pinchpoint.systems.density.grid.structure import Structure
    from pinchpoint.systems.density.predict import predict

    subject, place = molecule(NAME), make_folder(folder)
    low, high = subject.positions.min(axis=0) - PADDING_A, subject.positions.max(axis=0) + PADDING_A
    structure = Structure(np.diag(high - low), subject.species, (subject.positions - low) / (high - low))
    prediction = predict(
        structure, output=place / "CHGCAR", spacing_a=SPACING_A, device=device, progress=progress
    )
    points = grid_points(prediction.volume.grid) @ structure.lattice
    apart = superpose(structure.species, structure.cartesian, points)
    before = Volume(structure, apart.reshape(prediction.volume.grid))
    title = f"{NAME}: predicted density, superposed atoms as reference, and the change by bonding"
    picture = draw_slices(
        place / "slices.png",
        prediction.volume.total,
        before,
        at=centre_of_charge(prediction.volume.total),
        title=title,
    )
    return Example(
        NAME, subject.electrons, prediction, nmae_of(prediction.volume.total, before.total), picture
    )


def show(output: Path, *, device: str, tell: Callable[[str], None]) -> bool:
    """Predict the density of a molecule with the packaged weights, for `pinchpoint demo`."""
    from pinchpoint.console import printing

    def progress(stage: str, done: int, total: int) -> None:
        if not done:  # once per stage, because a stage takes seconds
            tell(f"density: predict a molecule, {stage}")

    result = example(output / f"density-{NAME}", device=device, progress=progress)
    prediction = result.prediction
    grid = " x ".join(map(str, prediction.volume.grid))
    printing.show(
        f"\ndensity: the electrons of {result.name}, a molecule outside the training data", style="bold"
    )
    printing.show_pairs(
        [
            (
                "grid",
                f"{grid}, {prediction.probes:,} probes in {prediction.probes_s:.1f} s on {prediction.device}",
            ),
            ("electrons", f"{prediction.electrons_raw:.5g} predicted, {result.electrons} in the molecule"),
            ("bonding changes", f"{result.change:.1%} of the superposed atoms' density"),
            ("written", f"{prediction.path}, {result.picture.name}"),
        ]
    )
    for note in prediction.notes:
        printing.say(f"note: {note}")
    return True
