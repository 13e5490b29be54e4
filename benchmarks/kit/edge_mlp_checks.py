"""Compare the kernels of edge MLPs with float64 on a GPU, and write the table of the networks that use them.

    python benchmarks/kit/edge_mlp_checks.py check --seconds 80 --workers 6 -o CHECKS.jsonl
    python benchmarks/kit/edge_mlp_checks.py check --compiled-for 8.0 --workers 12 -o COMPILED.jsonl
    python benchmarks/kit/edge_mlp_checks.py table CHECKS.jsonl --sweep SWEEP.json -o TABLE.py
    python benchmarks/kit/edge_mlp_checks.py table CHECKS.jsonl --add --sweep SWEEP.json ... -o TABLE.py
    python benchmarks/kit/edge_mlp_checks.py table COMPILED.jsonl --add --compiled RECORD.json -o TABLE.py

`check` writes a line for each network as soon as it is done: the largest error of the outputs, of the
gradient of the inputs and of that of each parameter, and the largest share of what it may be, three times
the error of eager in the same dtype. In float32, far_error is that of inputs whose columns differ by nine
powers of 10, with one edge and one gradient a million times larger than the others; it is noted, and may be
larger than eager's. Edges with a ReLU at its kink have no gradient (`relu_kinks`). Local memory is filled
before each kernel (`tile_kernels.local_memory_triton`). Each worker is a process, which is replaced if a
kernel fails.
With `--compiled-for`, the kernels are those of another compute capability: Triton compiles for it, and only
ptxas translates what it wrote for the GPU that is there (`edge_mlp_compiled`). Each shape is compared with
one activation, and so are wide MLPs. What it writes for 8.6 and 8.9 is the same as for 8.0.
`table` writes the networks that passed as the source of `pinchpoint/kit/edges/tile_kernels/tested.py`, and
names those of the present table that it does not have; with `--add`, networks of the present table that were
not checked stay. SWEEP.json is a record of `edge_mlp.py measure`, whose rows count if they were timed by
these kernels; without it, no network is slower.
RECORD.json is that of `edge_mlp_compiled.py`: networks that fit other GPUs are used there unless their
kernels failed.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
import time
from itertools import pairwise, product
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import edge_mlp_compiled
import relu_kinks
import torch
from torch import Tensor, nn

from pinchpoint.core.files import write_text
from pinchpoint.kit.edges.tile_kernels import tested

EDGES = 100_003  # many, so that every program works; not a multiple of a tile
ACTIVATIONS: dict[str, Any] = {
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "ReLU": nn.ReLU,
    "Tanh": nn.Tanh,
    "GELU by tanh": lambda: nn.GELU(approximate="tanh"),
}
WITHOUT_BIAS = " without bias"
# Of a job, which its result repeats; also `compiled_for`, the compute capability, if not that of the GPU.
KEYS = "widths", "activation", "dtype", "bias"
WIDTHS, LAYERS = (128, 64, 32, 16), (3, 2, 1, 4)
JOB_SECONDS = 75.0  # a kernel that takes longer, with its compilation, has failed
FAR_MOST = 1e-2  # the error if numbers of a tile are far from each other, where it may be larger than eager's
# The least errors that count: those of rounding, where eager's happens to be smaller. Two fp16 parts have 22
# bits, float32 has 24.
FLOORS = {"float32": 2e-6, "bfloat16": 6e-3, "float16": 1e-3}
TABLE = '''"""The networks whose kernels were compared with float64 on an H200, and what fits and is slow.

