"""The performance page, written from the records of `pinchpoint bench`.

    pinchpoint bench --device cuda -o benchmarks/results/bench_h200
    python benchmarks/performance.py benchmarks/results/bench_h200 -o docs/explanation/performance.md

pinchpoint must be importable: installed, or `PYTHONPATH=src`. Every figure of the page comes from the
records, those of the table beside the limit of the card (`limits.py`) also from other records in the folder
above; a test renders the page again and compares.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import limits  # pyright: ignore[reportMissingImports]

from pinchpoint.core.files import write_text
from pinchpoint.core.units import show_bytes, show_seconds
from pinchpoint.systems.common.bench.records import (
    Agreement,
    Bench,
    Comparison,
    Row,
    show_ratio,
    show_time,
)

SYSTEMS = {
    "density": "The ChargE3Net-style density report optimises transfers and batches of a network most of "
    "whose couplings cannot reach the density. `scalar` leaves those out and gives the same density.",
    "cloud": "The point-cloud report makes its sampler faster step by step "
    "([its claims](../reports/cloud.md)). `exact` draws in one pass over the cells.",
    "vmc": "The FermiNeuT report speeds up a step whose moves run from Python "
    "([its claims](../reports/vmc.md)). Ours is one program.",
    "radiance": "The graf_ccsr guide lists measures against running out of memory "
    "([its claims](../reports/radiance.md)). `folded` needs fewer operations, and checkpointing less memory.",
    "operator": "The GAOT-3D guide asks how memory grows with the edges "
    "([its claims](../reports/operator.md)). `flat` stores nothing per edge but the graph.",
}
# Variants with these words in their names do other work than the baseline.
OTHER_WORK = ("bf16", "tf32", "Metropolis")
ENOUGH = 6  # runs; fewer give no 95 % interval of a median
INTRO = """# Performance

`pinchpoint bench` times the five systems on your machine: the code of the optimisation report that each
system answers (the baseline), our variants, and public peers where they are installed. This page is written
from its records in `benchmarks/results/{folder}` on {gpu} by `python benchmarks/performance.py`; the
sizes are the reports' own.

<!-- not run: takes minutes -->
```sh
pinchpoint bench --device cuda -o bench
pinchpoint bench density cloud -o bench        # some of them; a finished case is not run again
```

- All contenders of a case run in turn in one process, in rotating order, after everything is compiled. The
  clock starts and stops after a wait for the device. Times are medians with 95 % intervals.
- "Baseline / it" is the baseline's time divided by that of the row: above 1 it is faster, and below 1 it is
  slower. If the interval contains 1, the difference is not clear.
- Peaks are allocated bytes of a separate run. For JAX they are XLA's analysis of the program, and code that
  runs operation by operation has none.
- The floor is what the operations or bytes of a case take at the rate of the card's data sheet, or of a plain
  copy. It is a lower bound: launches and recomputation come on top.
- A result is equal if the difference stays within what rounding explains. Another model, or other physics, is
  not compared.
