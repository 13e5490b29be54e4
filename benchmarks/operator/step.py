"""The time of one training step of the whole operator, eager and recorded as CUDA graphs.

    pinchpoint operator data -o cars --train 12 --test 1 --panels 5000 --device cuda
    python benchmarks/operator/step.py cars -o benchmarks/results/operator_step_h200.json --device cuda

Every variant trains its own copy of the same network on the same bodies in the same order. After three turns
over all bodies, in which steps are recorded, the variants take turns: each round is one turn over all bodies,
timed as a whole. A run of `operator train` repeats its bodies in the same way. `reserved_bytes` is what the
caching allocator reserves for a variant, with the memory in which recorded steps compute.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now, script_command
from pinchpoint.studies.timing import timing_of
from pinchpoint.systems.common.training.precision import matmuls
from pinchpoint.systems.operator.data.dataset import open_dataset
from pinchpoint.systems.operator.data.loading import Supply
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.training.recorded_steps import RecordedSteps
from pinchpoint.systems.operator.training.runs import begin
from pinchpoint.systems.operator.training.training_step import Stepper

TURNS = 3  # over all bodies before the first timing: eager, recorded, replayed


class Variant:
    """One way to take steps, with its own network."""

    def __init__(self, stepper: Stepper, bodies: Sequence[tuple[Sample, Graph]]) -> None:
        self.stepper, self.bodies, self.number = stepper, bodies, 0

    def turn(self) -> list[torch.Tensor]:
        """One step with each body. Returns their losses."""
        losses = []
        for body in self.bodies:
            self.number += 1
            losses.append(self.stepper.step([body], number=self.number)[0])
        return losses


def run(args: argparse.Namespace) -> dict[str, Any]:
    data = open_dataset(args.data)
    begun = begin(Path("unused"), data, resume=False, choices={"preset": args.preset, "validation": 0})
    steps = (TURNS + args.rounds) * len(data.names("train"))
    settings = replace(begun.settings, steps=steps, precision=args.precision)
    supply = Supply(data, begun.config, pinned=args.device == "cuda")
    bodies = [supply.get(name) for name in data.names("train")]
    wait: Callable[[], None] = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    with matmuls(args.precision):
        variants: dict[str, Variant] = {}
        losses: dict[str, list[float]] = {}
        reserved: dict[str, int] = {}
        for memory in args.memory:
            for recorded in (False, True):
                if args.device == "cuda":
                    torch.cuda.empty_cache()
                before_bytes = torch.cuda.memory_reserved()
                recorded_steps = (
                    RecordedSteps(bodies=len(bodies), last_step=steps, note=print)
                    if recorded and args.device == "cuda"
                    else None
                )
                stepper = Stepper(
                    begun.config, replace(settings, memory=memory), args.device, recorded_steps=recorded_steps
                )
                name = f"{memory}{', recorded' if recorded else ''}"
                variants[name] = Variant(stepper, bodies)
                losses[name] = [float(loss) for _ in range(TURNS) for loss in variants[name].turn()]
                reserved[name] = torch.cuda.memory_reserved() - before_bytes
        while args.wait_for is not None and not args.wait_for.exists():
            time.sleep(0.1)
        times: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(args.rounds):
            for name, variant in variants.items():
                wait()
                start = time.perf_counter()
                variant.turn()
                wait()
                times[name].append((time.perf_counter() - start) / len(bodies))
    return {
        "what": "one training step of the whole operator",
        "command": script_command(),
        "preset": args.preset,
        "precision": args.precision,
        "bodies": len(bodies),
        "points": [len(sample.points) for sample, _ in bodies],
        "edges": [graph.edges for _, graph in bodies],
        "steps": {name: vars(timing_of(values)) for name, values in times.items()},
        "reserved_bytes": reserved,
        "losses": losses,
        "machine": machine.describe(),
        "created": now(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="A dataset of `pinchpoint operator data`.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="File of the record.")
    parser.add_argument("--preset", default="base", help="Preset of the model.")
    parser.add_argument("--precision", default="fp32", help="fp32, tf32 or bf16.")
    parser.add_argument("--memory", nargs="+", default=["eager", "flat"], help="How edges are stored.")
    parser.add_argument("--rounds", type=int, default=20, help="Timed turns over all bodies.")
    parser.add_argument("--device", default="cuda", help="cuda or cpu.")
    parser.add_argument("--wait-for", type=Path, help="Start to time when this file exists.")
    args = parser.parse_args()
    record = run(args)
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for name, timing in record["steps"].items():
        print(f"{name:18} {1e3 * timing['median_s']:.2f} ms per step")


if __name__ == "__main__":
    main()
