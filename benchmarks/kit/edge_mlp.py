"""A training step of the edge transform on a GPU: `eager`, `flat`, and `flat` of older code in turn.

    python benchmarks/kit/edge_mlp.py measure --before OLD/src --revision REVISION -o RECORD
    python benchmarks/kit/edge_mlp.py measure --cases 1 --precision bf16 -o RECORD      # the first case alone
    python benchmarks/kit/edge_mlp.py measure --pick attention max 256,256,256 -o RECORD   # these cases
    python benchmarks/kit/edge_mlp.py measure --more -o RECORD   # more inputs and outputs; the slowest
    python benchmarks/kit/edge_mlp.py compile --share 0/4                               # a quarter, run once
    python benchmarks/kit/edge_mlp.py profile --more --pick 256,256,256,256             # the time of kernels
    python benchmarks/kit/edge_mlp.py peaks benchmarks/results/edge_mlp_h200.json
    python benchmarks/kit/edge_mlp.py forecast benchmarks/results/edge_mlp_h200.json    # without a GPU
    python benchmarks/kit/edge_mlp.py show benchmarks/results/edge_mlp_h200.json

A random graph with 1 M edges and 31,250 points on either side, 3 coordinates, and 16 channels or those of a
case; the gradients are those of the MLP and of f. The older code runs in a process of its own, one step at a
time when it is its turn. Peaks are allocated bytes beside the inputs and the graph, of a separate step. The
record is written after every case; `way` is how `flat` ran the MLP: `tiles` or `wide` by the kernels of
`tile_mlp` or `wide_mlp`, else as `flat_path` names it. `profile` prints the time of a step, its launches, and
its longest kernels; if all kernels take much less than the step, the GPU waits for the host. `peaks` adds to
the rows of the newest code the peak of `train`, two training steps of the same case with their inputs, each
in a process of its own: what other steps leave in the allocator moves a peak by up to 2 %. `forecast` adds
what `pinchpoint predict` says about the same `train`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pinchpoint.core.files import write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now, script_command
from pinchpoint.core.units import MIB
from pinchpoint.kit import Edges, edge_transform
from pinchpoint.studies.timing import ratio_interval, timing_of

EDGES, POINTS, CHANNELS, WARMUP, REPEATS = 1_000_000, 31_250, 16, 3, 15
ACTIVATIONS = {"GELU": nn.GELU, "SiLU": nn.SiLU, "ReLU": nn.ReLU, "tanh": nn.Tanh}
PRECISIONS = ("bf16", "fp32")
ACTIONS = ("measure", "compile", "profile", "serve", "train", "peak", "peaks", "forecast", "show")
MARKS = {"layers": "\\*", "wide": "\\*\\*"}  # of the times of `flat`, by the way that an MLP ran


class Case(NamedTuple):
    hidden: str
    activation: str = "GELU"
    transform: str = "linear"
    weights: str = "mean"
    channels: int = CHANNELS


def cases() -> list[Case]:
    """Five MLPs first; then the transforms and weights; then every width with every number of layers."""
    wide = "128,128,128"
    first = [Case(wide), Case("64,64"), Case(wide, "SiLU"), Case("256,256,256"), Case("32,32")]
    kinds = [
        Case("64,64", "SiLU", "nonlinear"),
        Case("64,64", "SiLU", "nonlinear_kernelonly", "sum"),
        Case("64,64", "GELU", "linear_kernelonly"),
        Case("64,64", "GELU", "linear", "quadrature"),
        Case("64,64", "GELU", "linear", "attention"),
        Case("64,64", "GELU", "linear", "max"),
    ]
    names = list(ACTIVATIONS)
    sweep = [
        Case(",".join([str(width)] * layers), names[(at + layers) % len(names)])
        for (at, width), layers in product(enumerate((16, 32, 64, 128, 256)), (1, 2, 3, 4))
    ]
    return list(dict.fromkeys([*first, *kinds, *sweep]))


def more_cases() -> list[Case]:
    """MLPs with up to 54 inputs and 64 outputs, and those that gain least over eager."""
    return [
        Case("128,128,128,128"),
        Case("64,64,64,64"),
        Case("128,128,128,128", "SiLU"),
        Case("256,256,256,256", "SiLU"),
        Case("256,256,256,256", "ReLU"),
        Case("128,128,128", channels=64),
        Case("64,64", channels=64),
        Case("128,128", "SiLU", "nonlinear", channels=48),
        Case("64,64", "ReLU", "nonlinear", channels=32),
        Case("256", "SiLU", channels=64),
        Case("256,256", channels=64),
        Case("256,256", "SiLU", "nonlinear", channels=48),
        Case("16,16", "tanh", "nonlinear", channels=48),
        Case("128,128,128,128", channels=64),
        Case("64,64,64", "SiLU", "nonlinear", channels=48),
        Case("64,64,64,64", "SiLU", "nonlinear", channels=48),
        Case("128,128,128", "SiLU", "nonlinear"),
        Case("128,128,128", "SiLU", "nonlinear", channels=48),
        Case("128,128,128,128", "SiLU", "nonlinear", channels=48),
        Case("256,256,256", "SiLU", "nonlinear", channels=48),
        Case("256,256,256,256", "SiLU", "nonlinear", channels=48),
        Case("256,256,256,256", channels=64),
    ]


def mlp_of(case: Case) -> nn.Sequential:
    wide = 6 + (case.channels if case.transform.startswith("non") else 0)
    widths = [wide, *map(int, case.hidden.split(",")), case.channels]
    parts: list[nn.Module] = []
    for i in range(len(widths) - 1):
        parts += [nn.Linear(widths[i], widths[i + 1]), ACTIVATIONS[case.activation]()]
    return nn.Sequential(*parts[:-1])


def way_of(case: Case, precision: str, device: str = "cuda") -> str:
    """How `flat` of this process runs the MLP."""
    from pinchpoint.kit import flat_path

    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        path = flat_path(mlp_of(case).to(device), like=torch.zeros(0, 3, device=device))
    if path.wide:
        return "wide"
    return "tiles" if path.in_tiles else path.name


def step_of(case: Case, precision: str) -> Callable[[str], list[Tensor]]:
    """A training step, called with the memory mode; it returns the gradients."""
    return _step_and_leaves(case, precision)[0]


def train(case: Case, precision: str) -> None:
    """Two training steps with `flat`, for a forecast."""
    step, leaves = _step_and_leaves(case, precision)
    optimizer = torch.optim.SGD(leaves, lr=0.0)
    for _ in range(2):
        optimizer.zero_grad()
        _assign(leaves, step("flat"))
        optimizer.step()


def _assign(leaves: list[Tensor], gradients: list[Tensor]) -> None:
    for leaf, gradient in zip(leaves, gradients, strict=True):
        leaf.grad = gradient


def _step_and_leaves(case: Case, precision: str) -> tuple[Callable[[str], list[Tensor]], list[Tensor]]:
    """A training step, and what it differentiates by."""
    torch.manual_seed(0)
    mlp = mlp_of(case).cuda()
    x, y = (torch.rand(POINTS, 3, device="cuda") for _ in "xy")
    f = torch.randn(POINTS, case.channels, device="cuda", requires_grad=True)
    index = torch.randint(0, POINTS, (2, EDGES), device="cuda")
    options: dict[str, Any] = {"transform": case.transform, "weights": case.weights}
    leaves = [*mlp.parameters()] + ([] if case.transform == "linear_kernelonly" else [f])
    if case.weights == "quadrature":
        options["quadrature"] = torch.rand(POINTS, device="cuda")
    if case.weights == "attention":
        options["attention"] = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 1)).cuda()
        leaves += options["attention"].parameters()
    edges = Edges.from_index(index, queries=POINTS, sources=POINTS)

    def step(memory: Any) -> list[Tensor]:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            out = edge_transform(mlp, x, y, f, edges, memory=memory, **options)
        return list(torch.autograd.grad(out.float().square().mean(), leaves))

    return step, leaves


class Steps:
    """The steps of one case at a time, in this process."""

    def __init__(self) -> None:
        self._case: tuple[Case, str] | None = None
        self._step: Callable[[str], list[Tensor]] | None = None

    def step(self, case: Case, precision: str) -> Callable[[str], list[Tensor]]:
        if self._case != (case, precision) or self._step is None:
            self.clear()
            self._case, self._step = (case, precision), step_of(case, precision)
        return self._step

    def clear(self) -> None:
        self._case = self._step = None
        gc.collect()
        torch.cuda.empty_cache()

    def seconds(self, case: Case, precision: str, memory: str) -> float:
        step = self.step(case, precision)
        torch.cuda.synchronize()
        start = time.perf_counter()
        step(memory)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def peak_bytes(self, case: Case, precision: str, memory: str) -> int:
        step = self.step(case, precision)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(memory)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before


class OtherSteps:
    """The steps of other code, in a process that takes a line of JSON and answers with one."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, what: str, case: Case, precision: str, memory: str) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([what, list(case), precision, memory]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("The process with the older code has ended; its error is above.")
        return json.loads(answer)  # type: ignore[no-any-return]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve() -> None:
    """Answer requests until the input ends."""
    own = Steps()
    for line in sys.stdin:
        what, case, precision, memory = json.loads(line)
        if what == "clear":
            own.clear()
            answer: float = 0
        else:
            answer = getattr(own, what)(Case(*case), precision, memory)
        print(json.dumps(answer), flush=True)


