"""Counts and values that depend on data: exact if the data are known, otherwise from a law."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pinchpoint.backends.torch.data_dependent.count_laws import Law, fit
from pinchpoint.backends.torch.data_dependent.unknown_values import (
    DataNumber,
    NeedsCalibration,
    calibration_site,
)

ROWS = 3000


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1))


def test_masks_of_small_data_are_exact(observer: Any, rows: torch.Tensor) -> None:
    x = rows.cuda()
    keep = x[:, 0] > 0.5
    true = rows[:, 0] > 0.5
    assert x[keep].shape == (int(true.sum()), 8)
    assert x.masked_select(x > 0).shape == rows.masked_select(rows > 0).shape
    assert keep.nonzero().shape == true.nonzero().shape
    assert torch.where(keep)[0].shape == torch.where(true)[0].shape
    assert keep.sum().item() == true.sum().item()
    labels = (x[:, 1] * 3).long()
    values, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    expected = torch.unique((rows[:, 1] * 3).long())
    assert values.shape == counts.shape == expected.shape and inverse.shape == labels.shape
    assert torch.bincount(labels.abs()).shape == torch.bincount((rows[:, 1] * 3).long().abs()).shape
    counts = torch.tensor([2, 0, 3]).cuda()
    assert torch.ones(3, 4, device="cuda").repeat_interleave(counts, 0).shape == (5, 4)
    x[keep] = 0.0
    assert (x[:, 0] == 0).sum().item() == true.sum().item()
    assert x[~keep].mean().item() == pytest.approx(rows[~true].mean().item(), rel=1e-5)


def test_values_follow_writes_in_place(observer: Any) -> None:
    x = torch.arange(6.0).cuda()
    doubled = x * 2
    x.add_(10)
    assert x.tolist() == [10.0, 11.0, 12.0, 13.0, 14.0, 15.0]
    assert observer.shadow(doubled) is None  # read too late: unknown, rather than wrong
    x[2:4] = 0.0
    assert x.tolist() == [10.0, 11.0, 0.0, 0.0, 14.0, 15.0]
    x.data.mul_(2)
    assert x[5].item() == 30.0


def test_writes_to_large_tensors_are_deferred_until_they_are_read(observer: Any) -> None:
    """Above `_WRITE_LIMIT` elements a write does not run at once."""
    base = torch.arange(2_000_000, device="cuda")
    before = base % 7
    values = base % 7
    values.mul_(2).add_(before)
    doubled = values + values
    values.sub_(before)
    assert int((values == 12).sum()) == 285_714  # of 2,000,000 = 7 * 285,714 + 2
    assert int((doubled == 36).sum()) == 285_714
    assert int((before == 6).sum()) == 285_714


def test_a_large_write_to_a_tensor_with_views_is_not_guessed(observer: Any) -> None:
    for write in (lambda whole, part: whole.add_(1), lambda whole, part: part.add_(1)):
        whole = torch.zeros(2_000_000, device="cuda", dtype=torch.int64)
        part = whole.view(1000, 2000)
        write(whole, part)
        for values in (whole, part):
            with pytest.raises(NeedsCalibration):
                torch.zeros(int(values.max()), device="cuda")


def test_a_part_written_with_unknown_values_makes_the_whole_unknown(observer: Any) -> None:
    unknown = torch.zeros(2000, 1000, device="cuda").normal_()[0, :6]
    x = torch.arange(6.0).cuda()
    part, waiting = x[1:3], x * 2
    assert observer.shadow(part).tolist() == [1.0, 2.0]
    x[:2] = unknown[:2]
    assert [observer.shadow(t) for t in (x, part, waiting, x + 1)] == [None] * 4
    y = torch.arange(6.0).cuda()
    late = y[:3]
    y.copy_(unknown)
    assert observer.shadow(y) is None and observer.shadow(late) is None
    z = torch.arange(6.0).cuda()
    assert (z + 1).tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]  # others are not touched


def test_a_count_of_unknown_data_asks_for_a_calibration_with_its_line(observer: Any) -> None:
    big = torch.zeros(3_000_000, device="cuda").normal_()
    with pytest.raises(NeedsCalibration, match=r"test_operations\.py:\d+:mask"):
        big[big > 0]
    with pytest.raises(NeedsCalibration, match=r"test_operations\.py:\d+:nonzero"):
        (big > 0).nonzero()


def test_a_law_answers_and_the_same_mask_gives_the_same_count(simulate: Any) -> None:
    with simulate(assume=True) as observer:
        big = torch.zeros(3_000_000, device="cuda").normal_()
        mask = big > 0
        assert big[mask].shape == (1_500_000,)
        observer.dynamic.bound = "high"
        assert big[mask].shape == (1_500_000,)  # remembered: two uses of one mask agree
        assert big[big > 1].shape == (3_000_000,)
        observer.dynamic.bound = "low"
        assert big[big > 2].shape == (1,)  # never zero: an empty tensor is a special case


def test_calibrating_notes_what_each_line_gives(simulate: Any, rows: torch.Tensor) -> None:
    with simulate(calibrating=True) as observer:
        observer.dynamic.size = ROWS
        x = rows.cuda()
        x[x[:, 0] > 0]
        (x[:, 1] > 0).sum().item()
        true = int((rows[:, 0] > 0).sum())
        counts = {site.rsplit(":", 1)[1]: pairs for site, pairs in observer.dynamic.counts.items()}
        assert counts["mask"] == [(ROWS, true)]
        assert counts["item"] == [(ROWS, int((rows[:, 1] > 0).sum()))]
    laws = fit([observer.dynamic.counts])
    law = next(law for site, law in laws.items() if site.endswith(":mask"))
    assert law.exponent == 1.0 and law.count(10 * ROWS, "mid") == 10 * true


def count_below(share: float, n: int, draw: random.Random) -> int:
    return sum(draw.random() < share for _ in range(n))


@pytest.mark.parametrize("seed", range(5))
def test_a_fixed_share_snaps_to_exponent_one_and_a_fixed_count_to_zero(seed: int) -> None:
    draw = random.Random(seed)
    runs = [
        {"a:1:mask": [(n, count_below(0.3, n, draw))], "a:2:unique": [(n, 50 + draw.randrange(3))]}
        for n in (2048, 16384)
    ]
    laws = fit(runs)
    assert laws["a:1:mask"].exponent == 1.0
    assert laws["a:2:unique"].exponent == 0.0
    for n in (10**5, 10**6):
        count = round(0.3 * n)
        assert laws["a:1:mask"].count(n, "low") <= count <= laws["a:1:mask"].count(n, "high")
        assert abs(laws["a:2:unique"].count(n, "mid") - 51) <= 2


def test_a_root_law_is_kept_as_it_is() -> None:
    law = fit([{"s": [(2_048, round(40 * 2_048**0.5))]}, {"s": [(16_384, round(40 * 16_384**0.5))]}])["s"]
    assert law.exponent == pytest.approx(0.5, abs=0.01)
    assert law.count(10**6, "mid") == pytest.approx(40_000, rel=0.05)


def test_a_line_reached_once_is_a_share_and_one_never_true_stays_none() -> None:
    assert fit([{"s": [(1000, 250)]}])["s"].count(4000, "mid") == 1000
    none = fit([{"s": [(1000, 0)]}, {"s": [(8000, 0)]}])["s"]
    assert none.count(10**6, "mid") == 0


def test_the_interval_widens_with_the_distance() -> None:
    law = Law(0.5, 1.0, 0.05, 10_000)
    widths = [
        (law.count(n, "high") - law.count(n, "low")) / law.count(n, "mid") for n in (10_000, 10**5, 10**7)
    ]
    assert widths == sorted(widths) and widths[0] == pytest.approx(0.1, rel=0.01)
    assert Law(0.5, 1.0, 1.0, 10).count(10**6, "low") == 0


def test_an_unknown_count_can_be_logged_but_not_used_as_a_size() -> None:
    count = DataNumber("train.py:3:item")
    for number in (count + 1, 1 + count, count * 2, 3 * count, count - 1, count // 2, sum([count, count])):
        assert isinstance(number, DataNumber) and number.site == "train.py:3:item"
    assert f"{count:d} {count}" == "1 1" and count / 2 == 0.5 and count > 0
    for use in (int, range, [1, 2].__getitem__):
        with pytest.raises(NeedsCalibration):
            use(count)


def test_unknown_values_read_as_in_a_healthy_run(observer: Any) -> None:
    loss = torch.zeros(3_000_000, device="cuda").normal_().mean()
    assert loss.item() == 1.0
    assert torch.isfinite(loss).all().item() is True and torch.isnan(loss).any().item() is False


def test_a_tensor_sized_by_unknown_data_is_not_made_up(observer: Any) -> None:
    count = torch.zeros(3_000_000, device="cuda").normal_().gt(0).sum().item()
    with pytest.raises(TypeError) as caught:
        torch.zeros(count, 4, device="cuda")
    site = calibration_site(caught.value, observer.dynamic.unknown_site)
    assert site is not None and site.endswith(":item") and __file__ in site


def test_one_hot_and_sort_of_known_data_work(observer: Any) -> None:
    labels = torch.tensor([0, 3, 1]).cuda()
    assert F.one_hot(labels).shape == (3, 4)
    assert labels.sort().values.tolist() == [0, 1, 3]


def test_filling_where_a_mask_is_true_needs_no_count(observer: Any) -> None:
    big = torch.zeros(3_000_000, 2, device="cuda").normal_()
    before = len(observer.ledger.observation.blocks)
    mask = big[:, 0] < 0
    big[mask] = 1.0
    sizes = [block.bytes for block in observer.ledger.observation.blocks[before:] if block.bytes > 1024]
    assert sizes == [3_000_000]  # only the mask: no index tensor is allocated


@pytest.mark.parametrize("known", [True, False])
def test_the_ctc_loss_keeps_alignments_of_the_longest_target(observer: Any, take: Any, known: bool) -> None:
    steps, batch, labels, width = 200, 4, 32, 30
    log_probs = torch.zeros(steps, batch, labels, device="cuda", requires_grad=True)
    targets = torch.ones(batch, width, dtype=torch.int64, device="cuda")
    lengths = torch.tensor([3, 20, 5, 1]).cuda()
    if not known:  # the rows of the targets are padded to the longest one
        lengths = lengths + torch.zeros(2000, 1000, device="cuda").normal_()[0, :4].long()
        assert observer.shadow(lengths) is None
    table = 4 * batch * steps * (2 * (20 if known else width) + 1)
    frames = torch.full((batch,), steps, device="cuda")
    forward = take(lambda: F.ctc_loss(log_probs, targets, frames, lengths, zero_infinity=True))
    assert table in [block.bytes for block in forward.blocks]
    loss = F.ctc_loss(log_probs, targets, frames, lengths)
    backward = take(loss.backward)
    assert backward.peak >= table + 4 * steps * batch * labels
    assert log_probs.grad is not None and log_probs.grad.shape == log_probs.shape
    by_lists: Any = F.ctc_loss
    as_lists = take(lambda: by_lists(log_probs, targets, (steps,) * batch, (3, 20, 5, 1)))
    assert 4 * batch * steps * 41 in [block.bytes for block in as_lists.blocks]
