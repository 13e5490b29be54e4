"""Hartree-Fock orbitals as plain arrays, evaluated in JAX without a chemistry library.

Letters: K primitives, n electrons, k orbitals of one spin. An orbital is a sum over primitives x^i y^j z^l
exp(-alpha r^2), each centred on a nucleus. `HartreeFock` holds all of them and is stored as an npz file.
Lengths are in bohr, energies in hartree.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.systems.common.data.sample_file import FAILURES, load_npz
from pinchpoint.systems.vmc.data.system import System
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants

Array = jax.Array
_HINT = "Compute them with: pinchpoint vmc orbitals MOLECULE -o FILE.npz"


@dataclass(frozen=True, eq=False)
class HartreeFock:
    """A Hartree-Fock solution.

    nuclei: (K,), the nucleus of each primitive; powers: (K, 3); exponents: (K,); up, down: (K, k),
    coefficients of the occupied orbitals of each spin; positions: (M, 3), those of the nuclei it was solved
    for; charges: (M,), atomic numbers; energy_ha: the total energy; pseudopotential: as in `System`.
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
    pseudopotential: str = ""

    def save(self, path: str | Path) -> Path:
        """Write an npz file, without pickle."""
        buffer = io.BytesIO()
        parts: dict[str, Any] = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        np.savez_compressed(buffer, **parts)
        return write_bytes(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> HartreeFock:
        """Read a file written by `save`."""
        try:
            arrays = load_npz(path)
            # Files of earlier versions have no pseudopotential.
            parts = {field.name: arrays[field.name] for field in fields(cls) if field.name in arrays}
            plain = {"energy_ha": float(parts["energy_ha"]), "basis": str(parts["basis"])}
            potential = str(parts.get("pseudopotential", ""))
            return cls(**{**parts, **plain, "pseudopotential": potential})
        except FileNotFoundError as error:
            raise BadInput(f"{path} cannot be read: {error.strerror}.", hint=_HINT) from error
        except FAILURES as error:
            raise BadInput(f"{path} does not contain Hartree-Fock orbitals.", hint=_HINT) from error

    def fits(self, system: System) -> bool:
        """Return whether these orbitals are for the nuclei and spins of a system, at any positions."""
        return (tuple(self.charges), self.up.shape[1], self.down.shape[1], self.pseudopotential) == (
            system.charges,
            system.up,
            system.down,
            system.pseudopotential,
        )


def evaluate(field: HartreeFock, system: System, x: Array, *, coefficients: np.ndarray) -> Array:
    """Return the values (n, k) at x: (n, 3) of the orbitals with these coefficients (K, k).

    Primitives move with the nuclei.
    """
    centres = np.asarray(system.positions)[field.nuclei]
    d = x[:, None, :] - jnp.asarray(centres, dtype=x.dtype)
    values = jnp.exp(-jnp.asarray(field.exponents, dtype=x.dtype) * jnp.sum(d * d, axis=-1))
    for power in range(1, int(field.powers.max()) + 1):
        # One more factor for each coordinate whose power is at least this; powers are small integers.
        values = values * jnp.prod(jnp.where(jnp.asarray(field.powers >= power), d, 1.0), axis=-1)
    return jnp.matmul(values, jnp.asarray(coefficients, dtype=x.dtype), precision=jax.lax.Precision.HIGHEST)


def orbital_blocks(field: HartreeFock, system: System, x: Array) -> tuple[Array, ...]:
    """Return (k, k) for each spin that occurs; rows are electrons, columns orbitals. x: (n, 3)."""
    sides = ((x[: system.up], field.up), (x[system.up :], field.down))
    return tuple(
        evaluate(field, system, places, coefficients=side) for places, side in sides if side.shape[1]
    )


def log_determinant(field: HartreeFock, system: System, x: Array) -> Array:
    """Return log|Slater determinant| of one walker x: (n, 3)."""
    return sum_of_determinants([block[None] for block in orbital_blocks(field, system, x)])[1]
