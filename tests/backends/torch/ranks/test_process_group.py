"""Process groups without peers: collectives, objects of other ranks, and sharded parameters."""

from __future__ import annotations

from typing import Any

import pytest

from pinchpoint.core.errors import CannotFake

torch = pytest.importorskip("torch", reason="the fake run needs torch")
dist = torch.distributed
MIB = 2**20


@pytest.fixture
def group(observer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rank 1 of 4."""
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4")):
        monkeypatch.setenv(name, value)
    dist.init_process_group("nccl")
    return observer


def test_collectives_return_at_once_and_allocate_nothing(group: Any, take: Any) -> None:
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (1, 4, "nccl")
    part, whole = torch.ones(MIB, device="cuda"), torch.empty(4 * MIB, device="cuda")

    def communicate() -> None:
        assert dist.all_reduce(part, async_op=True).wait()
        dist.all_gather_into_tensor(whole, part)
        dist.reduce_scatter_tensor(part, whole)
        dist.all_gather([torch.empty_like(part) for _ in range(0)] or list(whole.chunk(4)), part)
        dist.broadcast(part, src=0)
        dist.barrier()

    assert take(communicate).kept_bytes == 0
    assert "rank 1 of 4, without peers" in group.ledger.observation.notes
    assert group.collectives.nccl_bytes().usual > 0


def test_a_functional_collective_has_its_output(group: Any, take: Any) -> None:
    from torch.distributed._functional_collectives import all_gather_tensor

    part = torch.ones(MIB, device="cuda")
    outputs: list[Any] = []
    gathered = take(lambda: outputs.append(all_gather_tensor(part, 0, dist.group.WORLD)))
    assert gathered.kept_bytes == 4 * part.nbytes


def test_the_device_is_that_of_the_local_rank(group: Any) -> None:
    assert torch.cuda.device_count() == 4
    assert torch.ones(1, device="cuda:1").device == torch.device("cuda", torch.cuda.current_device())


def test_objects_of_other_ranks_are_those_of_this_rank_and_noted(group: Any) -> None:
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, {"rank": 1})
    assert objects == [{"rank": 1}] * 4
    settings = ["mine"]
    dist.broadcast_object_list(settings, src=0)
    assert settings == ["mine"]
    assert len([note for note in group.ledger.observation.notes if "this rank's own values" in note]) == 2


def test_a_collective_on_the_host_keeps_the_values_of_this_rank_and_is_noted(group: Any) -> None:
    value = torch.tensor([3.0])
    dist.all_reduce(value)
    parts = [torch.zeros(1) for _ in range(4)]
    dist.all_gather(parts, value)
    assert value.item() == 3.0 and [part.item() for part in parts] == [3.0] * 4
    notes = [
        note for note in group.ledger.observation.notes if note.startswith("a collective on the host at ")
    ]
    assert len(notes) == 2 and all("this rank's own values" in note for note in notes)
    dist.barrier()
    assert len([note for note in group.ledger.observation.notes if "on the host" in note]) == 2


def test_a_second_default_group_is_an_error_as_in_torch(group: Any) -> None:
    with pytest.raises(ValueError, match="twice"):
        dist.init_process_group("gloo")


def test_fully_sharded_parameters_take_their_part_of_the_memory(group: Any, take: Any) -> None:
    from torch.distributed.fsdp import fully_shard

    with torch.device("meta"):
        net = torch.nn.Linear(1024, 1024, bias=False)

    def shard() -> Any:
        fully_shard(net)
        return net.to_empty(device="cuda")

    weights = take(shard)
    assert weights.kept_bytes == 1024 * 1024 * 4 // 4

    def step() -> None:
        net(torch.ones(8, 1024, device="cuda")).sum().backward()

    step()
    net.zero_grad()
    # Forward and backward: the gathered weight, and its gradient before it is reduced.
    again = take(step)
    assert again.peak > 2 * 1024 * 1024 * 4
    assert again.kept_bytes <= 2 * 1024 * 1024  # the sharded gradient, and buffers for the next step


def test_a_stage_without_shapes_is_refused_with_what_to_give(group: Any) -> None:
    stage = {"__name__": "torch.distributed.pipelining.stage", "dist": dist}
    with pytest.raises(CannotFake, match="shapes of their tensors") as error:
        exec("dist.recv_object_list([None], src=0)", stage)  # as a stage whose shapes are not given does
    assert error.value.hint is not None and "input_args and output_args" in error.value.hint
    objects = ["mine"]
    dist.recv_object_list(objects, src=0)  # of a script
    assert objects == ["mine"]


def test_the_stages_of_a_pipeline_are_the_ranks_that_send(group: Any) -> None:
    dist.send(torch.ones(4, device="cuda"), dst=2)
    assert group.collectives.stages() == [0, 1, 2, 3]


def test_rms_norm_of_a_sharded_sequence_runs_as_one_kernel(group: Any, take: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cuda", (4,))
    part = torch.ones(2, 128, 1024, device="cuda", dtype=torch.bfloat16)
    whole = DTensor.from_local(part, mesh, [Shard(1)], run_check=False)
    assert (whole.shape, whole.device.type) == ((2, 512, 1024), "cuda")
    kept: list[Any] = []
    norm = take(lambda: kept.append(torch.nn.functional.rms_norm(whole, (1024,))))
    # The output, and a reciprocal root per row; composed of several operations, it would need copies in fp32.
    assert norm.kept_bytes == part.nbytes
    assert norm.peak == part.nbytes + 2 * 128 * 4


def test_an_emptied_storage_has_no_address(group: Any) -> None:
    storage = torch.ones(8, device="cuda").untyped_storage()
    assert storage.data_ptr() > 0
    storage.resize_(0)
    assert storage.data_ptr() == 0


def test_a_stream_has_memory_of_its_own(observer: Any) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        inside = torch.ones(4, device="cuda")
    outside = torch.ones(4, device="cuda")
    blocks = observer.ledger.observation.blocks
    streams = [blocks[observer.ledger.block_of(tensor)].stream for tensor in (inside, outside)]
    assert streams[0] > 0 and streams[1] == 0


def test_context_parallel_attention_gathers_the_keys_of_all_ranks(group: Any, take: Any) -> None:
    experimental = pytest.importorskip("torch.distributed.tensor.experimental")
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cuda", (4,))
    x = torch.ones(1, 1024, 512, device="cuda", dtype=torch.bfloat16)
    outputs: list[Any] = []

    def attend() -> None:
        heads = x.view(1, 256, 8, 64).transpose(1, 2).contiguous().requires_grad_()
        outputs.append(torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True))

    with experimental.context_parallel(mesh, buffers=[x], buffer_seq_dims=[1]):
        assert x.shape == (1, 256, 512)  # the part of this rank
        ring = take(attend)
        backward = take(lambda: outputs[0].sum().backward())
    part = 8 * 256 * 64 * 2
    # The gathered keys and values of four ranks are one block; the parts that are merged are in fp32.
    assert 2 * 4 * part in [block.bytes for block in ring.blocks]
    assert ring.peak > (2 * 4 + 2) * part
    # Left: the heads, the output in one piece, and a sum per row and head.
    assert 2 * part + 8 * 256 * 4 <= ring.kept_bytes <= 2 * part + 8 * 256 * 4 + 2048
    assert 2 * 4 * part in [block.bytes for block in backward.blocks]
    assert group.collectives.nccl_bytes().usual > 0
    assert not group.ledger.observation.reasons


def test_memory_that_another_stream_uses_is_held_after_it_is_freed(observer: Any) -> None:
    other = torch.cuda.Stream()
    for _ in range(4):
        with torch.cuda.stream(other):
            gathered = torch.ones(MIB, device="cuda")
        gathered.record_stream(torch.cuda.current_stream())
        del gathered
    observation = observer.ledger.observation
    held = [number for number, block in enumerate(observation.blocks) if block.held_bytes]
    assert [observation.blocks[number].held_bytes for number in held] == [4 * MIB] * 4
    # The last two are still held; a tensor that its own stream alone uses is free at once.
    assert [observation.events.count(number) for number in held] == [2, 2, 1, 1]


def test_a_functional_collective_passes_gradients_and_has_one_output(group: Any, take: Any) -> None:
    from torch.distributed._functional_collectives import all_gather_tensor_autograd

    part = torch.ones(MIB, device="cuda", requires_grad=True)
    outputs: list[Any] = []
    gathered = take(lambda: outputs.append(all_gather_tensor_autograd(part, 0, dist.group.WORLD)))
    assert gathered.peak == gathered.kept_bytes == 4 * part.nbytes
    outputs.pop().sum().backward()
    assert part.grad is not None and part.grad.shape == part.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_synchronised_batch_norm_keeps_its_input_and_its_output(group: Any, take: Any, dtype: Any) -> None:
    group.dynamic.assume = True  # the count of the ranks whose batches are not empty
    norm = torch.nn.SyncBatchNorm(64).to("cuda", dtype)
    x = torch.ones(8, 64, 32, 32, device="cuda", dtype=dtype, requires_grad=True)
    outputs: list[Any] = []
    forward = take(lambda: outputs.append(norm(x)))
    # Its parts are numbers per channel and rank, in fp32.
    per_channel = 64 * 4
    assert x.nbytes <= forward.kept_bytes <= x.nbytes + 64 * per_channel
    assert x.nbytes < forward.peak <= x.nbytes + 64 * per_channel
    backward = take(lambda: outputs.pop().sum().backward())
    # The gradient of the output, in one piece, and that of the input, which stays; the output is freed.
    assert x.nbytes <= backward.peak <= x.nbytes + 64 * per_channel
    assert abs(backward.kept_bytes) <= 64 * per_channel
    assert norm.weight.grad.dtype is dtype and x.grad.shape == x.shape


def test_every_device_of_the_machine_can_be_described(group: Any) -> None:
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    assert names == 4 * [torch.cuda.get_device_name()]
    assert torch.cuda.get_device_capability("cuda:2") == torch.cuda.get_device_capability()
    with pytest.raises(CannotFake, match="cuda:4"):
        torch.cuda.get_device_properties(torch.device("cuda", 4))
    with pytest.raises(CannotFake, match="cuda:2"):
        torch.ones(1, device="cuda:2")
