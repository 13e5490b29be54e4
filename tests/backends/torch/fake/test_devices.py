"""Tensors of the host among those of the GPU: refused where CUDA refuses them, and accepted elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

SAME = "Expected all tensors to be on the same device"
INDICES = "indices should be either on cpu"


def gpu(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, device="cuda")


def whole(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "linear": (lambda: nn.Linear(8, 4).cuda()(torch.zeros(2, 8)), SAME),
    "linear without bias": (lambda: F.linear(gpu(2, 8), torch.zeros(4, 8)), SAME),
    "convolution": (lambda: nn.Conv2d(3, 4, 3).cuda()(torch.zeros(1, 3, 8, 8)), SAME),
    "matrix product": (lambda: gpu(4, 4) @ torch.zeros(4, 4), SAME),
    "embedding": (lambda: nn.Embedding(8, 4).cuda()(whole(3)), SAME),
    "sum": (lambda: gpu(4) + torch.zeros(4), SAME),
    "in place": (lambda: gpu(4).mul_(torch.zeros(4)), SAME),
    "host and a number on the GPU": (lambda: torch.zeros(4) * gpu(4).sum(), SAME),
    "concatenation": (lambda: torch.cat([gpu(4), torch.zeros(4)]), SAME),
    "labels": (lambda: F.cross_entropy(gpu(4, 3), whole(4)), SAME),
    "mask": (lambda: gpu(4).masked_fill(torch.zeros(4) > 0, 1.0), SAME),
    "gather": (lambda: gpu(4, 2).gather(1, whole(4, 1)), SAME),
    "normalisation": (lambda: nn.BatchNorm1d(4).cuda()(torch.zeros(8, 4)), SAME),
    "values to index": (lambda: gpu(4).index_put_((whole(2),), torch.zeros(2)), SAME),
    "indices on the GPU": (lambda: torch.zeros(4)[whole(2).cuda()], INDICES),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cuda_refuses_is_refused_with_its_message(case: str, simulate: Any) -> None:
    run, text = REFUSED[case]
    with simulate(), pytest.raises((RuntimeError, IndexError), match=text):
        run()


def test_the_message_names_the_argument(simulate: Any) -> None:
    with simulate(), pytest.raises(RuntimeError, match="got mat1 is on cpu, different from other tensors"):
        nn.Linear(8, 4).cuda()(torch.zeros(2, 8))


def pack() -> Any:
    packed = nn.utils.rnn.pack_padded_sequence(gpu(3, 5, 4), torch.tensor([5, 3, 2]), batch_first=True)
    out, _ = nn.LSTM(4, 6, batch_first=True).cuda()(packed)
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]


def clip() -> Any:
    layer = nn.Linear(4, 4).cuda()
    layer(gpu(2, 4)).sum().backward()
    return nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


ACCEPTED: dict[str, Callable[[], Any]] = {
    "a number": lambda: gpu(4) * torch.tensor(2.0),
    "a number in where": lambda: torch.where(gpu(4) > 0, gpu(4), torch.tensor(1.0)),
    "a copy": lambda: gpu(4).copy_(torch.zeros(4)),
    "a part": lambda: gpu(4, 2).__setitem__(0, torch.zeros(2)),
    "indices on the host": lambda: gpu(4)[whole(2)],
    "a mask on the host": lambda: gpu(4)[torch.ones(4) > 0],
    "indices to write to": lambda: gpu(4).index_put_((whole(2),), gpu(2)),
    "lengths of packed sequences": pack,
    "lengths of CTC": lambda: F.ctc_loss(
        torch.zeros(9, 2, 5, device="cuda").log_softmax(2),
        torch.ones(2, 3, dtype=torch.int64),
        torch.tensor([9, 9]),
        torch.tensor([3, 2]),
    ),
    "a window of C++": lambda: torch.stft(gpu(64), 16, return_complex=True),
    "a grid of C++": lambda: F.affine_grid(gpu(1, 2, 3), [1, 1, 4, 4]),
    "gradients": clip,
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_cuda_accepts_is_accepted(case: str, simulate: Any) -> None:
    with simulate():
        ACCEPTED[case]()


class Both(torch.autograd.Function):
    """Returns two results, and adds up the gradients of both."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return 2 * x, 3 * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return 2 * gradients[0] + 3 * gradients[1]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_the_gradient_of_an_unused_result_is_zeros_on_the_device_of_the_result(
    observer: Any, device: str
) -> None:
    x = torch.ones(1024, 256, device=device, requires_grad=True)
    blocks = observer.ledger.observation.blocks
    before = len(blocks)
    Both.apply(x)[1].sum().backward()
    assert x.grad is not None
    assert x.grad.device == x.device
    zeros = [block for block in blocks[before:] if block.op.startswith("aten::zeros")]
    assert [block.bytes for block in zeros] == ([x.nbytes] if device == "cuda" else [])
