"""The prediction of a JAX step: peak, breakdown, lines, mode and notes."""

from __future__ import annotations

import inspect
import resource
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.backends.jax import compat
from pinchpoint.backends.jax.analysis import LIVENESS, XLA, observe, observe_factory
from pinchpoint.backends.jax.argument_roles import role_of
from pinchpoint.backends.jax.fake_devices import fake_cuda
from pinchpoint.backends.jax.tracing import trace
from pinchpoint.core.errors import BadInput, CannotFake
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import BREAKDOWN
from pinchpoint.core.workload import BuiltStep, Case, unpack


@dataclass(frozen=True)
class Hopper:
    name: str = "h200"
    memory_bytes: int = 140 << 30
    capability: tuple[int, int] = (9, 0)


CARD = Hopper()
N, M = 4096, 128
PARAMS = {"a": jax.ShapeDtypeStruct((M, M), jnp.float32), "b": jax.ShapeDtypeStruct((M, M), jnp.float32)}
X = jax.ShapeDtypeStruct((N, M), jnp.float32)


def loss(params, x):
    hidden = jnp.tanh(x @ params["a"])
    return jnp.mean((hidden @ params["b"]) ** 2)


@jax.jit
def train(params, opt_state, x):
    grads = jax.grad(loss)(params, x)
    opt_state = jax.tree.map(lambda m, g: 0.9 * m + g, opt_state, grads)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, opt_state), opt_state


def test_a_training_step_is_broken_down_by_the_names_of_its_arguments():
    observation = observe(train, (PARAMS, PARAMS, X), card=CARD)
    assert observation.method == LIVENESS
    assert observation.mode == "train"
    assert tuple(observation.breakdown) == BREAKDOWN
    assert sum(observation.breakdown.values()) == observation.peak_bytes
    assert observation.breakdown["weights"] == observation.breakdown["optimizer"] == 2 * M * M * 4
    assert observation.breakdown["inputs"] == N * M * 4
    assert observation.breakdown["activations"] >= N * M * 4  # hidden, kept for the backward pass
    assert observation.high_bytes >= observation.peak_bytes


def test_the_lines_at_the_peak_are_the_users_own():
    observation = observe(train, (PARAMS, PARAMS, X), card=CARD)
    source, first = inspect.getsourcelines(loss)
    file = shown_path(__file__)  # relative to the current folder, as for PyTorch
    where = {line.line: line for line in observation.lines if line.file == file and line.phase == "forward"}
    hidden = first + next(i for i, text in enumerate(source) if "tanh" in text)
    assert where[hidden].bytes >= N * M * 4
    assert where[hidden].code == 'hidden = jnp.tanh(x @ params["a"])'
    assert {line.phase for line in observation.lines} <= {"forward", "backward", "optimizer"}


def test_phases_follow_each_other():
    phases = [phase for _, _, phase in observe(train, (PARAMS, PARAMS, X), card=CARD).timeline]
    order = {"forward": 0, "backward": 1, "optimizer": 2}
    assert [order[p] for p in phases] == sorted(order[p] for p in phases)
    assert set(phases) == set(order)


def test_the_timeline_is_thinned_but_keeps_the_peak():
    def long(x):
        for _ in range(1500):
            x = jnp.sort(x)
        return jnp.sum(x)

    observation = observe(jax.jit(long), (jax.ShapeDtypeStruct((64,), jnp.float32),), card=CARD)
    assert len(observation.timeline) <= 400
    assert max(size for _, size, _ in observation.timeline) == observation.peak_bytes


def test_prediction_allocates_nothing_large():
    huge = jax.ShapeDtypeStruct((200_000_000, M), jnp.float32)  # 95 GiB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    observation = observe(train, (PARAMS, PARAMS, huge), card=CARD)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert observation.peak_bytes > 2 * huge.size * 4
    assert (after - before) * 1024 < 256 << 20


def test_arrays_and_shapes_are_predicted_alike():
    arrays = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), (PARAMS, PARAMS, X))
    assert (
        observe(train, arrays, card=CARD).peak_bytes
        == observe(train, (PARAMS, PARAMS, X), card=CARD).peak_bytes
    )


def test_what_a_closure_captures_is_its_input():
    x = jnp.ones((N, M))
    params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), PARAMS)

    def step():
        return jax.jit(loss)(params, x).block_until_ready()

    observation = observe(step, card=CARD)
    assert observation.mode == "infer"
    assert observation.breakdown["inputs"] == x.nbytes + 2 * M * M * 4
    same = observe(jax.jit(loss), (params, x), card=CARD)
    assert observation.peak_bytes == same.peak_bytes


