"""Records of training, evaluating and scanning a wave function."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pinchpoint.core import machine as _machine
from pinchpoint.core.records import Record, now
from pinchpoint.core.units import show_bytes, show_count, show_seconds
from pinchpoint.systems.vmc.analysis.observables import DEBYE
from pinchpoint.systems.vmc.analysis.statistics import LARGEST_RHAT
from pinchpoint.systems.vmc.data.spins import show_electrons
from pinchpoint.systems.vmc.data.system import show_name


@dataclass(frozen=True, kw_only=True)
class Training(Record):
    """record.json of a run.

    The energy is the mean over the last tenth of the steps, while the network still changed.
    """

    kind: ClassVar[str] = "vmc-training"
    target: str  # the folder of the run
    system: str
    electrons: int
    net: str
    parameters: int
    settings: dict[str, Any]
    step: int
    complete: bool
    energy_ha: float | None
    error_ha: float | None
    variance: float | None
    acceptance: float | None
    reference_ha: float | None
    device: str
    devices: int
    method: str  # of the Laplacian
    chunk: int | None  # walkers processed together; None: all
    step_s: float | None  # median seconds of a step
    peak_bytes: int | None  # allocated on CUDA, resident on CPU
    seconds: float
    states: int = 1  # the energy is the sum over them
    skipped: int = 0  # steps that were not finite and changed nothing
    predicted_bytes: int | None = None  # by XLA's analysis
    budget_bytes: int | None = None  # --budget, or the memory of the device
    why: str = ""  # reason for the method and the chunk
    up: int | None = None  # electrons of each spin; None in records of earlier versions
    down: int | None = None
    spin_reason: str = ""  # why they are so many
    charge: int | None = None  # None in records of earlier versions
    pseudopotential: str | None = None  # "" for none; None in records of earlier versions
    files: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [
            ("run", self.target),
            (
                "system",
                f"{show_name(self.system, self.charge or 0)}, {show_count(self.electrons, 'electron')}"
                f"{_potential(self.pseudopotential)}; {self.net} with {self.parameters:,} parameters",
            ),
            *_electrons(self.up, self.down, self.spin_reason),
            ("steps", f"{self.step:,} of {self.settings['steps']:,}, {self.settings['walkers']:,} walkers"),
        ]
        if self.energy_ha is not None:
            rows.append(
                (
                    "energy" if self.states == 1 else f"sum of {self.states} states",
                    f"{energy(self.energy_ha, self.error_ha)}, mean of the last tenth of the steps",
                )
            )
            rows += _against(self.energy_ha, self.error_ha, self.reference_ha)
        if self.variance is not None:
            rows.append(
                ("variance", f"{self.variance:.3g} Ha^2; {self.acceptance:.0%} of the moves accepted")
            )
        if self.skipped:
            rows.append(("skipped", f"{self.skipped:,} steps whose energy or change was not finite"))
        if self.peak_bytes is not None:
            rows.append(
                (
                    "peak",
                    f"{show_bytes(self.peak_bytes)} {'allocated' if self.device == 'cuda' else 'resident'}",
                )
            )
        rows.append(("laplacian", describe_laplacian(self.method, self.chunk, self.why)))
        each = "" if self.step_s is None else f", {show_seconds(self.step_s)} per step"
        where = self.device if self.devices == 1 else f"{self.devices} devices ({self.device})"
        return [*rows, ("time", f"{show_seconds(self.seconds)} on {where}{each}")]


@dataclass(frozen=True, kw_only=True)
class Evaluation(Record):
    """The energy of a frozen wave function. error_ha: one standard error, from block means."""

    kind: ClassVar[str] = "vmc-evaluation"
    target: str  # the folder of the run
    system: str
    step: int  # of the checkpoint
    energy_ha: float  # the sum over all states
    error_ha: float
    variance: float  # of the local energy, Ha^2
    acceptance: float
    rhat: float
    autocorrelation: float  # samples of a walker per independent sample
    block: int  # samples of a walker in each block that the error is computed from
    walkers: int
    samples: int  # per walker
    moves: int  # between two samples
    reference_ha: float | None
    difference_ha: float | None  # energy minus reference
    extrapolated_ha: float | None  # to zero variance, along the training
    extrapolated_error_ha: float | None
    seed: int
    precision: str
    device: str
    seconds: float
    cube: str | None = None  # file of the one-electron density
    outside: float | None = None  # fraction of the electrons outside its box
    method: str = "auto"  # of the Laplacian
    chunk: int | None = None  # walkers processed together; None: all
    predicted_bytes: int | None = None  # by XLA's analysis
    budget_bytes: int | None = None  # --budget, or the memory of the device
    why: str = ""  # reason for the method and the chunk
    up: int | None = None  # electrons of each spin; None in records of earlier versions
    down: int | None = None
    charge: int | None = None  # None in records of earlier versions
    pseudopotential: str | None = None  # "" for none; None in records of earlier versions
    # Of --observables: spin_squared, dipole (3), quadrupole (3, 3), forces (nuclei, 3; not with
    # pseudopotentials) and density (nuclei, shells), each with value and standard error, in atomic units.
    observables: dict[str, Any] | None = None
    # Of a run of several states, from the lowest: energy_ha, error_ha, variance, excitation_ha,
    # excitation_error_ha, reference_ha.
    states: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        name = show_name(self.system, self.charge or 0) + _potential(self.pseudopotential)
        rows = [
            ("run", f"{self.target}, {name}, step {self.step:,}"),
            *_electrons(self.up, self.down),
            *(row for at, state in enumerate(self.states) for row in _state(at, state)),
            ("energy" if not self.states else "sum", energy(self.energy_ha, self.error_ha)),
            *_against(self.energy_ha, self.error_ha, self.reference_ha),
            ("variance", f"{self.variance:.3g} Ha^2"),
            (
                "samples",
                f"{self.samples:,} of each of {self.walkers:,} walkers, {self.moves:,} moves apart, "
                f"{self.acceptance:.0%} accepted",
            ),
            ("mixing", f"R-hat {self.rhat:.4f}; {self.autocorrelation:.1f} samples per independent one"),
        ]
        if self.extrapolated_ha is not None:
            rows.append(
                ("zero variance", f"{energy(self.extrapolated_ha, self.extrapolated_error_ha)}, extrapolated")
            )
        if self.cube is not None:
            rows.append(("density", f"{self.cube}; {self.outside:.2%} of the electrons lay outside its box"))
        rows += _observables(self.observables or {})
        rows.append(("laplacian", describe_laplacian(self.method, self.chunk, self.why)))
        return [*rows, ("time", f"{show_seconds(self.seconds)} on {self.device}")]


@dataclass(frozen=True, kw_only=True)
class Scan(Record):
    """Energies along a bond: scan.json of the scan's folder."""

    kind: ClassVar[str] = "vmc-scan"
    target: str  # the molecule
    # Keys of a point: bond, energy_ha, error_ha, variance, acceptance, rhat, steps, run, reference_ha.
    points: tuple[dict[str, Any], ...]
    lowest_bond: float | None  # minimum of a Morse curve through the mixed points; None if there is none
    lowest_ha: float | None
    seconds: float
    complete: bool
    up: int | None = None  # electrons of each spin; None in records of earlier versions
    down: int | None = None
    spin_reason: str = ""  # why they are so many
    lowest_bond_error: float | None = None  # standard errors, which include the choice of the curve
    lowest_error_ha: float | None = None
    curve: dict[str, Any] | None = None  # the fields of `Minimum`, from which the curve can be drawn
    no_minimum: str = ""  # why there is none
    files: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=_machine.describe)
    created: str = field(default_factory=now)

    def summary(self) -> list[tuple[str, str]]:
        rows = [("molecule", self.target), *_electrons(self.up, self.down, self.spin_reason)]
        for point in self.points:
            mixed = "" if point["rhat"] <= LARGEST_RHAT else f"; R-hat {point['rhat']:.3f}: not mixed"
            rows.append((f"{point['bond']:.3f} bohr", energy(point["energy_ha"], point["error_ha"]) + mixed))
        if self.lowest_bond is not None and self.lowest_ha is not None:
            bond = f"{self.lowest_bond:.3f} +- {self.lowest_bond_error:.3f} bohr"
            rows.append(("lowest", f"{energy(self.lowest_ha, self.lowest_error_ha)} at {bond}"))
        elif self.no_minimum:
            rows.append(("lowest", f"not known: {self.no_minimum}"))
        return [*rows, ("time", show_seconds(self.seconds))]


