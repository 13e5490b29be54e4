"""torch's library on the simulated device: loaders, data parallel, attention, recurrence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, TensorDataset

from pinchpoint.backends.torch import versions
from pinchpoint.backends.torch.kernels import attention

MIB = 2**20


def test_loader_workers_run_in_this_process(observer: Any) -> None:
    data = TensorDataset(torch.arange(64.0).view(16, 4))
    loader = DataLoader(data, 4, num_workers=3, pin_memory=True, persistent_workers=True, prefetch_factor=4)
    assert loader.num_workers == 0
    batches = [batch.cuda(non_blocking=True) for (batch,) in loader]
    assert len(batches) == 4 and batches[1].sum().item() == sum(range(16, 32))
    assert any("DataLoader" in note for note in observer.ledger.observation.notes)


def test_a_loaders_positional_arguments_are_its_keyword_ones(observer: Any) -> None:
    def join(rows: list[tuple[torch.Tensor]]) -> torch.Tensor:
        return torch.stack([row for (row,) in rows]) + 1

    data = TensorDataset(torch.arange(40.0).view(10, 4))
    loader = DataLoader(data, 4, False, None, None, 2, join, False, True)
    assert (loader.num_workers, loader.collate_fn, loader.drop_last) == (0, join, True)
    assert [batch.sum().item() for batch in loader] == [sum(range(16)) + 16, sum(range(16, 32)) + 16]
    assert any("DataLoader" in note for note in observer.ledger.observation.notes)
    with pytest.raises(TypeError, match="bogus"):
        DataLoader(data, bogus=1)  # type: ignore[call-arg]


@pytest.mark.usefixtures("observer")
@pytest.mark.parametrize("seed", [None, 0])
def test_a_shuffled_loader_under_a_default_device_fails_as_on_a_real_card_and_is_not_empty(
    seed: int | None,
) -> None:
    """The sampler uses a generator of the host. A script would wait forever for an empty loader."""
    data = TensorDataset(torch.arange(64.0).view(16, 4))
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    shuffled, plain = DataLoader(data, 4, shuffle=True, generator=generator), DataLoader(data, 4)
    for within in (torch.device("cuda"), torch.device("cuda:0")):
        with (
            within,
            pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"),
        ):
            next(iter(shuffled))
        with within:
            assert [len(batch) for (batch,) in plain] == [4, 4, 4, 4]
    assert len(list(shuffled)) == 4


@pytest.mark.usefixtures("observer")
def test_a_loader_whose_sampler_uses_the_device_gives_every_batch() -> None:
    class Sampler:
        def __iter__(self) -> Any:
            torch.ones(2, device="cuda")
            yield from ([0, 1], [2, 3])

        def __len__(self) -> int:
            return 2

    loader = DataLoader(TensorDataset(torch.arange(4.0)), batch_sampler=Sampler())  # type: ignore[arg-type]
    for _ in range(2):
        assert [batch.tolist() for (batch,) in loader] == [[0.0, 1.0], [2.0, 3.0]]


def with_constant(x: torch.Tensor) -> torch.Tensor:
    return x + torch.tensor(1.0, device=x.device)


@pytest.mark.usefixtures("observer")
def test_what_calls_a_replaced_function_is_not_compiled_by_torchscript() -> None:
    assert torch.jit.script(with_constant)(torch.ones(2, device="cuda")).shape == (2,)


@pytest.mark.parametrize(
    ("capability", "dtype", "mask", "width", "kernel"),
    [
        ((9, 0), torch.bfloat16, False, 64, "cudnn"),
        ((9, 0), torch.float16, True, 64, "cudnn"),
        ((9, 0), torch.float32, False, 64, "efficient"),
        ((9, 0), torch.float32, True, 64, "efficient"),
        ((8, 9), torch.bfloat16, False, 64, "flash"),
        ((8, 0), torch.bfloat16, True, 64, "efficient"),
        ((8, 6), torch.float32, False, 64, "efficient"),
        ((7, 5), torch.float16, False, 64, "efficient"),
        ((9, 0), torch.bfloat16, False, 256, "cudnn"),
        ((9, 0), torch.bfloat16, False, 320, "efficient"),
        ((8, 0), torch.bfloat16, False, 256, "flash"),
        ((12, 0), torch.bfloat16, False, 64, "flash"),
        ((7, 5), torch.bfloat16, False, 64, "plain"),
        ((9, 0), torch.float32, False, 30, "plain"),
        ((9, 0), torch.float64, False, 64, "plain"),
    ],
)
def test_attention_takes_the_kernel_cuda_takes(
    capability: tuple[int, int], dtype: torch.dtype, mask: bool, width: int, kernel: str
) -> None:
    query = torch.empty(1, 2, 8, width, dtype=dtype)
    bias = torch.zeros(8, 8) if mask else None
    rules = versions.rules("2.11")  # the other versions are compared in tests/backends/torch/test_versions.py
    assert attention.choose(query, query, query, bias, capability=capability, rules=rules) == kernel


def test_attention_with_a_permuted_mask_is_plain() -> None:
    query = torch.empty(1, 2, 8, 64)
    bias = torch.zeros(8, 8, 2).permute(2, 0, 1)[None]
    assert attention.choose(query, query, query, bias, capability=(9, 0)) == "plain"
    assert attention.choose(query, query, query, bias.contiguous(), capability=(9, 0)) == "efficient"


@pytest.mark.parametrize(
    ("capability", "width", "dropout", "kernel"),
    [
        ((8, 6), 192, 0.0, "flash"),
        ((8, 6), 200, 0.0, "efficient"),
        ((8, 9), 256, 0.1, "efficient"),
        ((8, 0), 256, 0.1, "flash"),
    ],
)
def test_training_with_wide_heads_needs_another_kernel_on_consumer_cards(
    capability: tuple[int, int], width: int, dropout: float, kernel: str
) -> None:
    query = torch.empty(1, 2, 8, width, dtype=torch.bfloat16, requires_grad=True)
    assert attention.choose(query, query, query, None, dropout_p=dropout, capability=capability) == kernel


def test_attention_takes_no_kernel_that_was_switched_off() -> None:
    query = torch.empty(1, 2, 8, 64, dtype=torch.bfloat16)
    backends = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    for kernel in ("cudnn", "flash", "efficient", "plain"):
        with sdpa_kernel(backends):
            rules = versions.rules("2.11")
            assert attention.choose(query, query, query, None, capability=(9, 0), rules=rules) == kernel
        backends.pop(0)


def test_plain_attention_keeps_all_pairs_and_a_fused_kernel_does_not(take: Any) -> None:
    def forward(width: int) -> Any:
        q, k, v = (torch.empty(1, 4, 1024, width, device="cuda", requires_grad=True) for _ in range(3))
        return q, k, v, F.scaled_dot_product_attention(q, k, v)

    pairs = 4 * 1024 * 1024 * 4
    assert take(lambda: forward(30)).kept_bytes >= pairs
    assert take(lambda: forward(32)).kept_bytes < pairs // 4


def test_autocast_does_not_reach_the_parts_of_plain_attention(take: Any) -> None:
    """torch casts the arguments to bf16, and then computes in fp32 with all pairs in fp32."""

    def forward() -> Any:
        q, k, v = (torch.empty(1, 4, 1024, 32, device="cuda", requires_grad=True) for _ in range(3))
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            return q, k, v, F.scaled_dot_product_attention(q, k, v)

    sizes = [
        block.bytes for block in take(forward).blocks if block.op in ("aten::bmm", "aten::_safe_softmax")
    ]
    assert sorted(sizes)[-2:] == [4 * 1024 * 1024 * 4] * 2


def test_a_recurrent_workspace_has_a_span_and_is_gone_after_the_call(take: Any) -> None:
    net = nn.LSTM(64, 128, 2, batch_first=True).cuda()
    allocations = take(lambda: net(torch.zeros(8, 32, 64, device="cuda")))
    (workspace,) = [block for block in allocations.blocks if block.span]
    assert (
        workspace.span.least < workspace.bytes < workspace.span.most
        and allocations.peak > allocations.kept_bytes
    )


def test_a_recurrent_call_keeps_nothing_for_a_backward_pass_that_cannot_come(take: Any) -> None:
    net, x = nn.LSTM(64, 128, 2).cuda(), torch.zeros(512, 8, 64, device="cuda")
    kept_bytes = take(lambda: net(x)).kept_bytes
    net.eval()
    assert take(lambda: net(x)).kept_bytes < kept_bytes / 4
    with pytest.raises(RuntimeError, match="training mode"):
        net(x)[0].sum().backward()


def test_a_recurrent_modules_values_are_real_only_when_calibrating(simulate: Any) -> None:
    torch.manual_seed(0)
    net, x = nn.LSTM(8, 16, batch_first=True), torch.randn(4, 5, 8)
    truth = net(x)[0].detach()
    with simulate(calibrating=True) as observer:
        assert torch.equal(observer.shadow(net.cuda()(x.cuda())[0]), truth)
    net = nn.LSTM(8, 16, batch_first=True)
    with simulate() as observer:
        assert observer.shadow(net.cuda()(x.cuda())[0]) is None


def test_the_first_of_spawned_processes_runs_here(observer: Any) -> None:
    ranks: list[tuple[int, str]] = []
    assert torch.multiprocessing.spawn(lambda *given: ranks.append(given), args=("x",), nprocs=4) is None
    context = torch.multiprocessing.spawn(lambda rank: ranks.append((rank, "y")), join=False)
    assert context.join() and ranks == [(0, "x"), (0, "y")]
    assert observer.ledger.observation.notes == [
        "the first of 4 spawned processes is predicted",
        "one process is spawned; add --world-size N if there are N GPUs",
    ]
