"""The figure of a forecast's peak: its parts from the weights to the driver's total, beside a measurement."""

from __future__ import annotations

from pinchpoint.core.records import BREAKDOWN, Forecast
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting import palette
from pinchpoint.reporting.axes import labelled_axis, linear_axis
from pinchpoint.reporting.chart import Figure, Trace, Unit, bars, hover, layout
from pinchpoint.reporting.record_reader import share


def stack(record: Forecast) -> list[tuple[str, str, int]]:
    """Return (label, role, bytes) from the weights to the driver's total."""
    names = [*BREAKDOWN, *(name for name in record.breakdown if name not in BREAKDOWN)]
    stack = [
        (name, palette.of_source(name), record.breakdown[name])
        for name in names
        if record.breakdown.get(name)
    ]
    reserved_bytes = (
        record.peak_allocated_bytes if record.peak_reserved_bytes is None else record.peak_reserved_bytes
    )
    if reserved_bytes > record.peak_allocated_bytes:
        stack.append(
            ("reserved but unused", palette.of_source("cached"), reserved_bytes - record.peak_allocated_bytes)
        )
    if record.context_bytes:
        stack.append(("context", palette.of_source("context"), record.context_bytes))
    return stack


def composition(record: Forecast) -> Figure:
    unit = Unit.of([record.total_bytes])
    data = [_part(label, role, size, 0, unit, record.total_bytes) for label, role, size in stack(record)]
    rows = ["predicted"]
    if record.measured:
        rows.append("measured")
        data += _measured_parts(record.measured, unit)
    x = linear_axis(f"memory at the peak ({unit.name})")
    axes = layout(x=x, y=labelled_axis(rows, autorange="reversed"), barmode="stack", bargap=0.25)
    note = (
        "The memory at the peak, from the weights to the driver's total, in the colours of the table below."
    )
    return Figure("Composition of the peak", tuple(data), axes, height=82 + 52 * len(rows), note=note)


def _part(label: str, role: str, size: int, row: int, unit: Unit, whole: int) -> Trace:
    facts = (
        ("bytes", f"{size:,}"),
        ("size", show_bytes(size)),
        ("of the total", f"{share(size, whole):.1%}"),
    )
    return bars("", [unit(size)], [row], role=role, texts=[hover(label, *facts)], orientation="h")


def _measured_parts(measurement: dict[str, int], unit: Unit) -> list[Trace]:
    """Return the parts of a measurement, which are only allocated, reserved and the driver's total."""
    levels = (
        ("allocated", "s8", "allocated_bytes"),
        ("reserved but unused", "idle", "reserved_bytes"),
        ("context", "idle-2", "total_bytes"),
    )
    parts, below = [], 0
    for label, role, key in levels:
        if key in measurement:
            parts.append(
                _part(
                    f"measured: {label}",
                    role,
                    max(0, measurement[key] - below),
                    1,
                    unit,
                    measurement.get("total_bytes", 0),
                )
            )
            below = measurement[key]
    return parts
