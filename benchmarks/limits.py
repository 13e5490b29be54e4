"""The table of the performance page that sets each work beside the least time an H200 needs for it.

Every time is read from a record under `benchmarks/results`; where there is no record, the table says so. A
floor is a count of operations, or of bytes, divided by what the card reaches in plain work (`floors.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from floors import (  # pyright: ignore[reportMissingImports]
    CHANNELS,
    COORDINATES,
    EDGES,
    NOTES,
    Rates,
    edge_mlp_operations,
    operator_operations,
    probe_operations,
    vmc_operations,
)

from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.systems.common.bench.records import Bench, Comparison, Row
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.radiance.bench import operations as field_operations
from pinchpoint.systems.radiance.model.config import FieldConfig
from pinchpoint.systems.vmc.model.config import NetConfig

NOT_MEASURED = "not measured"
HIDDEN = (128, 128, 128)
SWEEPS = ("edge_mlp_h200.json", "edge_mlp_more_h200.json")
# Records of two source trees that were timed in turn.
DENSITY, VMC = "density_revisions_h200.json", "vmc_steps_h200.json"
SCANNED = re.compile(r"\d+ steps in a program, Metropolis")
THREE_VIEWS = "three views, consistency"
# What the optimisation reports say, as on their pages under docs/reports.
REPORTS: dict[str, str] = {
    "edge MLP": "none: memory only",
    "probes": "44 s, on a card with 24 GB",
    "chgcar": "55 s: the 44 s are 80 % of the run",
    "radiance": "none: memory only",
    "vmc": "383 -> 300 ms, a smaller network on a CPU",
    "N2": "none: H2 only",
    "iteration": "4,470 -> 1,590 ms",
    "draw": "4,269 -> 1,200 ms",
    "operator": "none: memory only",
}
HEADER = ("work", "the report's figure", "best peer", "ours", "floor", "share of the floor", "records")


@dataclass(frozen=True)
class Work:
    """One row. peer, ours: text with a time; ours_s: the time that the share is computed from."""

    name: str
    report: str
    peer: str = NOT_MEASURED
    ours: str = NOT_MEASURED
    ours_s: float | None = None
    floor_s: float | None = None
    floor_of: str = ""  # what the floor counts, if less than the work
    records: tuple[str, ...] = ()

    def cells(self) -> tuple[str, ...]:
        floor, share = "not counted", "-"
        if self.floor_s is not None:
            floor = show_seconds(self.floor_s) + (f" ({self.floor_of})" if self.floor_of else "")
            share = "-" if self.ours_s is None else _percent(self.floor_s / self.ours_s)
        links = ", ".join(
            f"[{Path(name).stem.removesuffix('_h200')}](../../benchmarks/results/{name})"
            for name in self.records
        )
        return (self.name, self.report, self.peer, self.ours, floor, share, links or "-")


@dataclass
class Records:
    """The records of a folder, and the names of those that were read since the last row."""

    folder: Path
    bench_folder: str = "bench_h200"
    names: list[str] = field(default_factory=list)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a record, or None if it does not exist."""
        path = self.folder / name
        if not path.exists():
            return None
        self._note(name)
        return json.loads(path.read_text(encoding="utf-8"))

    def case(self, system: str, name: str) -> Comparison | None:
        """Return a case of `pinchpoint bench` that has rows, or None."""
        path = f"{self.bench_folder}/{system}.json"
        if not (self.folder / path).exists():
            return None
        case = Bench.from_json((self.folder / path).read_text(encoding="utf-8")).case(name)
        if case is None or case.failure:
            return None
        self._note(path)
        return case

    def taken(self) -> tuple[str, ...]:
        """Return the names of the records that were read since the last call."""
        names, self.names = tuple(self.names), []
        return names

    def _note(self, name: str) -> None:
        if name not in self.names:
            self.names.append(name)


