"""A training step of H2 and its parts beside the code of the FermiNeuT report, and ways to local energies.

The cases are in `bench_cases`, which imports JAX; `cases` does so after `start_jax` has set the number of
LAPACK threads.
"""

from __future__ import annotations

from pinchpoint.systems.common.bench.cases import BenchCase
from pinchpoint.systems.vmc.cli import start_jax


def cases() -> tuple[BenchCase, ...]:
    start_jax()
    from pinchpoint.systems.vmc.bench_cases import all_cases

    return all_cases()
