"""The simulated device: it looks like one card inside the session, and no patch remains outside."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed.fsdp
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from pinchpoint.backends.torch import compat
from pinchpoint.core.errors import CannotFake
from pinchpoint.core.events import FREE_CACHE

OWNERS: list[Any] = [
    torch,
    torch.cuda,
    torch.Tensor,
    F,
    nn.Module,
    nn.RNNBase,
    nn.parallel,
    torch.autograd,
    torch.inference_mode,
    torch.optim.Optimizer,
    torch._C._nn,
    torch.utils.data.DataLoader,
    compat.FakeTensor,
    compat.LoaderIterator,
    torch.distributed,
    torch.distributed.fsdp,
    torch.amp.autocast_mode.autocast,
    torch.cuda.amp.autocast,
    torch.backends.cudnn,
    torch.accelerator,
    torch.cuda.nvtx,
    nn.modules.rnn,
    nn.utils.rnn,
    nn.DataParallel,
    sys.modules[nn.DataParallel.__module__],
]


TYPES = [
    compat._types_in_optimizers,
    compat._types_in_clipping,
]  # for which kernels take many tensors at once


def state() -> list[dict[str, Any]]:
    return [dict(vars(owner)) for owner in OWNERS]


def test_nothing_is_left_behind(simulate: Any) -> None:
    with simulate():
        torch.ones(3, device="cuda")  # torch imports more of itself at the first use
    before, types = state(), [list(kinds) for kinds in TYPES]
    hooks = len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)
    available = torch.cuda.is_available()
    with simulate():
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        torch.ones(3, device="cuda")
    with pytest.raises(ZeroDivisionError), simulate():
        raise ZeroDivisionError
    for owner, then, now in zip(OWNERS, before, state(), strict=True):
        changed = {name for name in then.keys() | now.keys() if then.get(name) is not now.get(name)}
        assert not {name for name in changed if not name.startswith("__")}, owner
    assert torch.cuda.is_available() is available
    assert types == TYPES
    assert hooks == (len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks))
    x = torch.randn(8, 4, requires_grad=True)
    F.dropout(nn.Linear(4, 2)(x), 0.5).exp().sum().backward()
    assert type(x.grad) is torch.Tensor
    with torch.autocast("cpu", torch.bfloat16):
        # CUDA's autocast lists are removed too.
        assert torch.zeros(2, dtype=torch.bfloat16).exp().dtype is torch.bfloat16


def test_the_card_answers_what_scripts_ask(observer: Any) -> None:
    assert torch.cuda.get_device_name() == "NVIDIA H200"
    assert torch.cuda.get_device_capability() == (9, 0)
    assert torch.cuda.get_device_properties(0).total_memory == 143155 * 2**20
    assert torch.cuda.is_bf16_supported()
    free, total = torch.cuda.mem_get_info()
    x = torch.zeros(2**20, device="cuda")
    assert torch.cuda.memory_allocated() == 4 * 2**20
    assert torch.cuda.mem_get_info() == (free - 4 * 2**20, total)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
        y = x + 1
    del x, y
    assert torch.cuda.memory_allocated() == 0
    assert torch.Generator(device="cuda").manual_seed(3).initial_seed() == 3


MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "factory": lambda: torch.zeros(1000, 256, device="cuda"),
    "device object": lambda: torch.randn(1000, 256, device=torch.device("cuda", 0)),
    "index": lambda: torch.ones(1000, 256).to(0),
    "cuda": lambda: torch.ones(1000, 256).cuda(),
    "cuda non_blocking": lambda: torch.ones(1000, 256).pin_memory().cuda(non_blocking=True),
    "to text": lambda: torch.ones(1000, 256).to("cuda:0", non_blocking=True),
    "to other": lambda: torch.ones(1000, 256).to(torch.zeros((), device="cuda")),
    "to dtype": lambda: torch.ones(1000, 512).to("cuda", torch.float16),
    "to keyword": lambda: torch.ones(1000, 512).to(device="cuda", dtype=torch.bfloat16),
    "tensor": lambda: torch.tensor([[1.0] * 256] * 1000, device="cuda"),
    "as_tensor": lambda: torch.as_tensor([[1.0] * 256] * 1000, device="cuda"),
    "like": lambda: torch.empty_like(torch.ones(1000, 256), device="cuda"),
    "new": lambda: torch.zeros((), device="cuda").new_zeros(1000, 256),
    "full": lambda: torch.full((1000, 256), 2.0, device="cuda"),
    "arange": lambda: torch.arange(128_000, device="cuda"),
    "rand of a generator": lambda: torch.rand(
        1000, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    ),
    "randn of a generator": lambda: torch.randn(
        1000, 256, device="cuda", generator=torch.Generator("cuda").manual_seed(1)
    ),
    "randint of a generator": lambda: torch.randint(
        9, (128_000,), device="cuda", generator=torch.Generator("cuda")
    ),
    "filled by a generator": lambda: torch.empty(1000, 256, device="cuda").uniform_(
        generator=torch.Generator("cuda")
    ),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_tensor_put_on_cuda_says_so_and_takes_its_bytes(name: str, take: Any) -> None:
    tensors: list[torch.Tensor] = []
    allocations = take(lambda: tensors.append(MAKERS[name]()))
    assert tensors[0].is_cuda and tensors[0].device.type == "cuda" and tensors[0].get_device() == 0
    assert allocations.kept_bytes == 1_024_000
    del tensors[:]


def test_a_generator_says_where_it_draws_and_what_is_made_there_takes_its_bytes(take: Any) -> None:
    generator = torch.Generator("cuda").manual_seed(1)
    assert generator.device.type == "cuda" and torch.Generator().device.type == "cpu"
    tensors: list[torch.Tensor] = []
    allocations = take(
        lambda: tensors.append(torch.empty(1000, 256, device=generator.device).normal_(generator=generator))
    )
    assert tensors[0].is_cuda and allocations.kept_bytes == 1_024_000
    del tensors[:]


@pytest.mark.usefixtures("observer")
def test_a_generator_of_the_host_is_refused_for_the_device_as_on_a_real_card() -> None:
    host = torch.Generator().manual_seed(1)
    for draw in (
        lambda: torch.randn(4, device="cuda", generator=host),
        lambda: torch.empty(4, device="cuda").uniform_(generator=host),
        lambda: torch.randperm(4, device="cuda", generator=host),
    ):
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            draw()
    assert torch.randn(4, generator=host).shape == (4,)


def test_set_default_device_makes_factories_build_there(take: Any) -> None:
    torch.set_default_device("cuda")
    try:
        allocations = take(lambda: (torch.zeros(1024), torch.tensor([1.0, 2.0]), nn.Linear(64, 64)))
        assert torch.ones(2).is_cuda and torch.get_default_device() == torch.device("cuda:0")
    finally:
        torch.set_default_device(None)  # type: ignore[arg-type]
    assert allocations.kept_bytes == 4096 + 512 + 16384 + 512
    with torch.device("cuda"):
        assert torch.tensor([1.0]).is_cuda
    assert torch.ones(2).device.type == "cpu" and torch.get_default_device() == torch.device("cpu")


def test_the_host_costs_the_device_nothing(take: Any) -> None:
    def host() -> Any:
        x = torch.randn(512, 512)
        y = torch.zeros(512, 512, device="cuda").cpu()
        assert not x.is_cuda and y.device.type == "cpu"
        return x @ x, y, x.pin_memory()

    assert take(host).kept_bytes == 0


def test_a_wrong_shape_is_the_users_mistake_not_ours(observer: Any) -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match=r"same reduction dim|shape|size"):
        x @ torch.ones(4, 4, device="cuda")


def test_values_from_data_can_be_read_back(observer: Any) -> None:
    x = torch.tensor([1.0, 2.0, 4.0]).cuda()
    assert (x * 2).sum().item() == 14.0
    assert x.cpu().numpy().tolist() == [1.0, 2.0, 4.0] and x.tolist() == [1.0, 2.0, 4.0]
    assert f"{x.sum():.2f}" == "7.00"
    assert "device='cuda:0'" in repr(x) and "cuda" in f"{x}"
    assert bool((x > 0).all()) and not bool((x > 2).all())
    x += 1
    assert x[0].item() == 2.0
    large = torch.zeros(3000, 3000, device="cuda").normal_()
    assert isinstance(large.mean().item(), float) and f"{large.mean():.3f}" and str(large)
    assert large.cpu().numpy().shape == (3000, 3000)


def test_a_deep_copy_is_a_second_model(take: Any) -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).cuda()
    copies: list[nn.Module] = []
    allocations = take(lambda: copies.append(copy.deepcopy(net)))
    assert allocations.kept_bytes == 2 * (256 * 256 + 256) * 4
    assert all(p.is_cuda and isinstance(p, nn.Parameter) and p.requires_grad for p in copies[0].parameters())
    assert not {id(p) for p in net.parameters()} & {id(p) for p in copies[0].parameters()}


def test_copies_of_parameters_have_no_gradients(take: Any) -> None:
    net = nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    weights, kept = (256 * 256 + 256) * 4, []
    for thing, size in (
        (net, weights),
        (net.weight, 256 * 256 * 4),
        (optimizer, 3 * weights),  # parameters and both averages; steps are on the host
        (net.weight.grad, 256 * 256 * 4),
    ):
        assert take(lambda thing=thing: kept.append(copy.deepcopy(thing))).kept_bytes == size
    assert kept[0].weight.grad is None and kept[1].grad is None
    assert kept[2].param_groups[0]["params"][0].grad is None
    leaf = torch.ones(256, 256, device="cuda", requires_grad=True)
    leaf.sum().backward()
    both = take(lambda: kept.append(copy.deepcopy(leaf)))
    assert both.kept_bytes == 2 * 256 * 256 * 4 and kept[-1].grad is not None


def test_shallow_copies_allocate_nothing(take: Any) -> None:
    net, kept = nn.Linear(256, 256).cuda(), []
    for thing in (net, net.weight, net.weight.detach()):
        assert take(lambda thing=thing: kept.append(copy.copy(thing))).kept_bytes == 0
    assert kept[0].weight is net.weight and kept[1].data_ptr() == net.weight.data_ptr()
    assert kept[1].is_cuda and isinstance(kept[1], nn.Parameter) and kept[2].is_cuda


def test_an_averaged_model_is_updated_without_temporaries(take: Any) -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)).cuda()
    average = torch.optim.swa_utils.AveragedModel(net)
    take(lambda: average.update_parameters(net))
    later = take(lambda: average.update_parameters(net))
    assert later.peak <= 4 * 512  # numbers on the device: the weight of the update
    assert average.module[0].weight.is_cuda


def test_tensors_are_grouped_by_their_simulated_device(observer: Any) -> None:
    device, host = torch.ones(3, device="cuda"), torch.ones(3)
    group = torch.utils._foreach_utils._group_tensors_by_device_and_dtype
    groups = group([[device, host, device.half()], [host, host, host]], True)
    assert {(key[0].type, key[1]) for key in groups} == {
        ("cuda", torch.float32),
        ("cpu", torch.float32),
        ("cuda", torch.float16),
    }
    assert sorted(indices for _, indices in groups.values()) == [[0], [1], [2]]
    assert all(len(lists[0]) == len(lists[1]) == 1 for lists, _ in groups.values())


def test_tied_weights_move_once(take: Any) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(1000, 64)
            self.head = nn.Linear(64, 1000, bias=False)
            self.head.weight = self.embed.weight

    net = Tied()
    allocations = take(lambda: net.to("cuda"))
    assert net.head.weight is net.embed.weight and net.head.weight.is_cuda
    assert allocations.kept_bytes == 1000 * 64 * 4


def test_graphs_are_refused_with_a_hint(observer: Any) -> None:
    for make in (
        torch.cuda.CUDAGraph,
        lambda: torch.cuda.graph(None),
        lambda: torch.cuda.make_graphed_callables(None, ()),
    ):
        with pytest.raises(CannotFake, match=r"CUDA graph at .*test_session\.py:\d+, .* yet") as caught:
            make()
        assert caught.value.hint


SECOND: dict[str, Callable[[], Any]] = {
    "to": lambda: torch.ones(3).to("cuda:1"),
    "to keyword": lambda: torch.ones(3).to(device=torch.device("cuda", 1)),
    "to of a device tensor": lambda: torch.ones(3, device="cuda").to(1),
    "cuda": lambda: torch.ones(3).cuda(1),
    "module": lambda: nn.Linear(2, 2).to("cuda:1"),
    "module cuda": lambda: nn.Linear(2, 2).cuda(1),
    "factory": lambda: torch.zeros(3, device="cuda:1"),
    "like": lambda: torch.zeros_like(torch.ones(3), device="cuda:2"),
    "new": lambda: torch.ones(3, device="cuda").new_zeros(3, device="cuda:1"),
    "tensor": lambda: torch.tensor([1.0], device="cuda:1"),
    "layer": lambda: nn.Linear(2, 2, device="cuda:1"),
    "set_device": lambda: torch.cuda.set_device(1),
    "set_device keyword": lambda: torch.cuda.set_device(device="cuda:1"),
    "device": lambda: torch.cuda.device(1),
    "accelerator": lambda: torch.accelerator.set_device_index(1),
    "properties": lambda: torch.cuda.get_device_properties(1),
    "generator": lambda: torch.Generator("cuda:1"),
    "data parallel": lambda: nn.DataParallel(nn.Linear(2, 2), device_ids=[0, 1]),
    "data parallel function": lambda: nn.parallel.data_parallel(
        nn.Linear(2, 2).cuda(), torch.ones(4, 2).cuda(), [0, 1]
    ),
}


@pytest.mark.parametrize("name", SECOND)
def test_a_second_device_is_refused_with_a_hint(observer: Any, name: str) -> None:
    with pytest.raises(CannotFake, match=r"uses cuda:[12] at .*test_session\.py:\d+; .* yet") as caught:
        SECOND[name]()
    assert "DistributedDataParallel" in caught.value.hint
    with torch.device("cuda:1"), pytest.raises(CannotFake, match="cuda:1"):
        torch.ones(3)
    with torch.device("cuda:1"), pytest.raises(CannotFake, match="cuda:1"):
        torch.tensor(3.0)


def test_the_first_device_may_be_named(observer: Any) -> None:
    torch.cuda.set_device(0)
    torch.cuda.set_device("cuda:0")
    with (
        torch.cuda.device(torch.device("cuda", 0)),
        torch.cuda.device(-1),
        torch.cuda.device(None),
        torch.device("cuda:0"),
    ):
        assert torch.ones(3).is_cuda
    assert torch.ones(3).to(0).is_cuda and torch.ones(3).cuda(device=0).is_cuda
    assert torch.cuda.get_device_name("cuda:0") == torch.cuda.get_device_name(0) == "NVIDIA H200"


@pytest.mark.parametrize("ids", [None, [0], [torch.device("cuda:0")]])
def test_data_parallel_over_one_device_runs_the_module(observer: Any, ids: Any) -> None:
    net = nn.DataParallel(nn.Linear(4, 2), device_ids=ids)
    out = net(torch.ones(3, 4))  # copied to the device, as scattering does
    out.sum().backward()
    assert (
        out.is_cuda
        and out.shape == (3, 2)
        and net.module.weight.grad is not None
        and net.module.weight.is_cuda
    )
    assert nn.parallel.data_parallel(net.module, torch.ones(3, 4, device="cuda"), [0]).is_cuda


@pytest.mark.skipif(not hasattr(torch.accelerator, "empty_cache"), reason="this torch has only one name")
def test_emptying_the_cache_is_recorded_under_either_name(observer: Any) -> None:
    torch.cuda.empty_cache()
    torch.accelerator.empty_cache()
    assert observer.ledger.observation.events == [FREE_CACHE] * 2


def test_an_operation_without_a_fake_is_named_with_its_line(observer: Any) -> None:
    library = torch.library.Library("pinchpoint_test", "DEF")
    library.define("secret(Tensor x) -> Tensor")
    library.impl("secret", lambda x: x.clone(), "CPU")
    try:
        with pytest.raises(
            CannotFake, match=r"pinchpoint_test::secret' at .*test_session\.py:\d+ is not supported"
        ) as caught:
            torch.ops.pinchpoint_test.secret(torch.ones(3, device="cuda"))
        assert "register_fake" in caught.value.hint
    finally:
        library._destroy()


def test_a_sparse_tensor_is_refused_with_a_way_out(simulate: Any) -> None:
    with simulate():
        table, rows = nn.Embedding(100, 8).cuda(), torch.zeros(5, dtype=torch.int64, device="cuda")
        with pytest.raises(CannotFake, match=r"sparse tensor, which .* does not support yet") as caught:
            torch.embedding(table.weight, rows, -1, False, True).sum().backward()
        assert "sparse=False" in caught.value.hint


@pytest.mark.parametrize("data", [(4, 4, 4), [[1.0], [2.0]], 7])
def test_new_tensor_takes_its_shape_from_the_data_and_the_rest_from_the_tensor(
    simulate: Any, data: Any
) -> None:
    real = torch.zeros(3, 3, dtype=torch.float64).new_tensor(data)
    with simulate():
        there = torch.zeros(3, 3, dtype=torch.float64, device="cuda")
        on_device, on_host = there.new_tensor(data), there.new_tensor(data, device="cpu", dtype=torch.int32)
        assert (on_device.shape, on_device.dtype, on_device.device.type) == (
            real.shape,
            torch.float64,
            "cuda",
        )
        assert (on_host.shape, on_host.dtype, on_host.device.type) == (real.shape, torch.int32, "cpu")


def test_a_tensor_made_of_fake_ones_has_the_requested_dtype_and_device(simulate: Any) -> None:
    with simulate():
        there = torch.ones(2, 3, device="cuda")
        halves = torch.tensor(there, dtype=torch.float16, device="cuda")
        assert (halves.shape, halves.dtype) == ((2, 3), torch.float16)
        assert torch.as_tensor(there) is there and torch.tensor(there) is not there
        assert torch.tensor(there).device.type == "cuda"
        assert torch.as_tensor([there.sum(), there.sum()], device="cuda").shape == (2,)


def test_inference_mode_allocates_what_no_grad_allocates_and_knows_the_data(take: Any) -> None:
    layer = torch.nn.MultiheadAttention(64, 4, device="cuda")
    source = torch.zeros(32, 8, 64, device="cuda")
    peaks = []
    for mode in (torch.no_grad(), torch.no_grad(), torch.inference_mode()):
        with mode:
            peaks.append(take(lambda: layer(source, source, source)).peak)
    assert peaks[0] > peaks[1] == peaks[2] > 0  # the first call creates the workspace
    with torch.inference_mode():
        assert int((torch.arange(10).to("cuda") > 3).sum()) == 6
        with torch.inference_mode(mode=False):
            assert torch.is_grad_enabled()
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()


def test_group_norm_copies_a_channels_last_tensor_and_returns_the_standard_layout(take: Any) -> None:
    """A decoder's peak of 2.194 GiB on an H200: without the copy, 1.694 were predicted."""
    image = torch.empty(4, 8, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    with torch.no_grad():
        result = take(lambda: F.group_norm(image, 2))
        assert F.group_norm(image, 2).is_contiguous()
    assert 2 * image.nbytes <= result.peak < 2.1 * image.nbytes
    plain = image.contiguous()
    with torch.no_grad():
        assert take(lambda: F.group_norm(plain, 2)).peak < 1.1 * image.nbytes
    half = image.half()
    with torch.no_grad(), torch.autocast("cuda"):
        result = take(lambda: F.group_norm(half, 2))
    assert 3 * image.nbytes <= result.peak < 3.1 * image.nbytes  # the cast to fp32, the copy, the result


def test_a_pool_of_the_users_own_makes_it_unknown_whether_the_run_fits(observer: Any) -> None:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        tensor = torch.empty(1000, device="cuda")
    assert tensor.is_cuda
    (reason,) = observer.ledger.observation.reasons
    assert "use_mem_pool" in reason and "test_session.py" in reason


def test_autocast_keeps_no_copies_of_weights_in_inference_mode(take: Any) -> None:
    """As an H200 does: a ViT-B allocated 160 MiB less in inference mode than with gradients off."""
    layer = torch.nn.Linear(512, 512, device="cuda")
    x = torch.zeros(8, 512, device="cuda")
    kept = {}
    for mode in (torch.no_grad, torch.inference_mode):
        layer(x)  # the workspaces of both libraries exist from here on
        with mode(), torch.autocast("cuda", torch.bfloat16):
            layer(x)
            kept[mode] = take(lambda: layer(x)).peak
    copies = 512 * 512 * 2 + 512 * 2
    assert kept[torch.inference_mode] == kept[torch.no_grad] + copies


def test_a_library_that_asks_for_fake_tensors_sees_none(observer: Any) -> None:
    x = torch.ones(3, device="cuda")
    subclasses = getattr(torch, "_" + "subclasses")
    assert not isinstance(x, subclasses.FakeTensor)


def test_softmax_of_fp16_into_fp32_makes_no_copy_and_of_bf16_it_does(take: Any) -> None:
    """As an H200 does in the loss of YOLO11: 17 MiB of fp16 become 34 MiB, and nothing else."""
    half, brain = (torch.zeros(64, 1024, device="cuda", dtype=t) for t in (torch.float16, torch.bfloat16))
    half.requires_grad_()
    out = 64 * 1024 * 4
    for run in (torch.softmax, torch.log_softmax, torch.Tensor.softmax):
        assert take(lambda run=run: run(half, -1, dtype=torch.float32)).peak == out
        assert take(lambda run=run: run(brain, -1, dtype=torch.float32)).peak == 2 * out
    with torch.autocast("cuda"):
        assert take(lambda: F.softmax(half, -1)).peak == out
    result = F.softmax(half, -1, dtype=torch.float32)
    gradient = torch.ones_like(result)
    # The gradient of the input in fp16, and the product that CUDA's kernel computes first.
    assert take(lambda: torch.autograd.grad(result, half, gradient)).peak == out // 2 + out


def test_the_logits_loss_without_a_reduction_has_one_temporary(take: Any) -> None:
    """As an H200 does in the loss of YOLO11: the loss is computed in place of `1 - target`."""
    x, size = torch.zeros(64, 1024, device="cuda"), 64 * 1024 * 4
    assert take(lambda: F.binary_cross_entropy_with_logits(x, x, reduction="none")).peak == 2 * size
    assert take(lambda: F.binary_cross_entropy_with_logits(x, x, reduction="sum")).peak == 2 * size + 512
