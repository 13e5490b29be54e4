"""The operator's edge transform on a GPU: peaks, their forecasts, times, and the largest graph in 24 GiB.

    python benchmarks/operator/edge_transform.py predict -o predicted.json      # on any machine, without a
    GPU
    python benchmarks/operator/edge_transform.py measure predicted.json \\
        -o benchmarks/results/edge_transform_h200.json
    python benchmarks/operator/edge_transform.py show benchmarks/results/edge_transform_h200.json

memory  the allocated peak of a step for every part, MLP, variant and mode, without the libraries' workspaces
        on either side
time    a training step of eager and of flat in alternation, in the same precision, and flat in bf16 against
        eager in float32
large   one training step of flat with the allocator limited to 24 GiB
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from pinchpoint.core.files import write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.core.units import GIB, MIB

PARTS = ("encoder", "decoder", "full")
MLPS = ("64,64", "128,128,128", "256,256,256")
VARIANTS = ("eager", "checkpoint", "flat")
MODES = ("train", "infer")
SIZES = (125_000, 1_000_000)
TIMED_SIZES = (1_000_000, 4_000_000)
LARGE = 100_000_000
LARGE_BUDGET = 24 * GIB
REPEATS = 20
# The edges that edge_transform(chunk="auto") chooses for the network that is timed, to within a percent.
CHUNK = 398_000


def cases() -> Iterator[dict[str, Any]]:
    names = ("part", "mlp", "variant", "mode", "size")
    yield from (dict(zip(names, case, strict=True)) for case in product(PARTS, MLPS, VARIANTS, MODES, SIZES))
    case = {"part": "encoder", "mlp": "128,128,128", "variant": "flat", "mode": "train", "chunk": CHUNK}
    yield from ({**case, "size": size} for size in TIMED_SIZES)


def predict(output: Path) -> None:
    """Predict the peak of every case, on a machine without a GPU."""
    from pinchpoint.forecasting.forecaster import Forecaster

    rows = []
    with Forecaster("operator", card="h200") as forecaster:
        for case in cases():
            forecast = forecaster.predict(
                size=case["size"],
                mode=case["mode"],
                variant=case["variant"],
                chunk=case.get("chunk"),
                settings={key: case[key] for key in ("part", "mlp")},
            )
            rows.append({**case, "predicted_bytes": forecast.peak_allocated_bytes - forecast.workspace_bytes})
            print(rows[-1], flush=True)
    write_text(
        output,
        json.dumps({"command": _command(), "created": now(), "machine": describe(), "rows": rows}, indent=1),
    )


def measure(predicted: Path, output: Path) -> None:
    """Measure the peaks of the predicted cases, the times and the largest graph."""
    import torch

    forecasts = json.loads(predicted.read_text())
    total = torch.cuda.get_device_properties(0).total_memory
    record = {
        "command": _command(),
        "created": now(),
        "machine": describe(),
        "predicted_on": forecasts["machine"],
        "memory": [{**row, "measured_bytes": _peak(row)} for row in forecasts["rows"]],
        "time": [
            _time_pair(size, a, b)
            for size in TIMED_SIZES
            for a, b in (("fp32", "fp32"), ("bf16", "bf16"), ("fp32", "bf16"))
        ],
        "large": _large(total),
    }
    write_text(output, json.dumps(record, indent=1))


def _step(
    size: int, variant: str, mode: Any = "train", chunk: int | None = None, **settings: str
) -> Callable[[], Any]:
    from pinchpoint.systems.operator import WORKLOAD

    return WORKLOAD.case(size, device="cuda", mode=mode, variant=variant, chunk=chunk, settings=settings).step


def _peak(case: dict[str, Any]) -> int:
    """Return the most bytes allocated in the second step, without the workspaces that libraries keep."""
    import torch

    step = _step(
        case["size"], case["variant"], case["mode"], case.get("chunk"), part=case["part"], mlp=case["mlp"]
    )
    step()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    del step
    gc.collect()
    torch.cuda.empty_cache()
    return peak - torch.cuda.memory_allocated()


def _time_pair(size: int, eager: str, flat: str) -> dict[str, Any]:
    import torch

    from pinchpoint.studies.timing import interleave, ratio_interval, timing_of

    steps = [_step(size, "eager", precision=eager), _step(size, "flat", chunk=CHUNK, precision=flat)]
    a, b = interleave(*steps, wait=lambda _: torch.cuda.synchronize(), warmup=3, repeats=REPEATS)
    ratio, low, high = ratio_interval(b, a)
    row: dict[str, Any] = {
        "size": size,
        "eager_precision": eager,
        "flat_precision": flat,
        "flat_over_eager": ratio,
    }
    row |= {"ratio_low": low, "ratio_high": high, "runs": REPEATS}
    for name, timing in (("eager", timing_of(a)), ("flat", timing_of(b))):
        row |= {f"{name}_s": timing.median_s, f"{name}_low_s": timing.low_s, f"{name}_high_s": timing.high_s}
    del steps
    gc.collect()
    torch.cuda.empty_cache()
    print(row, flush=True)
    return row


def _large(total: int) -> dict[str, Any]:
    import torch

    torch.cuda.set_per_process_memory_fraction(LARGE_BUDGET / total)
    step = _step(LARGE, "flat", chunk=CHUNK)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    loss = float(step())
    step_s = time.perf_counter() - start
    result = {"edges": LARGE, "budget_bytes": LARGE_BUDGET, "step_s": step_s, "loss": loss}
    result |= {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    print(result, flush=True)
    return result


def show(path: Path) -> None:
    """Print the record as tables."""
    record = json.loads(path.read_text())
    print(
        "| part | MLP | variant | mode | edges | predicted MiB | measured MiB | error | bytes per edge |\n|"
        + "---|" * 9
    )
    slopes = _slopes(record["memory"])
    for row in record["memory"]:
        error = row["predicted_bytes"] / row["measured_bytes"] - 1
        key = _case(row)
        print(
            f"| {' | '.join(key)} | {row['size']:,} | {row['predicted_bytes'] / MIB:,.1f}"
            f" | {row['measured_bytes'] / MIB:,.1f} | {error:+.2%} | {slopes[key]:,.1f} |"
        )
    worst = max(abs(row["predicted_bytes"] / row["measured_bytes"] - 1) for row in record["memory"])
    print(
        f"\nworst error of a prediction: {worst:.2%}\n\n| edges | eager | flat | eager ms | flat ms | flat /"
        " eager |\n|" + "---|" * 6
    )
    for row in record["time"]:
        print(
            f"| {row['size']:,} | {row['eager_precision']} | {row['flat_precision']}"
            f" | {row['eager_s'] * 1e3:.2f} | {row['flat_s'] * 1e3:.2f}"
            f" | {row['flat_over_eager']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}] |"
        )
    large = record["large"]
    print(
        f"\n{large['edges']:,} edges in {large['budget_bytes'] / GIB:.0f} GiB: "
        f"peak {large['peak_allocated_bytes'] / GIB:.2f} GiB, {large['step_s']:.2f} s per step"
    )


def _slopes(rows: list[dict[str, Any]]) -> dict[tuple[str, ...], float]:
    """Return the measured bytes per edge between the smallest and the largest size of each case."""
    sizes: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for row in rows:
        key = _case(row)
        sizes.setdefault(key, []).append((row["size"], row["measured_bytes"]))
    return {key: (max(v)[1] - min(v)[1]) / (max(v)[0] - min(v)[0]) for key, v in sizes.items()}


def _case(row: dict[str, Any]) -> tuple[str, ...]:
    variant = row["variant"] + (f", {row['chunk']:,} edges per chunk" if "chunk" in row else "")
    return row["part"], row["mlp"], variant, row["mode"]


def _command() -> str:
    return "python benchmarks/operator/edge_transform.py " + " ".join(
        Path(arg).name if "/" in arg else arg for arg in sys.argv[1:]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("predict", "measure", "show"), help="The action.")
    parser.add_argument("record", nargs="?", type=Path, help="The record that `measure` and `show` read.")
    parser.add_argument("-o", "--output", type=Path, help="File of the record.")
    args = parser.parse_args()
    if args.what == "predict":
        predict(args.output)
    elif args.what == "measure":
        measure(args.record, args.output)
    else:
        show(args.record)


if __name__ == "__main__":
    main()
