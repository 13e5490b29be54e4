"""The liveness walk compared with counts done by hand. Arrays are (N, M) float32 unless noted."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from pinchpoint.backends.jax.liveness import walk
from pinchpoint.backends.jax.program import Op, Program, read_program
from pinchpoint.backends.jax.tracing import trace

N, M = 1000, 64
ARRAY = N * M * 4
SQUARE = M * M * 4
X = jax.ShapeDtypeStruct((N, M), jnp.float32)
W = jax.ShapeDtypeStruct((M, M), jnp.float32)


def peak(function, *args, fused=True, **options):
    return walk(read_program(trace(jax.jit(function, **options), args)), fused=fused).peak_bytes


def test_a_chain_of_elementwise_operations_is_input_and_output_when_fused():
    def chain(x):
        return jnp.tanh(jnp.exp(x) * 2 + 1)

    assert peak(chain, X) == 2 * ARRAY
    # Without fusion each operation has its input and output in addition to the argument.
    assert peak(chain, X, fused=False) == 3 * ARRAY


def test_a_donated_argument_is_written_over():
    def scale(x):
        return x * 2

    assert peak(scale, X) == 2 * ARRAY
    assert peak(scale, X, donate_argnums=0) == ARRAY


def test_a_donated_argument_that_is_never_read_stays_alive():
    def condition(state):
        return state[0] < 3

    def body(state):
        return state[0] + 1, state[1] * 2

    # The condition of the loop gets x as a part of its state and does not read it.
    assert peak(lambda n, x: jax.lax.while_loop(condition, body, (n, x)), jnp.int32(0), X) >= ARRAY


def test_matrix_products_need_their_operands_in_memory():
    # exp(x) cannot vanish into the product: x, exp(x), w and the result are alive together.
    assert peak(lambda x, w: jnp.exp(x) @ w, X, W) == 3 * ARRAY + SQUARE


def test_a_reduction_takes_its_elementwise_input_in():
    assert peak(lambda x: jnp.sum(jnp.exp(x)), X) == ARRAY + 4
    assert peak(lambda x: jnp.sum(jnp.exp(x)), X, fused=False) == 2 * ARRAY + 4


def test_a_value_is_freed_at_its_last_use():
    def layers(x, w):
        for _ in range(5):
            x = jnp.tanh(x @ w)
        return x

    # The argument, one layer's input and its output; tanh is written over its input.
    assert peak(layers, X, W) == 3 * ARRAY + SQUARE


def test_the_backward_pass_keeps_one_activation_a_layer():
    layers = 4

    def loss(w, x):
        for i in range(layers):
            x = jnp.tanh(x @ w[i])
        return jnp.sum(x)

    weights = jax.ShapeDtypeStruct((layers, M, M), jnp.float32)
    result = peak(jax.grad(loss), weights, X)
    # x, the outputs of layers 1 to 3, the last output overwritten by its own gradient, and the gradient
    # it passes down.
    small = 3 * layers * SQUARE  # weights, their gradient, and slices and sums of those
    assert (layers + 2) * ARRAY <= result <= (layers + 2) * ARRAY + small


def test_checkpointing_trades_activations_away():
    def loss(x, w, *, wrap):
        layer = wrap(lambda x, w: jnp.sin(jnp.tanh(x @ w) @ w))
        for _ in range(4):
            x = layer(x, w)
        return jnp.sum(x)

    stored = peak(jax.grad(lambda x, w: loss(x, w, wrap=lambda f: f)), X, W)
    again = peak(jax.grad(lambda x, w: loss(x, w, wrap=jax.checkpoint)), X, W)
    assert stored - again >= 4 * ARRAY


def test_a_scan_holds_its_carry_once_and_stacks_what_it_gives():
    def run(x, w):
        return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), jnp.sum(h)), x, None, length=7)

    # The argument is not donated, so the carry is a copy; inside an iteration the product is alive as well.
    assert peak(run, X, W) == pytest.approx(3 * ARRAY + SQUARE + 7 * 4, abs=64)


def test_what_a_scan_stacks_counts_whole():
    def turn(h, _):
        output = h + 1
        return h * 2, output

    def run(x):
        return jax.lax.scan(turn, x, None, length=7)

    # Argument, carry and seven arrays; the sum is written straight into its place.
    assert peak(run, X) == pytest.approx(9 * ARRAY, abs=64)


def test_a_stack_nobody_reads_is_not_made():
    def run(x):
        return jax.lax.scan(lambda h, _: (h * 2, h + 1), x, None, length=7)[0]

    assert peak(run, X) == pytest.approx(2 * ARRAY, abs=64)


def test_a_branch_counts_by_the_larger_of_the_two():
    def run(x, w):
        def small(x):
            return x * 2

        def large(x):
            return jnp.exp(jnp.exp(x) @ w) @ w

        return jax.lax.cond(x[0, 0] > 0, large, small, x)

    # Argument, exp(x), and the first product; then that product, overwritten, and the second.
    assert peak(run, X, W) == pytest.approx(3 * ARRAY + SQUARE, abs=64)


def test_a_while_loop_overwrites_its_carry():
    def run(x):
        return jax.lax.while_loop(lambda h: jnp.sum(h) < 10, lambda h: h * 2, x)

    assert peak(run, X) == pytest.approx(2 * ARRAY, abs=64)
    assert peak(run, X, donate_argnums=0) == pytest.approx(ARRAY, abs=64)


def test_captured_arrays_count_once_each():
    held = jnp.zeros((N, M))

    @jax.jit
    def inner():
        return held * 2

    assert peak(lambda: inner() + held) == 2 * ARRAY


def test_reshapes_take_no_memory():
    assert peak(lambda x: x.reshape(M, N).reshape(-1) * 2, X) == 2 * ARRAY


def test_dead_code_takes_no_memory():
    def run(x, w):
        _ = (x @ w) @ w
        return jnp.sum(x)

    assert peak(run, X, W) == ARRAY + SQUARE + 4


def test_a_costly_value_with_two_readers_is_kept():
    program = Program(
        sizes=(100, 100, 1, 1),
        ops=(
            Op("exp", "costly", (0,), (1,)),
            Op("reduce_sum", "reduce", (1,), (2,)),
            Op("reduce_max", "reduce", (1,), (3,)),
        ),
        inputs=(0,),
        outputs=(2, 3),
    )
    assert walk(program).peak_bytes == 100 + 100 + 2


def test_a_cheap_value_vanishes_where_reading_its_inputs_again_moves_fewer_bytes():
    def program(inputs):
        """inputs of 100 bytes each -> one value -> three readers"""
        reads, value = tuple(range(inputs)), inputs
        readers = tuple(Op("reduce_sum", "reduce", (value,), (value + 1 + i,)) for i in range(3))
        op = Op("add", "arithmetic", reads, (value,))
        return Program(
            (100,) * (inputs + 1) + (1,) * 3, (op, *readers), reads, tuple(value + 1 + i for i in range(3))
        )

    # One input: three reads of it, compared with one read, a write and three reads.
    # Three inputs: nine, compared with seven.
    assert walk(program(1)).peak_bytes == 100 + 3
    assert walk(program(3)).peak_bytes == 300 + 100 + 3


def test_a_vanished_value_keeps_its_own_inputs_alive():
    # exp(a) is read only at the end, so a lives until then although it is a donated argument.
    program = Program(
        sizes=(100, 100, 100, 100),
        ops=(
            Op("exp", "costly", (0,), (1,)),
            Op("call", "opaque", (), (2,)),
            Op("mul", "arithmetic", (1, 2), (3,)),
        ),
        inputs=(0,),
        outputs=(3,),
        donated=frozenset({0}),
    )
    result = walk(program)
    assert result.peak_bytes == 200
    assert {a.value for a in result.alive} == {0, 2}


def test_workspace_is_counted_while_a_product_runs():
    result = walk(read_program(trace(jax.jit(lambda x, w: x @ w), (X, W))), workspace_bytes=1 << 20)
    assert result.peak_bytes == 2 * ARRAY + SQUARE + (1 << 20)
    assert result.workspace_bytes == 1 << 20


def test_the_peak_is_the_sum_of_what_is_alive_and_the_top_of_the_timeline():
    def loss(w, x):
        h = jnp.tanh(x @ w)
        return jnp.mean((jax.nn.softmax(h @ w) - h) ** 2)

    program = read_program(trace(jax.jit(jax.grad(loss)), (W, X)))
    fused, plain = walk(program), walk(program, fused=False)
    for result in (fused, plain):
        assert (
            result.peak_bytes
            == sum(a.bytes for a in result.alive)
            == max(size for _, size, _ in result.timeline)
        )