def describe_laplacian(method: str, chunk: int | None, why: str) -> str:
    """`forward, 64 walkers at one time (...)`."""
    size = "all walkers" if chunk is None else "1 walker" if chunk == 1 else f"{chunk:,} walkers"
    return f"{method}, {size} at one time" + (f" ({why})" if why else "")


def energy(value: float, error: float | None) -> str:
    """`-1.174512 +- 0.000043 Ha`."""
    return f"{value:.6f}" + (f" +- {error:.6f} Ha" if error is not None else " Ha")


def _potential(pseudopotential: str | None) -> str:
    """` (ccECP)`; empty without a pseudopotential."""
    return f" ({pseudopotential.replace('ecp', 'ECP')})" if pseudopotential else ""


def _electrons(up: int | None, down: int | None, reason: str = "") -> list[tuple[str, str]]:
    if up is None or down is None:
        return []
    return [("electrons", show_electrons(up, down) + (f": {reason}" if reason else ""))]


def _observables(observables: dict[str, Any]) -> list[tuple[str, str]]:
    if not observables:
        return []
    spin, moment = observables["spin_squared"], observables["dipole"]
    axes = observables["quadrupole"]
    diagonal = {key: [axes[key][at][at] for at in range(3)] for key in ("value", "error")}
    size = math.sqrt(sum(value**2 for value in moment["value"])) * DEBYE
    forces = list(zip(*_values(observables, "forces"), strict=True))
    if len(forces) == 1:  # that on a single atom is 0 by symmetry
        forces = []
    return [
        ("spin", f"S^2 = {spin['value']:.4f} +- {spin['error']:.4f}"),
        ("dipole", f"{_vector(moment)} e bohr ({size:.3f} D)"),
        ("quadrupole", f"{_vector(diagonal)} e bohr^2 (xx, yy, zz)"),
        *(
            (f"force on {at}", f"{_vector({'value': value, 'error': error})} Ha/bohr")
            for at, (value, error) in enumerate(forces, start=1)
        ),
    ]


