"""The comparison of forecasts and measurements of programs, and whether the bars are met.

Bars: allocated within 1 % for 90 % of the programs; within 5 %, or inside an interval no wider than 15 % of
the measured peak, for all; no forecast that says "fits" wrongly; and at most 2 of 40 programs refused.
A "fits" is wrong if the program did not run with the memory from which the forecast says that it fits
(`needs_bytes`), or if it says so for a card with less memory than the measured peak of allocated bytes. A
forecast with `reasons` leaves "fits" unknown, which is never wrong, but its figures are judged all the same.
JAX programs have a bar of their own: within 3 %, or inside an interval of any width. A program that searches
for kernels (`cudnn.benchmark`) has two predicted peaks: with the search, which is compared with the measured
peak, and without it, which decides whether the program fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from programs import Program

GIB = 2**30
NEAR, CLOSE, WIDEST, JAX_NEAR = 0.01, 0.05, 0.15, 0.03
XLA = "xla memory analysis"  # the method of a forecast by XLA
SEARCH_KEYS = {"peak_allocated_bytes": "search_bytes", "peak_reserved_bytes": "search_reserved_bytes"}


@dataclass(frozen=True)
class Row:
    program: Program
    predicted: dict[str, Any]
    measured: dict[str, Any]

    @property
    def refused(self) -> bool:
        return self.predicted.get("status") != "ok"

    @property
    def usable(self) -> bool:
        return not self.refused and self.measured.get("status") == "ok"

    @property
    def searches(self) -> bool:
        """Whether the program searches for kernels."""
        return self.predicted.get("search_bytes") is not None

    def expected(self, key: str) -> int | None:
        """The predicted peak with the search for kernels, if the program makes one."""
        return self.predicted.get(SEARCH_KEYS[key] if self.searches else key)

    def error(self, key: str = "peak_allocated_bytes") -> float | None:
        """(predicted - measured) / measured, or None if one side is missing."""
        expected, measured = self.expected(key), self.measured.get(key)
        return expected / measured - 1 if self.usable and expected and measured else None

    @property
    def distance(self) -> float:
        """The size of the error of allocated bytes; infinite if there is none."""
        error = self.error()
        return math.inf if error is None else abs(error)

    @property
    def inside(self) -> bool:
        """Whether the measured peak lies in an interval that is narrow enough; for JAX any width counts."""
        low, high = self.predicted.get("low_bytes"), self.predicted.get("high_bytes")
        if not self.usable or low is None or high is None or self.searches:
            return False
        peak = self.measured["peak_allocated_bytes"]
        widest = math.inf if self.program.framework == "jax" else WIDEST * peak
        return low <= peak <= high and high - low <= widest

    @property
    def wrong_fits(self) -> str | None:
        """How a "fits" of the forecast is wrong, or None."""
        if not self.usable:
            return None
        too_small = [
            card
            for card, memory in card_bytes().items()
            if self.predicted["fits"].get(card)
            and memory < self.measured["peak_allocated_bytes"]
            and not self.searches  # a search uses what a card has; on a smaller one it uses less
        ]
        if too_small:
            return f"says fits on {', '.join(too_small)}"
        capped = self.measured.get("capped")
        if capped and not self.predicted["reasons"] and not capped["ran"]:
            return f"did not run with {capped['limit_bytes'] / GIB:.3f} GiB: {capped.get('status')}"
        return None

    @property
    def verdict(self) -> str:
        error = self.error()
        if self.refused:
            return "refused"
        if error is None:
            return "not measured"
        if self.wrong_fits:
            return "wrong fits"
        if abs(error) <= NEAR:
            return "within 1 %"
        if abs(error) <= CLOSE:
            return "within 5 %"
        return "inside the interval" if self.inside else "MISSED"


def card_bytes() -> dict[str, int]:
    from pinchpoint.forecasting.cards import cards

    return {name: card.memory_bytes for name, card in cards().items()}


@dataclass(frozen=True)
class Bar:
    name: str
    met: bool
    detail: str


def join(programs: list[Program], predicted: dict[str, Any], measured: dict[str, Any]) -> list[Row]:
    """Return a row for every program that was predicted."""
    return [
        Row(program, predicted["cases"][program.name], measured["cases"].get(program.name, {}))
        for program in programs
        if program.name in predicted["cases"]
    ]


def judge(rows: list[Row]) -> list[Bar]:
    wrong = [f"{row.program.name} {row.wrong_fits}" for row in rows if row.wrong_fits]
    untested = [
        row.program.name
        for row in rows
        if row.usable
        and row.program.framework == "torch"
        and not row.predicted["reasons"]
        and "capped" not in row.measured
    ]
    jax = [row for row in rows if row.program.framework == "jax"]
    by_xla = [row for row in jax if row.predicted.get("method") == XLA]
    jax_missed = [
        row.program.name for row in jax if row.distance > JAX_NEAR and (row in by_xla or not row.inside)
    ]
    jax_bars = [
        Bar(
            "JAX: within 3 % by XLA's analysis, or inside the interval by liveness",
            not jax_missed,
            ", ".join(jax_missed) or f"all {len(jax)}, {len(by_xla)} by XLA's analysis",
        )
    ]
    rows = [row for row in rows if row.program.framework == "torch"]
    if not rows:
        return [Bar("no wrong fits", not wrong, "; ".join(wrong) or "none"), *jax_bars]
    answered = [row for row in rows if row.error() is not None]
    near = [row for row in answered if row.distance <= NEAR]
    missed = [row.program.name for row in answered if row.distance > CLOSE and not row.inside]
    refused = [row.program.name for row in rows if row.refused]
    need = math.ceil(0.9 * len(answered))
    return [
        Bar(
            "at least 40 programs, predicted and measured",
            len(answered) >= 40,
            f"{len(answered)} of {len(rows)}",
        ),
        Bar(
            "allocated within 1 % for 90 %",
            bool(answered) and len(near) >= need,
            f"{len(near)} of {len(answered)}",
        ),
        Bar(
            "allocated within 5 %, or inside an interval of at most 15 %, for all",
            not missed,
            ", ".join(missed) or "all",
        ),
        Bar(
            "no wrong fits",
            not wrong and not untested,
            "; ".join([*wrong, *([f"not run at the boundary: {len(untested)} programs"] if untested else [])])
            or "none",
        ),
        Bar("at most 2 of 40 refused", len(refused) <= len(rows) * 2 / 40, ", ".join(refused) or "none"),
        *(jax_bars if jax else []),
    ]


def judge_within(rows: list[Row], *, allocated: float, reserved: float, widest: float = 0.0) -> list[Bar]:
    """Bars for all programs: errors of both peaks, and no wrong fits.

    widest: an allocated peak inside an interval no wider than this share of it counts as well.
    """
    wrong = [f"{row.program.name} {row.wrong_fits}" for row in rows if row.wrong_fits]
    refused = [row.program.name for row in rows if row.refused]

    def missed(key: str, bar: float) -> str:
        names = []
        for row in rows:
            error, peak = row.error(key), row.measured.get(key, 0)
            low, high = row.predicted.get("low_bytes"), row.predicted.get("high_bytes")
            inside = key == "peak_allocated_bytes" and low is not None and high is not None
            inside = inside and low <= peak <= high and high - low <= widest * peak
            if not row.refused and (error is None or (abs(error) > bar and not inside)):
                names.append(f"{row.program.name} ({percent(error)})")
        return ", ".join(names)

    interval = f", or inside an interval of at most {100 * widest:g} %" if widest else ""
    bars = [
        (f"allocated within {100 * allocated:g} %{interval}", missed("peak_allocated_bytes", allocated)),
        (f"reserved within {100 * reserved:g} %", missed("peak_reserved_bytes", reserved)),
        ("no wrong fits", "; ".join(wrong)),
        ("none refused", ", ".join(refused)),
    ]
    return [Bar(name, not faults, faults or "yes") for name, faults in bars]


def gib(value: int | None) -> str:
    return "-" if value is None else f"{value / GIB:.3f}"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.2f} %"


def versions(side: dict[str, Any]) -> str:
    packages = {**side["machine"]["versions"], **side["packages"]}
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


def markdown(
    title: str, rows: list[Row], bars: list[Bar], predicted: dict[str, Any], measured: dict[str, Any]
) -> str:
    """Return the page: the bars, one table row per program, and the messages of refused ones."""
    lines = [
        f"# {title}",
        "",
        f"Measured on {measured['machine'].get('gpu') or 'no GPU'}; predicted without a GPU"
        + (", which was hidden from the forecasts" if predicted.get("gpu_hidden") else "")
        + "; GiB.",
        "",
        "| bar | met | |",
        "|---|---|---|",
        *(f"| {bar.name} | {'pass' if bar.met else 'FAIL'} | {bar.detail} |" for bar in bars),
        "",
        "| program | allocated: predicted | interval | measured | error "
        "| reserved: predicted | measured | error | runs where it fits | verdict |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    for row in rows:
        p, m = row.predicted, row.measured if row.measured.get("status") == "ok" else {}
        interval = (
            f"{gib(p['low_bytes'])} to {gib(p['high_bytes'])}" if p.get("low_bytes") is not None else ""
        )
        capped = m.get("capped")
        ran = "-" if not capped else "ran" if capped["ran"] else capped["status"]
        unknown = ", fits unknown" if p.get("reasons") else ""
        cells = [
            row.program.name,
            gib(row.expected("peak_allocated_bytes")),
            f"{gib(p['peak_allocated_bytes'])} without the search" if row.searches else interval,
            gib(m.get("peak_allocated_bytes")),
            percent(row.error()),
            gib(row.expected("peak_reserved_bytes")),
            gib(m.get("peak_reserved_bytes")),
            percent(row.error("peak_reserved_bytes")),
            ran,
            row.verdict + unknown,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if searching := [f"`{row.program.name}`" for row in rows if row.searches]:
        lines += [
            "",
            f"{' and '.join(searching)} search for kernels (`cudnn.benchmark`): the measured peak is "
            "compared with the predicted one with the search; the one without it decides where they fit.",
        ]
    lines += ["", *(f"- `{row.program.name}`: {row.program.about}" for row in rows)]
    for row in rows:
        for side, case in (("predicted", row.predicted), ("measured", row.measured)):
            if case.get("reason"):
                lines += ["", f"`{row.program.name}`, {side}: {case['reason']}"]
    lines += ["", f"Predicted with {versions(predicted)}.", "", f"Measured with {versions(measured)}."]
    return "\n".join(lines) + "\n"


def record(
    target: str, rows: list[Row], bars: list[Bar], predicted: dict[str, Any], measured: dict[str, Any]
) -> dict[str, Any]:
    return {
        "kind": "scripts",
        "schema": 1,
        "target": target,
        "machine": measured["machine"],
        "created": measured["created"],
        "packages": measured["packages"],
        "cuda": measured.get("cuda"),
        "cudnn": measured.get("cudnn"),
        "predicted_on": {
            "machine": predicted["machine"],
            "packages": predicted["packages"],
            "gpu_hidden": predicted.get("gpu_hidden", False),
            "created": predicted["created"],
        },
        "commands": [predicted["command"], measured["command"]],
        "bars": [{"name": bar.name, "met": bar.met, "detail": bar.detail} for bar in bars],
        "programs": [
            {
                "name": row.program.name,
                "about": row.program.about,
                "packages": list(row.program.packages),
                "allocated_error": row.error(),
                "reserved_error": row.error("peak_reserved_bytes"),
                "verdict": row.verdict,
                "predicted": row.predicted,
                "measured": row.measured,
            }
            for row in rows
        ],
    }
