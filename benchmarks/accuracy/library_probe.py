"""Memory that cuDNN uses for convolutions and recurrent layers of many shapes, from the allocator's events.

    PYTHONPATH=src python benchmarks/accuracy/library_probe.py rnn -o rnn_probe.json
    PYTHONPATH=src python benchmarks/accuracy/library_probe.py conv -o conv_probe.json

A record holds its columns once and a row for every call. Workspaces are the blocks that are allocated and
freed within a call (of a convolution: of forward, of backward); `reserve_bytes` is what a recurrent forward
pass saves for backward.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["rnn", "conv"])
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write.")
    parser.add_argument(
        "--count", type=int, default=1000, help="Largest number of calls to probe (default: %(default)s)."
    )
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print(
            "error: No CUDA device is available on this machine.\n"
            "  hint: Run the probe on a machine with a GPU.",
            file=sys.stderr,
        )
        return 3
    columns, shapes, probe = {
        "rnn": (RNN_COLUMNS, rnn_shapes(), probe_rnn),
        "conv": (CONV_COLUMNS, conv_shapes(), probe_conv),
    }[args.what]
    rows, start = [], time.perf_counter()
    for _, shape in zip(range(args.count), shapes, strict=False):
        rows.append(probe(**shape))
    record = {
        "kind": f"{args.what}-probe",
        "schema": 1,
        "target": "cuDNN",
        "created": now(),
        "machine": machine.describe(),
        "command": f"python benchmarks/accuracy/library_probe.py {args.what} "
        f"-o {args.output.name} --count {args.count}",
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
