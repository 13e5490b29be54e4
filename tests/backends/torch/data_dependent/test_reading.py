"""Numbers that Python reads from the device: they can be logged, and counts are never invented."""

from __future__ import annotations

import copy
import json
import math
import pickle
import statistics
from typing import Any

import numpy as np
import pytest
import torch

from pinchpoint.backends.torch.data_dependent import count_laws
from pinchpoint.backends.torch.data_dependent.unknown_values import DataFloat, NeedsCalibration

POINTS = 3_000_000


@pytest.fixture
def scores(observer: Any) -> torch.Tensor:
    return torch.zeros(POINTS, device="cuda").normal_()


def test_an_unknown_loss_can_be_logged_in_every_usual_way(scores: torch.Tensor) -> None:
    loss = scores.mean().item()
    average = 0.9 * loss + 0.1 * loss
    assert json.loads(json.dumps({"loss": loss})) == {"loss": 1.0} and f"{loss:.2f} {loss}" == "1.00 1.0"
    assert average == pytest.approx(1.0) and round(loss, 3) == 1.0 and loss < 2 and loss == 1.0
    assert not math.isnan(loss) and math.isfinite(loss) and math.exp(loss) == math.e and float(loss) == 1.0
    assert np.mean([loss, loss]) == statistics.mean([loss, loss]) == sum([loss, loss]) / 2 == 1.0
    assert np.array([loss]).dtype == np.float64 and torch.tensor([loss]).dtype is torch.float32
    assert copy.deepcopy({"loss": loss}) == {"loss": 1.0} and type(pickle.loads(pickle.dumps(loss))) is float
    assert float(scores.mean()) == 1.0 and bool(scores.mean()) and (scores[:2] * loss).shape == (2,)


