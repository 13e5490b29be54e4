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


def test_gradients_of_steps_without_communication_are_not_in_the_buckets(net: Any, take: Any) -> None:
    model = nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
    step(model)
    net.zero_grad()
    with model.no_sync():
        assert take(lambda: step(model)).kept_bytes >= 20 * LAYER
    assert take(lambda: step(model)).kept_bytes <= MIB - 20 * LAYER  # they are views of the buckets now


def test_inputs_on_the_host_are_moved_to_the_device(net: Any) -> None:
    model = nn.parallel.DistributedDataParallel(net, device_ids=[0])
    assert model(torch.ones(2, 1024)).is_cuda


def test_buffers_are_sent_in_one_piece_before_every_forward_pass(observer: Any, take: Any) -> None:
    torch.distributed.init_process_group("nccl", rank=0, world_size=2)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()
    net.register_buffer("table", torch.ones(MIB, device="cuda"))
    for sends, option in ((True, {}), (False, {"broadcast_buffers": False})):
        model = nn.parallel.DistributedDataParallel(net, **option)
        blocks = take(lambda model=model: model(torch.ones(2, 4, device="cuda"))).blocks
        assert any(block.bytes >= 4 * MIB for block in blocks) is sends


def test_a_module_without_trained_parameters_is_refused_as_in_torch(net: Any) -> None:
    with pytest.raises(RuntimeError, match="is not needed"):
        nn.parallel.DistributedDataParallel(net.requires_grad_(False))


def test_parameters_that_the_user_excludes_are_in_no_bucket(net: Any, take: Any) -> None:
    nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.weight"])
    allocations = take(lambda: nn.parallel.DistributedDataParallel(net))
    buckets = [block.bytes for block in allocations.blocks if block.role == "gradients"]
    assert buckets == [19 * LAYER]
