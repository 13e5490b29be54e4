"""A ladder for interpreting distances: sets of cars, each with one known defect, compared with good cars.

    python benchmarks/radiance/ladder.py [-o record.json] [--images 128] [--size 64] [--seeds 0 1 2]
        [--inception FILE]

Each rung is compared, for every seed, with as many other cars of the same kind, with the features of
EfficientNet-Lite0 (or FID's Inception if its file is given). The lowest rung, cars of the same kind, shows
the distance due to chance; a generator's distance lies between two rungs. The script prints a table of means
with minimum and maximum, and writes a JSON record. pinchpoint must be importable (installed, or
PYTHONPATH=src), with its extra `radiance`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.radiance.data.cars import Car, Pose, draw_car
from pinchpoint.systems.radiance.data.sphere_tracing import picture
from pinchpoint.systems.radiance.metrics.features import Extractor, open_extractor
from pinchpoint.systems.radiance.metrics.metrics import distances

RESULT = Path(__file__).parents[1] / "results" / "radiance_ladder_cpu.json"

COLLAPSED = 8  # images a collapsed generator still produces


@dataclass(frozen=True)
class Rung:
    """A kind of defect and its distances."""

    rung: str
    distances: dict[str, float]


def rungs(*, images: int, size: int, seed: int, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """Return the images (N, 3, W, W) in [-1, 1] of every rung, and the reference under "reference"."""
    if images < COLLAPSED:
        raise BadInput(
            f"A ladder of {images} images is too small.", hint=f"Give --images {COLLAPSED} or more."
        )
    pairs = [draw_car(seed, number) for number in range(2 * images)]
    reference, good = _pictures(pairs[:images], size, device), _pictures(pairs[images:], size, device)
    bare = _pictures([(replace(car, wheels=False), pose) for car, pose in pairs[images:]], size, device)
    grey = good @ good.new_tensor([0.299, 0.587, 0.114])
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(good.shape, generator=draw).to(good)
    sets = {
        "reference": reference,
        "same": good,
        "collapse": good[torch.arange(images) % COLLAPSED],
        "no wheels": bare,
        "grey": grey[..., None].expand_as(good),
        "blur 1 px": _blur(good, 1.0),
        "blur 2 px": _blur(good, 2.0),
        "noise 0.05": good + 0.05 * noise,
        "noise 0.1": good + 0.1 * noise,
    }
    return {name: values.clamp(0, 1).permute(0, 3, 1, 2) * 2 - 1 for name, values in sets.items()}


def ladder(
    extract: Extractor,
    *,
    images: int = 128,
    size: int = 64,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Rung]:
    """Return the distances of every rung to the reference, with these features."""
    sets = rungs(images=images, size=size, seed=seed, device=extract.device)
    reference = extract(sets.pop("reference"))
    rungs_measured = []
    for name, pictures in sets.items():
        if progress:
            progress(len(rungs_measured), len(sets))
        rungs_measured.append(Rung(name, distances(reference, extract(pictures), features=extract.name)))
    return rungs_measured


def _pictures(pairs: list[tuple[Car, Pose]], size: int, device: str | torch.device) -> Tensor:
    """Return the pictures (N, W, W, 3) in [0, 1]."""
    return picture([car for car, _ in pairs], [pose for _, pose in pairs], size=size, device=device).rgb


def _blur(images: Tensor, sigma: float) -> Tensor:
    """Blur by a Gaussian of `sigma` pixels; edges are extended."""
    reach = int(4 * sigma + 0.5)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=images.device) / sigma) ** 2)
    weights = (weights / weights.sum()).view(1, 1, 1, -1).expand(3, 1, 1, -1)
    planes = F.pad(images.permute(0, 3, 1, 2), (reach,) * 4, mode="replicate")
    planes = F.conv2d(F.conv2d(planes, weights, groups=3), weights.transpose(2, 3), groups=3)
    return planes.permute(0, 2, 3, 1)


def measure(args: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the features, and the distances of each rung for every seed."""
    extract = open_extractor(inception_file=args.inception, device=args.device)
    rows: dict[str, dict[str, Any]] = {}
    for seed in args.seeds:
        for rung in ladder(extract, images=args.images, size=args.size, seed=seed):
            row = rows.setdefault(rung.rung, {"rung": rung.rung})
            for name, value in rung.distances.items():
                row.setdefault(name, []).append(value)
        print(f"seed {seed} done", file=sys.stderr, flush=True)
    return extract.name, list(rows.values())


def table(rows: list[dict[str, Any]]) -> str:
    names = [name for name in rows[0] if name != "rung"]
    lines = [f"{'rung':12}" + "".join(f"{name:>30}" for name in names)]
    for row in rows:
        cells = (f"{sum(row[n]) / len(row[n]):.1f} [{min(row[n]):.1f}, {max(row[n]):.1f}]" for n in names)
        lines.append(f"{row['rung']:12}" + "".join(f"{text:>30}" for text in cells))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=RESULT)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--inception", type=Path)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    try:
        check_output(args.output)
        start = time.perf_counter()
        features, rows = measure(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    seeds = " ".join(map(str, args.seeds))
    command = (
        f"python benchmarks/radiance/ladder.py --images {args.images} --size {args.size} --seeds {seeds}"
    )
    record = {
        "command": command + (" --inception FILE" if args.inception else ""),
        "created": now(),
        "machine": describe(),
        "features": features,
        "images": args.images,
        "size": args.size,
        "seeds": args.seeds,
        "took_s": time.perf_counter() - start,
        "rows": rows,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
