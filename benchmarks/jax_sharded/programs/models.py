"""A GPT-2 and Adam in plain JAX, for the programs of this benchmark."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

VOCABULARY, WIDTH, HEADS = 50304, 768, 12


def layer_shapes(width: int = WIDTH) -> dict[str, tuple[int, ...]]:
    return {
        "norm1": (width,),
        "qkv": (width, 3 * width),
        "out": (width, width),
        "norm2": (width,),
        "up": (width, 4 * width),
        "down": (4 * width, width),
    }


def init_gpt(key: Any, layers: int, sequence: int) -> dict[str, Any]:
    """Weights of a GPT-2; those of all layers are stacked."""
    shapes = {name: (layers, *shape) for name, shape in layer_shapes().items()}
    keys = iter(jax.random.split(key, len(shapes) + 2))
    params: dict[str, Any] = {
        name: jnp.ones(shape) if "norm" in name else 0.02 * jax.random.normal(next(keys), shape)
        for name, shape in shapes.items()
    }
    return {
        "layers": params,
        "tokens": 0.02 * jax.random.normal(next(keys), (VOCABULARY, WIDTH)),
        "positions": 0.02 * jax.random.normal(next(keys), (sequence, WIDTH)),
        "norm": jnp.ones(WIDTH),
    }


def normalize(x: Any, scale: Any) -> Any:
    x = x.astype(jnp.float32)
    mean = x.mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * scale).astype(jnp.bfloat16)


def block(x: Any, w: dict[str, Any]) -> Any:
    """One layer: attention and two linear layers, in bf16. x: (batch, sequence, width)."""
    batch, sequence, width = x.shape
    w = {name: weight.astype(jnp.bfloat16) for name, weight in w.items()}
    q, k, v = jnp.split(normalize(x, w["norm1"]) @ w["qkv"], 3, -1)
    q, k, v = (y.reshape(batch, sequence, HEADS, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / (width // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((sequence, sequence), bool)), scores, -1e9)
    weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(jnp.bfloat16)
    y = jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + y @ w["out"]
    return x + jax.nn.gelu(normalize(x, w["norm2"]) @ w["up"]) @ w["down"]


def gpt_loss(params: dict[str, Any], tokens: Any, *, keep: Any = lambda x: x, unroll: bool = False) -> Any:
    """Mean loss of the next token. keep: applied to the activations between layers."""
    inputs, labels = tokens[:, :-1], tokens[:, 1:]
    x = keep((params["tokens"][inputs] + params["positions"]).astype(jnp.bfloat16))

    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return keep(block(x, w)), None

    body = layer if unroll else jax.checkpoint(layer)  # pyright: ignore[reportPrivateImportUsage]
    x, _ = jax.lax.scan(body, x, params["layers"], unroll=unroll)
    logits = (normalize(x, params["norm"]) @ params["tokens"].T.astype(jnp.bfloat16)).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def start_adam(params: Any) -> dict[str, Any]:
    zeros = jax.tree.map(jnp.zeros_like, params)
    return {"mean": zeros, "square": jax.tree.map(jnp.copy, zeros)}


def adam(params: Any, opt_state: dict[str, Any], grads: Any) -> tuple[Any, dict[str, Any]]:
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, opt_state["mean"], grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g * g, opt_state["square"], grads)
    params = jax.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)
    return params, {"mean": mean, "square": square}
