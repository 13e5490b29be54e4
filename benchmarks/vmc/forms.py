"""A whole training step of N2 by each Laplacian, whole and in chunks of walkers: time in turn, and the peak of each.

    python benchmarks/vmc/forms.py -o benchmarks/results/vmc_forms_h200.json
    python benchmarks/vmc/forms.py --system He --net small --walkers 64 --chunks 32 --device cpu -o forms.json   # a small one

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Each form is a compiled program of moves, local energies, gradient
and Adam. They run in turn in one process, the device awaited; medians with 95 % intervals. Peaks are XLA's own account of
each program (arguments, results and temporaries).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.measure.timing import ratio_interval, timing_of
from pinchpoint.workloads.vmc.config import NetConfig
from pinchpoint.workloads.vmc.settings import Settings
from pinchpoint.workloads.vmc.step import Carry, begin, make_step
from pinchpoint.workloads.vmc.system import system_of
from pinchpoint.workloads.vmc.wavefunction import wave_function


class Form:
    """One way to make a step: compiled, with a carry of its own."""

    def __init__(self, wave: Any, settings: Settings) -> None:
        self.settings = settings
        self.carry: Carry = begin(wave, settings)
        start = time.perf_counter()
        self.program = make_step(wave, settings).lower(self.carry).compile()  # pyright: ignore[reportFunctionMemberAccess]
        self.compile_s = time.perf_counter() - start
        told = self.program.memory_analysis()
        self.temp_bytes = int(told.temp_size_in_bytes)
        self.held_bytes = int(told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes)

    def __call__(self) -> None:
        self.carry, stats = self.program(self.carry)
        jax.block_until_ready((self.carry, stats))

    @property
    def name(self) -> str:
        chunk = self.settings.chunk
        return self.settings.method + ("" if chunk is None else f", chunks of {chunk}")


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
    system = system_of(args.system)
    wave = wave_function(system, NetConfig.preset(args.net))
    base: dict[str, Any] = {"walkers": args.walkers, "moves": args.moves, "optimizer": "adam", "burn": 1}
    forms = []
    with jax.default_device(jax.devices(args.device)[0]):
        for choice in [{"method": "forward"}, {"method": "loop"}, *({"method": "forward", "chunk": c} for c in args.chunks)]:
            forms.append(Form(wave, Settings.preset(args.net, electrons=system.electrons, **base, **choice)))
            print(f"{forms[-1].name}: compiled in {forms[-1].compile_s:.1f} s", flush=True)
        seconds = _in_turn(forms, args.repeats)
    rows = [_row(form, times, seconds[0]) for form, times in zip(forms, seconds, strict=True)]
    record = {
        "command": "python " + " ".join(sys.argv), "created": now(), "machine": describe(), "system": args.system,
        "net": args.net, "walkers": args.walkers, "moves": args.moves, "optimizer": "adam", "forms": rows,
    }  # fmt: skip
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for row in rows:
        peak = show_bytes(row["peak_bytes"])
        print(f"{row['form']:28} {show_seconds(row['seconds'])}  peak {peak}  {row['over_forward']:.2f} of forward's time")


def _in_turn(forms: list[Form], repeats: int) -> list[list[float]]:
    for form in forms:
        form()
        form()
    seconds: list[list[float]] = [[] for _ in forms]
    for turn in range(repeats):
        # Whoever runs second finds the caches the first one left: take turns.
        order = list(range(len(forms)))
        for at in order[turn % len(order) :] + order[: turn % len(order)]:
            seconds[at].append(_timed(forms[at]))
    return seconds


def _timed(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _row(form: Form, times: list[float], first: list[float]) -> dict[str, Any]:
    timing = timing_of(times)
    ratio, low, high = ratio_interval(times, first)
    return {
        "form": form.name, "seconds": timing.median_s, "low_s": timing.low_s, "high_s": timing.high_s, "runs": timing.runs,
        "over_forward": ratio, "over_forward_low": low, "over_forward_high": high, "temp_bytes": form.temp_bytes,
        "peak_bytes": form.temp_bytes + form.held_bytes, "compile_s": form.compile_s,
    }  # fmt: skip


if __name__ == "__main__":
    main()