def measure_case(
    case: Case, precision: str, own: Steps, other: OtherSteps | None
) -> dict[str, dict[str, Any]]:
    """A row for the code of this process, `after`, and one for the other, `before`."""
    turns: dict[str, Callable[[], float]] = {
        "eager": lambda: own.seconds(case, precision, "eager"),
        "after": lambda: own.seconds(case, precision, "flat"),
    }
    if other is not None:
        turns["before"] = lambda: other.ask("seconds", case, precision, "flat")
    times: dict[str, list[float]] = {name: [] for name in turns}
    for turn in range(WARMUP + REPEATS):
        for name in turns if turn % 2 == 0 else reversed(turns):
            seconds = turns[name]()
            if turn >= WARMUP:
                times[name].append(seconds)
    peaks = {
        "eager": own.peak_bytes(case, precision, "eager"),
        "after": own.peak_bytes(case, precision, "flat"),
    }
    if other is not None:
        peaks["before"] = int(other.ask("peak_bytes", case, precision, "flat"))
        other.ask("clear", case, precision, "flat")
    step = own.step(case, precision)
    pairs = zip(step("eager"), step("flat"), strict=True)
    # The bias of an attention's last layer changes nothing: its gradient is rounding alone.
    differences = [float((a - b).norm() / a.norm()) for a, b in pairs if float(a.norm()) > 1e-7]
    rows = {}
    for name in [name for name in ("before", "after") if name in times]:
        ratio, low, high = ratio_interval(times["eager"], times[name])
        row: dict[str, Any] = {
            **case._asdict(),
            "precision": precision,
            "eager_over_flat": ratio,
            "ratio_low": low,
            "ratio_high": high,
            "runs": REPEATS,
        }
        for kind, key in (("eager", "eager"), ("flat", name)):
            timing = timing_of(times[key])
            row |= {f"{kind}_s": timing.median_s, f"{kind}_low_s": timing.low_s}
            row |= {f"{kind}_high_s": timing.high_s, f"{kind}_peak_bytes": peaks[key]}
        if name == "after":
            row["gradient_difference"] = max(differences)
            row["way"] = way_of(case, precision)
        rows[name] = row
    return rows


