"""The buckets of DistributedDataParallel, counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the fake run needs torch")
nn = torch.nn
MIB = 2**20
LAYER = 1024 * 1024 * 4


@pytest.fixture
def net(observer: Any) -> Any:
    torch.distributed.init_process_group("nccl", rank=0, world_size=2)
    return nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(20)]).cuda()


def step(model: Any) -> None:
    model(torch.ones(2, 1024, device="cuda")).sum().backward()


def test_one_bucket_becomes_several_in_the_second_step(net: Any, take: Any) -> None:
    models: list[Any] = []
    first = take(lambda: models.append(nn.parallel.DistributedDataParallel(net, device_ids=[0])))
    buckets = [block for block in first.blocks if block.role == "gradients"]
    assert [block.bytes for block in buckets] == [20 * LAYER]
    step(models[0])
    net.zero_grad()
    second = take(lambda: step(models[0]))
    # The first bucket takes one layer, the others are full with seven, 28 of 25 MiB.
    sizes = [block.bytes for block in second.blocks if block.role == "gradients"]
    assert [size // LAYER for size in sizes[:4]] == [1, 7, 7, 5]


def test_gradients_that_are_views_of_buckets_take_no_memory_of_their_own(net: Any, take: Any) -> None:
    model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    step(model)
    assert net[0].weight.grad.untyped_storage().nbytes() == 20 * LAYER
    assert take(lambda: step(model)).kept_bytes < MIB


def test_a_hook_that_compresses_copies_each_bucket(net: Any, take: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    plain = nn.parallel.DistributedDataParallel(net)
    without = take(lambda: step(plain))
    plain.register_comm_hook(None, bf16_compress_hook)
    net.zero_grad()
    step(plain)
    net.zero_grad()
    compressed = take(lambda: step(plain))
    copies = [block.bytes for block in compressed.blocks if block.bytes in (LAYER // 2, 7 * LAYER // 2)]
    assert 7 * LAYER // 2 in copies
    assert without.blocks


def test_an_unknown_hook_leaves_the_peak_unknown(net: Any, observer: Any) -> None:
    model = nn.parallel.DistributedDataParallel(net)
    model.register_comm_hook(None, lambda state, bucket: None)
    assert any("communication hook" in reason for reason in observer.ledger.observation.reasons)


def test_the_class_is_replaced_wherever_a_library_imports_it_from(observer: Any) -> None:
    from torch.nn.parallel.distributed import DistributedDataParallel

    assert DistributedDataParallel is nn.parallel.DistributedDataParallel


def test_buckets_with_unused_parameters_are_grouped_from_the_first_layer_on(net: Any, take: Any) -> None:
    allocations = take(lambda: nn.parallel.DistributedDataParallel(net, find_unused_parameters=True))
    sizes = [block.bytes for block in allocations.blocks if block.role == "gradients"]
    # The first layer fills a bucket of 1 MiB alone; the buckets are made in the reverse order.
    assert [size // LAYER for size in sizes] == [5, 7, 7, 1]
