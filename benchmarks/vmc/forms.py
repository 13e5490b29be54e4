"""Time and peak memory of a whole training step of N2: ours at once, ours in chunks, and a plain form.

    python benchmarks/vmc/forms.py -o benchmarks/results/vmc_forms_h200.json
    python benchmarks/vmc/forms.py --forms ours chunks --chunks 512 -o forms.json    # a part
    python benchmarks/vmc/forms.py --system He --net small --walkers 64 --chunks 32 --device cpu -o forms.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Each form is one compiled program of moves,
local energies, gradient and Adam. The plain form (`plain.py`) has the same network and parameters, and
products in full precision like ours; on a GPU it is also timed with the reduced precision (TF32) that JAX
uses by default. The faster of the two is the yardstick. All forms start from the same weights and walkers.
Each runs in turn with the yardstick, and with ours at once, in one process, and the clock waits for the
device. Medians and ratios have 95 % intervals. Peaks come from XLA's memory analysis of each program
(arguments, results and temporaries). The record is written after every form, and a later call on the same
file keeps the forms that it does not time again. Programs are cached on disk, so `compile_s` is short for a
cached program.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import plain

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.studies.timing import interleave, ratio_interval, timing_of
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.wavefunction import wave_function
from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache
from pinchpoint.systems.vmc.optimization.training_step import begin, make_step
from pinchpoint.systems.vmc.settings import Settings

# The form that is judged, the largest ratio of times in chunks, and the largest ratio of peaks.
WHOLE, SLOWER, HALF = "ours", 1.15, 0.5
FORMS = ("ours", "chunks", "loop")
SAME = ("system", "net", "walkers", "moves", "device")  # must be equal in calls that share a record
Row = dict[str, Any]


class Form:
    """One compiled version of a step, with its own state."""

    def __init__(self, name: str, step: Any, state: Any, chunk: int | None = None) -> None:
        self.name, self.state, self.chunk = name, state, chunk
        start = time.perf_counter()
        self.program = step.lower(state).compile()
        self.compile_s = time.perf_counter() - start
        memory = self.program.memory_analysis()
        self.temp_bytes = int(memory.temp_size_in_bytes)
        self.peak_bytes = self.temp_bytes + int(
            memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        )
        print(f"{name}: compiled in {self.compile_s:.1f} s", flush=True)

    def __call__(self) -> Any:
        self.state, stats = self.program(self.state)
        return self.state, stats


class Maker:
    """A builder of forms of one step, all of which start from the same weights and walkers."""

    def __init__(self, system: System, net: str, *, walkers: int, moves: int, device: str) -> None:
        self.system, self.net, self.moves, self.device = system, net, moves, device
        self.wave = wave_function(system, NetConfig.preset(net))
        self.base: Row = {
            "walkers": walkers,
            "moves": moves,
            "optimizer": "adam",
            "burn": 1,
            "method": "forward",
        }
        self.first = begin(self.wave, self._settings())

    def plain(self, name: str = "plain", **precision: Any) -> Form:
        network = plain.Plain(
            self.system, self.wave.config, self.moves, library=self.device == "cuda", **precision
        )
        return Form(
            name, network.step(), plain.begin(plain.join_weights(self.first.params), self.first.walkers.x)
        )

    def ours(self, name: str, **choices: Any) -> Form:
        settings = self._settings(**choices)
        state = begin(self.wave, settings, params=self.first.params, x=self.first.walkers.x)
        return Form(name, make_step(self.wave, settings), state, settings.chunk)

    def _settings(self, **choices: Any) -> Settings:
        return Settings.preset(self.net, electrons=self.system.electrons, **{**self.base, **choices})


def rows_of(
    maker: Any, forms: Sequence[str], chunks: list[int], *, repeats: int, tell: Callable[[Row], None]
) -> None:
    """Report each form as soon as it is timed.

    A row has the time and peak of a form, and their ratios to the yardstick and to ours at once.
    """

    def in_turn(a: Form, b: Form) -> tuple[list[float], list[float]]:
        return interleave(a, b, wait=jax.block_until_ready, warmup=2, repeats=repeats)

    yardstick = maker.plain()
    is_gpu = maker.device == "cuda"
    if is_gpu:
        other = maker.plain("plain, tf32", precision=None)
        times = in_turn(yardstick, other)
        quick = min((yardstick, times[0]), (other, times[1]), key=lambda one: timing_of(one[1]).median_s)
        for form, seconds in zip((yardstick, other), times, strict=True):
            tell(_row(form, seconds, quick[0], ratio_interval(seconds, quick[1])))
        yardstick = quick[0]
    own: dict[str, Row] = {WHOLE: {}} if "ours" in forms else {}
    own |= {f"ours, chunks of {c}": {"chunk": c} for c in chunks if "chunks" in forms}
    own |= {"ours, loop": {"method": "loop"}} if "loop" in forms else {}
    whole: Form | None = None
    for name, choices in own.items():
        form = maker.ours(name, **choices)
        seconds, beside = in_turn(form, yardstick)
        if not is_gpu and form.name == next(iter(own)):
            tell(_row(yardstick, beside, yardstick, (1.0, 1.0, 1.0)))
        whole = form if name == WHOLE else whole
        over_ours = (
            (1.0, 1.0, 1.0)
            if form is whole
            else None
            if whole is None
            else ratio_interval(*in_turn(form, whole))
        )
        tell({**_row(form, seconds, yardstick, ratio_interval(seconds, beside)), "over_ours": over_ours})


def _row(form: Form, seconds: list[float], yardstick: Form, over: tuple[float, float, float]) -> Row:
    timing = timing_of(seconds)
    return {
        "form": form.name,
        "chunk": form.chunk,
        "seconds": timing.median_s,
        "low_s": timing.low_s,
        "high_s": timing.high_s,
        "runs": timing.runs,
        "yardstick": yardstick.name,
        "over_plain": over,
        "over_ours": None,
        "temp_bytes": form.temp_bytes,
        "peak_bytes": form.peak_bytes,
        "peak_over_plain": form.peak_bytes / yardstick.peak_bytes,
        "compile_s": form.compile_s,
    }


def verdicts(rows: list[Row]) -> list[Row]:
    """Return each bar with its verdict.

    A bar is held or missed if the whole 95 % interval lies on one side, and open otherwise. Bars whose forms
    were not timed are left out.
    """
    results = [
        _verdict("step of ours <= the plain form's", row, "over_plain", 1.0)
        for row in rows
        if row["form"] == WHOLE
    ]
    chunked = [row for row in rows if row["chunk"]]
    small = [row for row in chunked if row["peak_over_plain"] <= HALF]
    if not chunked:
        return results
    if not small:
        return [
            *results,
            {"bar": f"a chunk's peak <= {HALF} of the plain form's", "form": None, "verdict": "missed"},
        ]
    best = min(small, key=lambda row: row["seconds"])
    peak = {
        "bar": f"a chunk's peak <= {HALF} of the plain form's",
        "form": best["form"],
        "found": best["peak_over_plain"],
    }
    results.append({**peak, "verdict": "held"})
    if best["over_ours"] is not None:
        results.append(_verdict(f"its step <= {SLOWER} of ours whole", best, "over_ours", SLOWER))
    return [*results, _verdict(f"its step <= {SLOWER} of the plain form's", best, "over_plain", SLOWER)]


def _verdict(bar: str, row: Row, ratio: str, most: float) -> Row:
    middle, low, high = row[ratio]
    verdict = "held" if high <= most else "missed" if low > most else "open"
    return {"bar": bar, "form": row["form"], "found": middle, "low": low, "high": high, "verdict": verdict}


class Book:
    """The record on disk, either new or continued if it belongs to the same step."""

    def __init__(self, path: Path, settings: Row) -> None:
        self.path = path
        self.record: Row = {
            "commands": [],
            "created": now(),
            "machine": describe(),
            **settings,
            "forms": [],
            "verdicts": [],
        }
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            different = [name for name in SAME if stored.get(name) != settings[name]]
            if different:
                raise BadInput(
                    f"{path} was written with another {', '.join(different)}.",
                    hint="Name another file with -o.",
                )
            self.record = stored
        self.record["commands"].append("python " + " ".join(sys.argv))

    def add(self, row: Row) -> None:
        """Add a row, replacing an earlier one of the same form."""
        rows = [one for one in self.record["forms"] if one["form"] != row["form"]] + [row]
        self.record |= {"forms": rows, "verdicts": verdicts(rows)}
        write_text(self.path, json.dumps(self.record, indent=1) + "\n")
        ratio, low, high = row["over_plain"]
        print(
            f"{row['form']:20} {show_seconds(row['seconds']):>9}, "
            f"{ratio:.3f} [{low:.3f}, {high:.3f}] of {row['yardstick']}; "
            f"peak {show_bytes(row['peak_bytes'])}, {row['peak_over_plain']:.3f} of it",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--system", default="N2")
    parser.add_argument("--net", default="ferminet")
    parser.add_argument("--walkers", type=int, default=1024)
    parser.add_argument("--moves", type=int, default=10)
    parser.add_argument(
        "--forms", nargs="+", choices=FORMS, default=FORMS, help="Forms to time besides the plain one."
    )
    parser.add_argument("--chunks", type=int, nargs="*", default=[512, 256, 128])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    settings = {name: getattr(args, name) for name in SAME}
    try:
        book = Book(check_output(args.output), {**settings, "optimizer": "adam"})
        use_compile_cache()
        with jax.default_device(jax.devices(args.device)[0]):
            maker = Maker(
                system_of(args.system), args.net, walkers=args.walkers, moves=args.moves, device=args.device
            )
            rows_of(maker, args.forms, args.chunks, repeats=args.repeats, tell=book.add)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return 1
    for bar in book.record["verdicts"]:
        print(
            f"{bar['verdict']:7} {bar['bar']}"
            + (f": {bar['form']}, {bar['found']:.3f}" if bar["form"] else "")
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
