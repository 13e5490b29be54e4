"""Streaming gives the result of one call with all points for any chunk, device and kind of points."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pinchpoint import Flow, stream
from pinchpoint.backends.torch.streaming_cpu import Outputs
from pinchpoint.core.errors import BadInput, DoesNotFit, Missing

N = 5_003
RNG = np.random.default_rng(0)
POINTS = RNG.normal(size=(N, 3)).astype(np.float32)


def wave(x: Any) -> Any:
    """A row-wise function for NumPy and torch without a matmul, so its bits do not depend on the shape."""
    return x * x + 2 * x[:, :1]


class Recorder:
    """Counts calls and the rows of each; runs out of memory above a limit."""

    def __init__(
        self, function: Any = wave, limit: int | None = None, error: type[BaseException] = MemoryError
    ) -> None:
        self.function, self.limit, self.error = function, limit, error
        self.rows: list[int] = []
        self.done: list[int] = []

    def __call__(self, x: Any, *rest: Any) -> Any:
        self.rows.append(len(x))
        if self.limit is not None and len(x) > self.limit:
            raise self.error("CUDA out of memory. Tried to allocate 2.00 GiB")
        self.done.append(len(x))
        return self.function(x, *rest)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 1_000, 1_024, 5_002, 5_003, 5_004, 99_999, "auto"])
def test_any_chunk_gives_the_same_bits_as_one_call_with_all_points(
    chunk: Any, pad: bool, device: str
) -> None:
    points = POINTS[:300] if chunk == 1 else POINTS
    result = stream(wave, points, chunk=chunk, pad=pad, device=device)
    assert isinstance(result, np.ndarray) and result.dtype == np.float32
    assert np.array_equal(result, wave(points))


def test_an_automatic_chunk_is_never_larger_than_most() -> None:
    records_seen, done = Recorder(), []
    result = stream(
        records_seen,
        POINTS,
        tile=100,
        most=700,
        budget="1GiB",
        device="numpy",
        progress=lambda at, total: done.append(at),
    )
    assert np.array_equal(result, wave(POINTS))
    assert records_seen.rows[:2] == [25, 100] and max(records_seen.rows) <= 700
    assert len(set(records_seen.rows[2:])) == 1, "after the trials there is one shape"
    assert len(done) >= N // 700


@pytest.mark.parametrize("chunk", [1_024, 2_048, 4_096, "auto"])
def test_a_network_agrees_with_one_call_with_all_points_up_to_rounding(chunk: Any) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 2)).double()
    points = POINTS.astype(np.float64)
    with torch.no_grad():
        whole = net(torch.from_numpy(points)).numpy()
    assert np.abs(stream(net, points, chunk=chunk, device="cpu") - whole).max() <= 1e-14


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_several_arrays_can_be_streamed_and_returned(device: str) -> None:
    weights = RNG.normal(size=N)

    def both(x: Any, w: Any, shift: Any) -> Any:
        return (
            x * w[:, None] + shift,
            w > 0,
            (10 * w).astype(np.int32) if device == "numpy" else (10 * w).int(),
        )

    shift = np.array([1.0, 2.0, 3.0])
    result = stream(both, (POINTS, weights), chunk=777, device=device, extra=(shift,))
    assert isinstance(result, tuple)
    truth = (POINTS * weights[:, None] + shift, weights > 0, (10 * weights).astype(np.int32))
    for got, want in zip(result, truth, strict=True):
        assert got.dtype == want.dtype and np.array_equal(got, want)


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "int64", "int32", "uint8", "bool", "complex64", ">f4", ">i8"]
)
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_dtypes_are_preserved(dtype: str, device: str) -> None:
    points = (10 * POINTS).astype(dtype)
    result = stream(lambda x: x[:, 1], points, chunk=1_000, device=device)
    assert result.dtype == np.dtype(dtype).newbyteorder("=") and np.array_equal(result, points[:, 1])


def test_bfloat16_becomes_float32_in_numpy_and_stays_bfloat16_in_a_tensor() -> None:
    values = torch.from_numpy(POINTS).bfloat16()
    assert stream(lambda x: x * 2, values, chunk=1_000, device="cpu", out="numpy").dtype == np.float32
    result = stream(lambda x: x * 2, values, chunk=1_000, device="cpu")
    assert result.dtype == torch.bfloat16 and torch.equal(result, values * 2)


def test_tensors_give_tensors_unless_the_caller_chooses_another_output() -> None:
    values = torch.from_numpy(POINTS).requires_grad_()
    result = stream(wave, values, chunk=1_000, device="cpu")
    assert (
        isinstance(result, Tensor) and not result.requires_grad and torch.equal(result, wave(values.detach()))
    )
    assert isinstance(stream(wave, values, chunk=1_000, device="cpu", out="numpy"), np.ndarray)
    assert isinstance(stream(wave, POINTS, chunk=1_000, device="cpu", out="device"), Tensor)


def test_strided_reversed_and_read_only_arrays_are_streamed() -> None:
    turned = POINTS[::-2, ::-1]
    turned.flags.writeable = False
    for device in ("numpy", "cpu"):
        assert np.array_equal(stream(wave, turned, chunk=900, device=device), wave(turned))


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("numbers", [N, range(N), range(100, 9_000, 7), range(50, -50, -1)])
def test_a_number_or_range_gives_the_function_indices(numbers: Any, device: str) -> None:
    truth = np.arange(N) if isinstance(numbers, int) else np.array(numbers)
    result = stream(lambda i: i * i - 3, numbers, chunk=512, device=device)
    assert (
        isinstance(result, np.ndarray) and result.dtype == np.int64 and np.array_equal(result, truth**2 - 3)
    )


def test_padded_calls_have_one_shape_and_others_a_ragged_last_chunk() -> None:
    padded, ragged = Recorder(), Recorder()
    stream(padded, POINTS, chunk=1_000, device="cpu")
    stream(ragged, POINTS, chunk=1_000, device="cpu", pad=False)
    assert padded.rows == [1_000] * 6
    assert ragged.rows == [1_000] * 5 + [3]


def test_a_padded_chunk_has_its_shape_even_for_few_points() -> None:
    padded, ragged = Recorder(), Recorder()
    assert np.array_equal(stream(padded, POINTS[:10], chunk=64, device="cpu"), wave(POINTS[:10]))
    stream(ragged, POINTS[:10], chunk=64, device="cpu", pad=False)
    assert padded.rows == [64] and ragged.rows == [10]


def test_padding_repeats_the_last_point() -> None:
    records_seen: list[Any] = []
    stream(lambda x: (records_seen.append(x.copy()), x)[1], POINTS[:10], chunk=8, device="numpy")
    assert np.array_equal(records_seen[-1][2:], np.repeat(POINTS[9:10], 6, axis=0))


def test_a_function_may_write_to_its_points_without_harm() -> None:
    def spoil(x: Any) -> Any:
        x *= 2
        return x

    for device, values in (
        ("numpy", POINTS.copy()),
        ("cpu", POINTS.copy()),
        ("cpu", torch.from_numpy(POINTS.copy())),
    ):
        assert np.array_equal(stream(spoil, values, chunk=1_000, device=device), 2 * POINTS)
        assert np.array_equal(values, POINTS)


@pytest.mark.parametrize(
    ("device", "error"), [("numpy", MemoryError), ("cpu", torch.OutOfMemoryError), ("cpu", MemoryError)]
)
def test_out_of_memory_halves_the_chunk_and_no_finished_chunk_is_computed_again(
    device: str, error: Any
) -> None:
    limited, flows = Recorder(limit=1_100, error=error), []
    result = stream(limited, POINTS, chunk=4_096, tile=256, device=device, report=flows.append)
    assert np.array_equal(result, wave(POINTS))
    assert (
        limited.rows == [4_096, 2_048] + [1_024] * 5
    )  # each size fails once, then ceil(5,003 / 1,024) calls
    assert (flows[0].halvings, flows[0].chunk, flows[0].calls) == (2, 1_024, 7)


def test_out_of_memory_in_the_middle_keeps_finished_chunks() -> None:
    starts: list[int] = []

    def late(i: Any) -> Any:
        if i[0] >= 2_000 and len(i) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        starts.append(int(i[0]))
        return i * 2

    result = stream(late, 4_000, chunk=1_000, tile=100, device="cpu")
    assert np.array_equal(result, 2 * np.arange(4_000))
    assert starts == [0, 1_000, *range(2_000, 4_000, 200)]  # 1,000 -> 500 -> 250, which is 2 tiles of 100


def test_out_of_memory_at_one_tile_names_the_chunk_and_the_bytes() -> None:
    with pytest.raises(
        DoesNotFit, match=r"at a chunk of 256 points, with [\d.,]+ GiB free: CUDA out of memory. Tried to"
    ) as caught:
        stream(Recorder(limit=100, error=torch.OutOfMemoryError), POINTS, chunk=1_024, tile=256, device="cpu")
    assert "below 256 points" in caught.value.hint and isinstance(
        caught.value.__cause__, torch.OutOfMemoryError
    )


def test_a_small_fixed_chunk_may_be_halved_three_times() -> None:
    limited = Recorder(limit=15)
    stream(limited, POINTS[:200], chunk=100, device="numpy")
    assert limited.rows[:4] == [100, 48, 24, 12] and set(limited.done) == {12}


def test_other_errors_of_the_function_are_not_mistaken_for_out_of_memory() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        stream(lambda x: 1 // 0, POINTS, chunk=1_000, device="numpy")
    assert caught.value.__notes__ == ["stream: the results of 0 of 5,003 points are stored"]


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_an_interrupt_leaves_the_finished_chunks_in_out(device: str) -> None:
    calls = Recorder()

    def interrupted(x: Any) -> Any:
        if len(calls.rows) == 3:
            raise KeyboardInterrupt
        return calls(x)

    out = np.full_like(POINTS, np.nan)
    with pytest.raises(KeyboardInterrupt) as caught:
        stream(interrupted, POINTS, chunk=1_000, device=device, out=out)
    assert np.array_equal(out[:3_000], wave(POINTS[:3_000])) and np.isnan(out[3_000:]).all()
    assert caught.value.__notes__ == ["stream: the results of 3,000 of 5,003 points are stored"]


def test_a_result_that_cannot_be_stored_is_reported_with_the_number_of_stored_points(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Outputs.store

    def full(self: Outputs, part: int, start: int, stop: int, rows: Any) -> None:
        if start >= 2_000:
            raise OSError(28, "No space left on device")
        stored(self, part, start, stop, rows)

    monkeypatch.setattr(Outputs, "store", full)
    with pytest.raises(OSError, match="No space left") as caught:
        stream(wave, POINTS, chunk=1_000, device="cpu")
    assert caught.value.__notes__ == ["stream: the results of 2,000 of 5,003 points are stored"]


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_results_are_never_rounded_into_a_narrower_type(device: str) -> None:
    outs = [np.empty((N, 3), np.float32)] + ([torch.empty(N, 3)] if device == "cpu" else [])
    for out in outs:
        with pytest.raises(BadInput, match="float64"):
            stream(lambda x: x * 2, POINTS.astype(np.float64), chunk=1_000, device=device, out=out)


def test_progress_starts_at_zero_increases_and_ends_with_all_points() -> None:
    messages: list[tuple[int, int]] = []
    stream(
        wave, POINTS, chunk=1_000, device="numpy", progress=lambda done, total: messages.append((done, total))
    )
    assert messages == [(done, N) for done in (0, 1_000, 2_000, 3_000, 4_000, 5_000, N)]


def test_out_is_filled_and_returned_and_may_have_a_wider_dtype(tmp_path: Path) -> None:
    for out in (
        np.empty((N, 3)),
        torch.empty(N, 3, dtype=torch.float64),
        np.memmap(tmp_path / "out", "f4", "w+", shape=(N, 3)),
    ):
        assert stream(wave, POINTS, chunk=1_000, device="cpu", out=out) is out
        assert np.array_equal(out, wave(POINTS))
    pair = (np.empty((N, 3), np.float32), torch.empty(N))
    result = stream(lambda x: (x, x[:, 0]), POINTS, chunk=1_000, device="cpu", out=pair)
    assert result[0] is pair[0] and result[1] is pair[1] and np.array_equal(result[1], POINTS[:, 0])


def test_results_are_written_in_place_without_a_second_copy() -> None:
    points = np.zeros((400_000, 1))
    tracemalloc.start()
    try:
        result = stream(lambda x: np.repeat(x, 4, axis=1), points, chunk=1_000, device="numpy")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The result and a few chunks; joining a list of chunks would take twice the result.
    assert result.nbytes <= peak <= result.nbytes + 10 * 1_000 * 5 * 8 + 100_000


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_the_byte_model_finds_the_chunk_of_a_function_with_known_bytes(device: str) -> None:
    budget, fixed, count = 40 * 2**20, 8 * 2**20, 2_000_000
    flows: list[Flow] = []

    def known(i: Any) -> Any:
        """Takes 8 bytes of indices, 3 x 64 of temporaries and 8 of results per point, and 8 MiB per chunk."""
        new = np.empty if device == "numpy" else lambda shape: torch.empty(*shape, dtype=torch.float64)
        blocks = [new((fixed // 8,)), *(new((len(i), 8)) for _ in range(3))]
        result = i.astype(float) if device == "numpy" else i.double()
        del blocks
        return result

    rows = Recorder(known)
    result = stream(rows, count, budget=budget, device=device, tile=256, report=flows.append)
    assert np.array_equal(result, np.arange(count))
    flow, per_point = flows[0], 8 + 3 * 64 + 8
    assert flow.budget_bytes == budget and flow.peak_bytes is not None and flow.peak_bytes <= budget
    assert flow.bytes_per_point == pytest.approx(per_point, abs=2) and flow.fixed_bytes == pytest.approx(
        fixed, rel=0.005
    )
    best = (budget - fixed) / per_point
    assert (
        0.9 * best <= flow.chunk <= best
    )  # below the optimum only by the reserved share and by chunks of equal size
    # A quarter of a tile, a tile, eight times that and so on, then one shape to the end.
    assert rows.rows[:3] == [64, 256, 2_048] and len(set(rows.rows)) <= 6 and rows.rows[-2] == flow.chunk


def test_known_bytes_per_point_need_no_trials() -> None:
    rows, flows = Recorder(), []
    stream(rows, POINTS, bytes_per_point=1_000, budget="2MB", tile=100, device="cpu", report=flows.append)
    # 98 % of 2 MB is 1,960 points, so there are 3 calls of 1,668 points each, rounded up to tiles.
    assert rows.rows == [1_700] * 3 and flows[0].bytes_per_point == 1_000


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_without_a_budget_a_cpu_gets_chunks_that_suit_its_caches(device: str) -> None:
    flows: list[Flow] = []
    new = np.empty if device == "numpy" else lambda shape: torch.empty(*shape, dtype=torch.float64)
    stream(lambda i: (new((len(i), 100)), i * 1)[1], 300_000, device=device, report=flows.append)
    assert 0.7 * 16 * 2**20 <= flows[0].chunk * 816 <= 16 * 2**20
    assert flows[0].peak_bytes is not None and flows[0].peak_bytes <= 16 * 2**20


def test_weights_larger_than_the_default_budget_are_not_refused() -> None:
    weights = torch.ones(10 * 2**20)  # 40 MiB, twice
    rows = Recorder(lambda x: wave(x) * (weights * 2)[0])
    assert np.array_equal(stream(rows, POINTS, device="cpu"), 2 * wave(POINTS)) and set(rows.rows) == {
        256,
        1_024,
    }


def test_a_card_is_a_budget_without_its_context() -> None:
    from pinchpoint.forecasting.cards import card

    for budget in ("rtx4090", card("rtx4090")):
        flows: list[Flow] = []
        stream(wave, POINTS, budget=budget, device="cpu", report=flows.append)
        assert flows[0].budget_bytes == card("rtx4090").usable_bytes


def test_few_points_are_processed_in_one_call_without_padding() -> None:
    rows = Recorder()
    stream(rows, POINTS[:10], device="cpu")
    assert rows.rows == [10]


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_budget_too_small_for_one_tile_is_refused_with_numbers(device: str) -> None:
    with pytest.raises(DoesNotFit, match=r"points takes [\d.]+ [KM]iB, but the budget is 4.00 KiB") as caught:
        stream(wave, POINTS, budget=4_096, device=device)
    assert "budget of at least" in caught.value.hint and "tile below 1,024" in caught.value.hint
    with pytest.raises(DoesNotFit, match="according to bytes_per_point"):
        stream(wave, POINTS, budget=4_096, bytes_per_point=100, device=device)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_no_points_give_an_empty_array_of_the_right_shape(device: str) -> None:
    result = stream(lambda x: (wave(x), x[:, 0]), POINTS[:0], device=device)
    assert [part.shape for part in result] == [(0, 3), (0,)] and result[0].dtype == np.float32
    assert stream(lambda i: i * 1.5, 0, device=device).shape == (0,)
    out = np.empty((0, 3), np.float32)
    assert stream(wave, POINTS[:0], device=device, out=out) is out


def test_nan_passes_through() -> None:
    points = POINTS.copy()
    points[::17] = np.nan
    assert np.array_equal(
        stream(wave, points, chunk=1_000, device="cpu", check=True), wave(points), equal_nan=True
    )


def _dropout(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5)


@pytest.mark.parametrize(
    "mixes",
    [
        lambda x: x - x.mean(0),
        lambda x: x.cumsum(0),
        lambda x: x.flip(0),
        lambda x: torch.softmax(x, 0),
        lambda x: x + torch.arange(len(x))[:, None],
        lambda x: x.argsort(0),
        lambda x: (x, x / x.abs().max()),
        lambda x: x * len(x),
        nn.BatchNorm1d(3),
        _dropout,
    ],
)
def test_the_check_refuses_a_function_that_mixes_rows(mixes: Any) -> None:
    with pytest.raises(BadInput, match="mixes rows"):
        stream(mixes, torch.from_numpy(POINTS), chunk=1_000, device="cpu", check=True)


def test_the_check_accepts_row_wise_functions() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 64), nn.BatchNorm1d(64), nn.SiLU(), nn.Linear(64, 4)).eval()
    checked = stream(net, POINTS, device="cpu", check=True)
    assert np.array_equal(checked, stream(net, POINTS, device="cpu"))
    stream(net.bfloat16(), torch.from_numpy(POINTS).bfloat16(), device="cpu", check=True)
    stream(lambda i: (i % 3 == 0, i.astype(str).astype("S8") == b"7"), 3_000, device="numpy", check=True)
    stream(wave, POINTS[:1], device="cpu", check=True)


def test_the_check_uses_fewer_points_when_memory_runs_out() -> None:
    limited = Recorder(limit=300)
    assert np.array_equal(
        stream(limited, POINTS, chunk=250, tile=1_024, device="numpy", check=True), wave(POINTS)
    )
    assert limited.rows[:4] == [1_024, 512, 256, 85]
    with pytest.raises(DoesNotFit, match="Memory ran out at 3 points"):
        stream(Recorder(limit=0), POINTS, chunk=250, device="numpy", check=True)


def _changes(x: Any) -> Any:
    return x.astype(np.float64 if x[0, 0] == POINTS[0, 0] else np.float32)


@pytest.mark.parametrize(
    ("wrong", "options", "said"),
    [
        (
            (lambda x: x[:-1], POINTS),
            {},
            "returned an array of shape \\(999, 3\\) for a chunk of 1,000 points",
        ),
        ((lambda x: x.sum(), POINTS), {}, "returned an array of shape \\(\\) for a chunk"),
        ((lambda x: None, POINTS), {}, "returned NoneType"),
        ((lambda x: (x, 3), POINTS), {}, "returned \\(ndarray, int\\)"),
        ((lambda x: (), POINTS), {}, "returned \\(\\)"),
        ((_changes, POINTS), {}, "float64 \\(C, 3\\) for the first chunk and float32 \\(C, 3\\)"),
        ((wave, (POINTS, POINTS[1:])), {}, "numbers of rows: 5,003, 5,002"),
        ((3, POINTS), {}, "The function is 3"),
        ((wave, POINTS), {"chunk": "auto", "budget": "-3GiB"}, "'-3GiB' is not a number of bytes"),
        ((wave, "points"), {}, "The points are 'points'"),
        ((wave, [[1.0, 2.0]]), {}, "The points are \\(list\\)"),
        ((wave, ()), {}, "The points are"),
        ((wave, np.float64(3)), {}, "The points are"),
        ((wave, -1), {}, "The points are -1"),
        ((wave, True), {}, "The points are True"),
        ((wave, np.array(["a", None])), {}, "cannot be streamed"),
        ((wave, POINTS), {"budget": "1GiB"}, "Both a chunk and a budget"),
        ((wave, POINTS), {"most": 2_048}, "Both a chunk and a budget, most"),
        (
            (wave, POINTS),
            {"chunk": "auto", "most": 1_000},
            "most= is 1,000 points, which is less than a tile",
        ),
        ((wave, POINTS), {"chunk": 0}, "not a whole number above 0"),
        ((wave, POINTS), {"chunk": "some"}, "not a number of points"),
        ((wave, POINTS), {"tile": 0}, "tile= is 0"),
        ((wave, POINTS), {"chunk": "auto", "bytes_per_point": 0}, "bytes_per_point is 0"),
        ((wave, POINTS), {"chunk": "auto", "budget": "many"}, "There is no card"),
        (
            (wave, POINTS),
            {"out": np.empty((4, 3))},
            "out= is ndarray of shape \\(4, 3\\), but there are 5,003",
        ),
        ((wave, POINTS), {"out": np.empty((N, 2))}, "out= has rows of \\(2,\\)"),
        ((wave, POINTS), {"out": (POINTS.copy(), POINTS.copy())}, "out= has rows of"),
        (
            (wave, POINTS),
            {"out": np.empty((N, 3), np.int32)},
            "out= has dtype int32, which cannot store float32",
        ),
        ((wave, POINTS), {"out": "here"}, "out='here' is not a valid destination"),
        ((wave, POINTS), {"device": "tpu"}, "device 'tpu' is unknown"),
    ],
)
def test_invalid_arguments_are_refused_with_a_hint(
    wrong: tuple[Any, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        stream(*wrong, **{"chunk": 1_000, "device": "numpy", **options})
    assert caught.value.hint


def test_torch_refuses_objects_and_dtypes_that_it_does_not_support() -> None:
    with pytest.raises(BadInput, match="returned ndarray") as caught:
        stream(lambda x: x.numpy(), POINTS, chunk=1_000, device="cpu")
    assert 'device="numpy"' in caught.value.hint
    with pytest.raises(BadInput, match="torch does not support"):
        stream(wave, POINTS.astype(np.longdouble), chunk=1_000, device="cpu")
    with pytest.raises(BadInput, match="cannot be written to"):
        stream(wave, POINTS, device="cpu", out=np.broadcast_to(np.float32(0), (N, 3)))
    with pytest.raises(BadInput, match="a tensor on meta, but it runs on cpu"):
        stream(lambda x: x.to("meta"), POINTS, chunk=1_000, device="cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_gpu_raises_missing() -> None:
    with pytest.raises(Missing, match="No CUDA device"):
        stream(wave, POINTS, device="cuda")


def test_numpy_functions_need_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np; from pinchpoint import stream\n"
        "print(stream(lambda i: 2 * i, 3_000, device='numpy').sum())\n"
        "try: stream(lambda i: 2 * i, 3_000)\n"
        "except Exception as error: print(type(error).__name__, error.hint)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True
    )
    assert process.stdout.startswith(f"{3_000 * 2_999}\nMissing Run pip install")
