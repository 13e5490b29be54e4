"""Masks with unknown values: how many elements can be true follows from how the mask was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pinchpoint.backends.torch.data_dependent.count_laws import Law
from pinchpoint.backends.torch.data_dependent.unknown_values import NeedsCalibration
from pinchpoint.backends.torch.kernels import detection

Simulate = Callable[..., AbstractContextManager[Any]]


def unknown(*shape: int) -> torch.Tensor:
    """Whole numbers from 0 to 3 that depend on a weight, so that nobody knows them."""
    weight = torch.nn.Linear(1, 1).cuda().weight
    return (torch.ones(*shape, device="cuda") * weight[0, 0]).long() % 4


@pytest.fixture(params=["low", "mid", "high"])
def bound(request: pytest.FixtureRequest, simulate: Simulate) -> Iterator[str]:
    with simulate(assume=True, bound=request.param):
        yield request.param


def test_a_mask_written_at_known_many_places_has_that_many(bound: str) -> None:
    chosen, others = unknown(100), unknown(50)
    mask = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    mask[chosen] = 1
    second = torch.zeros_like(unknown(1000), dtype=torch.uint8)
    second[others] = 1
    assert torch.where(mask | second)[0].shape == (150,)
    assert (mask > 0).nonzero().shape == (100, 1)
    mask.add_(1)  # everything is nonzero now
    assert mask.nonzero().shape[0] == {"low": 1, "mid": 500, "high": 1000}[bound]


def test_equal_masks_of_one_tensor_share_its_elements(bound: str) -> None:
    level = unknown(512)
    counts = [torch.where(level == number)[0].numel() for number in range(4)]
    expected = {"low": [1, 1, 1, 1], "mid": [256, 128, 64, 32], "high": [512, 1, 1, 1]}
    assert counts == expected[bound]


def test_the_slices_of_a_one_hot_tensor_share_its_total(bound: str) -> None:
    experts = F.one_hot(unknown(128, 2), num_classes=4).permute(2, 1, 0)
    counts = [torch.where(experts[number])[0].numel() for number in range(4)]
    assert counts == ([256, 1, 1, 1] if bound == "high" else [64] * 4)


def test_a_write_of_unknown_values_forgets_known_ones(observer: Any) -> None:
    known = torch.zeros(1000, dtype=torch.int64, device="cuda")
    known[unknown(10)] = 1
    assert observer.shadow(known) is None


def test_a_copy_has_the_values_from_before_a_write(observer: Any) -> None:
    x = torch.arange(6.0).cuda() * 2
    copy = x.clone()
    x[x > 4] = 0.0
    assert observer.shadow(copy).tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    assert observer.shadow(x).tolist() == [0.0, 2.0, 4.0, 0.0, 0.0, 0.0]


def test_what_only_a_gpu_can_count_is_computed_in_another_type(observer: Any) -> None:
    known = torch.histc(torch.tensor([0, 1, 1, 3], dtype=torch.int32).cuda(), bins=4, min=0, max=3)
    assert known.dtype is torch.int32 and observer.shadow(known).tolist() == [1, 2, 0, 1]
    counts = torch.histc(unknown(100).int(), bins=4, min=0, max=3)
    assert counts.shape == (4,) and counts.dtype is torch.int32 and observer.shadow(counts) is None


def test_suppression_keeps_at_most_every_box(simulate: Simulate) -> None:
    library = None
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        kept = {}
        for bound in ("low", "mid", "high"):
            with simulate(assume=True, bound=bound):
                boxes = unknown(2000, 4).float()
                kept[bound] = torch.ops.torchvision.nms(boxes, boxes[:, 0], 0.7).shape[0]
        assert kept == {"low": 1, "mid": 1000, "high": 2000}
    finally:
        if library is not None:
            library._destroy()


def test_a_loop_over_the_experts_that_are_hit_routes_every_token(bound: str) -> None:
    chosen, states = unknown(128, 2), torch.zeros(128, 8, device="cuda")
    mask = F.one_hot(chosen, num_classes=4).permute(2, 1, 0)
    routed = []
    for hit in torch.greater(mask.sum((-1, -2)), 0).nonzero():
        if hit[0] == 4:
            continue
        position, token = torch.where(mask[hit[0]])
        states.index_add_(0, token, states[token] * chosen[token, position, None])
        routed.append(len(token))
    assert routed == ([256, 1, 1, 1] if bound == "high" else [64] * 4)


def test_counted_parts_of_a_fixed_total_do_not_exceed_it(simulate: Simulate) -> None:
    def counts(**how: Any) -> list[int]:
        with simulate(**how):
            mask = F.one_hot(unknown(128, 2), num_classes=4).permute(2, 1, 0)
            return [torch.where(mask[number])[0].numel() for number in range(4)]

    class Anywhere(dict[str, Law]):
        def get(self, key: str, default: Any = None) -> Law:
            return Law(scale=0.25, exponent=1.0, spread=0.375, largest_n=256)  # 64 of 256, at most 88

    for bound, expected in (("low", [64] * 4), ("mid", [64] * 4), ("high", [88, 88, 80, 1])):
        assert counts(laws=Anywhere(), assume=True, bound=bound) == expected


@pytest.mark.skipif(not hasattr(torch.ops.aten, "_grouped_mm"), reason="this torch has no grouped products")
def test_a_grouped_product_in_fp32_has_the_shape_of_its_rows(observer: Any) -> None:
    rows, weights = torch.zeros(64, 16, device="cuda"), torch.zeros(4, 16, 32, device="cuda")
    ends = torch.histc(unknown(64).int(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
    product = torch.ops.aten._grouped_mm(rows, weights, offs=ends)
    assert product.shape == (64, 32) and product.dtype is torch.float32


def test_repeats_are_not_capped(simulate: Simulate) -> None:
    with simulate():
        known = torch.tensor([100, 0, 250]).cuda()
        assert torch.ones(3, device="cuda").repeat_interleave(known).shape == (350,)
        assert torch.ones(3, device="cuda").repeat_interleave(unknown(3), output_size=999).shape == (999,)
    law = Law(scale=40.0, exponent=1.0, spread=0.0, largest_n=10)

    class Anywhere(dict[str, Law]):
        def get(self, key: str, default: Any = None) -> Law:
            return law

    with simulate(laws=Anywhere(), assume=True):
        assert torch.ones(10, device="cuda").repeat_interleave(unknown(10)).shape == (400,)
    with simulate(assume=True) as other:
        assert torch.ones(10, device="cuda").repeat_interleave(unknown(10)).shape == (10,)
        assert torch.bincount(unknown(10), minlength=4).shape == (4,)
        (reason,) = other.ledger.observation.reasons
    assert "repeat_interleave at" in reason and "test_nonzero_counts.py" in reason


def test_a_storage_that_is_emptied_and_restored_frees_and_allocates(observer: Any, take: Any) -> None:
    weight = torch.zeros(1000, 1000, device="cuda")
    storage = weight.untyped_storage()
    size = storage.nbytes()
    assert take(lambda: storage.resize_(0) and None).kept_bytes == pytest.approx(-size, abs=1024)
    assert weight.is_cuda
    assert take(lambda: storage.resize_(size) and None).kept_bytes == pytest.approx(size, abs=1024)
    larger = take(lambda: weight._typed_storage()._resize_(2 * size // 4) and None)
    assert (larger.peak, larger.kept_bytes) == (
        pytest.approx(2 * size, abs=1024),
        pytest.approx(size, abs=1024),
    )
    assert take(lambda: storage.resize_(size) and None).kept_bytes == pytest.approx(-size, abs=1024)


def test_temporaries_of_suppression_are_those_of_an_h200() -> None:
    # Requests of torchvision 0.26 on an H200 that are alive at one time, without the sort before.
    assert sum(detection.suppression(8663)) == 69304 + 138608 + 9425344 + 8663 + 21503
    assert sum(detection.suppression(20000)) == 160000 + 320000 + 50080000 + 20000 + 21503


def test_temporaries_of_a_deformable_convolution_are_those_of_an_h200() -> None:
    source, weight, offset = (
        torch.empty(4, 256, 50, 68),
        torch.empty(64, 256, 3, 3),
        torch.empty(4, 18, 50, 68),
    )
    out = torch.empty(4, 64, 50, 68)
    assert detection.deformable_convolution((source, weight, offset), out) == [3481600, 125337600, 3481600]


def test_the_number_of_experts_that_are_hit_has_no_range(simulate: Simulate) -> None:
    class Anywhere(dict[str, Law]):
        def get(self, key: str, default: Any = None) -> Law:
            return Law(scale=0.75, exponent=1.0, spread=1.0, largest_n=4)

    for bound in ("low", "mid", "high"):
        with simulate(laws=Anywhere(), assume=True, bound=bound):
            mask = F.one_hot(unknown(128, 2), num_classes=4)
            assert torch.greater(mask.sum((0, 1)), 0).nonzero().shape == (3, 1)


def test_a_bounded_mask_stays_bounded_when_it_is_reduced_and_chosen_from(simulate: Simulate) -> None:
    with simulate():
        picked = torch.zeros(4, 8, 500, dtype=torch.int8, device="cuda")
        picked.scatter_add_(-1, unknown(4, 8, 3), torch.ones(4, 8, 3, dtype=torch.int8, device="cuda"))
        picked.masked_fill_(picked > 1, 0).mul_(unknown(4, 8, 500) > 0)  # 4 * 8 * 3 are nonzero at most
        several = (picked.sum(-2).unsqueeze(1) > 1).expand(-1, 8, -1)
        chosen = torch.where(several, torch.ones_like(picked), picked)  # 96 * 8 + 96
        assert picked.max(-2)[0].bool().nonzero().shape == (96, 2)
        assert chosen.max(-2)[0].nonzero().shape == (864, 2)


def test_a_mask_of_millions_of_elements_keeps_its_values_when_it_is_narrowed(observer: Any) -> None:
    inside = torch.arange(3_000_000).cuda() > 10
    inside &= torch.arange(3_000_000).cuda() < 20
    assert inside.nonzero().shape == (9, 1)


def test_random_numbers_of_the_device_leave_those_of_the_host_alone(observer: Any) -> None:
    torch.manual_seed(0)
    expected = torch.rand(4)
    torch.manual_seed(0)
    noise = torch.randn(512, device="cuda")
    first, second = noise[noise > 0], torch.randn(512, device="cuda")
    assert 200 < len(first) < 312 and len(second[second > 0]) != len(first)
    assert torch.equal(torch.rand(4), expected)


def test_the_order_of_a_sort_has_every_rank_once(observer: Any) -> None:
    """Hard negatives of SSD: three for each match, whatever the losses are."""
    losses, wanted = unknown(3, 50).float(), torch.tensor([[6], [0], [90]]).cuda()
    rank = losses.sort(1, descending=True)[1].sort(1)[1]
    assert losses[rank < wanted].shape == (56,)
    assert losses[rank >= 10].shape == (120,) and losses[rank.gt(48)].shape == (3,)
    assert losses[rank < 7.5].shape == (24,) and losses[rank > 7.5].shape == (126,)
    rank.add_(1)
    with pytest.raises(NeedsCalibration):
        losses[rank < wanted]
