"""Probes of a baseline and a variant at the same seeds, sizes and chunks, as plain arrays.

Some faults show only with a ragged last chunk, and some only with several chunks. A size that no small
number divides is therefore tried in addition to the requested one, and workloads that take a chunk
are run in three chunks.
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
class CaseSpec:
    """The size, seed and chunk with which both variants are built."""

    size: int
    seed: int
    chunk: int | None = None

    def __str__(self) -> str:
        chunk = f", chunk {show_size(self.chunk)}" if self.chunk is not None else ""
        return f"size {show_size(self.size)}{chunk}, seed {self.seed}"


def case_specs(workload: Workload, size: int, seed: int) -> tuple[CaseSpec, ...]:
    """Return the requested size, a ragged size with another seed and, if the workload takes one, a chunk."""
    first, odd = CaseSpec(size, seed), CaseSpec(ragged_size(size), seed + 1)
    return (first, odd, replace(odd, chunk=ragged_chunk(odd.size))) if workload.chunked else (first, odd)


def ragged_size(size: int) -> int:
    """Return a size about a third larger that 2, 3, 5 and 7 do not divide.

    Most chunks leave a large remainder.
    """
    larger = size + size // 3 + 1
    while math.gcd(larger, 2 * 3 * 5 * 7) > 1:
        larger += 1
    return larger


def ragged_chunk(size: int) -> int:
    """Return a chunk that divides the size into two whole chunks and a half."""
    return max(1, 2 * size // 5)


@dataclass(frozen=True)
class CaseBuilder:
    """Builds and probes the cases of one workload on one device."""

    workload: Workload
    backend: Backend
    device: str
    mode: Mode
    settings: Mapping[str, str] = field(default_factory=dict)

    def build_and_probe(self, variant: str, spec: CaseSpec) -> tuple[Case, Probe]:
        """Build one case and evaluate it once."""
        case = self.build(variant, spec)
        return case, self.probe(case, variant, spec)

    def build(self, variant: str, spec: CaseSpec) -> Case:
        """Build one case."""
        self.backend.seed(spec.seed)
        try:
            case = self.workload.case(
                spec.size,
                device=self.device,
                mode=self.mode,
                variant=variant,
                seed=spec.seed,
                chunk=spec.chunk,
                settings=self.settings,
            )
        except PinchpointError:
            raise
        except Exception as error:
            raise targets.explain_failure(
                f"{self.workload.name} {variant} at {spec}", error, "building"
            ) from error
        if not isinstance(case, Case):
            raise BadInput(
                f"Building {self.workload.name} {variant} returned a {type(case).__name__}, not a Case.",
                hint="Return a pinchpoint.Case from build.",
            )
        return case

    def probe(self, case: Case, variant: str, spec: CaseSpec) -> Probe:
        """Evaluate the case once, with the same global seed for every variant."""
        if case.probe is None:
            raise BadInput(
                f"{self.workload.name} {variant} has no probe, so there is nothing to compare.",
                hint="Give its Case a probe that returns a pinchpoint.Probe of outputs and gradients.",
            )
        self.backend.seed(spec.seed)
        try:
            result = case.probe()
            return Probe(self._to_arrays(result.outputs), self._to_arrays(result.gradients))
        except PinchpointError:
            raise
        except Exception as error:
            raise targets.explain_failure(
                f"{self.workload.name} {variant} at {spec}", error, "probing"
            ) from error

    def _to_arrays(self, values: Any) -> dict[str, Any]:
        return {
            str(name): None if value is None else self.backend.to_numpy(value)
            for name, value in values.items()
        }
