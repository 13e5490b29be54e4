"""GPT-2 blocks under `shard_map`: `all_gather` of each layer's weights, whose gradients are scattered."""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models import WIDTH, adam, block, layer_shapes, start_adam

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--sequence", type=int, default=1024)
args = parser.parse_args()

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
divided = NamedSharding(mesh, P("data"))


def init(key):
    keys = jax.random.split(key, args.layers)
    return [
        {name: 0.02 * jax.random.normal(key, shape) for name, shape in layer_shapes().items()} for key in keys
    ]


def loss_of(params, x):
    for w in params:
        whole = {name: jax.lax.all_gather(part, "data", tiled=True) for name, part in w.items()}
        x = block(x, whole)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def local_step(params, opt_state, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    params, opt_state = adam(params, opt_state, grads)
    return params, opt_state, jax.lax.pmean(loss, "data")


step = jax.jit(
    jax.shard_map(
        local_step,
        mesh=mesh,
        in_specs=(P("data"), P("data"), P("data")),
        out_specs=(P("data"), P("data"), P()),
        check_vma=False,
    ),
    donate_argnums=(0, 1),
)
params = jax.jit(init, out_shardings=divided)(jax.random.key(0))
opt_state = start_adam(params)
shape = (args.batch, args.sequence, WIDTH)
x = jax.jit(lambda: jnp.ones(shape, jnp.bfloat16), out_shardings=divided)()
for _ in range(3):
    params, opt_state, loss = step(params, opt_state, x)
    loss.block_until_ready()
