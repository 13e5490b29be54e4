"""Score weights on the held-out molecules of the preset `wide`, at random points of every grid.

    python benchmarks/density/heldout.py DATA -o FILE.json

`pinchpoint density score packaged DATA --split heldout` uses all points, which takes much longer.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from pinchpoint.core.files import write_text
from pinchpoint.core.records import now
from pinchpoint.systems.density.data.atomic import superpose
from pinchpoint.systems.density.data.batches import item_of
from pinchpoint.systems.density.data.dataset import open_dataset
from pinchpoint.systems.density.training.training_step import nmae, values_at
from pinchpoint.systems.density.training.weights import load_weights


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--weights", default=None, help="a run or a file; default: those of molecules")
    parser.add_argument("--points", type=int, default=4000, help="of each grid")
    args = parser.parse_args()
    model, data = load_weights(args.weights), open_dataset(args.data, accept_unfinished=True)
    rows = []
    for name in data.names("heldout"):
        sample = data.sample(name)
        chosen = np.random.default_rng(0).permutation(len(sample.probes))[: args.points]
        parts = {key: getattr(sample, key)[chosen] for key in ("probes", "values", "weights")}
        sample = replace(sample, **parts, grid=None)
        item = item_of(sample, model.config)
        error = np.abs(superpose(sample.species, sample.positions, sample.probes) - sample.values)
        rows.append(
            {
                "name": name,
                "molecule": sample.molecule,
                "nmae": nmae(values_at(model, item), item),
                "superposition": float(
                    (sample.weights * error).sum() / (sample.weights * sample.values).sum()
                ),
            }
        )
        print(f"{name}: {rows[-1]['nmae']:.2%}", flush=True)
    molecules = {
        name: float(np.mean([row["nmae"] for row in rows if row["molecule"] == name]))
        for name in sorted({row["molecule"] for row in rows})
    }
    record = {
        "kind": "density-heldout",
        "created": now(),
        "command": "python benchmarks/density/heldout.py DATA",
        "weights": args.weights or "molecules",
        "points": args.points,
        "nmae": float(np.mean([row["nmae"] for row in rows])),
        "worst": max(row["nmae"] for row in rows),
        "superposition": float(np.mean([row["superposition"] for row in rows])),
        "molecules": molecules,
        "samples": rows,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(f"mean {record['nmae']:.2%}, worst {record['worst']:.2%}")


if __name__ == "__main__":
    main()
