"""What a system's `bench` module provides: cases, each of which builds a contest between contenders.

A case exists at three sizes: `tiny` for tests, `small` for a CPU, and `report` as in the optimisation report
that the system answers. Building must not start a clock or import a package that may be missing: a contender
imports what it needs in `make`, and raises `Missing` if it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from pinchpoint.core.errors import Missing
from pinchpoint.systems.common.bench.records import Agreement, Floor, Role

Run = Callable[[], Any]
Sizes = Literal["tiny", "small", "report"]
SIZES: tuple[Sizes, ...] = ("tiny", "small", "report")

# Per second, from the data sheet (dense). Other cards have no floor.
RATES = {"H200": {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12, "bytes": 4.8e12}}


@dataclass(frozen=True)
class Setup:
    """Where and at which size a case is built."""

    device: str
    sizes: Sizes
    size: int
    seed: int = 0
    gpu: str | None = None  # the name of the card

    def rate(self, kind: str) -> float | None:
        """Return what the card can do per second according to its data sheet; None if it is not known."""
        rates = next((rates for name, rates in RATES.items() if name in (self.gpu or "")), {})
        return rates.get(kind)


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a case.

    make: builds the model and the inputs, and returns the function that is timed.
    work: the share of the case that one run does. Below 1 the time is scaled up; above 1, one run does the
    case several times.
    check: compares the result of a run that is not timed.
    peak: returns the peak in bytes; None to measure it in a run of its own.
    extras: further figures, measured after the times.
    """

    name: str
    make: Callable[[], Run]
    role: Role = "variant"
    work: float = 1.0
    warmup: int = 2
    check: Callable[[Any], Agreement] | None = None
    peak: Callable[[], int | None] | None = None
    extras: Callable[[Run], dict[str, float]] | None = None
    note: str = ""


@dataclass(frozen=True)
class Contest:
    """The contenders of a case; the first is the baseline. packages: peers whose versions are recorded."""

    contenders: Sequence[Contender]
    settings: Mapping[str, object] = field(default_factory=dict)
    floor: Floor | None = None
    notes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


@dataclass(frozen=True)
class BenchCase:
    """A comparison that a system offers, at the sizes that it has.

    claim: what the optimisation report says about it, in one sentence.
    """

    name: str
    title: str
    claim: str
    axis: str
    size: Mapping[Sizes, int]
    build: Callable[[Setup], Contest]


def imported(module: str, package: str | None = None) -> Any:
    """Import a module of a peer; raises `Missing` if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        name = package or module.partition(".")[0]
        raise Missing(
            f"The package {name} is not installed: no module {error.name}.", hint=f"Run pip install {name}."
        ) from error


def operations_floor(setup: Setup, operations: float, *, precision: str, what: str) -> Floor:
    """Return the floor of a number of operations at the card's rate for a precision."""
    rate = setup.rate(precision)
    basis = f"{what}, at the data sheet's {precision} rate" if rate else what
    return Floor(None if rate is None else operations / rate, operations, None, basis)
