"""Hartree-Fock orbitals as plain arrays, evaluated in JAX without a chemistry library.

Letters: K primitives, n electrons, k orbitals of one spin. An orbital is a sum over primitives x^i y^j z^l exp(-alpha r^2), each
about one of the nuclei; `HartreeFock` holds them all and survives an npz file. Lengths in bohr, energies in hartree.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants

Array = jax.Array
_HINT = "make them with: pinchpoint vmc orbitals MOLECULE -o FILE.npz"


@dataclass(frozen=True, eq=False)
class HartreeFock:
    """One self-consistent field.

    nuclei: (K,) which nucleus each primitive sits on; powers: (K, 3); exponents: (K,); up, down: (K, k) coefficients of the
    filled orbitals of each spin; positions: (M, 3) of the nuclei it was solved for; charges: (M,); energy_ha: the total energy.
    """

    nuclei: np.ndarray
    powers: np.ndarray
    exponents: np.ndarray
    up: np.ndarray
    down: np.ndarray
    positions: np.ndarray
    charges: np.ndarray
    energy_ha: float
    basis: str

    def save(self, path: str | Path) -> Path:
        """As npz, without pickle."""
        buffer = io.BytesIO()
        parts: dict[str, Any] = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        np.savez_compressed(buffer, **parts)
        return write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> HartreeFock:
        """What `save` wrote."""
        try:
            with np.load(path, allow_pickle=False) as file:
                parts = {field.name: file[field.name] for field in fields(cls)}
        except FileNotFoundError as error:
            raise BadInput(f"cannot read {path}: {error.strerror}", hint=_HINT) from error
        except (OSError, EOFError, KeyError, ValueError, BadZipFile) as error:
            raise BadInput(f"{path} holds no Hartree-Fock orbitals", hint=_HINT) from error
        return cls(**{**parts, "energy_ha": float(parts["energy_ha"]), "basis": str(parts["basis"])})

    def fits(self, system: System) -> bool:
        """Whether these are orbitals for as many electrons of each spin about the same nuclei, wherever those are."""
        return (tuple(self.charges), self.up.shape[1], self.down.shape[1]) == (
            system.charges,
            system.up,
            system.down,
        )


def evaluate(field: HartreeFock, system: System, x: Array, *, coefficients: np.ndarray) -> Array:
    """(n, k) values at x: (n, 3) of the orbitals whose coefficients (K, k) are given. Primitives follow the system's nuclei."""
    centres = np.asarray(system.positions)[field.nuclei]
    d = x[:, None, :] - jnp.asarray(centres, dtype=x.dtype)
    values = jnp.exp(-jnp.asarray(field.exponents, dtype=x.dtype) * jnp.sum(d * d, axis=-1))
    for power in range(1, int(field.powers.max()) + 1):
        # One factor more for each coordinate whose power reaches this far: powers are small whole numbers.
        values = values * jnp.prod(jnp.where(jnp.asarray(field.powers >= power), d, 1.0), axis=-1)
    return jnp.matmul(values, jnp.asarray(coefficients, dtype=x.dtype), precision=jax.lax.Precision.HIGHEST)


def orbital_blocks(field: HartreeFock, system: System, x: Array) -> tuple[Array, ...]:
    """(k, k) for each spin there is: rows its electrons, columns its orbitals. x: (n, 3)."""
    sides = ((x[: system.up], field.up), (x[system.up :], field.down))
    return tuple(
        evaluate(field, system, places, coefficients=side) for places, side in sides if side.shape[1]
    )


def log_determinant(field: HartreeFock, system: System, x: Array) -> Array:
    """log|Slater determinant| of one walker x: (n, 3)."""
    return sum_of_determinants([block[None] for block in orbital_blocks(field, system, x)])[1]
