"""Twenty JAX programs of many kinds: each function returns a jitted function and its argument shapes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape

F32, BF16 = jnp.float32, jnp.bfloat16


def sgd(loss: Callable[..., Any]) -> Any:
    """One step of gradient descent on `loss(params, *data)`."""

    def step(params: Any, *data: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *data)
        return jax.tree_util.tree_map(lambda p, g: p - 0.1 * g, params, grads), value

    return jax.jit(step)


def dense(*widths: int, dtype: Any = F32) -> list[Any]:
    return [Shape((a, b), dtype) for a, b in itertools.pairwise(widths)]


def mlp(params: Any, x: Any, activation: Any) -> Any:
    for w in params[:-1]:
        x = activation(x @ w)
    return x @ params[-1]


def normalise(x: Any) -> Any:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def block(p: Any, x: Any, heads: int = 8) -> Any:
    """A block of a transformer, with attention in plain operations. x: (batch, tokens, width)."""
    b, t, d = x.shape
    q, k, v = (
        y.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3)
        for y in jnp.split(normalise(x) @ p["qkv"], 3, -1)
    )
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / (d // heads) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), v)
    x = x + mixed.transpose(0, 2, 1, 3).reshape(b, t, d) @ p["out"]
    return x + jax.nn.gelu(normalise(x) @ p["up"]) @ p["down"]


def block_shapes(d: int, dtype: Any = F32, stack: tuple[int, ...] = ()) -> dict[str, Any]:
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    return {name: Shape((*stack, *shape), dtype) for name, shape in shapes.items()}


def relu_mlp() -> Any:
    loss = lambda p, x: jnp.mean(mlp(p, x, jax.nn.relu) ** 2)  # noqa: E731
    return sgd(loss), (dense(512, 2048, 2048, 512), Shape((16384, 512), F32))


def gelu_mlp_bf16() -> Any:
    loss = lambda p, x: jnp.mean(mlp(p, x, jax.nn.gelu).astype(F32) ** 2)  # noqa: E731
    return sgd(loss), (dense(512, 2048, 2048, 512, dtype=BF16), Shape((16384, 512), BF16))


def infer_mlp() -> Any:
    run = jax.jit(lambda p, x: mlp(p, x, jax.nn.silu))
    return run, (dense(512, 4096, 4096, 512), Shape((32768, 512), F32))


def gpt(dtype: Any = F32) -> Any:
    def loss(p: Any, x: Any) -> Any:
        for one in p["blocks"]:
            x = block(one, x)
        logits = (x @ p["head"]).astype(F32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - logits[..., 0])

    params = {"blocks": [block_shapes(512, dtype) for _ in range(4)], "head": Shape((512, 8192), dtype)}
    return sgd(loss), (params, Shape((8, 512, 512), dtype))


def gpt_scan(*, remat: bool = False) -> Any:
    def loss(p: Any, x: Any) -> Any:
        turn = lambda x, one: (block(one, x), None)  # noqa: E731
        return jnp.mean(jax.lax.scan(jax.checkpoint(turn) if remat else turn, x, p)[0] ** 2)

    depth, width = (8, 512) if remat else (6, 256)
    return sgd(loss), (block_shapes(width, stack=(depth,)), Shape((8, 512, width), F32))


def lstm() -> Any:
    def loss(p: Any, x: Any) -> Any:
        def cell(carry: Any, row: Any) -> Any:
            h, s = carry
            i, f, o, u = jnp.split(row @ p["x"] + h @ p["h"], 4, -1)
            s = jax.nn.sigmoid(f) * s + jax.nn.sigmoid(i) * jnp.tanh(u)
            h = jax.nn.sigmoid(o) * jnp.tanh(s)
            return (h, s), h

        zero = jnp.zeros((x.shape[1], 512))
        return jnp.mean(jax.lax.scan(cell, (zero, zero), x)[1] ** 2)

    return sgd(loss), (
        {"x": Shape((256, 2048), F32), "h": Shape((512, 2048), F32)},
        Shape((128, 512, 256), F32),
    )


def convolve(x: Any, w: Any, groups: int = 1) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, feature_group_count=groups
    )


def resnet() -> Any:
    def batch_norm(x: Any) -> Any:
        mean = x.mean((0, 1, 2))
        return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-5)

    def loss(p: Any, x: Any) -> Any:
        x = convolve(x, p["stem"])
        for a, b in p["blocks"]:
            x = x + jax.nn.relu(batch_norm(convolve(jax.nn.relu(batch_norm(convolve(x, a))), b)))
        return jnp.mean(x**2)

    kernel = Shape((3, 3, 64, 64), F32)
    params = {"stem": Shape((3, 3, 3, 64), F32), "blocks": [(kernel, kernel)] * 3}
    return sgd(loss), (params, Shape((64, 32, 32, 3), F32))


def convnext() -> Any:
    def loss(p: Any, x: Any) -> Any:
        for depthwise, up, down in p:
            x = x + jax.nn.gelu(normalise(convolve(x, depthwise, 96)) @ up) @ down
        return jnp.mean(x**2)

    layer = Shape((7, 7, 1, 96), F32), Shape((96, 384), F32), Shape((384, 96), F32)
    return sgd(loss), ([layer] * 3, Shape((32, 56, 56, 96), F32))


def pinn_small() -> Any:
    def loss(p: Any, points: Any) -> Any:
        value = lambda p, x: mlp(p, x, jnp.tanh)[0]  # noqa: E731
        return jnp.mean(jax.vmap(lambda x: jnp.trace(jax.hessian(value, argnums=1)(p, x)))(points) ** 2)

    return sgd(loss), (dense(3, 128, 128, 1), Shape((16384, 3), F32))


def graph_small() -> Any:
    def loss(p: Any, h: Any, senders: Any, receivers: Any) -> Any:
        for a, b in p:
            messages = jax.nn.silu(jnp.concatenate([h[senders], h[receivers]], -1) @ a)
            h = h + jax.nn.silu(jax.ops.segment_sum(messages, receivers, 10_000) @ b)
        return jnp.mean(h**2)

    edges = Shape((200_000,), jnp.int32)
    return sgd(loss), ([tuple(dense(128, 64, 64))] * 3, Shape((10_000, 64), F32), edges, edges)


def nerf() -> Any:
    def loss(p: Any, x: Any) -> Any:
        waves = [wave(x * 2**i) for wave in (jnp.sin, jnp.cos) for i in range(8)]
        y = mlp(p, jnp.concatenate(waves, -1), jax.nn.relu)
        opacity = 1 - jnp.exp(-jax.nn.relu(y[..., 3]))
        weights = opacity * jnp.cumprod(1 - opacity + 1e-6, -1)
        return jnp.mean((weights[..., None] * jax.nn.sigmoid(y[..., :3])).sum(1) ** 2)

    return sgd(loss), (dense(48, 256, 256, 256, 4), Shape((2048, 128, 3), F32))


def embedding() -> Any:
    loss = lambda p, ids: jnp.mean(jax.nn.logsumexp(p["e"][ids] @ p["e"].T, -1))  # noqa: E731
    return sgd(loss), ({"e": Shape((32_000, 256), F32)}, Shape((32, 128), jnp.int32))


def moe() -> Any:
    def loss(p: Any, x: Any) -> Any:
        gates = jax.nn.softmax(x @ p["gate"])
        values, chosen = jax.lax.top_k(gates, 2)
        weights = jnp.zeros_like(gates).at[jnp.arange(len(x))[:, None], chosen].set(values)
        hidden = jax.nn.gelu(jnp.einsum("td,edh->teh", x, p["up"]))
        return jnp.mean(jnp.einsum("te,etd->td", weights, jnp.einsum("teh,ehd->etd", hidden, p["down"])) ** 2)

    params = {
        "gate": Shape((256, 8), F32),
        "up": Shape((8, 256, 512), F32),
        "down": Shape((8, 512, 256), F32),
    }
    return sgd(loss), (params, Shape((8192, 256), F32))


def pairs() -> Any:
    loss = lambda x, y: jax.nn.logsumexp(-jnp.sum((x[:, None] - y[None]) ** 2, -1))  # noqa: E731
    return jax.jit(jax.grad(loss)), (Shape((4096, 8), F32), Shape((4096, 8), F32))


def sorting() -> Any:
    return jax.jit(lambda x: jnp.sort(x)[::2] + jnp.argsort(x)[::2]), (Shape((1 << 24,), F32),)


def solve() -> Any:
    return jax.jit(jnp.linalg.solve), (Shape((2048, 64, 64), F32), Shape((2048, 64, 8), F32))


def eigen() -> Any:
    return jax.jit(jnp.linalg.eigh), (Shape((256, 128, 128), F32),)


def fourier() -> Any:
    loss = lambda x: jnp.mean(jnp.abs(jnp.fft.rfft2(x)) ** 2)  # noqa: E731
    return jax.jit(jax.grad(loss)), (Shape((64, 512, 512), F32),)


STEPS: dict[str, Callable[[], Any]] = {
    "relu_mlp": relu_mlp,
    "gelu_mlp_bf16": gelu_mlp_bf16,
    "infer_mlp": infer_mlp,
    "gpt": gpt,
    "gpt_bf16": lambda: gpt(BF16),
    "gpt_scan_remat": lambda: gpt_scan(remat=True),
    "gpt_scan": gpt_scan,
    "lstm": lstm,
    "resnet": resnet,
    "convnext": convnext,
    "pinn_small": pinn_small,
    "graph_small": graph_small,
    "nerf": nerf,
    "embedding": embedding,
    "moe": moe,
    "pairs": pairs,
    "sorting": sorting,
    "solve": solve,
    "eigen": eigen,
    "fourier": fourier,
}
