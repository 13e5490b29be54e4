"""Has a training gone wrong, and why: numbers that are none, an energy that explodes, one that no molecule has.

Looks at rows of the log alone. The median of a few steps is judged, since a single step may lie far off: a local energy has
no bound near a node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.logs import Row
from pinchpoint.systems.vmc.settings import Settings

_RISE = 0.2  # of the lowest energy,
_RISE_HA = 0.5  # and at least so much: a training may climb for a while, but not by this
_BELOW_HA = 2.0  # what noise may go below the lowest energy there is
_STUCK, _LOOSE = 0.02, 0.98  # acceptance below and above which walkers do not sample


def floor_ha(system: System) -> float:
    """No energy is lower: every electron alone with all nuclei in one place, and the nuclei's own repulsion."""
    return -system.electrons * sum(system.charges) ** 2 / 2 + system.repulsion


def fault(rows: Sequence[Row], *, lowest_ha: float | None, system: System) -> tuple[int, str] | None:
    """The step and what is wrong there; None where nothing is. lowest_ha: the lowest median of rows before these."""
    for row in rows:
        for name, value in (
            ("energy", row.energy_ha),
            ("variance", row.variance),
            ("change of the parameters", row.norm),
        ):
            if not math.isfinite(value):
                return row.step, f"the {name} is not finite"
    if not rows:
        return None
    now = median(row.energy_ha for row in rows)
    if now < floor_ha(system) - _BELOW_HA:
        return rows[-1].step, f"the energy of {now:.6g} Ha is lower than any that {system.name} can have"
    if lowest_ha is not None and now > lowest_ha + max(_RISE_HA, _RISE * abs(lowest_ha)):
        return rows[-1].step, f"the energy exploded from {lowest_ha:.6g} to {now:.6g} Ha"
    return None


def likely_cause(row: Row, settings: Settings) -> tuple[str, str]:
    """Why it went wrong at a row, and the options to train again with."""
    if (
        math.isfinite(row.energy_ha) and not _STUCK <= row.acceptance <= _LOOSE
    ):  # of numbers that are none, no move is accepted
        return (
            f"walkers that do not sample ({row.acceptance:.1%} of the moves were accepted, {row.width:.3g} bohr wide)",
            f"--moves {2 * settings.moves} or --set burn={max(100, 4 * settings.burn)}",
        )
    rate = "adam_rate" if row.step <= settings.adam_until else "spring_rate"
    cause = f"{rate} being too high ({getattr(settings, rate):g})"
    hint = f"--set {rate}={getattr(settings, rate) / 4:.2g}"
    if settings.walkers < 256:
        cause, hint = (
            cause + f", or gradients of {settings.walkers:,} walkers being too noisy",
            hint + f" --walkers {4 * settings.walkers}",
        )
    elif settings.precision == "float32" and rate == "spring_rate":
        cause, hint = cause + ", or float32 being too coarse for SPRING", hint + " --precision float64"
    return cause, hint