Written by `benchmarks/kit/edge_mlp_checks.py table`.
"""

from __future__ import annotations

# By dtype; by the padded width and the number of hidden layers, the padded inputs and outputs: activations.
# "GELU by tanh" is GELU(approximate="tanh"); "GELU without bias" has linear layers without one.
NETWORKS: dict[str, dict[tuple[int, int, int, int], tuple[str, ...]]] = {networks}
# Networks whose kernels fit into the shared memory of GPUs of other compute capabilities, and are right as
# compiled for them: by the padded width and the number of hidden layers, the most padded inputs and outputs.
COMPILED: dict[tuple[int, int], dict[str, dict[tuple[int, int], tuple[int, int]]]] = {compiled}
# By dtype and the same shapes: the time of a training step in units of that of eager, if it is longer.
SLOWER: dict[str, dict[tuple[int, int, int, int], float]] = {slower}
'''


def networks() -> list[dict[str, Any]]:
    """The networks to compare whose weights fit into shared memory, the most used first."""
    names = list(ACTIVATIONS)
    listed: list[tuple[int, tuple[int, ...], int, str, bool]] = [
        (6, (128, 128, 128), 16, "GELU", True),
        (6, (64, 64), 16, "GELU", True),
        (6, (128, 128, 128), 16, "SiLU", True),
        (22, (64, 64), 16, "SiLU", True),
        (3, (16,), 1, "GELU", True),
        (6, (32, 32), 16, "GELU", True),
    ]
    # What is in use.
    present = {
        (*shape, act) for own in tested.NETWORKS.values() for shape, every in own.items() for act in every
    }
    for width, layers, below, above, act in sorted(present, reverse=True):
        name = act.removesuffix(WITHOUT_BIAS)
        listed.append(({16: 6, 32: 22}.get(below, below - 1), (width,) * layers, above, name, name == act))
    for name, layers, width in product(("GELU", "SiLU"), LAYERS, WIDTHS):
        listed.append((6, (width,) * layers, 16, name, True))
    for (inputs, outputs), name in product(((6, 16), (22, 16)), ACTIVATIONS):
        listed.append((inputs, (256,), outputs, name, True))
    for turn, (inputs, outputs) in enumerate(((6, 16), (22, 16), (63, 64))):
        for number, (layers, width) in enumerate(product(LAYERS, WIDTHS)):
            at = sorted(WIDTHS).index(width)
            # First as in the sweep of `edge_mlp.py`; then the activations in turn; some without bias.
            name = names[(at + layers) % 4 if turn == 0 else (at + 2 * layers + turn) % len(names)]
            listed.append((inputs, (width,) * layers, outputs, name, turn < 2 or number % 3 > 0))
    jobs = [
        {"widths": [below, *hidden, above], "activation": name, "dtype": dtype, "bias": bias}
        for below, hidden, above, name, bias in listed
        for dtype in ("bfloat16", "float32")
        if not _is_wide([below, *hidden, above], getattr(torch, dtype))
    ]
    half = [
        {**job, "dtype": "float16"} for job in jobs if job["dtype"] == "bfloat16" and job["widths"][0] == 6
    ]
    return [job for at, job in enumerate([*jobs, *half]) if job not in [*jobs, *half][:at]]


def one_of_each_shape() -> list[dict[str, Any]]:
    """Networks of each shape with one activation in bf16 and float32, and wide ones; the most used first."""
    jobs = [job for job in networks() if job["dtype"] != "float16"]
    names = list(ACTIVATIONS)
    for layers, ends, dtype in product((3, 2, 4), ((6, 16), (22, 16), (63, 64)), ("bfloat16", "float32")):
        widths, name = [ends[0], *(256,) * layers, ends[1]], names[(layers + ends[0]) % 4]
        jobs.append({"widths": widths, "activation": name, "dtype": dtype, "bias": True})
    for layers, (inputs, outputs) in ((4, (6, 16)), (4, (22, 16)), (3, (63, 64)), (4, (63, 64))):
        widths, name = [inputs, *(128,) * layers, outputs], names[(layers + inputs) % 4]
        jobs.append({"widths": widths, "activation": name, "dtype": "float32", "bias": True})
    first: dict[Any, dict[str, Any]] = {}
    for job in jobs:
        first.setdefault((job["dtype"], _shape(job)), job)
    return list(first.values())


def compiled_networks(capability: tuple[int, int]) -> list[dict[str, Any]]:
    """Those of `one_of_each_shape` that run on GPUs of another compute capability."""
    from pinchpoint.kit.edges import mlp_support

    return [
        {**job, "compiled_for": ".".join(map(str, capability))}
        for job in one_of_each_shape()
        if mlp_support.compiled_misfit(job["widths"], getattr(torch, job["dtype"]), capability) is None
    ]


def _is_wide(widths: list[int], dtype: torch.dtype, capability: tuple[int, int] = (9, 0)) -> bool:
    """Whether the kernels of a network are those of `wide_mlp`."""
    from pinchpoint.kit.edges import tile_mlp, wide_mlp

    if len(widths) > 3 and max(widths[1:-1]) > 128:
        return True
    misfit = capability == (9, 0) and tile_mlp.misfit(widths, dtype) is not None
    return misfit or wide_mlp.suits_better(widths, dtype, capability)


def sequential(job: dict[str, Any], device: str) -> nn.Sequential:
    torch.manual_seed(1)
    parts: list[nn.Module] = []
    for below, above in pairwise(job["widths"]):
        parts += [nn.Linear(below, above, bias=job["bias"]), ACTIVATIONS[job["activation"]]()]
    return nn.Sequential(*parts[:-1]).to(device)


def error(value: Tensor, expected: Tensor) -> float:
    return float((value.double() - expected.double()).norm() / expected.double().norm().clamp_min(1e-30))


def by_autograd(mlp: nn.Sequential, x: Tensor, gradient: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """The outputs, and the gradients of the inputs and of each parameter."""
    leaf = x.detach().clone().requires_grad_()
    with torch.autocast(x.device.type, dtype, enabled=dtype in (torch.bfloat16, torch.float16)):
        out = mlp(leaf)
    return [out.detach(), *torch.autograd.grad(out, [leaf, *mlp.parameters()], gradient.to(out.dtype))]


def by_kernels(
    mlp: nn.Sequential, x: Tensor, gradient: Tensor, *cuts: int, moves: bool = True
) -> list[Tensor]:
    """The same in chunks that end at `cuts`, with the outputs of the forward pass at the end.

    moves: with the gradient of the inputs.
    """
    from pinchpoint.kit.edges import edge_mlp, tile_mlp

    layers: list[Any] = list(mlp)[0::2]
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    is_wide = _is_wide(widths, gradient.dtype, torch.cuda.get_device_capability())
    make: Any = edge_mlp.wide_network if is_wide else tile_mlp.TileMLP
    network = make(list(mlp), gradient.dtype, x)
    into = {at: torch.zeros_like(one) for at, one in enumerate(mlp.parameters())}
    results = []
    for begin, end in pairwise((0, *cuts, x.shape[0])):
        _fill_local_memory(x.device)
        chunk = x[begin:end].clone(), gradient[begin:end].clone()  # the results replace them
        results.append(network.backward(*chunk, into, want_inputs=moves, want_values=True))
    network.finish(into)
    parts = [torch.cat([pair[at] for pair in results]) for at in (1, 0) if at or moves]  # type: ignore[misc]
    _fill_local_memory(x.device)
    return [*parts, *into.values(), network.forward(x)]


def _fill_local_memory(device: torch.device) -> None:
    if device.type == "cuda":
        from pinchpoint.kit.edges.tile_kernels.local_memory_triton import fill_local_memory

        fill_local_memory(device)


def compare(job: dict[str, Any], device: str = "cuda", edges: int = EDGES) -> dict[str, Any]:
    """A network beside float64: all edges, few edges, short rounds and two chunks, and once more."""
    from pinchpoint.kit.edges import tile_mlp, wide_mlp

    dtype, capability = getattr(torch, job["dtype"]), torch.cuda.get_device_capability()
    is_wide = _is_wide(job["widths"], dtype, capability)
    mlp = sequential(job, device)
    x = (torch.rand(edges, job["widths"][0], device=device) * 2 - 1).to(dtype)  # as they are gathered
    gradient = torch.randn(edges, job["widths"][-1], device=device).to(dtype)
    jumps = job["activation"] == "ReLU"
    if dtype is torch.float32:  # in 16 bits most edges have a ReLU at its kink, and eager has the same errors
        gradient = relu_kinks.without_kinks(mlp, x, gradient)
        jumps = False

    def worst(
        results: list[Tensor], part: slice, x: Tensor = x, gradient: Tensor = gradient
    ) -> tuple[float, float]:
        """The largest error, and the largest in units of what eager's may be."""
        truth = by_autograd(
            copy.deepcopy(mlp).double(), x[part].double(), gradient[part].double(), torch.float64
        )
        usual = by_autograd(mlp, x[part], gradient[part], dtype)
        rows = zip([*results], [*truth, truth[0]], [*usual, usual[0]], strict=True)
        own = [(error(value, right), error(eager, right)) for value, right, eager in rows]
        floor = FLOORS[job["dtype"]]
        return max(one for one, _ in own), max(one / max(3 * eager, floor) for one, eager in own)

    results = by_kernels(mlp, x, gradient)
    again = by_kernels(mlp, x, gradient)
    row: dict[str, Any] = {"same": all(map(torch.equal, results, again))}
    row["error"], row["share"] = worst(results, slice(None))
    before = tile_mlp._BUFFER_BYTES, wide_mlp._BUFFER_BYTES
    tile_mlp._BUFFER_BYTES, wide_mlp._BUFFER_BYTES = 2**20, {2: 2**24, 4: 2**25}
    try:
        short = by_kernels(mlp, x, gradient, edges // 3 + 1)
    finally:
        tile_mlp._BUFFER_BYTES, wide_mlp._BUFFER_BYTES = before
    row["rounds_error"], row["rounds_share"] = worst(short, slice(None))
    shares = [row["share"], row["rounds_share"]]
    if job["widths"][0] < 16:  # as of [y, x], which may not need a gradient: another kernel
        fixed = by_kernels(mlp, x, gradient, moves=False)
        row["fixed_error"], row["fixed_share"] = worst([fixed[0], results[1], *fixed[1:]], slice(None))
        shares.append(row["fixed_share"])
    if job["dtype"] == "float32":  # whose kernels have one power of 2 for all numbers of a tile
        far, steep = x * torch.logspace(-6, 3, x.shape[1], device=device), gradient.clone()
        far[edges // 2], steep[edges // 3] = far[edges // 2] * 1e6, steep[edges // 3] * 1e6
        row["far_error"], row["far_share"] = worst(by_kernels(mlp, far, steep), slice(None), far, steep)
        if not is_wide:
            shares.append(row["far_error"] / FAR_MOST)
    tile = 64 if is_wide else tile_mlp.backward_plan(job["widths"], dtype, capability).edges
    for count in (1, tile - 1, tile + 1, 97):
        part = slice(0, count)
        row["few_error"], share = worst(by_kernels(mlp, x[part], gradient[part]), part)
        # So few edges may all have one rounding error, and one unit of a ReLU at its kink is a large part.
        shares.append(0 if jumps else share / 3)
    return {**job, **row, "ok": bool(row["same"] and max(shares) < 1)}


def work(to: Connection, device: str, edges: int, capability: tuple[int, int] | None = None) -> None:
    """Answer jobs until a kernel fails. capability: that for which the kernels are compiled."""
    torch.set_num_threads(1)
    shared_bytes = [] if capability is None else edge_mlp_compiled.compile_for(capability)
    while True:
        job = to.recv()
        start = time.monotonic()
        shared_bytes.clear()
        try:
            row = compare(job, device, edges)
            if shared_bytes:
                row["shared_bytes"] = max(shared_bytes)
        except Exception as problem:  # whatever it is, this network is not used
            to.send({**job, "ok": False, "problem": repr(problem)[-300:]})
            return  # a failed kernel makes its process useless
        to.send({**row, "seconds": round(time.monotonic() - start, 1)})


def check(
    output: Path,
    jobs: list[dict[str, Any]],
    seconds: float,
    workers: int,
    device: str,
    edges: int,
    capability: tuple[int, int] | None = None,
) -> None:
    """Write a line for each job, as they end; networks that the file has already are not checked again."""
    before = output.read_text().splitlines() if output.exists() else []
    known = [
        {key: row[key] for key in (*KEYS, "compiled_for") if key in row} for row in map(json.loads, before)
    ]
    jobs = [job for job in jobs if job not in known]
    context = multiprocessing.get_context("fork")
    end = time.monotonic() + seconds
    todo = list(jobs)
    live: dict[Any, tuple[Any, dict[str, Any], float]] = {}
    with output.open("a") as file:

        def note(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(json.dumps(row), flush=True)

        def begin() -> None:
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, device, edges, capability), daemon=True)
            process.start()
            theirs.close()
            hand(ours, process)

        def hand(pipe: Any, process: Any) -> None:
            if not todo:
                process.kill()
                return
            live[pipe] = process, todo.pop(0), time.monotonic()
            pipe.send(live[pipe][1])

        for _ in range(min(workers, len(todo))):
            begin()
        while live and time.monotonic() < end:
            ready: Any = wait(list(live), timeout=0.5)
            for pipe in ready:
                process, job, _ = live.pop(pipe)
                try:
                    row = pipe.recv()
                except (EOFError, OSError):
                    row = {**job, "ok": False, "problem": "The process ended."}
                note(row)
                if "problem" in row:
                    process.kill()
                    if todo:
                        begin()
                else:
                    hand(pipe, process)
            for pipe, (process, job, start) in list(live.items()):
                if time.monotonic() - start > JOB_SECONDS:
                    process.kill()
                    del live[pipe]
                    note({**job, "ok": False, "problem": f"It took more than {JOB_SECONDS:g} s."})
                    if todo:
                        begin()
        for process, job, _ in live.values():
            process.kill()
            todo.insert(0, job)
    print(f"{len(todo)} of {len(jobs)} networks are left.", flush=True)


def latest(lines: list[str]) -> list[dict[str, Any]]:
    """The results in the lines of a file; of networks that were checked again, the last one."""
    rows = [json.loads(line) for line in lines]
    return list({json.dumps([row.get(key) for key in (*KEYS, "compiled_for")]): row for row in rows}.values())


def table(
    rows: list[dict[str, Any]],
    sweep: list[dict[str, Any]],
    *,
    record: list[dict[str, Any]] | None = None,
    add: bool = False,
) -> str:
    """The source of the table: networks that passed, and those that are slower than eager beyond its noise.

    record: the rows of `edge_mlp_compiled.py`; None: what is compiled for other GPUs stays. add: with the
    networks of the present table of whose shape none failed.
    """
    from pinchpoint.kit.edges.mlp_support import pad_width

    compiled = tested.COMPILED if record is None else _compiled(record, rows)
    rows = [row for row in rows if "compiled_for" not in row]
    networks = _passed(rows)
    if add:
        failed = _failed(rows)
        for dtype, own in tested.NETWORKS.items():
            for shape, names in own.items():
                if (dtype, shape) not in failed:
                    networks.setdefault(dtype, {}).setdefault(shape, set()).update(names)
    slower: dict[str, dict[tuple[int, int, int, int], float]] = {}
    for row in sweep:
        dtype = {"bf16": "bfloat16", "fp32": "float32"}[row["precision"]]
        hidden, channels = [int(width) for width in row["hidden"].split(",")], row.get("channels", 16)
        inputs = 6 + (channels if row["transform"].startswith("nonlinear") else 0)
        shape = pad_width(max(hidden)), len(hidden), pad_width(inputs + 1), pad_width(channels)
        # Timed by other kernels than such networks use now, a row says nothing about them.
        is_now = row["weights"] == "mean" and row["way"] in ("tiles", "wide")
        if is_now and row["ratio_high"] < 1:
            times = round(1 / row["eager_over_flat"], 2), slower.get(dtype, {}).get(shape, 1)
            slower.setdefault(dtype, {})[shape] = max(times)
    return TABLE.format(
        networks={
            dtype: {shape: tuple(sorted(names)) for shape, names in sorted(own.items())}
            for dtype, own in sorted(networks.items())
        },
        compiled=compiled,
        slower=slower,
    )


def _compiled(record: list[dict[str, Any]], rows: list[dict[str, Any]]) -> dict[Any, Any]:
    """By compute capability, dtype, padded width and number of hidden layers: the most inputs and outputs.

    record: whether networks fit; rows: whether they are right.
    """
    wrong = {
        (row["compiled_for"], row["dtype"], _shape(row))
        for row in rows
        if "compiled_for" in row and not row["ok"]
    }
    right: dict[tuple[int, int], dict[str, dict[tuple[int, int], tuple[int, int]]]] = {}
    closed: set[Any] = set()
    for row in sorted(record, key=_shape):
        capability, shape = _capability(row["capability"]), _shape(row)
        if capability not in ((8, 0), (8, 9)):
            continue
        # What Triton writes for 8.0 is the same for the others, but there it may not fit.
        fails = any((one, row["dtype"], shape) in wrong for one in ("8.0", row["capability"]))
        if fails or not row["fits"]:
            closed.add((capability, row["dtype"], shape[:2]))  # also to those with more inputs and outputs
        elif (capability, row["dtype"], shape[:2]) not in closed:
            right.setdefault(capability, {}).setdefault(row["dtype"], {})[shape[:2]] = shape[2:]
    return {one: {dtype: own[dtype] for dtype in sorted(own)} for one, own in sorted(right.items())}


def _capability(text: str) -> tuple[int, int]:
    major, minor = map(int, text.split("."))
    return major, minor


def missing(rows: list[dict[str, Any]]) -> list[str]:
    """A sentence for each network of the present table that `table` leaves out."""
    rows = [row for row in rows if "compiled_for" not in row]
    own = {(row["dtype"], _shape(row), _name(row)): row["ok"] for row in rows}
    passed = _passed(rows)
    lines = []
    for dtype, shapes in tested.NETWORKS.items():
        for shape, names in shapes.items():
            for name in sorted(set(names) - passed.get(dtype, {}).get(shape, set())):
                right = own.get((dtype, shape, name))
                what = "not checked" if right is None else "such a network failed" if right else "failed"
                width, layers, below, above = shape
                ends = f"up to {below - 1} inputs and {above} outputs"
                lines.append(f"{dtype}, {layers} x {width} columns, {ends}, {name}: {what}.")
    return lines


def _passed(rows: list[dict[str, Any]]) -> dict[str, dict[tuple[int, int, int, int], set[str]]]:
    """By dtype and shape: the activations of the networks that passed, if none of that shape failed."""
    failed = _failed(rows)
    networks: dict[str, dict[tuple[int, int, int, int], set[str]]] = {}
    for row in rows:
        if (row["dtype"], _shape(row)) not in failed:
            networks.setdefault(row["dtype"], {}).setdefault(_shape(row), set()).add(_name(row))
    return networks


def _failed(rows: list[dict[str, Any]]) -> set[tuple[str, tuple[int, int, int, int]]]:
    """The dtypes and shapes of networks that failed."""
    return {(row["dtype"], _shape(row)) for row in rows if not row["ok"]}


def _name(row: dict[str, Any]) -> str:
    """The activation, as the table names it."""
    return row["activation"] + ("" if row["bias"] else WITHOUT_BIAS)


def _shape(row: dict[str, Any]) -> tuple[int, int, int, int]:
    """The padded width and the number of hidden layers, and what distinguishes their kernels."""
    from pinchpoint.kit.edges.mlp_support import pad_width

    hidden = row["widths"][1:-1]
    ends = pad_width(row["widths"][0] + 1), pad_width(row["widths"][-1])
    return pad_width(max(hidden)), len(hidden), *ends


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("check", "table"), help="The action.")
    parser.add_argument("checks", nargs="?", type=Path, help="The results that `table` reads.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="The file to write.")
    parser.add_argument("--add", action="store_true", help="`table` keeps networks that were not checked.")
    parser.add_argument(
        "--compiled", type=Path, help="A record of edge_mlp_compiled.py, by which `table` knows what fits."
    )
    parser.add_argument(
        "--sweep",
        nargs="+",
        type=Path,
        default=[],
        help="Records of edge_mlp.py, which has networks slower than eager.",
    )
    parser.add_argument(
        "--seconds", type=float, default=600, help="Stop after so many seconds. Default: 600."
    )
    parser.add_argument("--workers", type=int, default=4, help="Processes. Default: 4.")
    parser.add_argument(
        "--compiled-for",
        metavar="CAPABILITY",
        help="`check` kernels of this compute capability, such as 8.0.",
    )
    parser.add_argument("--device", default="cuda", help="Default: cuda.")
    parser.add_argument("--edges", type=int, default=EDGES, help=f"Default: {EDGES}.")
    args = parser.parse_args()
    if args.what == "check":
        capability = jobs = None
        if args.compiled_for:
            capability = _capability(args.compiled_for)
            jobs = compiled_networks(capability)
        jobs = networks() if jobs is None else jobs
        check(args.output, jobs, args.seconds, args.workers, args.device, args.edges, capability)
        return
    rows = latest(args.checks.read_text().splitlines())
    sweep = [row for file in args.sweep for row in json.loads(file.read_text())["runs"][-1]["rows"]]
    record = None if args.compiled is None else json.loads(args.compiled.read_text())["rows"]
    write_text(args.output, table(rows, sweep, record=record, add=args.add))
    for line in missing(rows):
        if not args.add or not line.endswith("not checked."):
            print(line)


if __name__ == "__main__":
    sys.exit(main())