def measure(
    output: Path, before: Path | None, revision: str, chosen: list[tuple[Case, str]], limit_s: float
) -> None:
    start = time.monotonic()
    own, other = Steps(), None if before is None else OtherSteps(before)
    runs: dict[str, dict[str, Any]] = {
        label: {"label": label, "created": now(), "rows": []}
        for label in ("before", "after")
        if label == "after" or other is not None
    }
    record = {
        "command": script_command(),
        "machine": describe(),
        "edges": EDGES,
        "points": POINTS,
        **({"before": revision} if revision else {}),
        "runs": list(runs.values()),
    }
    for case, precision in chosen:
        if time.monotonic() - start > limit_s:
            print(f"Stopped before {case}, {precision}: {limit_s:g} s are over.", flush=True)
            break
        for label, row in measure_case(case, precision, own, other).items():
            runs[label]["rows"].append(row)
            print(f"{time.monotonic() - start:.1f} s {label}{_line(row)}", flush=True)
        write_text(output, json.dumps(record, indent=1))
    if other is not None:
        other.close()


def compile_kernels(chosen: list[tuple[Case, str]]) -> None:
    own = Steps()
    for case, precision in chosen:
        print(case, precision, f"{own.seconds(case, precision, 'flat'):.1f} s", flush=True)


