"""The verdicts and bars of the benchmark of public programs."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "scripts"
MEASURED = 10 * 2**30


@pytest.fixture(scope="module")
def table(sibling_scripts: None) -> ModuleType:
    return importlib.import_module("table")


@pytest.fixture(scope="module")
def programs(sibling_scripts: None) -> ModuleType:
    return importlib.import_module("programs")


def row(
    table: ModuleType,
    programs: ModuleType,
    *,
    predicted: float = 1.0,
    interval: tuple[float, float] | None = None,
    capped: bool | None = True,
    reasons: tuple[str, ...] = (),
    fits: dict[str, bool | None] | None = None,
    status: str = "ok",
    package: str = "torch",
    search: float | None = None,
    method: str = "",
) -> Any:
    """Return a row whose predictions are shares of a measured peak of 10 GiB."""
    program = programs.Program("folder/name", Path("name.py"), "About.", (package,), alone=False)
    low, high = (None, None) if interval is None else (round(MEASURED * share) for share in interval)
    forecast = {
        "status": status,
        "peak_allocated_bytes": round(MEASURED * predicted),
        "peak_reserved_bytes": round(MEASURED * predicted),
        "low_bytes": low,
        "high_bytes": high,
        "fits": fits or {},
        "reasons": list(reasons),
        "method": method,
    }
    if search is not None:
        forecast |= dict.fromkeys(("search_bytes", "search_reserved_bytes"), round(MEASURED * search))
    truth: dict[str, Any] = {
        "status": "ok",
        "peak_allocated_bytes": MEASURED,
        "peak_reserved_bytes": MEASURED,
    }
    if capped is not None:
        truth["capped"] = {"ran": capped, "limit_bytes": MEASURED, "status": "ok" if capped else "oom"}
    return table.Row(program, forecast, truth)


def met(table: ModuleType, rows: list[Any]) -> dict[str, bool]:
    return {bar.name: bar.met for bar in table.judge(rows)}


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ({"predicted": 1.009}, "within 1 %"),
        ({"predicted": 0.96}, "within 5 %"),
        ({"predicted": 1.06}, "MISSED"),
        ({"predicted": 1.06, "interval": (0.95, 1.09)}, "inside the interval"),
        ({"predicted": 1.06, "interval": (0.95, 1.11)}, "MISSED"),
        ({"predicted": 1.06, "interval": (1.01, 1.09)}, "MISSED"),
        ({"capped": False}, "wrong fits"),
        ({"capped": False, "reasons": ("a loop",)}, "within 1 %"),
        ({"fits": {"rtx3060-6gb": None, "h200": True}}, "within 1 %"),
        ({"status": "refused"}, "refused"),
        # With a search for kernels, the peak with the search is compared; the capped run checks "fits".
        ({"predicted": 0.4, "search": 1.04, "fits": {"rtx3060-6gb": True}}, "within 5 %"),
        ({"predicted": 1.0, "search": 1.06, "interval": (0.95, 1.09)}, "MISSED"),
        ({"predicted": 0.4, "search": 1.0, "capped": False}, "wrong fits"),
    ],
)
def test_a_verdict_follows_from_the_error_the_interval_and_the_boundary(
    table: ModuleType, programs: ModuleType, case: dict[str, Any], verdict: str
) -> None:
    assert row(table, programs, **case).verdict == verdict


def test_a_card_smaller_than_the_measured_peak_makes_fits_wrong(
    table: ModuleType, programs: ModuleType
) -> None:
    small = min(table.card_bytes(), key=table.card_bytes().__getitem__)
    assert row(table, programs, fits={small: True}).verdict == "wrong fits"
    assert row(table, programs, fits={small: None}).verdict == "within 1 %"


def test_every_bar_is_missed_by_the_fault_that_it_names(table: ModuleType, programs: ModuleType) -> None:
    good = [row(table, programs) for _ in range(40)]
    assert all(met(table, good).values())
    many, near, close, fits, refused = met(table, good)
    assert not met(table, good[1:])[many]
    assert met(table, good[4:] + [row(table, programs, predicted=1.02)] * 4)[near]
    assert not met(table, good[5:] + [row(table, programs, predicted=1.02)] * 5)[near]
    assert not met(table, [*good, row(table, programs, predicted=1.06)])[close]
    assert not met(table, [*good, row(table, programs, capped=False)])[fits]
    assert not met(table, [*good, row(table, programs, capped=None)])[fits]  # not tried is not shown
    assert met(table, [*good, row(table, programs, capped=None, reasons=("a loop",))])[fits]
    exact = row(table, programs, package="jax")
    exact.predicted["method"] = table.XLA
    wide = row(table, programs, package="jax", predicted=1.3, interval=(0.9, 1.6))
    low = row(table, programs, package="jax", predicted=0.9, interval=(0.8, 0.95))
    jax = list(met(table, [*good, exact]))[-1]
    assert met(table, [*good, exact, wide])[jax]
    assert not met(table, [*good, exact, low])[jax]
    wide = row(table, programs, package="jax", predicted=1.3, interval=(0.9, 1.6), method=table.XLA)
    assert not met(table, [*good, exact, wide])[jax]
    assert all(met(table, [exact]).values())  # a table of JAX programs alone
    assert met(table, good[2:] + [row(table, programs, status="refused")] * 2)[refused]
    assert not met(table, good[3:] + [row(table, programs, status="refused")] * 3)[refused]


def test_bars_within_a_share_name_the_programs_that_miss_them(
    table: ModuleType, programs: ModuleType
) -> None:
    def judge(*rows: Any, widest: float = 0.0) -> list[bool]:
        return [
            bar.met for bar in table.judge_within(list(rows), allocated=0.02, reserved=0.1, widest=widest)
        ]

    inside = row(table, programs, predicted=1.06, interval=(0.95, 1.09))
    assert judge(row(table, programs, predicted=1.019)) == [True, True, True, True]
    assert judge(inside) == [False, True, True, True]
    assert judge(inside, widest=0.15) == [True, True, True, True]
    assert judge(row(table, programs, predicted=0.89)) == [False, False, True, True]
    assert judge(row(table, programs, capped=False)) == [True, True, False, True]
    assert judge(row(table, programs, status="refused")) == [True, True, True, False]


def test_options_of_a_forecast_are_read_from_the_program(programs: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / "step.py").write_text('"""Train."""\n\n# predict: --world-size 8\nimport torch\n')
    (program,) = programs.find_programs(folder=tmp_path)
    assert (program.name, program.options) == ("sharded/step", ("--world-size", "8"))


def test_every_program_is_one_short_file_that_says_what_it_does(programs: ModuleType) -> None:
    found = programs.find_programs()
    assert len(found) >= 42
    offenders = [
        program.name
        for program in found
        if not program.about.endswith(".") or len(program.path.read_text().splitlines()) > 110
    ]
    assert offenders == []
    assert {program.path.stem for program in found if program.alone} == {
        "dcgan",
        "torchvision_resnet50_benchmark",
    }
