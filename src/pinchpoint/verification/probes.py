"""Probes of a baseline and a variant on the same seeds, sizes and chunks, as plain arrays.

A fault that needs a ragged last chunk does not show at a round size, nor one that needs several
chunks where the whole size is one: so a size that no small number divides is tried beside the one
asked for, and workloads that take a chunk are cut into three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pinchpoint.backends.base import Backend
from pinchpoint.core import targets
from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.units import show_size
from pinchpoint.core.workload import Case, Mode, Probe, Workload


@dataclass(frozen=True)
class Way:
    """One way to build the same case of two variants."""

    size: int
    seed: int
    chunk: int | None = None

    def __str__(self) -> str:
        cut = f", chunk {show_size(self.chunk)}" if self.chunk is not None else ""
        return f"size {show_size(self.size)}{cut}, seed {self.seed}"


def ways(workload: Workload, size: int, seed: int) -> tuple[Way, ...]:
    """The size asked for, then a ragged one with another seed, then that one cut into chunks."""
    asked, odd = Way(size, seed), Way(ragged(size), seed + 1)
    return (asked, odd, replace(odd, chunk=cut(odd.size))) if workload.chunked else (asked, odd)


def ragged(size: int) -> int:
    """A third larger, and divisible by none of 2, 3, 5 and 7: most chunks leave a sizeable rest."""
    larger = size + size // 3 + 1
    while math.gcd(larger, 2 * 3 * 5 * 7) > 1:
        larger += 1
    return larger


def cut(size: int) -> int:
    """A chunk that leaves two whole ones and a half."""
    return max(1, 2 * size // 5)


@dataclass(frozen=True)
class Bench:
    """Where the cases of one workload are built and run."""

    workload: Workload
    backend: Backend
    device: str
    mode: Mode
    settings: Mapping[str, str] = field(default_factory=dict)

    def probed(self, variant: str, way: Way) -> tuple[Case, Probe]:
        """Build one case and evaluate it once."""
        case = self.case(variant, way)
        return case, self.probe(case, variant, way)

    def case(self, variant: str, way: Way) -> Case:
        self.backend.seed(way.seed)
        try:
            case = self.workload.case(
                way.size,
                device=self.device,
                mode=self.mode,
                variant=variant,
                seed=way.seed,
                chunk=way.chunk,
                settings=self.settings,
            )
        except PinchpointError:
            raise
        except Exception as error:
            raise targets.explain_failure(
                f"{self.workload.name} {variant} at {way}", error, "building"
            ) from error
        if not isinstance(case, Case):
            got = f"building {self.workload.name} {variant} gave a {type(case).__name__}"
            raise BadInput(got, hint="return a pinchpoint.Case from build")
        return case

    def probe(self, case: Case, variant: str, way: Way) -> Probe:
        """Evaluate once, the global random state seeded alike for every variant."""
        if case.probe is None:
            raise BadInput(
                f"{self.workload.name} {variant} has no probe, so there is nothing to compare",
                hint="give its Case a probe that returns a pinchpoint.Probe of outputs and gradients",
            )
        self.backend.seed(way.seed)
        try:
            found = case.probe()
            return Probe(self._arrays(found.outputs), self._arrays(found.gradients))
        except PinchpointError:
            raise
        except Exception as error:
            raise targets.explain_failure(
                f"{self.workload.name} {variant} at {way}", error, "probing"
            ) from error

    def _arrays(self, named: Any) -> dict[str, Any]:
        return {
            str(name): None if value is None else self.backend.to_numpy(value)
            for name, value in named.items()
        }
