"""Time and accuracy of interpolated views on a CPU, beside exact ones.

    python benchmarks/radiance/views.py -o benchmarks/results/radiance_views_cpu.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The two commands of the page are run as a user
runs them, for their seconds and CPU seconds; then some views of several objects are rendered both ways and
compared: PSNR of the enlarged images, and of the rendered ones, on a scale where black to white is 1, the
largest error of a pixel on the same scale, and the mean error of the depth. An exact view is what `--exact`
renders: it leaves out faint veils and what is behind opaque surfaces, as the page says.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pinchpoint.core.errors import PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.radiance.model.objective import GeneratedImages
from pinchpoint.systems.radiance.orbit import STEEP, codes_of, prepare_views, views
from pinchpoint.systems.radiance.rendering.render import Codes
from pinchpoint.systems.radiance.training.weights import load_weights


def run_command(*words: str) -> dict[str, Any]:
    """Run `pinchpoint radiance ...`: its seconds and CPU seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pinchpoint", "radiance", *words, "--device", "cpu"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "command": " ".join(("pinchpoint radiance", *words)),
        "seconds": time.perf_counter() - start,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def decibels(one: Tensor, other: Tensor) -> float:
    """PSNR of images in [-1, 1]."""
    return -10 * math.log10(float(((one.clamp(-1, 1) - other.clamp(-1, 1)) / 2).square().mean()))


def depth_error(one: GeneratedImages, other: GeneratedImages) -> float:
    """Mean difference of depths where both images are covered."""
    covered = (one.acc > 0.5) & (other.acc > 0.5)
    return float((one.depth / one.acc - other.depth / other.acc)[covered].abs().mean())


def compare(run: str, *, objects: int, count: int, turn: int, size: int | None) -> list[dict[str, Any]]:
    """Views of each object, `count` of the `turn` that make up a turn, rendered both ways."""
    trained = load_weights(run, which="last", device="cpu")
    settings, rows = trained.settings, []
    rise = settings.v_low + STEEP * (settings.v_high - settings.v_low)
    codes = codes_of(trained.config, objects, seed=0, device="cpu")
    for at in range(objects):
        code = Codes(codes.shape[at : at + 1], codes.app[at : at + 1])
        ways: dict[str, list[Any]] = {}
        for way in ("interpolated", "exact"):
            start = time.process_time()
            exact, seconds = way == "exact", []
            occupied = prepare_views(trained.model, code, views=turn, size=size, exact=exact)
            prepared_s = time.process_time() - start
            ways[way] = []
            for number in range(count):
                start = time.process_time()
                ways[way].append(
                    views(trained.model, code, number / turn, rise, size=size, occupied=occupied)
                )
                seconds.append(time.process_time() - start)
            rows.append({"object": at, "way": way, "preparing_cpu_s": prepared_s, "views_cpu_s": seconds})
        pairs = list(zip(ways["interpolated"], ways["exact"], strict=True))
        rows[-2]["psnr_db"] = [decibels(one.best, other.best) for one, other in pairs]
        rows[-2]["psnr_rendered_db"] = [decibels(one.low, other.low) for one, other in pairs]
        rows[-2]["largest_pixel_error"] = [
            float((one.best - other.best).abs().max()) / 2 for one, other in pairs
        ]
        rows[-2]["mean_depth_error"] = [depth_error(one, other) for one, other in pairs]
        print(json.dumps(rows[-2:]), flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", default="packaged", help="A run, or a file that `radiance export` wrote.")
    parser.add_argument("--objects", type=int, default=4, help="Objects whose views are compared.")
    parser.add_argument("--views", type=int, default=2, help="Compared views of each object.")
    parser.add_argument("--turn", type=int, default=16, help="Views that make up a turn.")
    parser.add_argument("--size", type=int, help="Pixels per side of a compared render.")
    parser.add_argument("--commands", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_output(args.output)
        commands = []
        if args.commands:
            commands = [
                run_command("orbit", args.run),
                run_command("render", args.run, "--seed", "3", "--views", "8", "--depth"),
            ]
            print(json.dumps(commands), flush=True)
        with torch.no_grad():
            rows = compare(args.run, objects=args.objects, count=args.views, turn=args.turn, size=args.size)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    record = {
        "what": "time and accuracy of interpolated views",
        "commands": ["python " + " ".join(sys.argv)],
        "created": now(),
        "machine": describe(),
        "threads": torch.get_num_threads(),
        "whole_commands": commands,
        "views": rows,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
