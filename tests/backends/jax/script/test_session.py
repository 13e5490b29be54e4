"""Scripts on arrays without values: what stays alive, what is read, and when a script is ended."""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.backends.jax.script.loops import mark_script
from pinchpoint.backends.jax.script.number_calls import track_number_calls
from pinchpoint.backends.jax.script.session import ScriptSession
from pinchpoint.backends.torch.data_dependent.decisions import Decisions
from pinchpoint.backends.torch.data_dependent.unknown_values import NeedsCalibration

KIB = 1024


class Ended(BaseException):
    pass


def end() -> None:
    raise Ended


class Clock:
    """Advances by `pace` seconds whenever it is read."""

    def __init__(self, pace: float = 0.0) -> None:
        self.now, self.pace = 0.0, pace

    def __call__(self) -> float:
        self.now += self.pace
        return self.now


Make = Callable[..., ScriptSession]


@pytest.fixture
def session() -> Iterator[Make]:
    """Start a session that lasts until the end of the test."""
    contexts = []

    def start(steps: int = 2, pace: float = 0.0) -> ScriptSession:
        made = ScriptSession(
            steps=steps, stop=end, decisions=Decisions(), workspace_bytes=0, clock=Clock(pace)
        )
        context = made.running()
        context.__enter__()
        contexts.append(context)
        return made

    yield start
    for context in contexts:
        context.__exit__(None, None, None)


