"""A whole training step of N2: ours, whole and in chunks of walkers, beside the plain form with folx; time in turn and peaks.

    python benchmarks/vmc/forms.py -o benchmarks/results/vmc_forms_h200.json
    python benchmarks/vmc/forms.py --system He --net small --walkers 64 --chunks 32 --device cpu -o forms.json   # a small one

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Each form is one compiled program of moves, local energies,
gradient and Adam. The first, `plain`, is the yardstick (`plain.py`): the same network and parameters, products in full precision
as ours; on a GPU it stands there a second time with the shortened products (tf32) that JAX takes of itself. All begin from the
same weights and walkers and run in turn in one process, the device awaited; medians and ratios with 95 % intervals. Peaks are
XLA's own account of each program (arguments, results and temporaries).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import plain

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.measure.timing import ratio_interval, timing_of
from pinchpoint.workloads.vmc.config import NetConfig
from pinchpoint.workloads.vmc.settings import Settings
from pinchpoint.workloads.vmc.step import begin, make_step
from pinchpoint.workloads.vmc.system import System, system_of
from pinchpoint.workloads.vmc.wavefunction import wave_function

WHOLE, SLOWER, HALF = "ours", 1.15, 0.5  # the form that is judged, and how slow and how large its chunks may be
Row = dict[str, Any]


class Form:
    """One way to make a step: compiled, with a state of its own."""

    def __init__(self, name: str, step: Any, state: Any, chunk: int | None = None) -> None:
        self.name, self.state, self.chunk = name, state, chunk
        start = time.perf_counter()
        self.program = step.lower(state).compile()
        self.compile_s = time.perf_counter() - start
        told = self.program.memory_analysis()
        self.temp_bytes = int(told.temp_size_in_bytes)
        self.held_bytes = int(told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes)

    def __call__(self) -> None:
        self.state, stats = self.program(self.state)
        jax.block_until_ready((self.state, stats))


def forms_of(system: System, net: str, *, walkers: int, moves: int, chunks: list[int], shortened: bool) -> list[Form]:
    """The yardstick, ours, ours in chunks, and ours with the looped Laplacian. shortened: the yardstick with tf32 too."""
    config = NetConfig.preset(net)
    wave = wave_function(system, config)
    base: dict[str, Any] = {"walkers": walkers, "moves": moves, "optimizer": "adam", "burn": 1, "method": "forward"}
    settings = Settings.preset(net, electrons=system.electrons, **base)
    first = begin(wave, settings)
    params, x = plain.joined(first.params), first.walkers.x
    found: list[Form] = []

    def add(name: str, step: Any, state: Any, chunk: int | None = None) -> None:
        found.append(Form(name, step, state, chunk))
        print(f"{name}: compiled in {found[-1].compile_s:.1f} s", flush=True)

    add("plain", plain.Plain(system, config, moves).step(), plain.begin(params, x))
    if shortened:
        add("plain, tf32", plain.Plain(system, config, moves, precision=None).step(), plain.begin(params, x))
    choices: dict[str, Row] = {
        WHOLE: {},
        **{f"ours, chunks of {c}": {"chunk": c} for c in chunks},
        "ours, loop": {"method": "loop"},
    }
    for name, choice in choices.items():
        made = Settings.preset(net, electrons=system.electrons, **{**base, **choice})
        add(name, make_step(wave, made), begin(wave, made, params=first.params, x=x), made.chunk)
    return found


def in_turn(forms: list[Form], repeats: int) -> list[list[float]]:
    """Seconds of each form's calls."""
    for form in forms:
        form()
        form()
    seconds: list[list[float]] = [[] for _ in forms]
    for turn in range(repeats):
        # Whoever runs second finds the caches the first one left: take turns.
        order = list(range(len(forms)))
        for at in order[turn % len(order) :] + order[: turn % len(order)]:
            start = time.perf_counter()
            forms[at]()
            seconds[at].append(time.perf_counter() - start)
    return seconds


def rows_of(forms: list[Form], seconds: list[list[float]]) -> list[Row]:
    """Of each form its time and peak, and the ratios of both to the yardstick's (the first) and of its time to ours whole."""
    whole = seconds[[form.name for form in forms].index(WHOLE)]
    rows: list[Row] = []
    for form, times in zip(forms, seconds, strict=True):
        timing, peak = timing_of(times), form.temp_bytes + form.held_bytes
        first = rows[0]["peak_bytes"] if rows else peak
        rows.append({
            "form": form.name, "chunk": form.chunk, "seconds": timing.median_s, "low_s": timing.low_s, "high_s": timing.high_s,
            "runs": timing.runs, "over_plain": ratio_interval(times, seconds[0]), "over_ours": ratio_interval(times, whole),
            "temp_bytes": form.temp_bytes, "peak_bytes": peak, "peak_over_plain": peak / first,
            "compile_s": form.compile_s,
        })  # fmt: skip
    return rows


def verdicts(rows: list[Row]) -> list[Row]:
    """Each bar with what was found: held or missed where the whole 95 % interval lies on one side, else open."""
    whole = next(row for row in rows if row["form"] == WHOLE)
    found = [_verdict("step of ours <= the plain form's", whole, "over_plain", 1.0)]
    small = [row for row in rows if row["chunk"] and row["peak_over_plain"] <= HALF]
    if not small:
        return [*found, {"bar": f"a chunk's peak <= {HALF} of the plain form's", "form": None, "verdict": "missed"}]
    best = min(small, key=lambda row: row["seconds"])
    peak = {"bar": f"a chunk's peak <= {HALF} of the plain form's", "form": best["form"], "found": best["peak_over_plain"]}
    found.append({**peak, "verdict": "held"})
    found.append(_verdict(f"its step <= {SLOWER} of ours whole", best, "over_ours", SLOWER))
    return [*found, _verdict(f"its step <= {SLOWER} of the plain form's", best, "over_plain", SLOWER)]


def _verdict(bar: str, row: Row, ratio: str, most: float) -> Row:
    middle, low, high = row[ratio]
    told = "held" if high <= most else "missed" if low > most else "open"
    return {"bar": bar, "form": row["form"], "found": middle, "low": low, "high": high, "verdict": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="N2")
    parser.add_argument("--net", default="ferminet")
    parser.add_argument("--walkers", type=int, default=1024)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument("--chunks", type=int, nargs="*", default=[512, 256, 128])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    with jax.default_device(jax.devices(args.device)[0]):
        forms = forms_of(
            system_of(args.system), args.net, walkers=args.walkers, moves=args.moves, chunks=args.chunks,
            shortened=args.device == "cuda",
        )  # fmt: skip
        rows = rows_of(forms, in_turn(forms, args.repeats))
    judged = verdicts(rows)
    record = {
        "command": "python " + " ".join(sys.argv), "created": now(), "machine": describe(), "system": args.system,
        "net": args.net, "walkers": args.walkers, "moves": args.moves, "optimizer": "adam", "forms": rows, "verdicts": judged,
    }  # fmt: skip
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for row in rows:
        ratio, low, high = row["over_plain"]
        print(
            f"{row['form']:20} {show_seconds(row['seconds']):>9}, {ratio:.3f} [{low:.3f}, {high:.3f}] of plain's; "
            f"peak {show_bytes(row['peak_bytes'])}, {row['peak_over_plain']:.3f} of plain's"
        )
    for bar in judged:
        print(f"{bar['verdict']:7} {bar['bar']}" + (f": {bar['form']}, {bar['found']:.3f}" if bar["form"] else ""))


if __name__ == "__main__":
    main()