def test_waiting_is_only_allowed_while_a_step_is_traced():
    observe(lambda: jnp.ones(3).sum().block_until_ready(), card=CARD)
    with pytest.raises(AttributeError):
        jax.make_jaxpr(lambda x: x.block_until_ready())(1.0)


def test_a_closure_that_trains_is_recognised():
    x = jnp.ones((64, M))
    params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), PARAMS)
    assert observe(lambda: train(params, params, x), card=CARD).mode == "train"
    assert observe(lambda: loss(params, x), card=CARD).mode == "infer"


def test_a_gradient_by_the_inputs_alone_is_no_training():
    def forces(params, x):
        return jax.grad(loss, argnums=1)(params, x)

    assert observe(jax.jit(forces), (PARAMS, X), card=CARD).mode == "infer"


@pytest.mark.parametrize(
    "step",
    [
        lambda: float(jnp.sum(jnp.ones(3) * np.random.rand())) if jnp.ones(3).sum() > 2 else None,
        lambda: np.asarray(jnp.cumsum(jnp.ones(3))),
        lambda: jnp.nonzero(jnp.ones(3))[0] * 2,
    ],
)
def test_a_step_that_reads_values_is_refused_with_its_line(step):
    with pytest.raises(CannotFake) as caught:
        observe(lambda: jax.jit(lambda: step())(), card=CARD)
    assert f"{__file__}:" in caught.value.what
    assert "pinchpoint does not support yet" in caught.value.what
    assert "(jitted, args)" in caught.value.hint


def test_the_users_own_errors_pass_through():
    def broken():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        observe(broken, card=CARD)


def test_without_the_plugin_the_notes_say_what_the_number_is():
    notes = "\n".join(observe(train, (PARAMS, PARAMS, X), card=CARD).notes)
    assert "not XLA's analysis" in notes
    assert "plugin is not installed" in notes
    assert "pinchpoint[jax-cuda]" in notes


def test_scratch_that_cannot_be_counted_is_named():
    def conv(x, w):
        return jax.lax.conv(x, w, (1, 1), "SAME")

    image, kernel = (
        jax.ShapeDtypeStruct((2, 4, 16, 16), jnp.float32),
        jax.ShapeDtypeStruct((4, 4, 3, 3), jnp.float32),
    )
    notes = "\n".join(observe(jax.jit(conv), (image, kernel), card=CARD).notes)
    assert "scratch memory of conv_general_dilated is counted only in the high end" in notes


def test_with_the_plugin_the_number_is_xlas_own(monkeypatch):
    monkeypatch.setattr(compat, "cuda_plugin", lambda: "jax-cuda13-plugin 0.0")
    monkeypatch.setattr(compat, "topology_devices", lambda config: jax.devices("cpu"))
    observation = observe(train, (PARAMS, PARAMS, X), card=CARD)
    stats = train.lower(PARAMS, PARAMS, X).compile().memory_analysis()
    assert stats is not None and observation.method == XLA
    assert observation.peak_bytes == pytest.approx(
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        + stats.temp_size_in_bytes
        - stats.alias_size_in_bytes,
        rel=0.02,
    )
    assert sum(observation.breakdown.values()) == observation.peak_bytes
    assert observation.breakdown["weights"] == 2 * M * M * 4
    assert observation.breakdown["inputs"] == N * M * 4
    assert observation.lines
    assert observation.low_bytes <= observation.peak_bytes <= observation.high_bytes
    assert "without a GPU" in observation.notes[0]


def test_with_the_plugin_a_target_built_from_shapes_is_compiled_too(monkeypatch):
    def factory():
        x = jnp.ones((N, M))
        return lambda: jax.jit(lambda x: jnp.tanh(x) @ x.T)(x)

    monkeypatch.setattr(compat, "cuda_plugin", lambda: "jax-cuda13-plugin 0.0")
    monkeypatch.setattr(compat, "topology_devices", lambda config: jax.devices("cpu"))
    observation, _ = observe_factory(factory, card=CARD)
    assert observation.method == XLA
    assert observation.breakdown["inputs"] == N * M * 4
    assert observation.peak_bytes >= N * M * 4 + N * N * 4


def test_a_plugin_that_fails_falls_back_and_says_so(monkeypatch):
    def refuse(config):
        raise RuntimeError("INVALID_ARGUMENT: no such platform")

    monkeypatch.setattr(compat, "cuda_plugin", lambda: "jax-cuda13-plugin 0.0")
    monkeypatch.setattr(compat, "topology_devices", refuse)
    observation = observe(train, (PARAMS, PARAMS, X), card=CARD)
    assert observation.method == LIVENESS
    assert "no such platform" in observation.notes[0]


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("params['w']", "weights"),
        ("state.params['opt']", "weights"),
        ("state.opt_state[0].mu['params']", "optimizer"),
        ("x", "inputs"),
        ("batch['model_id']", "inputs"),
        ("", "inputs"),
    ],
)
def test_a_role_is_the_first_word_that_names_one(name, role):
    assert role_of(name) == role