def table(folder: Path, bench_folder: str) -> tuple[Sequence[str], list[tuple[str, ...]], str]:
    """Return header, rows and notes. folder: that of the records."""
    records = Records(folder, bench_folder)
    rates = Rates.of(records.read("rates_h200.json"))
    records.taken()
    shown = {name: rate / 1e12 for name, rate in rates.per_s.items()}
    return (
        HEADER,
        [work.cells() for work in works(records, rates)],
        NOTES.format(**shown, source=rates.source),
    )


def works(records: Records, rates: Rates) -> Iterator[Work]:
    yield edge_mlp(records, rates, "bf16")
    yield edge_mlp(records, rates, "fp32")
    yield any_sequential(records, rates)
    yield probes(records, rates)
    yield chgcar(records, rates)
    yield radiance_field(records, rates)
    yield radiance_iteration(records, rates)
    yield vmc_step(records, rates)
    yield vmc_n2(records, rates)
    yield cloud_iteration(records)
    yield cloud_draw(records, rates)
    yield operator_step(records, rates)


def edge_mlp(records: Records, rates: Rates, precision: str) -> Work:
    name = f"edge MLP [128]x3 GELU, {EDGES // 10**6} M edges, training, {precision}"
    floor_s = rates.seconds(precision, edge_mlp_operations((COORDINATES, *HIDDEN, CHANNELS)))
    work = Work(name, REPORTS["edge MLP"], floor_s=floor_s)
    peers: list[tuple[float, str]] = []
    case = records.case("operator", "transform") if precision == "fp32" else None
    if case is not None:
        peers += [(row.seconds, row.name) for row in case.rows if row.role == "peer" and row.seconds]
    row, before = _swept_row(records, precision)
    if row is None:
        row = _earlier_row(records, precision)
    if row is not None:
        peers.append((row["eager_s"], "eager"))
        ours = _with_before(row["flat_s"], "flat", None if before is None else before["flat_s"])
        work = _with_ours(work, row["flat_s"], ours)
    return _with_peer(work, peers, records)


