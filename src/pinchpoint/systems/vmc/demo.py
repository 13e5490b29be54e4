"""The wave function in `pinchpoint demo`: the energy of H2 while a small network is trained."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from pinchpoint.core.demo import Picture, Show

SHOW = Show(
    "vmc",
    needs=("jax", "folx"),
    order=30,
    task="energies of 2,048 walkers of H",
    picture="the energy of H2",
    variant="chunked",
    verify_size=2_048,
    verify_mode="infer",
    cost_s=50,
    settings={"system": "H", "net": "report-cpu"},  # compiles in half the time of H2
)
# One optimizer means one compiled program, and compiling takes longer than the steps.
STEPS = 120
SETTINGS: dict[str, Any] = {
    "net": "small",
    "net_changes": {"layers": 1},
    "optimizer": "adam",
    "walkers": 256,
    "moves": 5,
    "burn": 20,
}


def draw(output: Path, *, device: str, seed: int, steps: int = STEPS) -> Picture:
    """Train the network, and draw its energy at each step beside the exact one."""
    from pinchpoint.systems.vmc.train import train
    from pinchpoint.systems.vmc.training.runs import PICTURE

    with tempfile.TemporaryDirectory() as folder:
        result = train("H2", Path(folder, "run"), device=device, seed=seed, steps=steps, **SETTINGS)
        path = Path(shutil.copyfile(Path(folder, "run", PICTURE), output / "vmc.png"))
    return Picture(
        path,
        "vmc: the energy of H2 while its wave function is trained",
        f"{result.summary()[3][1]}. Trained for {steps} steps in {result.seconds:.0f} s on {result.device},"
        " from random weights and without data.",
    )
