"""A whole training step of N2: ours, whole and in chunks of walkers, beside the plain form with folx; time in
turn and peaks.

    python benchmarks/vmc/forms.py -o benchmarks/results/vmc_forms_h200.json
    python benchmarks/vmc/forms.py --forms ours chunks --chunks 512 -o forms.json    # a part; the next call adds its own
    python benchmarks/vmc/forms.py --system He --net small --walkers 64 --chunks 32 --device cpu -o forms.json   # a small one

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Each form is one compiled program of moves,
local energies, gradient and Adam. The plain form (`plain.py`) is the same network and parameters, products in
full precision as ours; on a GPU it stands there a second time with the shortened products (tf32) that JAX
takes of itself. The faster of the two is the yardstick of the call. All begin from the same weights and
walkers; each form runs in turn with the yardstick, and with ours whole, in one process, the device awaited;
medians and ratios with 95 % intervals. Peaks are XLA's own account of each program (arguments, results and
temporaries). The record is written after every form, and a later call on the same file keeps what it does not
time again. Programs are kept on disk: `compile_s` is short where one was found there.
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

WHOLE, SLOWER, HALF = (
    "ours",
    1.15,
    0.5,
)  # the form that is judged, and how slow and how large its chunks may be
FORMS = ("ours", "chunks", "loop")
SAME = ("system", "net", "walkers", "moves", "device")  # of two calls that share a record
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
        self.peak_bytes = self.temp_bytes + int(
            told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
        )
        print(f"{name}: compiled in {self.compile_s:.1f} s", flush=True)

    def __call__(self) -> Any:
        self.state, stats = self.program(self.state)
        return self.state, stats


class Maker:
    """Makes forms of one step that all begin from the same weights and walkers."""

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
        made = plain.Plain(
            self.system, self.wave.config, self.moves, library=self.device == "cuda", **precision
        )
        return Form(name, made.step(), plain.begin(plain.joined(self.first.params), self.first.walkers.x))

    def ours(self, name: str, **choices: Any) -> Form:
        made = self._settings(**choices)
        state = begin(self.wave, made, params=self.first.params, x=self.first.walkers.x)
        return Form(name, make_step(self.wave, made), state, made.chunk)

    def _settings(self, **choices: Any) -> Settings:
        return Settings.preset(self.net, electrons=self.system.electrons, **{**self.base, **choices})


def rows_of(
    maker: Any, forms: Sequence[str], chunks: list[int], *, repeats: int, tell: Callable[[Row], None]
) -> None:
    """Tell of each form, as soon as it is timed, its time and peak and their ratios to the yardstick's and to
    ours whole.
    """

    def in_turn(a: Form, b: Form) -> tuple[list[float], list[float]]:
        return interleave(a, b, wait=jax.block_until_ready, warmup=2, repeats=repeats)

    yardstick = maker.plain()
    shortened = maker.device == "cuda"
    if shortened:
        other = maker.plain("plain, tf32", precision=None)
        times = in_turn(yardstick, other)
        quick = min((yardstick, times[0]), (other, times[1]), key=lambda one: timing_of(one[1]).median_s)
        for form, seconds in zip((yardstick, other), times, strict=True):
            tell(_row(form, seconds, quick[0], ratio_interval(seconds, quick[1])))
        yardstick = quick[0]
    wanted: dict[str, Row] = {WHOLE: {}} if "ours" in forms else {}
    wanted |= {f"ours, chunks of {c}": {"chunk": c} for c in chunks if "chunks" in forms}
    wanted |= {"ours, loop": {"method": "loop"}} if "loop" in forms else {}
    whole: Form | None = None
    for name, choices in wanted.items():
        form = maker.ours(name, **choices)
        seconds, beside = in_turn(form, yardstick)
        if not shortened and form.name == next(iter(wanted)):
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
    """Each bar with what was found: held or missed where the whole 95 % interval lies on one side, else open.

    A bar whose forms were not timed is left out.
    """
    found = [
        _verdict("step of ours <= the plain form's", row, "over_plain", 1.0)
        for row in rows
        if row["form"] == WHOLE
    ]
    chunked = [row for row in rows if row["chunk"]]
    small = [row for row in chunked if row["peak_over_plain"] <= HALF]
    if not chunked:
        return found
    if not small:
        return [
            *found,
            {"bar": f"a chunk's peak <= {HALF} of the plain form's", "form": None, "verdict": "missed"},
        ]
    best = min(small, key=lambda row: row["seconds"])
    peak = {
        "bar": f"a chunk's peak <= {HALF} of the plain form's",
        "form": best["form"],
        "found": best["peak_over_plain"],
    }
    found.append({**peak, "verdict": "held"})
    if best["over_ours"] is not None:
        found.append(_verdict(f"its step <= {SLOWER} of ours whole", best, "over_ours", SLOWER))
    return [*found, _verdict(f"its step <= {SLOWER} of the plain form's", best, "over_plain", SLOWER)]


def _verdict(bar: str, row: Row, ratio: str, most: float) -> Row:
    middle, low, high = row[ratio]
    told = "held" if high <= most else "missed" if low > most else "open"
    return {"bar": bar, "form": row["form"], "found": middle, "low": low, "high": high, "verdict": told}


class Book:
    """The record on disk: begun, or gone on with where it is of the same step."""

    def __init__(self, path: Path, told: Row) -> None:
        self.path = path
        self.record: Row = {
            "commands": [],
            "created": now(),
            "machine": describe(),
            **told,
            "forms": [],
            "verdicts": [],
        }
        if path.exists():
            found = json.loads(path.read_text(encoding="utf-8"))
            differ = [name for name in SAME if found.get(name) != told[name]]
            if differ:
                raise BadInput(f"{path} is of another {', '.join(differ)}", hint="name another -o")
            self.record = found
        self.record["commands"].append("python " + " ".join(sys.argv))

    def add(self, row: Row) -> None:
        """In place of an earlier row of the same form."""
        rows = [one for one in self.record["forms"] if one["form"] != row["form"]] + [row]
        self.record |= {"forms": rows, "verdicts": verdicts(rows)}
        write_text(self.path, json.dumps(self.record, indent=1) + "\n")
        ratio, low, high = row["over_plain"]
        print(
            f"{row['form']:20} {show_seconds(row['seconds']):>9}, {ratio:.3f} [{low:.3f}, {high:.3f}] of {row['yardstick']}'s; "
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
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="beside the plain one")
    parser.add_argument("--chunks", type=int, nargs="*", default=[512, 256, 128])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    told = {name: getattr(args, name) for name in SAME}
    try:
        book = Book(check_output(args.output), {**told, "optimizer": "adam"})
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
