"""The spin of a molecule for which none is set, and the reason for it.

Atoms and ions follow Hund's rules, and named molecules have the spin of their ground states. For others the
Hartree-Fock energies of the possible spins are compared; without PySCF the lowest spin is taken, and the
reason says that it is a guess. Hartree-Fock favours high spins, because it lacks the correlation of paired
electrons: a higher spin is chosen only if it lies lower by more than a margin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pinchpoint.core.errors import BadInput, Missing, NotConverged, first_line
from pinchpoint.systems.vmc.data.molecules import known_spin, spin_of_atom
from pinchpoint.systems.vmc.data.system import System, system_of

MARGIN_HA = 0.005  # by which a higher spin must lie below a lower one
CLOSE_HA = 0.03  # spins closer than this can be in the wrong order
_TOO_HIGH_HA = 0.1  # above the lowest energy so far: higher spins are not tried
_MOST_CANDIDATES = 5
_MULTIPLETS = ("singlet", "doublet", "triplet", "quartet", "quintet", "sextet", "septet", "octet")

EnergyOf = Callable[[System], float]


@dataclass(frozen=True)
class GroundState:
    """A system, and a clause that says why it has this spin."""

    system: System
    why: str

    def text(self) -> str:
        """Return `9 up, 7 down (triplet): ...`."""
        return f"{show_electrons(self.system.up, self.system.down)}: {self.why}"


def ground_state(
    molecule: str | Path | System,
    *,
    spin: int | None = None,
    charge: int = 0,
    bond: float | None = None,
    pseudopotential: str | None = None,
    energy_of: EnergyOf | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> GroundState:
    """Return the system of `system_of`, with the spin of its ground state where none is set.

    energy_of: the energy in hartree that spins are compared by, by default that of Hartree-Fock; it may raise
    NotConverged or another BadInput for a spin, and Missing if it cannot be computed at all. tell: called
    with what is computed.
    """
    system = system_of(molecule, spin=spin, charge=charge, bond=bond, pseudopotential=pseudopotential)
    if spin is not None or isinstance(molecule, System):
        return GroundState(system, "as set")
    if system.nuclei == 1:
        return GroundState(system, "by Hund's rules")
    if system.electrons < 3:
        return GroundState(system, "the lowest state of so few electrons")
    is_file = isinstance(molecule, Path) or str(molecule).lower().endswith(".xyz")
    if system.charge == 0 and (not is_file or known_spin(system.symbols) is not None):
        return GroundState(system, "known for this molecule")
    return _compare(system, energy_of or _hartree_fock, tell)


def show_electrons(up: int, down: int) -> str:
    """Return `9 up, 7 down (triplet)`."""
    return f"{up} up, {down} down ({multiplet(up - down)})"


def multiplet(spin: int) -> str:
    """Return the name of the states with this many unpaired electrons."""
    return _MULTIPLETS[spin] if spin < len(_MULTIPLETS) else f"{spin} unpaired"


def _hartree_fock(system: System) -> float:
    from pinchpoint.systems.vmc.data.hartree_fock import energy_by_hartree_fock

    return energy_by_hartree_fock(system)


def _compare(system: System, energy_of: EnergyOf, tell: Callable[[str], None]) -> GroundState:
    energies: dict[int, float] = {}
    failures: dict[int, BadInput] = {}
    for spin in _candidates(system):
        tell(f"Hartree-Fock of the {multiplet(spin)} of {system.name}")
        try:
            energies[spin] = energy_of(_with_spin(system, spin))
        except Missing:
            advice = "set --spin, or run pip install 'pinchpoint[pyscf]'"
            return GroundState(system, f"a guess, because PySCF is not installed; {advice}")
        except BadInput as error:  # one spin may fail to converge where another is easy
            failures[spin] = error
            continue
        if energies[spin] > min(energies.values()) + _TOO_HIGH_HA:
            break
    if not energies:
        others = [error for error in failures.values() if not isinstance(error, NotConverged)]
        reason = _clause(others[0]) if others else "Hartree-Fock did not converge"
        return GroundState(system, f"a guess, because {reason}; set --spin")
    best = _lowest(energies)
    return GroundState(_with_spin(system, best), _explain(best, energies) + _name_failures(failures))


def _with_spin(system: System, spin: int) -> System:
    return replace(system, up=(system.electrons + spin) // 2, down=(system.electrons - spin) // 2)


def _candidates(system: System) -> range:
    """Return the spins to compare: up to that of the separate atoms."""
    lowest = system.electrons % 2
    separate = sum(spin_of_atom(charge) for charge in system.charges) + abs(system.charge)
    highest = min(separate, system.electrons, lowest + 2 * (_MOST_CANDIDATES - 1))
    return range(lowest, max(lowest, highest) + 1, 2)


def _lowest(energies: Mapping[int, float]) -> int:
    best = min(energies)
    for spin in sorted(energies):
        if energies[spin] < energies[best] - MARGIN_HA:
            best = spin
    return best


def _explain(best: int, energies: Mapping[int, float]) -> str:
    others = {spin: energy - energies[best] for spin, energy in energies.items() if spin != best}
    text = "the lowest by Hartree-Fock"
    if others:
        text += (
            f" ({', '.join(f'{multiplet(spin)} {apart * 1e3:+.0f} mHa' for spin, apart in others.items())})"
        )
    near = [spin for spin, apart in others.items() if apart < CLOSE_HA]
    if near:
        choices = " or ".join(f"--spin {spin}" for spin in near)
        text += f"; that is close, so compare with {choices}"
    return text


def _name_failures(failures: Mapping[int, BadInput]) -> str:
    """Return the spins without an energy, one of which may be the ground state; empty if there are none."""
    text = ""
    spins = [spin for spin, error in failures.items() if isinstance(error, NotConverged)]
    if spins:
        names = " and ".join(f"the {multiplet(spin)}" for spin in spins)
        text += f"; {names} did not converge, compare with {' or '.join(f'--spin {spin}' for spin in spins)}"
    for spin, error in failures.items():
        if spin not in spins:
            text += f"; the {multiplet(spin)} was not compared, because {_clause(error)}"
    return text


def _clause(error: BadInput) -> str:
    """Return what is wrong as a clause: `the basis ...`, `PySCF has no basis ...`."""
    text = first_line(error).rstrip(".")
    return f"the {text[4:]}" if text.startswith("The ") else text