def _values(observables: dict[str, Any], name: str) -> tuple[list[Any], list[Any]]:
    """The values and errors of an observable; none if it was not measured."""
    parts = observables.get(name, {"value": [], "error": []})
    return parts["value"], parts["error"]


def _vector(parts: dict[str, Any]) -> str:
    """`0.0000 0.0000 2.3012 +- 0.0021`, with the largest of the errors."""
    return f"{' '.join(f'{value + 0.0:.4f}' for value in parts['value'])} +- {max(parts['error']):.4f}"


def _state(at: int, state: dict[str, Any]) -> list[tuple[str, str]]:
    """The row of one state, and that of its reference energy if it is known."""
    text = energy(state["energy_ha"], state["error_ha"])
    if at:
        text += f"; {state['excitation_ha']:.6f} +- {state['excitation_error_ha']:.6f} Ha above the lowest"
    return [
        (f"state {at}", text),
        *_against(state["energy_ha"], state["error_ha"], state["reference_ha"]),
    ]


def _against(value: float, error: float | None, reference: float | None) -> list[tuple[str, str]]:
    if reference is None:
        return []
    difference_mha = (value - reference) * 1e3
    bar = "" if error is None else f" +- {error * 1e3:.3f}"
    return [("reference", f"{reference:.6f} Ha; {difference_mha:+.3f}{bar} mHa from it")]
