"""GPT-2 with weights on every device and a divided batch: `NamedSharding` and `jit`."""

import argparse

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from models import VOCABULARY, adam, gpt_loss, init_gpt, start_adam

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--sequence", type=int, default=1024)
args = parser.parse_args()

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
everywhere, divided = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
params = jax.jit(lambda key: init_gpt(key, args.layers, args.sequence), out_shardings=everywhere)(
    jax.random.key(0)
)
opt_state = jax.jit(start_adam, out_shardings=everywhere)(params)


@jax.jit(donate_argnums=(0, 1))
def step(params, opt_state, tokens):
    loss, grads = jax.value_and_grad(lambda p: gpt_loss(p, tokens, unroll=True))(params)
    return *adam(params, opt_state, grads), loss


data = np.random.default_rng(0).integers(0, VOCABULARY, (args.batch, args.sequence + 1), dtype=np.int32)
for _ in range(3):
    tokens = jax.make_array_from_callback(data.shape, divided, lambda index: data[index])
    params, opt_state, loss = step(params, opt_state, tokens)
    loss.block_until_ready()