"""


def read(folder: Path) -> list[Bench]:
    """Return the records of a folder, in the order of the page."""
    return [
        Bench.from_json((folder / f"{system}.json").read_text(encoding="utf-8"))
        for system in SYSTEMS
        if (folder / f"{system}.json").exists()
    ]


def render(benches: Sequence[Bench], *, folder: Path) -> str:
    """Return the page. folder: that of the records; the one above holds the other records."""
    machines = [one.machine for bench in benches for one in bench.comparisons]
    gpus = sorted({machine["gpu"] for machine in machines if machine.get("gpu")})
    parts = [
        INTRO.format(gpu=f"an {' and '.join(gpus)}" if gpus else "a CPU", folder=folder.name),
        _summary(benches),
        _limits(folder),
    ]
    parts += [_section(bench) for bench in benches]
    return "\n".join([*parts, _slower(benches), _machines(benches)]).rstrip() + "\n"


def _summary(benches: Sequence[Bench]) -> str:
    header = (
        "case",
        "size",
        "baseline",
        "our fastest",
        "baseline / it",
        "our smallest peak",
        "fastest peer's time / ours",
    )
    remark = (
        "Variants in bf16 or TF32, and with other moves, do other work; they are in the sections below.\n\n"
    )
    return (
        "## In short\n"
        + remark
        + _table(header, (row for bench in benches for row in _summary_rows(bench)))
        + "\n"
    )


def _limits(folder: Path) -> str:
    header, rows, notes = limits.table(folder.parent, folder.name)
    intro = (
        "Each row compares what an optimisation report says, the fastest peer that we timed, our time, and\n"
        "the floor: what the operations or bytes of the work take at the rates that an H200 reaches.\n\n"
    )
    return f"## Beside the limit of the card\n{intro}{_table(header, iter(rows))}\n\n{notes}"


def _summary_rows(bench: Bench) -> Iterator[tuple[str, ...]]:
    for one in bench.comparisons:
        if one.failure:
            yield (f"{bench.system}: {one.case}", _size(one), "failed", "", "", "", "")
            continue
        ours = [row for row in _timed(one) if row.role == "variant" and _does_the_same(row)]
        peers = [row for row in _timed(one) if row.role == "peer" and _comparable(row)]
        quick = min(ours, key=_seconds)
        small = min((row for row in ours if row.peak_allocated_bytes), key=_peak, default=None)
        base = one.baseline
        smallest = "" if small is None else f"{show_bytes(_peak(small))} (`{small.name}`)"
        if small is not None and base.peak_allocated_bytes:
            smallest += f", baseline {show_bytes(base.peak_allocated_bytes)}"
        peer = min(peers, key=_seconds, default=None)
        beside = "" if peer is None else f"{_seconds(peer) / _seconds(quick):.3g} (`{peer.name}`)"
        yield (
            f"{bench.system}: {one.case}",
            _size(one),
            f"{show_seconds(_seconds(base))} (`{base.name}`)",
            f"{show_seconds(_seconds(quick))} (`{quick.name}`)",
            show_ratio(quick),
            smallest,
            beside,
        )


def _section(bench: Bench) -> str:
    parts = [f"## {'VMC' if bench.system == 'vmc' else bench.system.capitalize()}", SYSTEMS[bench.system], ""]
    for one in bench.comparisons:
        parts += [f"### {one.title[0].upper()}{one.title[1:]}", f"{one.claim}", ""]
        if one.failure:
            parts += [f"This case failed: {one.failure}.", ""]
            continue
        settings = ", ".join(f"{name} {value}" for name, value in one.settings.items())
        parts += [f"{_size(one)}{f'; {settings}' if settings else ''}.{_floor(one)}", ""]
        header = ("", "time [95 %]", "baseline / it [95 %]", "peak", "result")
        parts += [_table(header, (_row(one, row) for row in one.rows)), ""]
        parts += [f"- {line}" for line in _remarks(one)]
        parts += [""]
    return "\n".join(parts)


def _row(one: Comparison, row: Row) -> tuple[str, ...]:
    name = (
        f"`{row.name}`"
        + {"baseline": ", the baseline", "report": ", the report's", "peer": ", a peer", "variant": ""}[
            row.role
        ]
    )
    if row.state != "ok":
        return name, row.state, "", "", ""
    scaled = ", scaled up" if row.work < 1 else ""
    ratio = "" if row is one.baseline else show_ratio(row)
    peak = "" if row.peak_allocated_bytes is None else show_bytes(row.peak_allocated_bytes)
    result = "" if row.agreement is None or row is one.baseline else _result(row.agreement)
    return name, f"{show_time(row)}{scaled}", ratio, peak, result


def _result(agreement: Agreement) -> str:
    if agreement.equal is None:
        return agreement.how
    verdict = "equal" if agreement.equal else "NOT EQUAL"
    return verdict if agreement.difference is None else f"{verdict}, {agreement.difference:.1e}"


def _remarks(one: Comparison) -> Iterator[str]:
    ways: dict[str, list[str]] = {}
    for row in one.rows[1:]:
        if row.agreement is not None and row.agreement.equal is not None:
            ways.setdefault(row.agreement.how, []).append(f"`{row.name}`")
    for how, names in ways.items():
        yield f"Compared: {how}{_of(names) if len(ways) > 1 else ''}."
    for row in one.rows:
        text = row.note
        if row.state != "ok" and row.reason:
            text = f"{text}; {row.reason}" if text else row.reason
        if row.extras:
            text = f"{text}; {_extras(row.extras)}" if text else _extras(row.extras)
        if text:
            yield f"`{row.name}`: {text.rstrip('.')}."
    yield from (f"{note[0].upper()}{note[1:]}." for note in one.notes)
    few = {row.runs for row in _timed(one) if row.runs < ENOUGH}
    if few:
        names = ", ".join(f"`{row.name}`" for row in _timed(one) if row.runs < ENOUGH)
        yield f"There are only {min(few)} runs of {names}; their intervals are the whole range."


def _of(names: Sequence[str]) -> str:
    return f", for {', '.join(names)}"


def _extras(extras: dict[str, float]) -> str:
    words = {"queued_s": "{} per call if queued", "device_s": "{} on the device"}
    parts = [words[name].format(show_seconds(value)) for name, value in extras.items() if name in words]
    if "waits" in extras:
        parts.append(f"waits for the device {extras['waits']:.0f} times")
    return ", ".join(parts)


def _floor(one: Comparison) -> str:
    floor = one.floor
    if floor is None:
        return ""
    count = (
        f"{floor.operations / 1e9:,.3g} billion operations"
        if floor.operations is not None
        else f"{(floor.moved_bytes or 0) / 1e6:,.3g} MB"
    )
    if floor.seconds is None:
        return f" Floor: {count} ({floor.basis})."
    return f" Floor: {show_seconds(floor.seconds)} for {count} ({floor.basis})."


def _slower(benches: Sequence[Bench]) -> str:
    """Return the list of our variants that are slower than their baseline."""
    lines = [
        f"- {bench.system}, {one.case}: `{row.name}` takes {_times(1 / row.ratio)} times as long as "
        f"`{one.baseline.name}`{_saved(one, row)}"
        for bench in benches
        for one in bench.comparisons
        for row in _timed(one)
        if row.role == "variant"
        and row.ratio is not None
        and row.ratio_high is not None
        and row.ratio_high < 1
    ]
    text = "\n".join(lines) if lines else "None of our variants is slower than its baseline in these records."
    return f"## Slower than the baseline\n{text}\n"


def _times(factor: float) -> str:
    return f"{factor:.2f}" if factor < 10 else f"{factor:,.3g}"


def _saved(one: Comparison, row: Row) -> str:
    before = one.baseline.peak_allocated_bytes
    if not before or not row.peak_allocated_bytes or row.peak_allocated_bytes > 0.8 * before:
        return "."
    return f", with {row.peak_allocated_bytes / before:.0%} of its peak."


def _machines(benches: Sequence[Bench]) -> str:
    header = ("system", "command", "machine", "versions", "date")
    rows = []
    for bench in benches:
        for one in bench.comparisons[:1]:
            versions: dict[str, str] = {}
            for each in bench.comparisons:
                versions |= each.machine.get("versions", {})
            rows.append(
                (
                    bench.system,
                    f"`{one.command}`",
                    f"{one.machine.get('gpu') or 'CPU'}, {one.machine['cpu_count']} CPU cores",
                    ", ".join(f"{name} {version}" for name, version in sorted(versions.items())),
                    one.created[:10],
                )
            )
    return "## Machine and versions\n" + _table(header, iter(rows)) + "\n"


def _timed(one: Comparison) -> list[Row]:
    return [row for row in one.rows if row.state == "ok"]


def _does_the_same(row: Row) -> bool:
    return not any(word in row.name for word in OTHER_WORK)


def _comparable(row: Row) -> bool:
    return row.agreement is None or row.agreement.equal is not None


def _seconds(row: Row) -> float:
    assert row.seconds is not None
    return row.seconds


def _peak(row: Row) -> int:
    assert row.peak_allocated_bytes is not None
    return row.peak_allocated_bytes


def _size(one: Comparison) -> str:
    return f"{one.size:,} {one.axis}"


def _table(header: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", type=Path, help="Folder of the records.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="The page.")
    args = parser.parse_args()
    write_text(args.output, render(read(args.records), folder=args.records))


if __name__ == "__main__":
    main()