def profile_steps(chosen: list[tuple[Case, str]]) -> None:
    """Print what a step of eager and of flat takes, and its longest kernels."""
    own = Steps()
    for case, precision in chosen:
        for memory in ("eager", "flat"):
            times = [own.seconds(case, precision, memory) for _ in range(WARMUP + REPEATS)][WARMUP:]
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
                own.seconds(case, precision, memory)
            kernels = [one for one in trace.key_averages() if one.self_device_time_total > 0]
            kernels.sort(key=lambda one: -one.self_device_time_total)
            total = sum(one.self_device_time_total for one in kernels) / 1e3
            launches = sum(one.count for one in kernels)
            print(
                f"{' '.join(map(str, case))} {precision} {memory}: {timing_of(times).median_s * 1e3:.2f} ms, "
                f"{launches} launches of {total:.2f} ms on the GPU"
            )
            for one in kernels[:12]:
                print(
                    f"    {one.self_device_time_total / 1e3:7.3f} ms {one.count:5d}  {one.key[:70]}",
                    flush=True,
                )


def _line(row: dict[str, Any]) -> str:
    difference = row.get("gradient_difference")
    return (
        f"| {row['hidden']} | {row['activation']} | {row['transform']}, {row['weights']} "
        f"| {row['channels']} | {row['precision']} "
        f"| {row['eager_s'] * 1e3:.2f} ms | {row['flat_s'] * 1e3:.2f} ms "
        f"| {row['eager_over_flat']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}] "
        f"| {row['eager_peak_bytes'] / MIB:,.0f} | {row['flat_peak_bytes'] / MIB:,.0f} "
        f"| {'' if difference is None else f'{difference:.1e}'} |"
    )


def peak_of_train(case: Case, precision: str) -> int:
    """The peak of `train` with its inputs, of a process that does nothing else."""
    words = [sys.executable, __file__, "peak", *map(str, case), precision]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True)
    if not done.stdout.strip().isdigit():
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}; its error is above.")
    return int(done.stdout)


def peak_of_forecast(case: Case, precision: str) -> int:
    """The predicted peak of `train` on an H200, with its inputs."""
    from pinchpoint import predict

    return predict(__file__, args=("train", *map(str, case), precision), card="h200").peak_allocated_bytes


def add_peaks(path: Path, key: str, peak_of: Callable[[Case, str], int], at_once: int) -> None:
    """Add peaks of `train` to the newest rows of a record; print forecasts beside what was measured."""
    record = json.loads(path.read_text())
    rows = record["runs"][-1]["rows"]
    cases_of_rows = [Case(*(row.get(name, CHANNELS) for name in Case._fields)) for row in rows]
    precisions = [row["precision"] for row in rows]
    with ThreadPoolExecutor(at_once) as pool:
        peaks = pool.map(peak_of, cases_of_rows, precisions)
        for row, case, precision, peak in zip(rows, cases_of_rows, precisions, peaks, strict=True):
            row[key] = peak
            forecast, measured = (row.get(f"train_{name}_bytes") for name in ("forecast", "peak"))
            beside = f" ({forecast / measured - 1:+.2%})" if forecast and measured else ""
            print(f"{' '.join(map(str, case))} {precision}: {peak:,} B{beside}", flush=True)
            write_text(path, json.dumps(record, indent=1))