def test_a_factory_may_return_a_step_or_a_jitted_function_with_its_arguments():
    def step():
        return None

    assert unpack(step) == BuiltStep(step)
    assert unpack((train, (1, 2))) == unpack((train, [1, 2])) == BuiltStep(train, (1, 2))


@pytest.mark.parametrize("value", [None, 3, (train,), (1, 2), (train, 5), (train, (1,), 2)])
def test_a_factory_that_returns_something_else_is_refused(value):
    with pytest.raises(BadInput, match="The factory returned"):
        unpack(value)


def test_a_target_is_built_without_making_its_arrays():
    def factory():
        key = jax.random.key(0)
        x = jax.device_put(jax.random.normal(key, (200_000_000, M)), jax.devices("cuda")[0])  # 95 GiB
        params = {"w": jnp.ones((M, M))}
        step = jax.jit(
            lambda params, x: jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p["w"])))(params), donate_argnums=0
        )
        return lambda: step(params, x)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    observation, processed = observe_factory(factory, card=CARD)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert (after - before) * 1024 < 256 << 20
    assert processed is None
    assert observation.mode == "train"
    # x, and the product that tanh and its derivative are written over; the key is gone by then.
    array = 200_000_000 * M * 4
    assert 2 * array <= observation.peak_bytes <= 3 * array + (64 << 20)
    assert observation.breakdown["inputs"] == array + M * M * 4


def test_building_from_shapes_predicts_what_real_arrays_would_give():
    def factory():
        x = jnp.ones((N, M))
        params = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), PARAMS)
        return train, (params, params, x)

    observation, _ = observe_factory(factory, card=CARD)
    want = observe(train, (PARAMS, PARAMS, X), card=CARD)
    assert observation.peak_bytes == want.peak_bytes
    assert observation.breakdown == want.breakdown


def test_a_case_gives_its_count_of_points():
    def make():
        x = jnp.ones((N, M))
        return Case(step=jax.jit(jnp.sum), processed=x.shape[0], args=(x,))

    observation, processed = observe_factory(make, card=CARD)
    assert processed == N
    assert observation.peak_bytes == N * M * 4 + 4


def test_a_target_that_reads_values_while_it_is_built_is_built_with_real_arrays():
    def factory():
        x = jnp.ones((N, M))
        scale = 1 / float(x.sum())
        return lambda: x * scale

    observation, _ = observe_factory(factory, card=CARD)
    assert observation.peak_bytes == 2 * N * M * 4
    assert "real arrays on the CPU" in observation.notes[-1]


def test_a_target_that_is_broken_raises_its_own_error():
    with pytest.raises(KeyError, match="mine"):
        observe_factory(lambda: {}["mine"], card=CARD)
    with pytest.raises(BadInput, match="The factory returned"):
        observe_factory(lambda: 3, card=CARD)
    with pytest.raises(CannotFake):
        observe_factory(lambda: lambda: float(jnp.ones(3).sum()), card=CARD)


@pytest.mark.skipif(any(d.platform == "gpu" for d in jax.devices()), reason="this machine has a GPU")
def test_a_card_is_fake_only_inside_the_context():
    with fake_cuda():
        assert jax.devices("cuda") == jax.devices("gpu") == jax.devices("cpu")
        assert jax.local_devices(backend="cuda")[0].platform == "cpu"
        assert jax.device_count("cuda") == len(jax.devices("cpu"))
        with pytest.raises(RuntimeError):
            jax.devices("tpu")
    with pytest.raises(RuntimeError):
        jax.devices("cuda")


def test_donation_inside_a_closure_counts():
    x = jnp.ones((N, M))
    inner = jax.jit(lambda x: x * 2, donate_argnums=0)
    assert trace(lambda: inner(x)).donated == (0,)
    assert observe(lambda: inner(x), card=CARD).peak_bytes == x.nbytes


def test_scans_of_newer_jax_describe_their_operands_by_a_tree():
    class Group:
        def __init__(self, vals):
            self.vals = vals

    class Tree:
        def update(self, values):
            self.values = values
            return self

        def unpack(self):
            return Group(self.values[:2]), Group(self.values[2:3]), Group(self.values[3:])

    assert compat.scan_counts({"ft_in": Tree()}, 5) == (2, 1)
    assert compat.scan_counts({"num_consts": 2, "num_carry": 1}, 5) == (2, 1)
