"""Memory that cuDNN uses for convolutions and recurrent layers of many shapes, from the allocator's events.

    PYTHONPATH=src python benchmarks/accuracy/library_probe.py rnn -o rnn_probe.json
    PYTHONPATH=src python benchmarks/accuracy/library_probe.py conv -o conv_probe.json
    PYTHONPATH=src python benchmarks/accuracy/library_probe.py packed -o packed_probe.json
    PYTHONPATH=src python benchmarks/accuracy/library_probe.py search -o search_probe.json
    PYTHONPATH=src python benchmarks/accuracy/library_probe.py math -o math_probe.json

A record holds its columns once and a row for every call. Workspaces are the blocks that are allocated and
freed within a call (of a convolution: of forward, of backward); `reserve_bytes` is what a recurrent forward
pass saves for backward. `search` runs the convolutions with `torch.backends.cudnn.benchmark`: the largest
block of the first call, which searches, and of a later one. `math` runs Fourier transforms, solvers, random
numbers and the like. `--part 0/4` takes every fourth call, for four processes side by side.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pinchpoint.core import machine
from pinchpoint.core.files import write_text
from pinchpoint.core.records import now

RNN_COLUMNS = (
    "kind",
    "batch",
    "steps",
    "width",
    "hidden",
    "layers",
    "two_way",
    "dropout",
    "dtype",
    "training",
    "forward_bytes",
    "backward_bytes",
    "reserve_bytes",
)
CONV_COLUMNS = (
    "batch",
    "channels",
    "out_channels",
    "sides",
    "window",
    "stride",
    "padding",
    "dilation",
    "groups",
    "transposed",
    "channels_last",
    "dtype",
    "wants_input",
    "out_sides",
    "forward_bytes",
    "backward_bytes",
)
PACKED_COLUMNS = (*RNN_COLUMNS[:-3], "rows", *RNN_COLUMNS[-3:])
SEARCH_COLUMNS = (
    *CONV_COLUMNS[:-2],
    "search_forward_bytes",
    "search_backward_bytes",
    "forward_bytes",
    "backward_bytes",
)
MATH_COLUMNS = ("name", "shape", "dtype", "input_bytes", "peak_bytes", "kept_bytes")
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN}
FORMATS = {2: torch.channels_last, 3: torch.channels_last_3d}


def observe_blocks(run: Callable[[], Any]) -> tuple[Any, list[int], list[int]]:
    """Return the result of `run`, the blocks that it allocated and freed, and those that stayed, in order."""
    torch.cuda.memory._record_memory_history(
        "all", context=None, stacks="python", max_entries=20_000, clear_history=True
    )
    result = run()
    torch.cuda.synchronize()
    traces: Any = torch.cuda.memory._snapshot()["device_traces"]
    torch.cuda.memory._record_memory_history(None)
    alive: dict[int, int] = {}
    passing: list[int] = []
    for event in (event for trace in traces for event in trace):
        if event["action"] == "alloc":
            alive[event["addr"]] = event["size"]
        elif event["action"] == "free_completed" and event["addr"] in alive:
            passing.append(alive.pop(event["addr"]))
    return result, passing, list(alive.values())


# --- recurrent layers


def rnn_shapes() -> Iterator[dict[str, Any]]:
    """Yield shapes that vary one quantity at a time, then random shapes."""
    steps = (1, 2, 4, 16, 31, 64, 100, 128, 200, 256, 257, 300, 384, 480, 512, 640, 1000, 2048)
    for length, (batch, width, hidden), layers in product(
        steps, ((64, 256, 256), (128, 192, 320), (32, 512, 512), (16, 64, 128)), (1, 2)
    ):
        yield {
            "kind": "lstm",
            "batch": batch,
            "steps": length,
            "width": width,
            "hidden": hidden,
            "layers": layers,
        }
    for hidden, length in product((16, 32, 64, 100, 128, 192, 196, 200, 256, 320, 512, 1024), (50, 480)):
        yield {"kind": "lstm", "batch": 64, "steps": length, "width": 128, "hidden": hidden, "layers": 2}
    rng = random.Random(0)
    kinds = ["lstm"] * 5 + ["gru"] * 3 + ["rnn_tanh"]
    for _ in range(700):
        layers = rng.choice([1, 2, 2, 3, 4])
        shape = {
            "kind": rng.choice(kinds),
            "batch": rng.choice([4, 8, 16, 20, 32, 48, 64, 100, 128, 200, 256, 512, 1000]),
            "steps": rng.choice(
                [10, 24, 50, 64, 100, 128, 160, 200, 256, 300, 365, 400, 480, 512, 600, 730, 1000]
            ),
            "width": rng.choice([1, 3, 8, 12, 24, 40, 64, 80, 128, 192, 256, 300, 512]),
            "hidden": rng.choice(
                [32, 50, 64, 96, 128, 150, 192, 200, 256, 300, 320, 384, 400, 512, 650, 768, 1024]
            ),
            "layers": layers,
            "two_way": rng.random() < 0.35,
            "dropout": layers > 1 and rng.random() < 0.4,
            "dtype": rng.choice(["float32"] * 3 + ["bfloat16", "float16"]),
            "training": rng.random() < 0.8,
        }
        if shape["batch"] * shape["steps"] * max(shape["hidden"], shape["width"]) * layers * 48 < 2e10:
            yield shape


def probe_rnn(
    kind: str,
    batch: int,
    steps: int,
    width: int,
    hidden: int,
    layers: int,
    two_way: bool = False,
    dropout: bool = False,
    dtype: str = "float32",
    training: bool = True,
) -> list[Any]:
    torch.cuda.empty_cache()
    layer = KINDS[kind](width, hidden, layers, bidirectional=two_way, dropout=0.2 if dropout else 0.0)
    layer = layer.cuda().to(getattr(torch, dtype)).train(training)
    layer.flatten_parameters()
    source = torch.randn(steps, batch, width, device="cuda", dtype=getattr(torch, dtype))
    backward, reserve = 0, 0
    with torch.set_grad_enabled(training):
        layer(source)  # the first call also loads kernels
        (out, _), passing, remaining = observe_blocks(lambda: layer(source))
        forward = max(passing)
        if training:
            gradient, reserve = torch.ones_like(out), remaining[-1]
            _, passing, _ = observe_blocks(
                lambda: torch.autograd.grad(out, list(layer.parameters()), gradient)
            )
            backward = max(passing)
    return [
        kind,
        batch,
        steps,
        width,
        hidden,
        layers,
        two_way,
        dropout,
        dtype,
        training,
        forward,
        backward,
        reserve,
    ]


# --- packed sequences


def packed_shapes() -> Iterator[dict[str, Any]]:
    """Yield shapes of calls on packed sequences: one quantity varied at a time, then random shapes."""
    base = {
        "kind": "lstm",
        "batch": 32,
        "steps": 100,
        "width": 96,
        "hidden": 256,
        "layers": 2,
        "two_way": True,
        "dropout": False,
        "dtype": "float32",
        "training": True,
        "share": 0.6,
    }
    for kind, two_way in product(KINDS, (True, False)):
        for change in (
            {},
            {"width": 400},
            {"hidden": 64},
            {"hidden": 512},
            {"layers": 1},
            {"layers": 3},
            {"steps": 400},
            {"batch": 128},
            {"share": 0.9},
            {"dropout": True},
            {"dtype": "float16"},
            {"training": False},
        ):
            yield base | {"kind": kind, "two_way": two_way} | change
    rng = random.Random(3)
    while True:
        yield base | {
            "kind": rng.choice(["lstm", "lstm", "gru", "rnn_tanh"]),
            "batch": rng.choice([4, 16, 32, 64, 128, 256]),
            "steps": rng.choice([20, 50, 100, 200, 300, 500]),
            "width": rng.choice([16, 64, 100, 128, 256, 300, 512]),
            "hidden": rng.choice([32, 64, 128, 192, 256, 300, 512, 1024]),
            "layers": rng.choice([1, 2, 2, 3]),
            "two_way": rng.random() < 0.6,
            "dropout": rng.random() < 0.4,
            "dtype": rng.choices(["float32", "float16", "bfloat16"], [6, 1, 1])[0],
            "training": rng.random() < 0.85,
            "share": rng.choice([0.3, 0.5, 0.7, 0.9]),
        }


def probe_packed(share: float, **shape: Any) -> list[Any]:
    """The blocks of a call on sequences that have this share of the padded rows."""
    torch.cuda.empty_cache()
    layer = KINDS[shape["kind"]](
        shape["width"],
        shape["hidden"],
        shape["layers"],
        bidirectional=shape["two_way"],
        dropout=0.2 if shape["dropout"] and shape["layers"] > 1 else 0.0,
    )
    dtype, steps, batch = getattr(torch, shape["dtype"]), shape["steps"], shape["batch"]
    layer = layer.cuda().to(dtype).train(shape["training"])
    least = max(1, round(steps * (2 * share - 1)))
    lengths = torch.linspace(steps, least, batch).round().long()
    packed = nn.utils.rnn.pack_padded_sequence(
        torch.randn(steps, batch, shape["width"], device="cuda", dtype=dtype), lengths
    )
    backward, reserve = 0, 0
    with torch.set_grad_enabled(shape["training"]):
        layer(packed)  # the first call also loads kernels
        (out, _), passing, remaining = observe_blocks(lambda: layer(packed))
        forward = max(passing)
        if shape["training"]:
            gradient, reserve = torch.ones_like(out.data), max(remaining)
            _, passing, _ = observe_blocks(
                lambda: torch.autograd.grad(out.data, list(layer.parameters()), gradient)
            )
            backward = max(passing)
    return [*shape.values(), int(lengths.sum()), forward, backward, reserve]


# --- convolutions


def conv_shapes() -> Iterator[dict[str, Any]]:
    rng = random.Random(1)
    sides_of = {
        1: [256, 512, 1000, 2048, 4096, 8000],
        2: [14, 16, 28, 32, 56, 64, 72, 100, 112, 128, 144, 224, 256],
        3: [8, 16, 24, 32, 48, 64],
    }
    while True:
        dims = rng.choices([1, 2, 3], [2, 7, 1.5])[0]
        sides = [rng.choice(sides_of[dims])] * dims
        channels = rng.choice(
            [1, 2, 3, 4, 6, 16, 24, 28, 32, 48, 56, 64, 96, 112, 128, 160, 192, 224, 256, 384, 512, 1024]
        )
        out_channels = rng.choice([channels, channels, channels, 2 * channels, 4, 16, 32, 64, 128, 256])
        groups, kind = 1, rng.random()
        if kind < 0.08:
            groups, out_channels = channels, channels * rng.choice([1, 1, 2])
        elif kind < 0.14 and channels % 8 == 0 and out_channels % 8 == 0:
            groups = rng.choice([2, 4, 8])
        window = rng.choices([1, 3, 5, 7, 4], [3, 9, 1.2, 1, 1])[0]
        dilation = rng.choices([1, 2, 4], [12, 1, 1])[0] if window > 1 else 1
        shape = {
            "batch": rng.choice([1, 2, 4, 8, 16, 20, 24, 32, 64, 100, 128, 256]),
            "channels": channels,
            "out_channels": out_channels,
            "sides": sides,
            "window": window,
            "stride": rng.choices([1, 2], [4, 1])[0],
            "padding": dilation * (window // 2),
            "dilation": dilation,
            "groups": groups,
            "transposed": False,
            "channels_last": dims > 1 and rng.random() < 0.2,
            "dtype": rng.choices(["float32", "bfloat16", "float16"], [6, 2, 1.5])[0],
            "wants_input": rng.random() < 0.9,
        }
        if rng.random() < 0.08:
            shape |= {
                "transposed": True,
                "dilation": 1,
                "padding": 0,
                "stride": 2,
                "window": rng.choice([2, 2, 4, 3]),
            }
        points = shape["batch"] * sides[0] ** dims
        work = points * channels * out_channels * shape["window"] ** dims / groups
        if (
            points * max(channels, out_channels) < 4e8
            and points * max(channels, out_channels) > 2e5
            and work < 2e13
        ):
            yield shape


def probe_conv(
    batch: int,
    channels: int,
    out_channels: int,
    sides: list[int],
    window: int,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
    transposed: bool,
    channels_last: bool,
    dtype: str,
    wants_input: bool,
) -> list[Any]:
    torch.cuda.empty_cache()
    dims = len(sides)
    windows = (channels, out_channels // groups) if transposed else (out_channels, channels // groups)
    source = torch.randn(batch, channels, *sides, device="cuda", dtype=getattr(torch, dtype))
    weight = torch.randn(*windows, *[window] * dims, device="cuda", dtype=getattr(torch, dtype))
    if channels_last:
        source, weight = (t.contiguous(memory_format=FORMATS[dims]) for t in (source, weight))
    source.requires_grad_(wants_input)
    weight.requires_grad_()
    call = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    inputs = [t for t in (source, weight) if t.requires_grad]
    forward: list[int] = []
    backward: list[int] = []
    sides_out: list[int] = []
    for _ in range(2):  # the first call also loads kernels
        out, forward, _ = observe_blocks(
            lambda: call(source, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
        )
        gradient, sides_out = torch.ones_like(out), list(out.shape[2:])
        _, backward, _ = observe_blocks(
            lambda out=out, gradient=gradient: torch.autograd.grad(out, inputs, gradient)
        )
    return [
        batch,
        channels,
        out_channels,
        sides,
        window,
        stride,
        padding,
        dilation,
        groups,
        transposed,
        channels_last,
        dtype,
        wants_input,
        sides_out,
        sum(forward),
        max(backward, default=0),
    ]


# --- convolutions with a search for the fastest kernel


def probe_search(**shape: Any) -> list[Any]:
    """Return the largest blocks of the first call, which searches, and of a later one."""
    torch.backends.cudnn.benchmark = True
    try:
        (first, sides_out), (later, _) = _convolve(shape), _convolve(shape)
    finally:
        torch.backends.cudnn.benchmark = False
    return [*shape.values(), sides_out, *(max(blocks, default=0) for blocks in (*first, *later))]


def _convolve(shape: dict[str, Any]) -> tuple[tuple[list[int], list[int]], list[int]]:
    """Return the passing blocks of forward and backward, and the sides of the result."""
    torch.cuda.empty_cache()
    dims, groups, transposed = len(shape["sides"]), shape["groups"], shape["transposed"]
    channels, out_channels = shape["channels"], shape["out_channels"]
    windows = (channels, out_channels // groups) if transposed else (out_channels, channels // groups)
    dtype = getattr(torch, shape["dtype"])
    source = torch.randn(shape["batch"], channels, *shape["sides"], device="cuda", dtype=dtype)
    weight = torch.randn(*windows, *[shape["window"]] * dims, device="cuda", dtype=dtype)
    if shape["channels_last"]:
        source, weight = (t.contiguous(memory_format=FORMATS[dims]) for t in (source, weight))
    source.requires_grad_(shape["wants_input"])
    weight.requires_grad_()
    inputs = [t for t in (source, weight) if t.requires_grad]
    call = getattr(F, f"conv_transpose{dims}d" if transposed else f"conv{dims}d")
    how = {name: shape[name] for name in ("stride", "padding", "dilation", "groups")}
    out, forward, _ = observe_blocks(lambda: call(source, weight, **how))
    gradient = torch.ones_like(out)
    _, backward, _ = observe_blocks(lambda: torch.autograd.grad(out, inputs, gradient))
    return (forward, backward), list(out.shape[2:])


# --- other libraries


def math_calls() -> Iterator[dict[str, Any]]:
    """Yield calls of cuFFT, cuSOLVER and of kernels with buffers of their own, at many sizes."""
    rng = random.Random(2)
    for _ in range(240):
        dims = rng.choice([1, 2, 2, 3])
        sides = [
            rng.choice(
                {
                    1: [256, 1000, 1009, 4096, 65536, 100003],
                    2: [16, 31, 64, 85, 128, 256, 509, 512],
                    3: [16, 32, 48, 64, 97],
                }[dims]
            )
        ] * dims
        batch = rng.choice([1, 4, 20, 64, 256])
        if batch * sides[0] ** dims > 1e8:
            continue
        name = rng.choice(["rfftn", "irfftn", "fftn", "ifftn", "rfftn-backward"])
        yield {"name": name, "shape": [batch, *sides], "dtype": rng.choice(["float32", "float32", "float64"])}
    for name in (
        "eigh",
        "eigvalsh",
        "eig",
        "svd",
        "svdvals",
        "qr",
        "slogdet",
        "inv",
        "cholesky",
        "solve",
        "pinv",
        "lstsq",
        "matrix_exp",
    ):
        for side in (8, 32, 33, 64, 128, 512, 1024):
            for batch in (1, 3, 64):
                if batch * side**2 <= 2**24 and not (
                    name in ("eig", "svd", "svdvals", "pinv") and batch * side > 66_000
                ):
                    yield {"name": name, "shape": [batch, side, side], "dtype": "float32"}
    for count in (100, 1000, 30_000, 100_000, 1_000_000, 30_000_000):
        yield {"name": "randperm", "shape": [count], "dtype": "int64"}
        yield {"name": "topk", "shape": [count], "dtype": "float32"}
        yield {"name": "argsort", "shape": [count], "dtype": "float32"}
        yield {"name": "unique", "shape": [count], "dtype": "int64"}
        yield {"name": "histc", "shape": [count], "dtype": "int32"}
    for rows, columns in ((1, 1000), (64, 1000), (64, 50_000), (1024, 50_000), (1, 4_000_000)):
        yield {"name": "multinomial", "shape": [rows, columns], "dtype": "float32"}
        yield {"name": "multinomial-1", "shape": [rows, columns], "dtype": "float32"}
        yield {"name": "topk-rows", "shape": [rows, columns], "dtype": "float32"}
    for batch, channels, side in ((4, 16, 64), (32, 64, 56), (8, 3, 224)):
        yield {"name": "unfold", "shape": [batch, channels, side, side], "dtype": "float32"}
    for rows, columns in ((1000, 64), (100_000, 16), (1_000_000, 3)):
        yield {"name": "scatter_reduce-mean", "shape": [rows, columns], "dtype": "float32"}
    for batch, points, width in ((1, 1000, 3), (8, 1000, 3), (4, 1000, 64), (1, 4000, 16)):
        yield {"name": "cdist-exact-backward", "shape": [batch, points, width], "dtype": "float32"}
        yield {"name": "cdist", "shape": [batch, points, width], "dtype": "float32"}
    for batch, hidden in ((64, 256), (512, 512), (4096, 128)):
        yield {"name": "lstmcell", "shape": [batch, hidden], "dtype": "float32"}
        yield {"name": "grucell", "shape": [batch, hidden], "dtype": "float32"}


def _math_call(
    name: str, shape: list[int], dtype: torch.dtype
) -> tuple[list[torch.Tensor], Callable[[], Any]]:
    """The inputs of a call, and the call."""
    if name in ("randperm",):
        return [], lambda: torch.randperm(shape[0], device="cuda")
    if name in ("unique", "histc"):
        x = torch.randint(0, max(shape[0] // 2, 1), shape, device="cuda", dtype=dtype)
        return [x], (lambda: torch.unique(x)) if name == "unique" else (lambda: torch.histc(x, bins=64))
    if name in ("lstmcell", "grucell"):
        cell = (nn.LSTMCell if name == "lstmcell" else nn.GRUCell)(shape[1], shape[1], device="cuda")
        x = torch.randn(*shape, device="cuda", requires_grad=True)
        return [x], lambda: cell(x)
    if "rfftn" in name or "fftn" in name:
        axes = tuple(range(1, len(shape)))
        x = torch.randn(*shape, device="cuda", dtype=dtype)
        if name == "rfftn-backward":
            x.requires_grad_()
            y = torch.fft.rfftn(x, dim=axes)
            gradient = torch.ones_like(y)
            return [x], lambda: torch.autograd.grad(y, [x], gradient, retain_graph=True)
        if name in ("irfftn",):
            y = torch.fft.rfftn(x, dim=axes)
            return [y], lambda: torch.fft.irfftn(y, s=shape[1:], dim=axes)
        if name in ("fftn", "ifftn"):
            x = x.to(torch.complex64 if dtype is torch.float32 else torch.complex128)
        return [x], lambda: getattr(torch.fft, name)(x, dim=axes)
    x = torch.randn(*shape, device="cuda", dtype=dtype)
    if name in ("eigh", "eigvalsh", "cholesky"):
        x = x @ x.mT + shape[-1] * torch.eye(shape[-1], device="cuda", dtype=dtype)
    calls: dict[str, Callable[[], Any]] = {
        "topk": lambda: x.topk(min(16, len(x))),
        "topk-rows": lambda: x.topk(16, dim=-1),
        "argsort": lambda: x.argsort(),
        "multinomial": lambda: torch.multinomial(x.abs(), 16),
        "multinomial-1": lambda: torch.multinomial(x.abs(), 1),
        "unfold": lambda: F.unfold(x, 3, padding=1),
        "scatter_reduce-mean": lambda: torch.zeros_like(x).scatter_reduce(0, index, x, "mean"),
        "cdist": lambda: torch.cdist(x, x),
        "lstsq": lambda: torch.linalg.lstsq(x, x),
        "solve": lambda: torch.linalg.solve(x, x),
        "matrix_exp": lambda: torch.linalg.matrix_exp(x),
    }
    if name == "scatter_reduce-mean":
        index = torch.randint(0, shape[0], shape, device="cuda")
    if name == "cdist-exact-backward":
        x.requires_grad_()
        y = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
        gradient = torch.ones_like(y)
        return [x], lambda: torch.autograd.grad(y, [x], gradient, retain_graph=True)
    return [x], calls[name] if name in calls else (lambda: getattr(torch.linalg, name)(x))


def probe_math(name: str, shape: list[int], dtype: str) -> list[Any]:
    """The most bytes that a later call adds to the allocated ones, and what it leaves allocated."""
    torch.cuda.empty_cache()
    inputs, call = _math_call(name, shape, getattr(torch, dtype))
    size = sum(t.numel() * t.element_size() for t in inputs)
    peak = kept = -1
    try:
        for _ in range(2):
            result = None
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            result = call()
            torch.cuda.synchronize()
            peak, kept = torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before
        del result
    except (RuntimeError, NotImplementedError) as error:
        return [name, shape, dtype, size, str(error).splitlines()[0][:80], -1]
    return [name, shape, dtype, size, peak, kept]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rnn", "packed", "conv", "search", "math"])
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write.")
    parser.add_argument(
        "--count", type=int, default=1000, help="Largest number of calls to probe (default: %(default)s)."
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="Stop after this time (default: 3600).")
    parser.add_argument("--part", default="0/1", help="Take every K-th call from number I (default: 0/1).")
    args = parser.parse_args(argv)
    first, step = map(int, args.part.split("/"))
    if not torch.cuda.is_available():
        print(
            "error: No CUDA device is available on this machine.\n"
            "  hint: Run the probe on a machine with a GPU.",
            file=sys.stderr,
        )
        return 3
    columns, shapes, probe = {
        "rnn": (RNN_COLUMNS, rnn_shapes(), probe_rnn),
        "packed": (PACKED_COLUMNS, packed_shapes(), probe_packed),
        "conv": (CONV_COLUMNS, conv_shapes(), probe_conv),
        "search": (SEARCH_COLUMNS, conv_shapes(), probe_search),
        "math": (MATH_COLUMNS, math_calls(), probe_math),
    }[args.what]
    rows, start = [], time.perf_counter()
    for _, shape in zip(range(args.count), islice(shapes, first, None, step), strict=False):
        rows.append(probe(**shape))
        if time.perf_counter() - start > args.seconds:
            break
    record = {
        "kind": f"{args.what}-probe",
        "schema": 1,
        "target": "cuDNN",
        "created": now(),
        "machine": machine.describe(),
        "command": f"python benchmarks/accuracy/library_probe.py {args.what} "
        f"-o {args.output.name} --count {args.count} --seconds {args.seconds:g} --part {args.part}",
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "took_s": round(time.perf_counter() - start, 1),
        "columns": columns,
    }
    lines = ",\n".join(json.dumps(row) for row in rows)
    write_text(
        args.output, json.dumps(record, indent=1).removesuffix("\n}") + f',\n "rows": [\n{lines}\n]}}\n'
    )
    print(f"{len(rows)} calls in {record['took_s']} s: {args.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
