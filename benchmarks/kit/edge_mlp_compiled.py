"""Compile the kernels of edge MLPs for GPUs that are not there, and write what they take.

    python benchmarks/kit/edge_mlp_compiled.py --workers 2 -o benchmarks/results/edge_mlp_compiled_cpu.json

Needs Triton, but no GPU. The networks are those of `edge_mlp_checks.py`, with one activation for each shape
and dtype; each kernel is compiled with the arguments of a launch. A row has the kernels of a network for one
compute capability: the bytes of shared memory of a program, the registers of a thread, and the bytes of local
memory that ptxas stores and loads if registers are too few. `fits`: whether shared memory is not.
Triton writes the same PTX for 8.0, 8.6 and 8.9, so that it compiles them once. Rows that the file has already
stay.
`compile_for` is that of `edge_mlp_checks.py check --compiled-for`.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pinchpoint.core.files import write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import script_command
from pinchpoint.kit import triton_launch
from pinchpoint.kit.edges.mlp_support import SHARED_BYTES, Capability

CAPABILITIES: tuple[tuple[Capability, ...], ...] = ((8, 0), (8, 6), (8, 9)), ((9, 0),)
EDGES = 300  # the code does not depend on them


def compile_for(capability: Capability) -> list[int]:
    """Let this process compile and launch kernels as for a GPU of this compute capability, on the one it has.

    Triton chooses layouts and instructions for `capability` and writes PTX for it; only ptxas translates that
    for the GPU that is there. A kernel that takes more shared memory than such a GPU has is an error.
    What each kernel takes is added to the list that is returned.
    """
    from triton import knobs  # ty: ignore
    from triton.backends.compiler import GPUTarget  # ty: ignore
    from triton.backends.nvidia.compiler import CUDABackend  # ty: ignore
    from triton.runtime import driver  # ty: ignore

    number, present = 10 * capability[0] + capability[1], driver.active.get_current_target().arch
    make_cubin, shared_bytes = CUDABackend.make_cubin, []

    def translate(self: object, source: str, metadata: dict[str, int], options: object, _: int) -> bytes:
        if f".target sm_{number}\n" not in source:
            raise RuntimeError(f"The PTX is not for sm_{number}.")
        shared_bytes.append(metadata["shared"])
        if metadata["shared"] > SHARED_BYTES[capability]:
            raise RuntimeError(f"The kernel takes {metadata['shared']} bytes of shared memory.")
        return make_cubin(self, source, metadata, options, present)

    knobs.cache.dir = f"{knobs.cache.dir}/compiled_for_sm_{number}"  # no GPU of that kind can run these
    driver.active.get_current_target = lambda: GPUTarget("cuda", number, 32)
    CUDABackend.make_cubin = translate
    torch.cuda.get_device_capability = lambda *_, **__: capability
    return shared_bytes


def compile_network(task: tuple[dict[str, Any], tuple[Capability, ...]]) -> list[dict[str, Any]]:
    """The rows of a network for some compute capabilities, of which Triton compiles for the first."""
    import edge_mlp_checks
    from triton import knobs  # ty: ignore
    from triton.backends.compiler import GPUTarget  # ty: ignore
    from triton.backends.nvidia.compiler import CUDABackend  # ty: ignore
    from triton.runtime import driver  # ty: ignore

    job, capabilities = task
    capability = capabilities[0]
    number = 10 * capability[0] + capability[1]
    kernels: dict[Capability, list[dict[str, Any]]] = {one: [] for one in capabilities}
    known: set[Any] = set()

    def note(_: object, source: str, metadata: dict[str, Any], *__: Any) -> bytes:
        for own, rows in kernels.items():
            name = f"sm_{own[0]}{own[1]}"
            text = source.replace(f".target sm_{number}", f".target {name}")
            row = translate(text, name + ("a" if own >= (9, 0) else ""))
            rows.append({"kernel": metadata["name"], "shared_bytes": metadata["shared"], **row})
        return b"-"

    def warm_up(
        self: Any, programs: int, arguments: tuple[Any, ...], warps: int, stages: int, chained: bool
    ) -> None:
        key = self.kernel.__name__, warps, *(one for one in arguments if not isinstance(one, torch.Tensor))
        if key not in known:
            known.add(key)
            self.kernel.warmup(*arguments, grid=(programs,), num_warps=warps, num_stages=stages)

    knobs.compilation.always_compile = True
    CUDABackend.make_cubin = note
    triton_launch.Launcher._compile = warm_up  # type: ignore[method-assign]
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", number, 32),
            get_current_device=lambda: number,
            get_current_stream=lambda _: 0,
        )
    )
    torch.cuda.get_device_capability = lambda *_, **__: capability
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=100)
    problem = {}
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder
        try:
            mlp, dtype = edge_mlp_checks.sequential(job, "cpu"), getattr(torch, job["dtype"])
            x, gradient = (torch.zeros(EDGES, job["widths"][at]) for at in (0, -1))
            x = x.to(dtype)
            edge_mlp_checks.by_kernels(mlp, x, gradient.to(dtype))
            if job["widths"][0] < 16:  # as `edge_mlp_checks.py check`
                edge_mlp_checks.by_kernels(mlp, x, gradient.to(dtype), moves=False)
        except Exception as error:  # whatever Triton raises
            problem = {"problem": repr(error)[-300:]}
    return [
        {
            **job,
            "capability": ".".join(map(str, own)),
            "fits": all(row["shared_bytes"] <= SHARED_BYTES[own] for row in rows) and not problem,
            **problem,
            "kernels": rows,
        }
        for own, rows in kernels.items()
    ]


def translate(source: str, name: str) -> dict[str, int]:
    """What ptxas says of a kernel that it translates for a GPU."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(source)
        file.flush()
        command = [_ptxas(), "-v", "-lineinfo", f"--gpu-name={name}", file.name, "-o", "/dev/null"]
        log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    stores, loads = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    (registers,) = re.findall(r"Used (\d+) registers", log)
    return {
        "registers": int(registers),
        "stored_local_bytes": int(stores),
        "loaded_local_bytes": int(loads),
    }


