"""Cases like those a flow solver writes: ideal flow around aerofoils, exact, as .vtu files with cells.

A Joukowski aerofoil is the image of a circle; the flow around it has a closed form, with the circulation
that lets the flow leave the trailing edge smoothly. Each case is a grid of quadrilaterals around one
aerofoil, with the pressure coefficient `p` and the velocity `U` at the middle of every cell, and the angle of
attack in parameters.csv.

    python examples/operator_flows.py runs --cases 100
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

import numpy as np


def flow(zeta: Any, centre: complex, radius: float, alpha: float) -> tuple[Any, Any]:
    """Places z and complex velocities u - iv at places zeta outside the circle, for an inflow of speed 1."""
    from_centre = zeta - centre
    circulation = 4 * np.pi * radius * np.sin(alpha - np.angle(1 - centre))
    speed = (
        np.exp(-1j * alpha)
        - np.exp(1j * alpha) * radius**2 / from_centre**2
        + 1j * circulation / (2 * np.pi * from_centre)
    )
    return zeta + 1 / zeta, speed / (1 - 1 / zeta**2)


def case(rng: np.random.Generator, around: int, outward: int) -> tuple[dict[str, np.ndarray], float]:
    """Points, cells and fields of one case, and its angle of attack in degrees."""
    centre = complex(-rng.uniform(0.06, 0.16), rng.uniform(0.0, 0.15))
    radius = abs(1 - centre)
    alpha = rng.uniform(-4.0, 8.0)
    angles = np.linspace(0, 2 * np.pi, around + 1)[:-1] + np.angle(1 - centre)
    rings = radius * np.exp(np.linspace(np.log(1.001), np.log(4.0), outward + 1))
    corner, _ = flow(centre + rings[:, None] * np.exp(1j * angles), centre, radius, np.radians(alpha))
    number = np.arange((outward + 1) * around).reshape(outward + 1, around)
    after = np.roll(number, -1, axis=1)
    cells = np.stack([number[:-1], number[1:], after[1:], after[:-1]], axis=-1).reshape(-1, 4)
    middle = np.sqrt(rings[:-1] * rings[1:])[:, None] * np.exp(1j * (angles + np.pi / around))
    _, velocity = flow(centre + middle, centre, radius, np.radians(alpha))
    u = np.stack([velocity.real, -velocity.imag, 0 * velocity.real], axis=-1).reshape(-1, 3)
    points = np.stack([corner.real, corner.imag, 0 * corner.real], axis=-1).reshape(-1, 3)
    return {"points": points, "cells": cells, "U": u, "p": 1 - (u**2).sum(axis=1)}, alpha


def main() -> None:
    parser = argparse.ArgumentParser(description="Write cases of ideal flow around aerofoils.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--around", type=int, default=64, help="cells around an aerofoil")
    parser.add_argument("--outward", type=int, default=16, help="cells from the aerofoil to the far field")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    import meshio

    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(options.cases):
        arrays, alpha = case(np.random.default_rng([options.seed, number]), options.around, options.outward)
        name = f"aerofoil_{number:03d}"
        mesh = meshio.Mesh(
            arrays["points"],
            [("quad", arrays["cells"])],
            cell_data={"p": [arrays["p"]], "U": [arrays["U"]]},
        )
        mesh.write(options.folder / f"{name}.vtu")
        rows.append([name, f"{alpha:.6f}"])
    with (options.folder / "parameters.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["case", "alpha"], *rows])
    print(f"{options.cases} cases in {options.folder}")


if __name__ == "__main__":
    main()
