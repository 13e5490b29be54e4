"""Arrays on eight devices: what JAX itself says about them, which a simulated run must say too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P


def check(array, shard_shape, devices=8):
    assert array.sharding.shard_shape(array.shape) == shard_shape, (array.sharding, shard_shape)
    assert len(array.devices()) == devices
    assert array.addressable_shards[-1].data.shape == shard_shape


assert jax.device_count() == jax.local_device_count() == len(jax.devices()) == 8
mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("data", "model"))


def on(*axes):
    return NamedSharding(mesh, P(*axes))


x = jax.device_put(np.ones((64, 32), np.float32), on("data"))
w = jax.device_put(jnp.ones((32, 16)), on(None, "model"))
check(x @ w, (16, 8))
check(x * 2 + 1, (16, 32))
check(jnp.zeros_like(x), (16, 32))
check(x.sum(0), (32,))
check(jnp.ones(3), (3,), devices=1)
check(jax.jit(lambda a: a + 1, out_shardings=on("model", "data"))(x), (32, 8))
check(jax.jit(lambda a: jax.lax.with_sharding_constraint(a + 1, on(None, "model")))(x), (64, 16))
check(jax.jit(lambda a: a * 2, in_shardings=on("data"))(np.ones((64, 3), np.float32)), (16, 3))
check(jax.make_array_from_callback((16, 8), on("data"), lambda index: np.ones((16, 8))[index]), (4, 8))
check(jax.device_put(x, on()), (64, 32))
check(jax.device_put(jnp.ones(8), jax.devices()[3]) + 1, (8,), devices=1)
for function, out, shape in (
    (lambda a: jax.lax.psum(a, "data"), P(), (16, 32)),
    (lambda a: jax.lax.all_gather(a, "data", tiled=True), P(None), (64, 32)),
    (
        lambda a: jax.lax.ppermute(a, "data", [(i, (i + 1) % 4) for i in range(4)]),
        P("data"),
        (16, 32),
    ),
):
    mapped = jax.shard_map(function, mesh=mesh, in_specs=P("data"), out_specs=out, check_vma=False)
    check(jax.jit(mapped)(x), shape)
check(jax.pmap(lambda a: jax.lax.pmean(a, "i"), axis_name="i")(np.ones((8, 4), np.float32)), (1, 4))
explicit = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
with jax.set_mesh(explicit):
    check(jax.jit(jnp.sin)(jax.device_put(jnp.ones((64, 4)), P("d"))), (8, 4))

old = jax.jit(lambda a: a + 1, donate_argnums=0)(x)
assert x.is_deleted()

# Weights and states of Adam divided over all devices, as FSDP does; the forecast is for this part.
rows = NamedSharding(mesh, P(("data", "model")))
params = jax.jit(lambda: {"w": jnp.ones((1024, 1024))}, out_shardings=rows)()
optimizer = optax.adam(1e-3)
opt_state = optimizer.init(params)
check(opt_state[0].mu["w"], (128, 1024))


@jax.jit
def step(params, opt_state, batch):
    grads = jax.grad(lambda p: jnp.mean((batch @ p["w"]) ** 2))(params)
    updates, opt_state = optimizer.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state


batch = jax.device_put(np.ones((4096, 1024), np.float32), rows)
for _ in range(3):
    params, opt_state = step(params, opt_state, batch)
check(params["w"], (128, 1024))