def test_an_array_is_booked_while_something_refers_to_it(session: Make) -> None:
    ledger = session().ledger
    x = jnp.zeros((256, KIB // 4))
    assert ledger.now_bytes == 256 * KIB
    y = x
    del x
    gc.collect()
    assert ledger.now_bytes == 256 * KIB
    assert isinstance(y, jax.Array)
    del y
    gc.collect()
    assert ledger.now_bytes == 0


def test_a_donated_array_is_given_back_and_cannot_be_used_again(session: Make) -> None:
    ledger = session().ledger
    x = jnp.zeros(KIB)
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert ledger.now_bytes == 4 * KIB == y.nbytes
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match="deleted or donated"):
        jnp.add(x, 1)


def test_an_output_that_is_an_input_has_no_storage_of_its_own(session: Make) -> None:
    ledger = session().ledger
    x = jnp.zeros(KIB)
    kept, new = jax.jit(lambda x: (x, 2 * x))(x)
    assert ledger.now_bytes == 2 * 4 * KIB
    del x, new
    gc.collect()
    assert ledger.now_bytes == kept.nbytes


def test_an_eager_gradient_keeps_what_its_backward_pass_needs(session: Make) -> None:
    made = session()
    x = jnp.ones((64, 64))
    _, backward = jax.vjp(lambda x: jnp.sin(x) @ x, x)
    assert made.ledger.now_bytes >= 3 * x.nbytes  # x, cos(x) and sin(x)
    (slope,) = backward(x)
    assert slope.shape == (64, 64)


def test_a_large_array_is_never_computed(session: Make) -> None:
    made = session()
    x = jnp.ones((1 << 20, 1 << 18))  # one TiB
    y = jax.jit(lambda x: jnp.tanh(x).sum(axis=0))(x)
    assert made.ledger.now_bytes == (1 << 40) + y.nbytes


def test_counters_and_data_are_read_with_their_values(session: Make) -> None:
    session()
    data = jnp.asarray(np.arange(10))
    step = jax.jit(lambda n, x: (n + 1, x @ x))
    count, x = jnp.zeros((), jnp.int32), jnp.ones((8, 8))
    for _ in range(3):
        count, x = step(count, x)
    assert int(count) == 3
    assert jnp.nonzero(data > 6)[0].shape == (3,)
    assert sorted(np.asarray(jax.random.permutation(jax.random.key(0), 5)).tolist()) == [0, 1, 2, 3, 4]
    assert [int(row[0]) for row in jnp.asarray([[1], [2]])] == [1, 2]


def test_a_branch_on_an_unknown_value_is_recorded(session: Make) -> None:
    made = session()
    x = jnp.ones((8, 8)) @ jnp.ones((8, 8))
    answer = bool((x > 0).all())
    assert answer
    (site,) = made.decisions.sites
    assert site.startswith(__file__)


def test_a_branch_on_float_is_recorded_in_the_script(session: Make) -> None:
    made = session()
    source = "best = 2.0\nfound = []\nif float(x.sum()) < best:\n    found.append(float(x.sum()))"
    code: Any = compile(track_number_calls(ast.parse(source)), "script.py", "exec")
    names = {"x": jnp.ones((8, 8)) @ jnp.ones((8, 8)), "__builtins__": builtins}
    exec(code, names)
    assert len(names["found"]) == 1
    assert list(made.decisions.sites) == ["script.py:3"]


def test_an_unknown_value_cannot_be_a_size(session: Make) -> None:
    session()
    x = jnp.ones((8, 8)) @ jnp.ones((8, 8))
    with pytest.raises(NeedsCalibration):
        jnp.zeros(jnp.argmax(x))
    with pytest.raises(NeedsCalibration):
        jnp.nonzero(x > 1)


def train(params: Any, x: Any) -> tuple[Any, Any]:
    loss, grads = jax.value_and_grad(lambda p: jnp.mean(jnp.tanh(x @ p) ** 2))(params)
    return params - 0.1 * grads, loss


def test_a_script_ends_when_its_steps_repeat_themselves(session: Make) -> None:
    made = session(pace=0.05)
    step, params, x = jax.jit(train), jnp.ones((8, 8)), jnp.ones((4, 8))

    def run() -> None:
        nonlocal params
        for _ in range(10_000):
            params, _ = step(params, x)

    with pytest.raises(Ended):
        run()
    assert 2 <= made.training_steps < 200
    assert not made.end_reasons()


@pytest.mark.parametrize(
    ("size", "reasons"),
    [
        ("4", 0),
        ("4 if epoch % 2 else 5", 0),
        ("4 if int(str(epoch)) < 100_000 else 8", 1),  # a call is not evaluated for later turns
        ("later(epoch)", 1),
    ],
)
def test_a_condition_that_may_have_another_answer_is_named(session: Make, size: str, reasons: int) -> None:
    made = session(pace=0.05)
    source = f"""
def later(epoch):
    if epoch < 100_000:
        return 4
    return 8
for epoch in range(200_000):
    params = step(params, ones(({size}, 8)))[0]
    if epoch % 1000 == 999:
        print(epoch)
"""
    code: Any = compile(mark_script(ast.parse(source)), "script.py", "exec")
    names = {"step": jax.jit(train), "params": jnp.ones((8, 8)), "ones": jnp.ones, "__builtins__": builtins}
    with pytest.raises(Ended):
        exec(code, names)
    assert len(made.end_reasons()) == reasons
    assert all("had one answer" in reason for reason in made.end_reasons())


@pytest.mark.parametrize("size", ["8 if epoch == 5000 else 4", "4 + epoch // 9999"])
def test_a_loop_goes_on_with_turns_that_may_differ(session: Make, size: str) -> None:
    made = session(pace=0.05)
    source = f"for epoch in range(10_000):\n    params = step(params, ones(({size}, 8)))[0]\n"
    code: Any = compile(mark_script(ast.parse(source)), "script.py", "exec")
    names = {"step": jax.jit(train), "params": jnp.ones((8, 8)), "ones": jnp.ones, "__builtins__": builtins}
    with contextlib.suppress(Ended):
        exec(code, names)
    assert len([entry for entry in made.ledger.programs.values() if entry.trains]) == 2
    assert made.training_steps < 500 and not made.end_reasons()


def test_a_new_program_after_the_steps_is_followed(session: Make) -> None:
    made = session(pace=0.01)
    step, evaluate = jax.jit(train), jax.jit(lambda p, x: x @ p)
    params, x = jnp.ones((8, 8)), jnp.ones((4, 8))
    for _ in range(30):
        params, _ = step(params, x)
    evaluate(params, x)
    assert made.training_steps == 30
    assert made.evaluation_calls == 1


def test_arrays_that_pile_up_make_the_answer_unknown(session: Make) -> None:
    made = session(pace=0.05)
    step, params, x = jax.jit(train), jnp.ones((256, 256)), jnp.ones((4, 256))
    history = [params]

    def run() -> None:
        for _ in range(10_000):
            history.append(step(history[-1], x)[0])

    with pytest.raises(Ended):
        run()
    (reason,) = made.end_reasons()
    assert "leaves arrays of 256.00 KiB behind" in reason


def test_pmap_shard_map_and_compiled_functions_on_one_device(session: Make) -> None:
    session()
    spec = jax.sharding.PartitionSpec("d")
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "d"), mesh=mesh, in_specs=spec, out_specs=spec)
    assert jax.jit(mapped)(jnp.ones((8, 4))).shape == (8, 4)
    assert mapped(jnp.ones((8, 4))).shape == (8, 4)
    assert jax.pmap(lambda x: 2 * x)(jnp.ones((1, 4))).shape == (1, 4)
    compiled = jax.jit(lambda n, x: x[:n], static_argnums=0).lower(2, jnp.ones(4)).compile()
    assert compiled(jnp.ones(4)).shape == (2,)


def test_threads_meshes_references_and_loops_of_a_script(session: Make) -> None:
    made = session()
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(jnp.ones((KIB, KIB)) @ jnp.ones((KIB, 1))))
    thread.start()
    thread.join()
    assert made.ledger.now_bytes == results[0].nbytes == 4 * KIB
    with jax.set_mesh(jax.make_mesh((1,), ("d",))):
        assert jax.jit(lambda x: 2 * x)(jnp.ones(4)).shape == (4,)
    assert jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] * 2), (0, results[0]))[1].shape
    reference = jax.new_ref(jnp.zeros(4))
    reference[...] = jnp.ones(4)
    assert reference[...].shape == (4,)
    assert jax.device_get({"x": jnp.arange(3)})["x"].tolist() == [0, 1, 2]