def show(path: Path) -> str:
    """The record as a table in Markdown, as in docs/toolkit/kit.md, with the marks of `MARKS`."""
    runs = {run["label"]: run["rows"] for run in json.loads(path.read_text())["runs"]}
    older = {_names(row): row for row in runs.get("before", [])}
    kinds = [("eager", "eager"), ("before", "flat"), ("flat", "flat")]
    kinds = [kind for kind in kinds if older or kind[0] != "before"]
    heads = ["hidden layers", "precision", *(name for name, _ in kinds), "eager / flat"]
    heads += [f"{name} MiB" for name, _ in kinds]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "--:|" * (len(heads) - 2)]
    for row in runs["after"]:
        rows = [older.get(_names(row)) if name == "before" else row for name, _ in kinds]
        both = list(zip(rows, (key for _, key in kinds), strict=True))
        times = ["-" if own is None else f"{own[f'{key}_s'] * 1e3:.1f} ms" for own, key in both]
        peaks = ["-" if own is None else f"{own[f'{key}_peak_bytes'] / MIB:,.0f}" for own, key in both]
        times[-1] += MARKS.get(row.get("way", ""), "")
        cells = [*_names(row), *times, f"{row['eager_over_flat']:.2f}", *peaks]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _names(row: dict[str, Any]) -> tuple[str, str]:
    """The network, with what is not `linear`, `mean` and 16 channels; the precision."""
    kinds = [
        row[name] for name, usual in (("transform", "linear"), ("weights", "mean")) if row[name] != usual
    ]
    if (channels := row.get("channels", CHANNELS)) != CHANNELS:
        kinds.append(f"with {channels} channels")
    return f"{row['hidden'].replace(',', ', ')} {' '.join([row['activation'], *kinds])}", row["precision"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=ACTIONS)
    parser.add_argument(
        "words",
        nargs="*",
        help="The record; of `train` and `peak`, a case and its precision.",
    )
    parser.add_argument("-o", "--output", type=Path, help="The record to write.")
    parser.add_argument("--before", type=Path, help="Source folder of the older code.")
    parser.add_argument("--revision", default="", help="The revision of the older code, for the record.")
    parser.add_argument("--cases", type=int, help="Take the first so many cases. Default: all.")
    parser.add_argument("--skip", type=int, default=0, help="Leave out the first so many cases. Default: 0.")
    parser.add_argument(
        "--pick",
        nargs="+",
        metavar="WORD",
        help="Take cases with one of these hidden widths, activations, transforms or weights.",
    )
    parser.add_argument(
        "--drop", nargs="+", metavar="WORD", default=[], help="Leave out cases with one of these."
    )
    parser.add_argument(
        "--more",
        action="store_true",
        help="Take MLPs with more inputs and outputs, and the slowest, instead.",
    )
    parser.add_argument("--precision", choices=PRECISIONS, help="Take one precision. Default: both.")
    parser.add_argument(
        "--share", default="0/1", help="Take every N-th row from the I-th: I/N. Default: 0/1."
    )
    parser.add_argument("--seconds", type=float, default=1e9, help="Begin no case after so many seconds.")
    parser.add_argument(
        "--at-once", type=int, default=4, help="Processes that `peaks` runs at the same time. Default: 4."
    )
    args = parser.parse_args()
    if args.what == "measure" and args.output is None:
        parser.error("Say where to write the record: -o RECORD.")
    if args.what in ("measure", "compile", "profile", "peaks") and not torch.cuda.is_available():
        parser.error(f"{args.what} needs a GPU.")
    if args.what in ("peaks", "forecast", "show"):
        if not args.words:
            parser.error(f"Name the record: edge_mlp.py {args.what} RECORD.")
        if not Path(args.words[0]).exists():
            parser.error(f"There is no {args.words[0]}: write it with `measure`.")
    warnings.simplefilter("ignore")  # which networks do not run as one kernel
    known = more_cases() if args.more else cases()
    listed = [
        case
        for case in known[args.skip : args.cases]
        if (not args.pick or set(args.pick) & set(case)) and not set(args.drop) & set(case)
    ]
    chosen = list(product(listed, [args.precision] if args.precision else PRECISIONS))
    if not listed:
        parser.error("No case has one of these words: see --more, --pick and --drop.")
    part, parts = map(int, args.share.split("/"))
    chosen = chosen[part::parts]
    if args.what == "show":
        print(show(Path(args.words[0])))
    elif args.what == "peaks":
        add_peaks(Path(args.words[0]), "train_peak_bytes", peak_of_train, args.at_once)
    elif args.what == "forecast":
        add_peaks(Path(args.words[0]), "train_forecast_bytes", peak_of_forecast, 1)
    elif args.what in ("train", "peak"):
        *words, channels, precision = args.words
        train(Case(*words, channels=int(channels)), precision)
        if args.what == "peak":
            print(torch.cuda.max_memory_allocated(), flush=True)
    elif args.what == "serve":
        serve()
    elif args.what == "compile":
        compile_kernels(chosen)
    elif args.what == "profile":
        profile_steps(chosen)
    else:
        measure(args.output, args.before, args.revision, chosen, args.seconds)


if __name__ == "__main__":
    sys.exit(main())
