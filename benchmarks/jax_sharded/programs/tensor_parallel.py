"""A deep MLP on a mesh of two axes: a divided batch, and hidden features divided as in Megatron."""

import argparse

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from models import adam, start_adam

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32768)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--width", type=int, default=2048)
parser.add_argument("--hidden", type=int, default=8192)
args = parser.parse_args()

count = jax.device_count()
model = min(4, count)
mesh = jax.make_mesh((count // model, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
up, down = NamedSharding(mesh, P(None, "model")), NamedSharding(mesh, P("model", None))
rows = NamedSharding(mesh, P("data"))
shardings = [{"up": up, "down": down} for _ in range(args.layers)]


def init(key):
    keys = jax.random.split(key, args.layers)
    return [
        {
            "up": 0.02 * jax.random.normal(k, (args.width, args.hidden)),
            "down": 0.02 * jax.random.normal(k, (args.hidden, args.width)),
        }
        for k in keys
    ]


def loss_of(params, x):
    for w in params:
        hidden = jax.nn.gelu(x @ w["up"])
        x = jax.lax.with_sharding_constraint(x + hidden @ w["down"], rows)
    return jnp.mean(x**2)


@jax.jit(donate_argnums=(0, 1))
def step(params, opt_state, x):
    loss, grads = jax.value_and_grad(loss_of)(params, x)
    return *adam(params, opt_state, grads), loss


params = jax.jit(init, out_shardings=shardings)(jax.random.key(0))
opt_state = start_adam(params)
x = jax.jit(lambda: jnp.ones((args.batch, args.width)), out_shardings=rows)()
for _ in range(3):
    params, opt_state, loss = step(params, opt_state, x)
    loss.block_until_ready()
