"""Which programs run on several devices, and what may be computed on those of the CPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.script import recipes


def _sum_over_devices(count: int):
    mesh = AbstractMesh((count,), ("d",))
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=P("d"), out_specs=P())
    return jax.make_jaxpr(jax.jit(mapped))(jnp.ones(8)).eqns[0]


def test_a_mesh_inside_a_program_is_found() -> None:
    inner = _sum_over_devices(8).params["jaxpr"].jaxpr.eqns[0]
    assert compat.mesh_size(inner) == 8
    assert compat.mesh_size(jax.make_jaxpr(jnp.sin)(1.0).eqns[0]) == 1


def test_a_value_behind_a_collective_between_devices_stays_unknown() -> None:
    eqn = _sum_over_devices(8)
    call = recipes.Call(eqn.primitive, eqn.params, [recipes.constant(np.ones(8))])
    assert recipes.Recipe(call).compute() is None