def _swept_row(records: Records, precision: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the row of the MLP of the report in the sweep, and that of the code before."""
    wanted = (",".join(map(str, HIDDEN)), "GELU", "linear", "mean", precision)
    both = []
    for label in ("after", "before"):
        rows = [row for row in _sweep(records, label) if _mlp_of(row) == wanted]
        both.append(rows[0] if rows else None)
    return both[0], both[1]


def _mlp_of(row: dict[str, Any]) -> tuple[str, ...]:
    names = "hidden", "activation", "transform", "weights", "precision"
    channels = row.get("channels", CHANNELS)
    return *(row[name] for name in names), *([] if channels == CHANNELS else [f"{channels} channels"])


def _sweep(records: Records, label: str, names: Sequence[str] = SWEEPS[:1]) -> list[dict[str, Any]]:
    """Return the rows of the last run of a version in each sweep over MLPs."""
    rows = []
    for name in names:
        record = records.read(name)
        runs = [] if record is None else [run for run in record["runs"] if run["label"] == label]
        rows += runs[-1]["rows"] if runs else []
    return rows


def _earlier_row(records: Records, precision: str) -> dict[str, Any] | None:
    record = records.read("edge_transform_h200.json")
    wanted = (EDGES, precision, precision)
    rows = [
        row
        for row in ([] if record is None else record["time"])
        if (row["size"], row["eager_precision"], row["flat_precision"]) == wanted
    ]
    return rows[0] if rows else None


def any_sequential(records: Records, rates: Rates) -> Work:
    work = Work("edge MLPs of other widths, activations, transforms and weights", REPORTS["edge MLP"])
    rows = _sweep(records, "after", SWEEPS)
    if not rows:
        records.taken()
        return work
    # An MLP without a new row still takes the path that was timed as the one before.
    new = {_mlp_of(row) for row in rows}
    older = [row for row in _sweep(records, "before", SWEEPS) if _mlp_of(row) not in new]
    rows = rows + older
    ratios = [row["eager_over_flat"] for row in rows]
    worst = rows[ratios.index(min(ratios))]
    channels = worst.get("channels", CHANNELS)
    features = channels if worst["transform"].startswith("nonlinear") else 0
    widths = (COORDINATES + features, *map(int, worst["hidden"].split(",")), channels)
    precision = worst["precision"]
    is_known = precision in rates.per_s
    floor_s = rates.seconds(precision, edge_mlp_operations(widths)) if is_known else None
    peak = show_bytes(max(row["flat_peak_bytes"] for row in rows))
    text = f"{show_seconds(worst['flat_s'])} ({' '.join(_mlp_of(worst))})"
    speed = f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as eager"
    ours = f"{text}; all {len(rows)}: {speed}, peaks of up to {peak}"
    if older:
        ours += f"; {len(older)} of them timed before the last change, which leaves them as they were"
    work = _with_ours(work, worst["flat_s"], ours, floor_s)
    return _with_peer(work, [(worst["eager_s"], "eager")], records)


def probes(records: Records, rates: Rates) -> Work:
    work = Work("density, probe stage, HfO2 80^3, mul 500, lmax 4", REPORTS["probes"])
    case = records.case("density", "probes")
    if case is None:
        return work
    floor_s = _probes_floor(case, rates)
    work = _of_case(work, case, "scalar", None, floor_s=floor_s, remark=", another, smaller model")
    return replace(_with_steps(work, records, "probes", DENSITY), records=records.taken())


def _probes_floor(case: Comparison, rates: Rates) -> float | None:
    """The record counts the sums over neighbours; the network of each probe is counted here."""
    if case.floor is None or case.floor.operations is None:
        return None
    widths = {name: int(case.settings[name]) for name in ("mul", "lmax")}
    config = DensityConfig.preset("original", ("Hf", "O"), **widths)
    return rates.seconds("fp32", case.floor.operations + probe_operations(config, case.size))


def chgcar(records: Records, rates: Rates) -> Work:
    stage = records.case("density", "probes")
    floor_s = None if stage is None else _probes_floor(stage, rates)
    work = Work(
        "density, structure to CHGCAR, warm", REPORTS["chgcar"], floor_s=floor_s, floor_of="the probes alone"
    )
    case = records.case("density", "chgcar")
    peers = [] if case is None else [(row.seconds, row.name) for row in _peers(case) if row.seconds]
    record = records.read("density_whole_h200.json")
    if record is not None:
        seconds = record["file"]["seconds"]
        text = show_seconds(seconds)
        trees = _tree_seconds(records, "file", DENSITY)
        if {"before", "after"} <= set(trees):
            after, before = (show_seconds(trees[name]) for name in ("after", "before"))
            text += f" ({after} in turn with earlier code, which took {before})"
        work = _with_ours(work, seconds, text)
    return _with_peer(work, peers, records, ", the file alone")


def radiance_field(records: Records, rates: Rates) -> Work:
    work = Work("radiance field, folded bf16, its part of an iteration, replayed", REPORTS["radiance"])
    peers = []
    record = records.read("radiance_field_h200.json")
    if record is not None:
        peers = [
            (row["replayed"]["seconds"], "eager bf16") for row in record["rows"] if row["row"] == "eager bf16"
        ]
    layers = records.read("radiance_layers_h200.json")
    if layers is not None and "replayed_ms" in layers:
        work = _of_layers(work, layers["replayed_ms"], _field_floor(layers, rates), "")
    return _with_peer(work, peers, records, ", GRAF's field as published")


def radiance_iteration(records: Records, rates: Rates) -> Work:
    work = Work("radiance, a whole GAN iteration", REPORTS["radiance"])
    layers = records.read("radiance_layers_h200.json")
    if layers is not None and "iteration_ms" in layers:
        work = _of_layers(work, layers["iteration_ms"], _field_floor(layers, rates), "the field alone")
    return _with_peer(work, [], records)


def _of_layers(work: Work, milliseconds: dict[str, Any], floor_s: float, floor_of: str) -> Work:
    after, before = (milliseconds[way]["median"] / 1e3 for way in ("after", "before"))
    return _with_ours(work, after, _with_before(after, "", before), floor_s, floor_of)


def _field_floor(layers: dict[str, Any], rates: Rates) -> float:
    points = layers["batch"] * layers["side"] ** 2 * layers["samples"]
    return rates.seconds("bf16", field_operations(FieldConfig.preset(layers["preset"]), points, "folded"))


def vmc_step(records: Records, rates: Rates) -> Work:
    work = Work("vmc, a step of H2 at the report's size, many in a program", REPORTS["vmc"])
    case = records.case("vmc", "step")
    if case is None:
        return work
    one, two, layers, determinants = map(int, re.findall(r"\d+", case.settings["network"]))
    net = NetConfig("ferminet", one, two, layers, determinants)
    count = vmc_operations(
        net, case.settings["molecule"], walkers=case.size, moves=int(case.settings["moves"])
    )
    name = next((row.name for row in case.rows if SCANNED.fullmatch(row.name)), "")
    work = _of_case(work, case, name, None, floor_s=rates.seconds("fp32", count))
    return replace(_with_steps(work, records, "h2"), records=records.taken())


def _with_steps(work: Work, records: Records, case: str, name: str = VMC) -> Work:
    """Return the work with the times of a case in a record of two source trees, if there are any."""
    seconds = _tree_seconds(records, case, name)
    if "after" not in seconds:
        return work
    return _with_ours(work, seconds["after"], _with_before(seconds["after"], "", seconds.get("before")))


def _tree_seconds(records: Records, case: str, name: str) -> dict[str, float]:
    """Return the seconds of a case in a record of two source trees, by tree."""
    record = records.read(name)
    rows = [] if record is None else [row for row in record["cases"] if row["case"] == case]
    return {name: tree["seconds"] for row in rows for name, tree in row["trees"].items()}


def vmc_n2(records: Records, rates: Rates) -> Work:
    work = Work("vmc, a step of N2, 1,024 walkers, 256x32x4, 16 determinants, full precision", REPORTS["N2"])
    record = records.read("vmc_forms_h200.json")
    if record is None:
        return work
    net = NetConfig.preset(record["net"])
    count = vmc_operations(net, record["system"], walkers=record["walkers"], moves=record["moves"])
    seconds = {row["form"]: row["seconds"] for row in record["forms"]}
    if "ours" in seconds:
        ours = _with_before(seconds["ours"], "ours", seconds.get("before"))
        work = _with_ours(work, seconds["ours"], ours, rates.seconds("fp32", count))
    work = _with_steps(work, records, "n2")
    reduced = (
        f", JAX with folx; {show_seconds(seconds['plain, tf32'])} in TF32"
        if "plain, tf32" in seconds
        else ", JAX with folx"
    )
    peers = [(seconds["plain"], "plain")] if "plain" in seconds else []
    return _with_peer(work, peers, records, reduced)


def cloud_iteration(records: Records) -> Work:
    work = Work("cloud, a training iteration, 1 M points, three views", REPORTS["iteration"])
    record = records.read("cloud_iteration_compare_h200.json")
    if record is not None:
        steps = {row["contender"]: row["step_s"] for row in record["rows"] if row["recipe"] == THREE_VIEWS}
        if "now" in steps:
            ours = _with_before(steps["now"], "", steps.get("before"))
            work = _with_ours(work, steps["now"], ours)
        others = {"before", "now", "eager", "draw after forward"}
        return _with_peer(
            work, [(seconds, name) for name, seconds in steps.items() if name not in others], records
        )
    earlier = records.read("cloud_iteration_h200.json")
    if earlier is not None:
        seconds = earlier["rows"][THREE_VIEWS]["iteration_s"]
        work = _with_ours(work, seconds, f"{show_seconds(seconds)} (mean)")
    return _with_peer(work, [], records)


def cloud_draw(records: Records, rates: Rates) -> Work:
    work = Work("cloud, a draw from 1 M points, waited for", REPORTS["draw"])
    case = records.case("cloud", "draw")
    if case is not None:
        moved = None if case.floor is None else case.floor.moved_bytes
        floor_s = None if moved is None else rates.seconds("bytes", moved)
        work = _of_case(work, case, "exact", None, floor_s=floor_s)
    record = records.read("cloud_iteration_compare_h200.json")
    draws = [] if record is None else record["draws"]
    waited = {
        name: median(row["waited_s"] for row in draws if row["contender"] == name)
        for name in {row["contender"] for row in draws}
    }
    if "now" in waited:
        ours = _with_before(waited["now"], "exact", waited.get("before"))
        work = _with_ours(work, waited["now"], ours, work.floor_s)
    elif "before" in waited:  # nothing has changed since
        work = _with_ours(work, waited["before"], f"{show_seconds(waited['before'])} (`exact`)", work.floor_s)
    return replace(work, records=records.taken())


def operator_step(records: Records, rates: Rates) -> Work:
    work = Work("operator, a training step of the whole model, cars of 5 k panels", REPORTS["operator"])
    record = records.read("operator_step_h200.json")
    if record is None:
        return work
    # The defaults of the configuration are the preset `base`.
    count = operator_operations(sum(record["edges"]) / len(record["edges"]), OperatorConfig)
    seconds = {name: timing["median_s"] for name, timing in record["steps"].items()}
    name = min(seconds, key=lambda one: seconds[one])
    floor_s = rates.seconds(record["precision"], count) if record["preset"] == "base" else None
    work = _with_ours(work, seconds[name], f"{show_seconds(seconds[name])} (`{name}`)", floor_s)
    return _with_peer(work, [(seconds["eager"], "eager")] if "eager" in seconds else [], records)


def _of_case(
    work: Work,
    case: Comparison,
    name: str,
    records: Records | None,
    *,
    floor_s: float | None,
    remark: str = "",
) -> Work:
    row = next((row for row in case.rows if row.name == name), None)
    if row is not None and row.seconds:
        work = _with_ours(work, row.seconds, f"{show_seconds(row.seconds)} (`{name}`)", floor_s)
    peers = [(row.seconds, row.name) for row in _peers(case) if row.seconds]
    return _with_peer(work, peers, records, remark)


def _peers(case: Comparison) -> list[Row]:
    return [row for row in case.rows if row.role == "peer" and row.state == "ok"]


def _with_ours(
    work: Work, seconds: float, text: str, floor_s: float | None = None, floor_of: str = ""
) -> Work:
    return replace(
        work,
        ours=text,
        ours_s=seconds,
        floor_s=work.floor_s if floor_s is None else floor_s,
        floor_of=floor_of or work.floor_of,
    )


def _with_peer(
    work: Work, peers: Sequence[tuple[float | None, str]], records: Records | None, remark: str = ""
) -> Work:
    timed = [(seconds, name) for seconds, name in peers if seconds is not None]
    if timed:
        seconds, name = min(timed)
        work = replace(work, peer=f"{show_seconds(seconds)} (`{name}`{remark})")
    return work if records is None else replace(work, records=records.taken())


def _with_before(seconds: float, name: str, before: float | None) -> str:
    parts = [f"`{name}`"] if name else []
    parts += [] if before is None else [f"before {show_seconds(before)}"]
    return show_seconds(seconds) + (f" ({', '.join(parts)})" if parts else "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.0995 else f"{100 * share:.2g} %"
