"""GPT-2 with `pmap`: every device has a copy of the weights, and `pmean` averages the gradients."""

import argparse
from functools import partial

import jax
import numpy as np
from models import VOCABULARY, adam, gpt_loss, init_gpt, start_adam

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=4, help="of each device")
parser.add_argument("--layers", type=int, default=6)
parser.add_argument("--sequence", type=int, default=1024)
args = parser.parse_args()

count = jax.local_device_count()
keys = jax.random.split(jax.random.key(0), count)
params = jax.pmap(lambda key: init_gpt(key, args.layers, args.sequence))(keys)
opt_state = jax.pmap(start_adam)(params)


@partial(jax.pmap, axis_name="devices", donate_argnums=(0, 1))
def step(params, opt_state, tokens):
    loss, grads = jax.value_and_grad(partial(gpt_loss, unroll=True))(params, tokens)
    return *adam(params, opt_state, jax.lax.pmean(grads, "devices")), loss


shape = (count, args.batch, args.sequence + 1)
tokens = np.random.default_rng(0).integers(0, VOCABULARY, shape, dtype=np.int32)
for _ in range(3):
    params, opt_state, loss = step(params, opt_state, tokens)
    loss.block_until_ready()
