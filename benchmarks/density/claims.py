"""Measurements behind docs/reports/density.md: every claim of the density inference report, one part each.

    python benchmarks/density/claims.py -o benchmarks/results/density_claims_h200.json
    python benchmarks/density/claims.py --device cpu --tiny -o claims.json          # a trial without a GPU

pinchpoint and e3nn must be importable: installed, or `PYTHONPATH=src`. The program of the report is rebuilt
from its text: batches of probes as dictionaries of tensors in pinned host memory, the features of the atoms
computed for each batch, all couplings by e3nn, and the density copied back (form `original`; HfO2, 12 atoms,
a grid of 80 x 80 x 80, random weights). `batch` times several batch sizes in turn, and runs each under a cap
of 24 GiB. `copies` compares blocking with non-blocking copies, and with the unused keys left out. `weights`
loads a file by way of the CPU and straight to the device, in this process and in new ones. `unused` times the
tensors that the inference flag no longer creates, and torch's inference mode. `indices` tries 32-bit indices.
`whole` times a grid. The record is written after every part; a later call with --parts adds to it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.core.units import GIB
from pinchpoint.studies.timing import interleave, measure, ratio_interval, timing_of
from pinchpoint.systems.density.bench import WholeGrid
from pinchpoint.systems.density.files.volume import grid_points
from pinchpoint.systems.density.grid.bricks import bricks_of, surroundings_of
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.grid.periodic_images import atom_graph, images_of
from pinchpoint.systems.density.model.atom_network import SCALAR, AtomGraph
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.full_form import FullForm
from pinchpoint.systems.density.model.model import DensityModel

UNUSED = ("probe_target", "total_num_probes")  # keys that the report leaves out
CAP_BYTES = 24 * GIB
BATCH = 3_000  # of the report
# Runs in a new process, with the file as its argument: seconds from torch imported to weights on the device.
COLD = """
import sys, time, torch
path, by, device = sys.argv[1:]
start = time.perf_counter()
weights = torch.load(path, map_location="cpu" if by == "cpu" else device, weights_only=True)
weights = {name: value.to(device) for name, value in weights.items()}
if device == "cuda":
    torch.cuda.synchronize()
print(time.perf_counter() - start)
"""


class Program:
    """The prediction program of the report, on one device. tiny: for a trial on a CPU."""

    def __init__(self, device: str, *, tiny: bool) -> None:
        self.device, self.tiny = device, tiny
        self.structure = hafnia()
        self.edge, self.batch = (12, 40) if tiny else (80, BATCH)
        width, lmax = (10, 1) if tiny else (500, 4)
        self.config = DensityConfig.preset("original", ("Hf", "O"), mul=width, lmax=lmax)
        self.model = DensityModel(self.config, seed=0).to(device).eval()
        self.form = FullForm(self.model, seed=1).eval()
        self.graph = atom_graph(self.structure, self.config, device="cpu")
        self.images = images_of(self.structure, self.config.cutoff_a)
        self.points = grid_points((self.edge, self.edge, self.edge)) @ self.structure.lattice

    def host_batch(self, first: int, count: int) -> dict[str, Tensor]:
        """Return consecutive probes in host memory, pinned for a GPU, with all keys of the report."""
        at = (first + np.arange(count)) % len(self.points)
        probes = self.points[at]
        apart = probes[:, None] - self.images.positions
        probe, image = np.nonzero((apart**2).sum(-1) < self.config.cutoff_a**2)
        batch = {
            "nodes": self.graph.species,
            "atom_source": self.graph.source,
            "atom_destination": self.graph.destination,
            "atom_vectors": self.graph.vectors,
            "probe_edges": torch.from_numpy(np.stack([self.images.atom[image], probe], axis=1)),
            "probe_edges_displacement": torch.from_numpy(apart[probe, image]).float(),
            "probe_xyz": torch.from_numpy(probes).float(),
            "num_probes": torch.tensor([count]),
            "probe_target": torch.zeros(count),
            "total_num_probes": torch.tensor([self.edge] * 3),
        }
        return {key: value.pin_memory() for key, value in batch.items()} if self.on_gpu else batch

    def to_device(
        self, batch: dict[str, Tensor], *, non_blocking: bool = False, skip: tuple[str, ...] = ()
    ) -> dict[str, Tensor]:
        return {
            key: value.to(self.device, non_blocking=non_blocking)
            for key, value in batch.items()
            if key not in skip
        }

    def densities(self, batch: dict[str, Tensor]) -> Tensor:
        """Return the densities (P,) of a batch on the device, the atoms' features computed for it alone."""
        atoms = AtomGraph(
            *(batch[key] for key in ("nodes", "atom_source", "atom_destination", "atom_vectors"))
        )
        source, destination = batch["probe_edges"].unbind(1)
        states = self.form.states(
            self.form.fields(atoms),
            source,
            destination,
            batch["probe_edges_displacement"],
            len(batch["probe_xyz"]),
        )
        return self.model.outputs_of([state[SCALAR][:, :, 0] for state in states], None)[:, 0]

    def predict(self, batches: list[dict[str, Tensor]], **how: Any) -> np.ndarray:
        """Run the loop of the report over some batches: copy, compute, and copy back."""
        with torch.no_grad():
            return np.concatenate(
                [self.densities(self.to_device(batch, **how)).cpu().numpy() for batch in batches]
            )

    @cached_property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def wait(self, _: object) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def peak_bytes(self, run: Callable[[], object]) -> int | None:
        if not self.on_gpu:
            return None
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()


