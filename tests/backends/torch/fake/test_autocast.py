"""torch.autocast("cuda") on the simulated device, compared with the lists that torch documents for CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

Operation = Callable[[torch.Tensor], torch.Tensor]

TO_HALF: dict[str, Operation] = {
    "matmul": lambda x: x @ x,
    "mm": lambda x: torch.mm(x, x),
    "linear": lambda x: F.linear(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "mv": lambda x: torch.mv(x, x[0]),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "conv2d": lambda x: F.conv2d(x[None, None], x[None, None, :3, :3]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[None, None], x[None, None, :3, :3]),
    "prelu": lambda x: F.prelu(x, x[0, :1]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
TO_FLOAT: dict[str, Operation] = {
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "log2": torch.log2,
    "rsqrt": torch.rsqrt,
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tan": torch.tan,
    "acos": torch.acos,
    "asin": torch.asin,
    "expm1": torch.expm1,
    "reciprocal": torch.reciprocal,
    "erfinv": torch.erfinv,
    "pow": lambda x: x**2,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": lambda x: x.sum(),
    "sum rows": lambda x: x.sum(-1),
    "prod": lambda x: x.prod(),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "norm": lambda x: torch.norm(x),
    "layer_norm": lambda x: F.layer_norm(x, (16,)),
    "group_norm": lambda x: F.group_norm(x[None], 4),
    "softplus": F.softplus,
    "mse_loss": lambda x: F.mse_loss(x, x),
    "l1_loss": lambda x: F.l1_loss(x, x),
    "nearest": lambda x: F.interpolate(x[None, None], scale_factor=2),
    "bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "bicubic": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bicubic"),
    "linear": lambda x: F.interpolate(x[None], scale_factor=2, mode="linear"),
    "cdist": lambda x: torch.cdist(x, x),
    "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x),
    "bce with logits": lambda x: F.binary_cross_entropy_with_logits(x, x),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(16, dtype=torch.int64, device=x.device)),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x),
    "pdist": F.pdist,
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "dist": lambda x: torch.dist(x, x),
    "logsumexp": lambda x: x.logsumexp(-1),
    "kl_div": lambda x: F.kl_div(x, x),
}
AS_THEY_COME: dict[str, Operation] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sin": torch.sin,
    "mul": lambda x: x * x,
    "add": lambda x: x + 1,
    "mean": lambda x: x.mean(),
    "max": lambda x: x.amax(-1),
    "cat": lambda x: torch.cat([x, x]),
    "stack": lambda x: torch.stack([x, x]),
    "clone": lambda x: x.clone(),
    "grid_sample": lambda x: F.grid_sample(x[None, None], x[:, :2][None, None], align_corners=False),
    "avg_pool3d": lambda x: F.avg_pool3d(x[None, None, None], (1, 2, 2)),
    "reflection_pad": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "scatter_add": lambda x: x.scatter_add(0, torch.zeros(16, 16, dtype=torch.int64, device=x.device), x),
    "sqrt": torch.sqrt,
    "dropout": lambda x: F.dropout(x, 0.5),
    "max_pool": lambda x: F.max_pool1d(x[None], 2),
}


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_each_operation_gives_the_dtype_cuda_gives(observer: Any, half: torch.dtype) -> None:
    x = torch.rand(16, 16, device="cuda")
    y = x.to(half)
    wrong = []
    with torch.autocast("cuda", half):
        for name, run in TO_HALF.items():
            wrong += [f"{name}: {run(x).dtype}"] if run(x).dtype is not half else []
        for name, run in TO_FLOAT.items():
            wrong += [f"{name}: {run(y).dtype}"] if run(y).dtype is not torch.float32 else []
        for name, run in AS_THEY_COME.items():
            wrong += (
                [f"{name}: {run(y).dtype}, {run(x).dtype}"]
                if (run(y).dtype, run(x).dtype) != (half, torch.float32)
                else []
            )
        assert (x + y).dtype is torch.float32
        assert torch.cat([x, y]).dtype is torch.float32
        for widest in (
            torch.addcmul(x, y, y),
            torch.atan2(x, y),
            F.grid_sample(y[None, None], x[:, :2][None, None], align_corners=False),
            x.scatter_add(0, torch.zeros(16, 16, dtype=torch.int64, device="cuda"), y),
            torch.dot(x[0], y[0]),
        ):
            assert widest.dtype is torch.float32
        assert y.exp().is_cuda and (x @ x).is_cuda
    assert wrong == []


def test_outside_and_disabled_nothing_is_cast(observer: Any) -> None:
    x = torch.rand(16, 16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=False):
        assert (x @ x).dtype is torch.float32 and not torch.is_autocast_enabled()
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.is_autocast_enabled() and torch.get_autocast_gpu_dtype() is torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
        assert (x.double() @ x.double()).dtype is torch.float64
    assert (x @ x).dtype is torch.float32
    with torch.cuda.amp.autocast():
        assert (x @ x).dtype is torch.float16


def test_cast_weights_are_kept_for_the_pass_and_dropped_after(take: Any) -> None:
    net = nn.Linear(1024, 1024, bias=False).cuda()
    x = torch.rand(8, 1024, device="cuda")

    def twice() -> None:
        with torch.autocast("cuda", torch.bfloat16), torch.no_grad():
            net(x)
            net(x)

    with torch.no_grad():
        twice()
    half = 1024 * 1024 * 2

    def graded() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            net(x)
            net(x)

    allocations = take(graded)
    assert half <= allocations.peak < 2 * half  # one cast copy serves both calls
    assert allocations.kept_bytes == 0


def test_autocast_halves_what_a_linear_keeps(take: Any) -> None:
    net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).cuda()
    x = torch.rand(65_536, 512, device="cuda")

    def forward(half: bool) -> Any:
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return net(x)

    row = 65_536 * 512
    forward(True)
    full, halved = take(lambda: forward(False)).kept_bytes, take(lambda: forward(True)).kept_bytes
    assert full == 2 * row * 4  # the ReLU's result, which both keep, and the output
    # In half precision: the input's copy, the ReLU's result and the output, and the second weight's copy.
    # No gradient needs the first weight's copy, because the input requires none.
    assert halved == 3 * row * 2 + 512 * 512 * 2


def test_the_last_argument_is_cast_first_as_on_the_machines_that_hold_gpus(take: Any) -> None:
    net = nn.Linear(1024, 2048, bias=False).cuda()
    x = torch.rand(512, 1024, device="cuda", requires_grad=True)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return net(x)

    sizes = [block.bytes for block in take(step).blocks if block.op == "aten::_to_copy"]
    assert sizes == [2 * 2048 * 1024, 2 * 512 * 1024]
    out = step()
    backward = take(lambda: out.backward(torch.ones_like(out))).blocks
    casts = [block.bytes for block in backward if block.op == "aten::_to_copy"]
    assert casts == [4 * 512 * 1024, 4 * 2048 * 1024]  # the last cast is undone first


def test_einsum_and_lists_of_matrices_are_cast(observer: Any) -> None:
    a, b = torch.rand(8, 16, device="cuda"), torch.rand(16, 4, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        assert torch.einsum("ij,jk", a, b).dtype is torch.bfloat16
        assert torch.linalg.multi_dot([a, b, b.T]).dtype is torch.bfloat16
        assert torch.einsum("ij,jk", a.double(), b.double()).dtype is torch.float64
