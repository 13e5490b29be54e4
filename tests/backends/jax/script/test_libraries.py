"""Models of the common JAX libraries train on arrays without values, where the library is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from pinchpoint.backends.jax.script.session import ScriptSession
from pinchpoint.backends.torch.data_dependent.decisions import Decisions

optax = pytest.importorskip("optax")
WIDTHS = (16, 32, 4)
WEIGHT_BYTES = 4 * (16 * 32 + 32 + 32 * 4 + 4)


def observed(train: Callable[[], Any]) -> ScriptSession:
    """Run a training loop in a session; it keeps what it returns until its arrays are counted."""
    session = ScriptSession(
        steps=2, stop=lambda: None, decisions=Decisions(), workspace_bytes=0, clock=lambda: 0.0
    )
    with session.running():
        state = train()
        assert session.ledger.now_bytes >= 3 * WEIGHT_BYTES  # weights and the two moments of Adam
        del state
    assert session.training_steps == 3
    return session


def test_flax_linen() -> None:
    nn = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")

    def train() -> Any:
        model = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(4)])
        params = model.init(jax.random.key(0), jnp.ones((1, 16)))["params"]
        state = train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

        @jax.jit
        def step(state: Any, x: Any) -> Any:
            grads = jax.grad(lambda p: jnp.mean(state.apply_fn({"params": p}, x) ** 2))(state.params)
            return state.apply_gradients(grads=grads)

        for _ in range(3):
            state = step(state, jnp.ones((8, 16)))
        assert int(state.step) == 3
        return state

    (entry,) = [entry for entry in observed(train).ledger.programs.values() if entry.trains]
    assert entry.program.roles.count("weights") == 4
    assert entry.program.roles.count("optimizer") == 9


def test_flax_nnx() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def train() -> Any:
        rngs = nnx.Rngs(0)
        model = nnx.Sequential(nnx.Linear(16, 32, rngs=rngs), nnx.relu, nnx.Linear(32, 4, rngs=rngs))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

        @nnx.jit
        def step(model: Any, optimizer: Any, x: Any) -> Any:
            loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
            optimizer.update(model, grads)
            return loss

        for _ in range(3):
            step(model, optimizer, jnp.ones((8, 16)))
        return model, optimizer

    observed(train)


def test_equinox() -> None:
    eqx = pytest.importorskip("equinox")

    def train() -> Any:
        model = eqx.nn.MLP(16, 4, 32, 1, key=jax.random.key(0))
        rule = optax.adam(1e-3)
        state = rule.init(eqx.filter(model, eqx.is_array))

        @eqx.filter_jit
        def step(model: Any, state: Any, x: Any) -> Any:
            grads = eqx.filter_grad(lambda m: jnp.mean(jax.vmap(m)(x) ** 2))(model)
            updates, state = rule.update(grads, state)
            return eqx.apply_updates(model, updates), state

        for _ in range(3):
            model, state = step(model, state, jnp.ones((8, 16)))
        return model, state

    observed(train)


def test_haiku() -> None:
    hk = pytest.importorskip("haiku")

    def train() -> Any:
        model = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([32, 4])(x)))
        params = model.init(jax.random.PRNGKey(0), jnp.ones((1, 16)))
        rule = optax.adam(1e-3)
        opt_state = rule.init(params)

        @jax.jit
        def step(params: Any, opt_state: Any, x: Any) -> Any:
            grads = jax.grad(lambda p: jnp.mean(model.apply(p, x) ** 2))(params)
            updates, opt_state = rule.update(grads, opt_state)
            return optax.apply_updates(params, updates), opt_state

        for _ in range(3):
            params, opt_state = step(params, opt_state, jnp.ones((8, 16)))
        return params, opt_state

    observed(train)