def compare(program: Program, before: Callable[[], object], after: Callable[[], object], repeats: int) -> Any:
    """Time two ways in turn: their medians with intervals, and how many times as fast the second is."""
    one, two = interleave(before, after, wait=program.wait, warmup=2, repeats=repeats)
    return {
        "before": _timing(one),
        "after": _timing(two),
        "speed_up": ratio_interval(one, two),
        "saved_s": float(np.median(one) - np.median(two)),
    }


def _timing(seconds: list[float]) -> dict[str, float]:
    return dict(vars(timing_of(seconds)))


def measure_batch(program: Program, repeats: int) -> dict[str, Any]:
    """Time and peak of one batch of each size, and whether it runs under a cap of 24 GiB."""
    sizes = [program.batch * n // 3 for n in (1, 3, 5, 10)]
    batches = {size: program.host_batch(len(program.points) // 2, size) for size in sizes}
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for turn in range(repeats + 1):
        for size in sizes if turn % 2 else sizes[::-1]:
            one, _ = interleave(
                partial(program.predict, [batches[size]]), int, wait=program.wait, warmup=0, repeats=1
            )
            seconds[size] += one if turn else []  # the first turn warms up
    rows = []
    for size in sizes:
        run = partial(program.predict, [batches[size]])
        timing = timing_of(seconds[size])
        rows.append(
            {
                "probes": size,
                "edges": len(batches[size]["probe_edges"]),
                **_timing(seconds[size]),
                "probes_per_s": size / timing.median_s,
                "peak_allocated_bytes": program.peak_bytes(run),
            }
        )
    if program.on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(CAP_BYTES / total)
        for row in rows:
            row["under_cap"] = _try(partial(program.predict, [batches[row["probes"]]]))
            torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(1.0)
    return {"cap_bytes": CAP_BYTES, "rows": rows}


def _try(run: Callable[[], object]) -> str:
    try:
        run()
    except torch.cuda.OutOfMemoryError as error:
        return str(error).partition(". GPU")[0][:200]
    except (RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
    return "ok"


def measure_copies(program: Program, repeats: int) -> dict[str, Any]:
    """Copies alone and in the loop over two batches: blocking, non-blocking, and without unused keys."""
    batches = [program.host_batch(first * program.batch, program.batch) for first in range(2)]
    variants: dict[str, dict[str, Any]] = {
        "non_blocking": {"non_blocking": True},
        "keys left out": {"skip": UNUSED},
        "both": {"non_blocking": True, "skip": UNUSED},
    }
    moved = {key: value.nbytes for key, value in batches[0].items()}
    alone, loops = {}, {}
    for name, how in variants.items():
        alone[name] = compare(
            program,
            partial(program.to_device, batches[0]),
            partial(program.to_device, batches[0], **how),
            10 * repeats,
        )
    for name in ("non_blocking", "both"):
        loops[name] = compare(
            program,
            partial(program.predict, batches),
            partial(program.predict, batches, **variants[name]),
            repeats,
        )
    same = np.array_equal(program.predict(batches), program.predict(batches, **variants["both"]))
    return {
        "bytes": moved,
        "unused_bytes": sum(moved[key] for key in UNUSED),
        "copies_of_a_batch": alone,
        "loop_of_two_batches": loops,
        "densities_equal": same,
    }


def measure_weights(program: Program, repeats: int) -> dict[str, Any]:
    """Load the weights of the model by way of the CPU and straight to the device."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "weights.pt"
        # The report's file has about 8 MB: those weights that do not affect the density belong to it too.
        weights = {f"form.{name}": value for name, value in all_weights(program).items()}
        torch.save(weights, file)

        def load(by: str) -> dict[str, Tensor]:
            loaded = torch.load(file, map_location=by, weights_only=True)
            return {name: value.to(program.device) for name, value in loaded.items()}

        warm = compare(program, partial(load, "cpu"), partial(load, program.device), 3 * repeats)
        cold: dict[str, list[float]] = {"cpu": [], "device": []}
        for turn in range(1 if program.tiny else 3):
            for by in ("cpu", "device") if turn % 2 == 0 else ("device", "cpu"):
                command = [sys.executable, "-c", COLD, str(file), by, program.device]
                done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
                cold[by].append(float(done.stdout))
        return {
            "file_bytes": file.stat().st_size,
            "same_process": warm,
            "new_process": {
                "before": _timing(cold["cpu"]),
                "after": _timing(cold["device"]),
                "saved_s": float(np.median(cold["cpu"]) - np.median(cold["device"])),
            },
        }


def all_weights(program: Program) -> dict[str, Tensor]:
    """Return the weights of the full form, dead ones included, on the CPU."""
    both = {**program.form.state_dict(), **program.model.state_dict()}
    return {name: value.detach().cpu().clone() for name, value in both.items()}


def measure_unused(program: Program, repeats: int) -> dict[str, Any]:
    """Create and copy the tensors that inference does not need; compare no_grad with inference_mode."""
    density = np.random.default_rng(0).random(program.batch).astype(np.float32)

    def create() -> list[Tensor]:
        target = torch.tensor(density).unsqueeze(0)
        return [tensor.to(program.device) for tensor in (target, torch.tensor([program.edge] * 3))]

    batches = [program.host_batch(first * program.batch, program.batch) for first in range(2)]

    def in_inference_mode() -> np.ndarray:
        with torch.inference_mode():
            return np.concatenate(
                [program.densities(program.to_device(batch)).cpu().numpy() for batch in batches]
            )

    return {
        "created_per_batch": dict(vars(measure(create, wait=program.wait, repeats=20 * repeats))),
        "inference_mode": compare(program, partial(program.predict, batches), in_inference_mode, repeats),
        "batches": 2,
    }


def measure_indices(program: Program, repeats: int) -> dict[str, Any]:
    """Sum messages of edges by probe with indices of 64 and 32 bits, by every operation that may do it."""
    batch = program.to_device(program.host_batch(0, program.batch))
    wide = batch["probe_edges"][:, 1].contiguous()
    narrow = wide.int()
    columns = 16 if program.tiny else 4_096
    generator = torch.Generator(program.device).manual_seed(0)
    messages = torch.randn(len(wide), columns, device=program.device, generator=generator)
    offsets = torch.searchsorted(wide, torch.arange(program.batch + 1, device=program.device))

    def zeros() -> Tensor:
        return messages.new_zeros(program.batch, columns)

    def reduce(index: Tensor) -> Tensor:
        lengths = torch.diff(offsets).to(index.dtype)
        return torch.segment_reduce(messages, "sum", lengths=lengths, axis=0)

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "scatter_add_": lambda index: zeros().scatter_add_(0, index[:, None].expand_as(messages), messages),
        "index_add_": lambda index: zeros().index_add_(0, index, messages),
        "segment_reduce": reduce,
        "index_select": lambda index: zeros().index_select(0, index),
    }
    rows = {}
    for name, way in ways.items():
        says = _try(partial(way, narrow))
        rows[name] = {"int32": says}
        if says == "ok":
            expected, values = way(wide).double(), way(narrow).double()
            rows[name]["difference"] = float((values - expected).norm() / max(float(expected.norm()), 1e-30))
            rows[name] |= compare(program, partial(way, wide), partial(way, narrow), 2 * repeats)
    saved = batch["probe_edges"].nbytes // 2
    return {"edges": len(wide), "columns": columns, "saved_bytes_per_batch": saved, "operations": rows}


def measure_whole(program: Program, repeats: int) -> dict[str, Any]:
    """Time a batch of the report, scaled to all of them, in turn with the whole grid in the scalar form."""
    grid = (program.edge, program.edge, program.edge)
    bricks = bricks_of(grid, program.structure.lattice, program.config.cutoff_a)
    near = surroundings_of(program.structure, bricks, program.config.cutoff_a, device=program.device)
    graph = atom_graph(program.structure, program.config, device=program.device)
    scalar = WholeGrid(program.model, graph, near, own_kernel=True)
    batch = program.host_batch(len(program.points) // 2, program.batch)
    times = compare(program, partial(program.predict, [batch]), scalar, repeats)
    count = math.ceil(len(program.points) / program.batch)
    median = times["before"]["median_s"]
    return {
        "batches": count,
        "batch": times["before"],
        "batches_per_s": 1 / median,
        "all_batches_s": count * median,
        "scalar": times["after"],
        "scalar_peak_bytes": program.peak_bytes(scalar),
        "speed_up": [count * each for each in times["speed_up"]],
    }


PARTS: dict[str, Callable[[Program, int], dict[str, Any]]] = {
    "batch": measure_batch,
    "copies": measure_copies,
    "weights": measure_weights,
    "unused": measure_unused,
    "indices": measure_indices,
    "whole": measure_whole,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="a small model and grid, for a trial")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--parts", nargs="+", choices=tuple(PARTS), default=list(PARTS))
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    record: dict[str, Any] = {"parts": {}}
    if args.output.exists():
        record = json.loads(args.output.read_text(encoding="utf-8"))
    program = Program(args.device, tiny=args.tiny)
    record |= {
        "command": script_command(),
        "created": now(),
        "machine": describe(),
        "grid": program.edge,
        "mul": program.config.mul,
        "lmax": program.config.lmax,
        "batch": program.batch,
    }
    for part in args.parts:
        record["parts"][part] = PARTS[part](program, args.repeats)
        write_text(args.output, json.dumps(record, indent=1) + "\n")
        print(f"{part}: measured")


if __name__ == "__main__":
    main()
