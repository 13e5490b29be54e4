"""The torch backend on a CPU: `account` compared with the allocator's own events."""

from __future__ import annotations

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch backend needs torch")

from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from pinchpoint.backends.torch import measurement  # noqa: E402
from pinchpoint.core.errors import Missing  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible here")
FLOATS = 1000
BYTES = 4 * FLOATS


def test_account_counts_what_is_alive_at_once_not_what_was_ever_made():
    def run():
        for _ in range(5):
            torch.zeros(FLOATS)  # dies at once
        a = torch.zeros(FLOATS)
        b = a + 1
        del a
        c = b * 2
        return c.sum()

    assert measurement.account(run) == 2 * BYTES + 4  # two at once, and the scalar sum


def test_a_view_costs_nothing_and_keeps_its_storage_alive():
    def run():
        view = torch.zeros(FLOATS)[10:20]
        other = torch.zeros(FLOATS)
        return view, other, other.view(10, 100).t()

    assert measurement.account(run) == 2 * BYTES


def test_what_was_made_before_counts_from_its_first_use():
    weights = torch.ones(FLOATS)
    assert measurement.account(lambda: weights.mul_(2)) == BYTES
    assert measurement.account(lambda: weights * 2) == 2 * BYTES


def test_a_resized_storage_counts_with_its_new_size():
    def run():
        a = torch.zeros(10)
        a.resize_(FLOATS)
        return a

    assert measurement.account(run) == BYTES


def step_twice(points: int):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.rand(points, 3)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def allocator_peak(run) -> int:
    """An independent count: every allocation and free that the CPU allocator reports to the profiler."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    live = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("points", [500, 2000])
def test_account_of_training_matches_the_allocators_own_events(points):
    assert measurement.account(lambda: step_twice(points)) == pytest.approx(
        allocator_peak(lambda: step_twice(points)), rel=1e-3
    )


def test_out_of_memory_is_told_from_other_errors():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert measurement.is_oom(caught.value)
    assert measurement.is_oom(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"))
    assert measurement.is_oom(MemoryError())
    assert not measurement.is_oom(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not measurement.is_oom(ValueError("out of memory"))


def test_bfloat16_becomes_an_array_numpy_can_hold():
    assert np.array_equal(
        measurement.to_numpy(torch.ones(3, dtype=torch.bfloat16, requires_grad=True)), np.ones(3, np.float32)
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_cap_without_a_gpu_is_missing_a_device():
    with pytest.raises(Missing):
        measurement.cap(2**30)
    assert measurement.peaks("cpu").allocated_bytes is None


@pytest.mark.gpu
@needs_gpu
def test_a_cap_makes_cuda_run_out_of_memory_and_peaks_are_kept_apart():
    measurement.reset_peak("cuda")
    kept = torch.zeros(2**20, device="cuda")
    peaks = measurement.peaks("cuda")
    assert peaks.allocated_bytes >= kept.nbytes
    assert peaks.reserved_bytes >= peaks.allocated_bytes
    assert peaks.total_bytes > peaks.reserved_bytes  # the context comes on top
    measurement.cap(2**30)
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(2**30, device="cuda")
    assert measurement.is_oom(caught.value)
    torch.cuda.set_per_process_memory_fraction(1.0)
