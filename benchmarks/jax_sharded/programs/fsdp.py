"""GPT-2 with divided weights and Adam states, as FSDP or ZeRO-3: XLA gathers the weights of a layer."""

import argparse

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models import VOCABULARY, adam, gpt_loss, init_gpt, start_adam

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--layers", type=int, default=12)
parser.add_argument("--sequence", type=int, default=1024)
args = parser.parse_args()

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
divided = NamedSharding(mesh, P("data"))


def sharding_of(weight):
    """Divide the largest axis, but not that of the layers."""
    axes: list[str | None] = [None] * len(weight.shape)
    axes[max(range(len(axes)), key=lambda axis: weight.shape[axis])] = "data"
    return NamedSharding(mesh, P(*axes))


def init(key):
    return init_gpt(key, args.layers, args.sequence)


shardings = jax.tree.map(sharding_of, jax.eval_shape(init, jax.random.key(0)))
params = jax.jit(init, out_shardings=shardings)(jax.random.key(0))
opt_state = jax.jit(start_adam, out_shardings={"mean": shardings, "square": shardings})(params)


def keep(x):
    return jax.lax.with_sharding_constraint(x, divided)


def train(params, opt_state, tokens):
    loss, grads = jax.value_and_grad(lambda p: gpt_loss(p, tokens, keep=keep))(params)
    return *adam(params, opt_state, grads), loss


states = {"mean": shardings, "square": shardings}
step = jax.jit(
    train,
    in_shardings=(shardings, states, divided),
    out_shardings=(shardings, states, None),
    donate_argnums=(0, 1),
)
data = np.random.default_rng(0).integers(0, VOCABULARY, (args.batch, args.sequence + 1), dtype=np.int32)
for _ in range(3):
    tokens = jax.make_array_from_callback(data.shape, divided, lambda index: data[index])
    params, opt_state, loss = step(params, opt_state, tokens)
    loss.block_until_ready()