def _ptxas() -> str:
    from triton import knobs  # ty: ignore

    return knobs.nvidia.ptxas.path


def main() -> None:
    import edge_mlp_checks
    import triton  # ty: ignore

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, required=True, help="The record to write.")
    parser.add_argument("--workers", type=int, default=1, help="Processes. Default: 1.")
    args = parser.parse_args()
    version = subprocess.run([_ptxas(), "--version"], check=True, capture_output=True, text=True).stdout
    record: dict[str, Any] = {
        "command": script_command(),
        "machine": describe(),
        "triton": triton.__version__,
        "ptxas": version.strip().splitlines()[-1],
        "rows": json.loads(args.output.read_text())["rows"] if args.output.exists() else [],
    }
    known = [({key: row[key] for key in edge_mlp_checks.KEYS}, row["capability"]) for row in record["rows"]]
    tasks = [
        (job, capabilities)
        for capabilities in CAPABILITIES
        for job in edge_mlp_checks.one_of_each_shape()
        if (job, ".".join(map(str, capabilities[0]))) not in known
    ]
    # A process for each, because Triton keeps what it compiled.
    with multiprocessing.get_context("spawn").Pool(args.workers, maxtasksperchild=8) as pool:
        for rows in pool.imap_unordered(compile_network, tasks):
            record["rows"] += rows
            write_text(args.output, text_of(record))
            for row in rows:
                print(json.dumps(row), flush=True)


def text_of(record: dict[str, Any]) -> str:
    """A record with one row in a line."""
    head = json.dumps({**record, "rows": []}, indent=1)
    rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
    return head.replace('"rows": []', f'"rows": [\n  {rows}\n ]')


if __name__ == "__main__":
    sys.exit(main())
