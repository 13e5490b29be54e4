"""Pseudopotentials: what replaces a nucleus and its core electrons, by the symbol of the element.

`ccecp.json` has the correlation consistent effective core potentials of H to Kr, with their citations. H and
He have no core: their potentials only round off the attraction at the nucleus. Lengths are in bohr, energies
in hartree. Imports no framework.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pinchpoint.core.errors import BadInput

NAMES = ("ccecp",)
NEGLIGIBLE_HA = 1e-5  # a non-local potential below this is left out

Term = tuple[int, float, float]  # n, a, c of c r^(n - 2) exp(-a r^2)


@dataclass(frozen=True)
class Pseudopotential:
    """The potential of one core. core: the electrons it replaces.

    local: the local potential without the attraction -Z / r; channels: those of s, p, d, minus the local one,
    which have only terms of n = 2.
    """

    core: int
    local: tuple[Term, ...]
    channels: tuple[tuple[Term, ...], ...]

    @property
    def reach_bohr(self) -> float:
        """The distance beyond which the non-local potential is negligible; 0 without one."""
        radii = [
            math.sqrt(math.log((2 * degree + 1) * len(terms) * abs(c) / NEGLIGIBLE_HA) / a)
            for degree, terms in enumerate(self.channels)
            for _, a, c in terms
        ]
        return max(radii, default=0.0)


def pseudopotentials(name: str, symbols: Sequence[str]) -> tuple[Pseudopotential, ...]:
    """Return the pseudopotential of each element; BadInput for an unknown name."""
    if name not in NAMES:
        raise BadInput(f"There is no pseudopotential {name!r:.40}.", hint=f"Use one of: {', '.join(NAMES)}.")
    elements = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))["elements"]
    by_symbol = {symbol: _parse(elements[symbol]) for symbol in set(symbols)}
    return tuple(by_symbol[symbol] for symbol in symbols)


def _parse(entry: dict[str, object]) -> Pseudopotential:
    core, channels = entry["core"], entry["channels"]
    assert isinstance(core, int) and isinstance(channels, list)
    local, *others = (tuple((int(n), float(a), float(c)) for n, a, c in terms) for terms in channels)
    assert all(n == 2 and c for terms in others for n, _, c in terms)
    return Pseudopotential(core, local, tuple(others))
