"""Contenders from a workload: a training step of each variant, compared through the workload's probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pinchpoint.core.workload import Probe, Workload
from pinchpoint.systems.common.bench.cases import Contender, Run, Setup
from pinchpoint.systems.common.bench.records import Agreement, Role


def variant_contender(
    workload: Workload,
    setup: Setup,
    variant: str,
    *,
    name: str | None = None,
    role: Role = "variant",
    settings: Mapping[str, str],
    reference: Callable[[], Probe],
    check_size: int,
    tolerance: float,
    chunk: int | None = None,
    note: str = "",
) -> Contender:
    """Return a training step of a variant.

    reference: the probe of the baseline at `check_size` points. tolerance: the largest relative difference of
    outputs and gradients that counts as equal.
    """
    own_chunk = chunk or workload.variant(variant).chunk

    def make() -> Run:
        case = workload.case(
            setup.size,
            device=setup.device,
            variant=variant,
            seed=setup.seed,
            chunk=own_chunk,
            settings=settings,
        )
        return lambda: case.step(*case.args)

    def check(_: Any) -> Agreement:
        probe = probe_of(workload, setup, variant, settings, check_size, own_chunk)
        return agreement(reference(), probe, tolerance=tolerance, size=check_size, axis=workload.axis)

    return Contender(name or variant, make, role, check=check, note=note)


def probe_of(
    workload: Workload,
    setup: Setup,
    variant: str,
    settings: Mapping[str, str],
    size: int,
    chunk: int | None = None,
) -> Probe:
    case = workload.case(
        size, device=setup.device, variant=variant, seed=setup.seed, chunk=chunk, settings=settings
    )
    assert case.probe is not None
    return case.probe()


def agreement(expected: Probe, probe: Probe, *, tolerance: float, size: int, axis: str) -> Agreement:
    """Compare the outputs and gradients that both probes have, by relative L2 distance."""
    pairs = [
        (expected.outputs[name], probe.outputs[name]) for name in expected.outputs.keys() & probe.outputs
    ]
    pairs += [
        (expected.gradients[name], probe.gradients[name])
        for name in expected.gradients.keys() & probe.gradients
    ]
    worst = max(_distance(a, b) for a, b in pairs if a is not None and b is not None)
    return Agreement(f"outputs and gradients of {size:,} {axis}", worst, worst <= tolerance)


def _distance(expected: Any, values: Any) -> float:
    a, b = (np.asarray(one, dtype=np.float64) for one in (expected, values))
    scale = float(np.linalg.norm(a))
    return float(np.linalg.norm(b - a)) / (scale or 1.0)
