"""Time of the probe stage, and from a structure to a CHGCAR, with the code of several source trees in turn.

    git worktree add ../before REVISION
    python benchmarks/density/revisions.py --before ../before/src --revision REVISION \\
        -o benchmarks/results/density_revisions_h200.json

HfO2 with random weights and the widths of the ChargE3Net-style density report. Each tree runs in a process of
its own, which compiles its kernels and then waits; they take turns (A B A B), so that only one uses the GPU.
`probes` is the scalar form over the whole grid, from the atoms' features to densities in host memory; `file`
is `predict`, from the structure to the written CHGCAR. The error is that of the densities of a few bricks,
relative to those of the same networks in float64 with neighbours found on the CPU. A tree whose process ends
is left out, with the reason in the record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

CASES = ("probes", "file")
WARM_UP = 2  # rounds
COMPARED = 100  # bricks of which the error is computed
Row = dict[str, Any]


class Ended(Exception):
    """The process of a tree ended before its result."""


class Worker:
    """A process with the code of one tree."""

    def __init__(self, tree: Path, arguments: list[str]) -> None:
        paths = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        self.about: Row = {}

    def wait(self) -> None:
        """Wait until the process has computed everything once."""
        self.about = self._read()

    def seconds(self, case: str) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        return float(self._read()["seconds"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def _read(self) -> Row:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise Ended(f"The process of a tree ended with {self.process.wait()}.")


def work(*, grid: int, mul: int, lmax: int, device: str) -> None:
    """Compute everything once, and then time the case that a line names."""
    import numpy as np
    import torch

    from pinchpoint.core.machine import describe
    from pinchpoint.systems.density.bench import WholeGrid
    from pinchpoint.systems.density.grid.bricks import bricks_of, surroundings_of
    from pinchpoint.systems.density.grid.hafnia import hafnia
    from pinchpoint.systems.density.grid.periodic_images import atom_graph
    from pinchpoint.systems.density.model.config import DensityConfig
    from pinchpoint.systems.density.model.model import DensityModel
    from pinchpoint.systems.density.predict import predict

    structure, points = hafnia(), (grid, grid, grid)
    config = DensityConfig.preset("original", ("Hf", "O"), mul=mul, lmax=lmax)
    model = DensityModel(config, seed=0).to(device).eval()
    bricks = bricks_of(points, structure.lattice, config.cutoff_a)
    near = surroundings_of(structure, bricks, config.cutoff_a, device=device)
    probes = WholeGrid(model, atom_graph(structure, config, device=device), near, own_kernel=True)

    def error() -> float:
        """Return the relative error of the densities of some bricks."""
        exact, real = deepcopy(model).double(), torch.float64
        on_host = surroundings_of(structure, bricks, config.cutoff_a, dtype=real)
        numbers = torch.linspace(0, bricks.count - 1, min(COMPARED, bricks.count)).long()
        atoms, vectors = on_host.neighbours(numbers, int(on_host.counts(numbers).max()))
        graph = atom_graph(structure, config, device=device, dtype=real)
        with torch.no_grad():
            true = exact(exact.fields(graph), graph.species, atoms.to(device), vectors.to(device))
        true, values = true.cpu().numpy(), probes.values[numbers.numpy()].astype(np.float64)
        return float(np.linalg.norm(values - true) / np.linalg.norm(true))

    def synchronized(run: Callable[[], Any]) -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:

        def file() -> None:
            predict(structure, output=Path(folder) / "CHGCAR", weights=model, grid=points, device=device)

        runs: dict[str, Callable[[], None]] = {"probes": probes, "file": file}
        about: Row = {"first_s": {case: synchronized(run) for case, run in runs.items()}}
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            probes()
            about["peak_bytes"] = torch.cuda.max_memory_allocated()
        about["error"] = error()
        about["machine"] = describe()  # here, because the process that writes the record uses no GPU
        print(json.dumps(about), flush=True)
        for line in sys.stdin:
            print(json.dumps({"seconds": synchronized(runs[line.strip()])}), flush=True)


def compare(case: str, workers: dict[str, Worker], failures: dict[str, str], *, rounds: int) -> Row:
    """Return the times of all trees in one case."""
    from pinchpoint.core.units import show_seconds
    from pinchpoint.studies.timing import ratio_interval, timing_of

    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for turn in range(WARM_UP + rounds):
        for name in [name for name in workers if name not in failures]:
            try:
                taken = workers[name].seconds(case)
            except (Ended, BrokenPipeError) as error:
                failures[name] = str(error)
                continue
            if turn >= WARM_UP:
                seconds[name].append(taken)
    row: Row = {"case": case, "trees": {}}
    for name, times in seconds.items():
        if name in failures:
            continue
        timing = timing_of(times)
        row["trees"][name] = {
            "seconds": timing.median_s,
            "low_s": timing.low_s,
            "high_s": timing.high_s,
            "runs": timing.runs,
        }
        print(f"{case} {name:8} {show_seconds(timing.median_s):>9}", flush=True)
    for name in row["trees"] if "before" in row["trees"] else ():
        if name != "before":
            ratio = row[f"before_over_{name}"] = ratio_interval(seconds["before"], seconds[name])
            print(f"{case} before / {name} {ratio[0]:.3f}", flush=True)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, help="The src of the tree to compare with.")
    parser.add_argument("--after", type=Path, default=Path(__file__).parents[2] / "src")
    parser.add_argument("--revision", default="", help="The revision of the tree to compare with.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--grid", type=int, default=80)
    parser.add_argument("--mul", type=int, default=500)
    parser.add_argument("--lmax", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    sizes = {"grid": args.grid, "mul": args.mul, "lmax": args.lmax}
    if args.worker:
        work(**sizes, device=args.device)
        return 0
    from pinchpoint.core.files import check_output, write_text
    from pinchpoint.core.machine import describe
    from pinchpoint.core.records import now

    if args.output is None:
        parser.error("name a file with -o")
    output = check_output(args.output)
    trees = {name: tree for name, tree in (("before", args.before), ("after", args.after)) if tree}
    options = [f"--{name}={value}" for name, value in {**sizes, "device": args.device}.items()]
    workers = {name: Worker(tree, options) for name, tree in trees.items()}
    failures: dict[str, str] = {}
    machine = describe()
    for name, worker in workers.items():
        try:
            worker.wait()
            machine = worker.about.pop("machine", machine)
        except Ended as error:
            failures[name] = str(error)
        print(name, failures.get(name, worker.about), flush=True)
    # The folders of the trees differ between machines and say nothing; the revision does.
    command = "python benchmarks/density/revisions.py --before SRC --revision REVISION -o RECORD"
    record: Row = {"command": command, "before": args.revision, "created": now(), "machine": machine}
    record |= {**sizes, "failures": failures, "cases": []}
    record["trees"] = {name: worker.about for name, worker in workers.items() if name not in failures}
    for case in CASES:
        record["cases"].append(compare(case, workers, failures, rounds=args.rounds))
        write_text(output, json.dumps(record, indent=1) + "\n")
    for name in [name for name in workers if name not in failures]:
        workers[name].close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