@pytest.mark.parametrize(
    "count",
    [
        int,
        round,
        math.floor,
        math.ceil,
        math.trunc,
        lambda v: int(v * 0.5 + 1),
        lambda v: int(sum([v, v]) // 2),
    ],
)
def test_a_float_made_a_count_asks_for_a_calibration_with_its_line(scores: torch.Tensor, count: Any) -> None:
    value = (scores > 0).float().sum().item()
    with pytest.raises(NeedsCalibration, match=r"test_reading\.py:\d+:int"):
        count(value)


@pytest.mark.parametrize(
    "use",
    [
        int,
        range,
        lambda n: torch.zeros(n, 4, device="cuda"),
        lambda n: torch.arange(n, device="cuda"),
        lambda n: torch.ones(9, device="cuda")[:n],
        lambda n: int(n.float()),
        lambda n: int(n.item() * 0.5),
        lambda n: n.numpy(),
        lambda n: [1, 2][n],
    ],
)
def test_a_count_that_stays_a_tensor_is_no_better_known(scores: torch.Tensor, use: Any) -> None:
    with pytest.raises(NeedsCalibration, match=r"test_reading\.py:\d+"):
        use((scores > 0).sum())


def test_masks_and_counts_read_whole_ask_and_floats_are_noted_once_a_line(
    observer: Any, scores: torch.Tensor
) -> None:
    for read in ("numpy", "tolist", "__array__"):
        with pytest.raises(NeedsCalibration, match=r":array$"):
            getattr((scores > 0).cpu(), read)()
        with pytest.raises(NeedsCalibration, match=r":array$"):
            getattr((scores > 0).view(3, -1).sum(1), read)()
    for _ in range(2):
        assert scores[:3].cpu().numpy().tolist() == [0.0, 0.0, 0.0]
    (note,) = observer.ledger.observation.notes
    assert "test_reading.py" in note and "zeros" in note


def test_known_data_are_read_as_they_are(observer: Any) -> None:
    x = torch.tensor([3.0, 0.0, 2.0]).cuda()
    assert type(x.sum().item()) is float and int(x.sum().item()) == int(x.sum()) == 5
    assert (x > 0).cpu().numpy().nonzero()[0].tolist() == [0, 2] and x.long().tolist() == [3, 0, 2]
    assert torch.zeros(int(x.max().item()), device="cuda").shape == (3,)
    assert observer.ledger.observation.notes == []


def calibrate(simulate: Any, sizes: tuple[int, ...], read: Any) -> dict[str, Any]:
    runs = []
    for size in sizes:
        with simulate(calibrating=True) as observer:
            observer.dynamic.size = size
            read(torch.rand(size, generator=torch.Generator().manual_seed(size)).cuda())
            runs.append(json.loads(json.dumps(observer.dynamic.calibration_results())))
    return count_laws.dynamic_options(runs)


def test_counts_read_in_three_ways_grow_as_in_the_small_runs(simulate: Any) -> None:
    """A third of the points is selected; the range includes that third, and its ends differ."""
    results: list[tuple[int, int, int, int]] = []

    def read(x: torch.Tensor) -> None:
        keep = x < 1 / 3
        half = int(keep.float().sum().item() * 0.5)
        rows = keep.numpy().nonzero()[0]
        parts = keep.view(4, -1).sum(1).tolist()
        labels = (x * 10).long().tolist()
        results.append((half, len(rows), sum(parts), max(labels)))

    options = calibrate(simulate, (2048, 16384), read)
    results.clear()
    size = 4_000_000
    for bound in ("low", "mid", "high"):
        with simulate(**options, bound=bound) as observer:
            observer.dynamic.size = size
            read(torch.zeros(size, device="cuda").normal_())
    low, mid, high = results
    for part, expected in enumerate((size / 6, size / 3, size / 3)):
        assert mid[part] == pytest.approx(expected, rel=0.05)
        assert low[part] < expected < high[part] < 1.5 * expected
    assert low[3] == mid[3] == high[3] == 9  # labels are not counts


def test_a_number_that_no_size_changes_has_no_range() -> None:
    law = count_laws.fit([{"s": [(2048, 10), (2048, 10)]}, {"s": [(16384, 10)]}])["s"]
    assert {law.count(10**6, bound) for bound in ("low", "mid", "high")} == {10}


def test_a_guess_stands_for_every_number_read(simulate: Any) -> None:
    with simulate(guess=2):
        scores = torch.zeros(POINTS, device="cuda").normal_()
        assert (scores > 0).sum().item() == int((scores > 0).sum()) == int(scores.mean().item()) == 2
        assert (scores[:4] > 0).tolist() == [False, True, False, True]
        with pytest.raises(NeedsCalibration):  # a mask's count is not a number that is read
            scores[scores > 0]


def test_a_float_rebuilt_by_its_type_is_plain() -> None:
    assert type(DataFloat(2.5)) is float


def test_room_made_for_a_result_is_counted(take: Any) -> None:
    a, out = torch.zeros(1000, 1000, device="cuda"), torch.empty(0, device="cuda")
    # A million floats; an empty tensor has no block.
    assert take(lambda: torch.mul(a, 2.0, out=out)).kept_bytes == 4_000_256
    assert take(lambda: torch.mul(a, 3.0, out=out)).blocks == []
    values, indices = torch.empty(0, device="cuda"), torch.empty(0, dtype=torch.int64, device="cuda")
    assert take(lambda: torch.sort(a, 1, out=(values, indices))).kept_bytes == 4_000_256 + 8_000_000
    small = torch.zeros(1024, device="cuda")
    grown = take(lambda: small.resize_(4096))
    assert (grown.peak, grown.kept_bytes) == (16_384, 12_288)  # the copy's source is still alive at the peak


def test_without_a_calibration_a_script_reads_anything_from_one_to_its_largest_dimension(
    simulate: Any,
) -> None:
    counts = []
    for bound in ("low", "mid", "high"):
        with simulate(assume=True, bound=bound) as observer:
            observer.ledger.step_started = True
            with observer.ledger.enter_phase("forward"):
                scores = torch.zeros(POINTS, device="cuda").normal_()
            counts.append(int((scores > 0).float().sum().item()))
    assert counts == [1, POINTS // 2, POINTS]


def test_a_read_of_an_unknown_value_counts_as_the_operation_that_it_replaces(
    observer: Any, scores: torch.Tensor
) -> None:
    """Limits are numbers of operations, and a call that reads values is not copied."""
    mask, counts = scores > 0, []
    for read in (lambda: bool(mask[0]), lambda: scores[0].item()):
        before = observer.operations, observer.dynamic.reads
        read()
        counts.append((observer.operations - before[0], observer.dynamic.reads - before[1]))
    assert counts == [(2, 2), (2, 2)]  # the element, and its value; asking, and reading
