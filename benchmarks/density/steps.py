"""Training steps per second for molecules and for crystals, timed in turn, with one network and with a pair.

    python benchmarks/density/steps.py --device cuda -o benchmarks/results/density_steps_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The steps are those of `density train` with its
default settings (preset small, 4 structures with 512 probes each), including the choice of the probes and the
neighbour search. The molecules are those of the default dataset, the crystals monoclinic HfO2 with 12 atoms
and its 2 x 1 x 1 and 2 x 2 x 1 supercells, each rattled; densities are random, because time does not depend
on them. In a pair, a local network learns to correct a trained one (`--first`).
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.studies.timing import interleave, ratio_interval, timing_of
from pinchpoint.systems.density.data.batches import item_of, step_batch
from pinchpoint.systems.density.data.molecules import TRAINING, molecule
from pinchpoint.systems.density.data.sample import Sample
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.settings import Settings
from pinchpoint.systems.density.training.training_step import Stepper, new_model

PROBES = 5_000  # of each structure
RATTLE_A = 0.05
SUPERCELLS = ((1, 1, 1), (2, 1, 1), (2, 2, 1))


def samples_of(kind: str) -> list[Sample]:
    rng = np.random.default_rng(0)
    structures: list[tuple[str, tuple[str, ...], np.ndarray, np.ndarray | None]] = []
    if kind == "molecules":
        structures = [(name, molecule(name).species, molecule(name).positions, None) for name in TRAINING]
    else:
        cell = hafnia()
        for times in SUPERCELLS:
            shifts = np.stack(np.meshgrid(*map(np.arange, times), indexing="ij"), axis=-1).reshape(-1, 3)
            places = (cell.positions[None] + shifts[:, None]).reshape(-1, 3) @ cell.lattice
            lattice = cell.lattice * np.array(times)[:, None]
            structures.append(
                ("HfO2 " + "x".join(map(str, times)), cell.species * len(shifts), places, lattice)
            )
    samples = []
    for name, species, positions, lattice in structures:
        places = positions + rng.normal(size=positions.shape) * RATTLE_A
        if lattice is None:
            probes = positions[rng.integers(len(positions), size=PROBES)] + rng.normal(size=(PROBES, 3))
        else:
            probes = rng.random((PROBES, 3)) @ lattice
        values, weights = rng.random(PROBES).astype(np.float32), np.full(PROBES, 1 / PROBES)
        samples.append(Sample(name, name, species, places, lattice, probes, values, weights, 8.0))
    return samples


class Steps:
    """Steps of a training run on some structures."""

    def __init__(self, samples: list[Sample], device: str, *, pair: bool) -> None:
        species = tuple(sorted({symbol for sample in samples for symbol in sample.species}))
        self.config = DensityConfig.preset("small", species, local=64 if pair else 0)
        self.settings = replace(Settings(), first="a run" if pair else "")
        self.items = {sample.name: item_of(sample, self.config, device=device) for sample in samples}
        self.stepper = Stepper(new_model(self.config, seed=0), self.settings, device)
        self.number = 0

    def __call__(self) -> torch.Tensor:
        self.number += 1
        batch = step_batch(self.items, list(self.items), self.settings, self.config, number=self.number)
        return self.stepper.step(batch, number=self.number)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cuda", "cpu"))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)

    def wait(_: object) -> None:
        if args.device == "cuda":
            torch.cuda.synchronize()

    rows: list[dict[str, Any]] = []
    for pair in (False, True):
        kinds = {kind: samples_of(kind) for kind in ("molecules", "crystals")}
        steps = [Steps(samples, args.device, pair=pair) for samples in kinds.values()]
        both = interleave(*steps, wait=wait, warmup=5, repeats=args.repeats)
        for (kind, samples), seconds in zip(kinds.items(), both, strict=True):
            timing = timing_of(seconds)
            rows.append(
                {
                    "structures": kind,
                    "networks": "local alone" if pair else "one",
                    "atoms": [len(sample.species) for sample in samples],
                    **vars(timing),
                    "steps_per_s": 1 / timing.median_s,
                }
            )
        rows[-1]["over_molecules"] = ratio_interval(both[1], both[0])
    record = {
        "command": script_command(),
        "created": now(),
        "machine": describe(),
        "device": args.device,
        "threads": torch.get_num_threads(),
        "settings": {"preset": "small", "structures": Settings().molecules, "probes": Settings().probes},
        "rows": rows,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(f"{row['structures']}, {row['networks']}: {row['steps_per_s']:.3g} steps per second")


if __name__ == "__main__":
    main()
