"""Operations on whole arrays: losses and reductions, elementwise, indexing, images, geometry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from op_live import DTYPES, Case, both_ways, call_case, function_case, indices, on_inputs, once, tensor
from torch import Tensor, nn


def loss_cases() -> Iterator[Case]:
    def labelled(make_loss: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype = torch.float32) -> Any:
        def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
            x = tensor(device, 8192, 4096, dtype=dtype)
            labels = indices(device, 8192, 4096)
            return lambda: make_loss(x, labels), [x]

        return both_ways(make)

    yield Case("cross_entropy-fp32", labelled(F.cross_entropy))
    yield Case("cross_entropy-bf16", labelled(F.cross_entropy, torch.bfloat16))
    yield Case("cross_entropy-smooth-fp32", labelled(lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1)))
    big = (4096, 8192)
    yield Case("mse_loss-fp32", function_case(F.mse_loss, big, big))
    yield Case("smooth_l1_loss-fp32", function_case(F.smooth_l1_loss, big, big))
    yield Case(
        "bce_logits-fp32",
        function_case(lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x)), big),
    )
    for name, dtype in DTYPES.items():
        yield Case(f"sum-{name}", function_case(torch.sum, big, dtype=dtype))
        yield Case(f"mean-{name}", function_case(torch.mean, big, dtype=dtype))
    yield Case("norm-fp32", function_case(torch.linalg.vector_norm, big))
    yield Case("norm-rows-fp32", function_case(lambda x: x.norm(dim=-1), (262144, 3)))
    yield Case("sum-rows-fp32", function_case(lambda x: x.sum(-1), big))
    yield Case("sum-columns-fp32", function_case(lambda x: x.sum(0), big))
    yield Case("sum-columns-tall-fp32", function_case(lambda x: x.sum(0), (1_000_000, 64)))
    yield Case("max-fp32", function_case(torch.max, big))
    yield Case("max-rows-fp32", function_case(lambda x: x.max(-1).values, big))
    yield Case("argmax-fp32", call_case(torch.argmax, big))
    yield Case("var-fp32", function_case(torch.var, big))
    yield Case("std-rows-fp32", function_case(lambda x: x.std(-1), big))
    yield Case("logsumexp-fp32", function_case(lambda x: x.logsumexp(-1), big))
    yield Case("all-finite-fp32", call_case(lambda x: torch.isfinite(x).all(), big))
    yield Case("any-fp32", call_case(lambda x: (x > 0).any(), big))


def pointwise_cases() -> Iterator[Case]:
    big = (4096, 8192)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": F.relu,
        "gelu": F.gelu,
        "silu": F.silu,
        "tanh": torch.tanh,
        "sigmoid": torch.sigmoid,
        "softplus": F.softplus,
        "sin": torch.sin,
        "exp": torch.exp,
        "pow2": lambda x: x**2,
        "dropout": F.dropout,
        "leaky_relu": F.leaky_relu,
        "clamp": lambda x: x.clamp(-1, 1),
        "where": lambda x: torch.where(x > 0, x, -x),
        "cat": lambda x: torch.cat([x, x]),
        "stack": lambda x: torch.stack([x, x]),
        "pad": lambda x: F.pad(x, (1, 1)),
        "masked_fill": lambda x: x.masked_fill(x > 0, 0.0),
        "contiguous-transpose": lambda x: x.t().contiguous(),
        "flip": lambda x: x.flip(0),
        "roll": lambda x: x.roll(1, 0),
    }
    for name, function in functions.items():
        yield Case(f"{name}-fp32", function_case(function, big))
    yield Case("dropout-bf16", function_case(F.dropout, big, dtype=torch.bfloat16))
    yield Case("cast-to-bf16", function_case(lambda x: x.bfloat16(), big))
    yield Case("broadcast-mul-fp32", function_case(torch.mul, big, (4096, 1)))
    yield Case("broadcast-add-row-fp32", function_case(torch.add, big, (8192,)))
    yield Case(
        "expand-sub-pairs-fp32", function_case(lambda a, b: a[:, None] - b[None], (2048, 3), (2048, 3))
    )


def index_cases() -> Iterator[Case]:
    rows, width, count = 65536, 64, 262144

    def gathered(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Any:
        """`function(x (rows, width), m (count, width), index (count,))`"""

        def make(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
            x, m, index = (
                tensor(device, rows, width),
                tensor(device, count, width),
                indices(device, count, rows),
            )
            return lambda: function(x, m, index), [x, m]

        return both_ways(make)

    yield Case("index-rows", gathered(lambda x, m, i: x[i]))
    yield Case("index_select", gathered(lambda x, m, i: x.index_select(0, i)))
    yield Case("gather", gathered(lambda x, m, i: x.gather(0, i[:, None].expand(-1, width))))
    yield Case("take_along_dim", gathered(lambda x, m, i: torch.take_along_dim(x, i[:, None], 0)))
    yield Case("index_add", gathered(lambda x, m, i: torch.zeros_like(x).index_add(0, i, m)))
    yield Case("index_add-inplace", gathered(lambda x, m, i: torch.zeros_like(x).index_add_(0, i, m)))
    yield Case(
        "scatter_add",
        gathered(lambda x, m, i: torch.zeros_like(x).scatter_add(0, i[:, None].expand(-1, width), m)),
    )
    for reduce in ("sum", "mean", "amax"):
        yield Case(
            f"scatter_reduce-{reduce}",
            gathered(
                lambda x, m, i, r=reduce: torch.zeros_like(x).scatter_reduce(
                    0, i[:, None].expand(-1, width), m, r
                )
            ),
        )
    yield Case(
        "index_put-accumulate",
        gathered(lambda x, m, i: torch.zeros_like(x).index_put((i,), m, accumulate=True)),
    )
    yield Case("index_put", gathered(lambda x, m, i: torch.zeros_like(x).index_put((i,), m)))
    yield Case("embedding", gathered(lambda x, m, i: F.embedding(i, x)))
    yield Case("index-pairs", gathered(lambda x, m, i: x[i, i % width]))

    def embedding(device: str) -> tuple[Callable[[], Tensor], list[Tensor]]:
        net = nn.Embedding(50257, 512, device=device)
        tokens = torch.randint(50257, (16, 1024), device=device)
        return lambda: net(tokens), list(net.parameters())

    yield Case("embedding-vocabulary", both_ways(embedding))
    yield Case("mask-select", function_case(lambda x: x[x[:, 0] > 0], (262144, 64)))
    yield Case("mask-select-elements", function_case(lambda x: x[x > 0], (4096, 4096)))
    yield Case("masked_select", function_case(lambda x: x.masked_select(x > 0), (4096, 4096)))
    yield Case(
        "masked_scatter", function_case(lambda x: torch.zeros_like(x).masked_scatter(x > 0, x), (4096, 4096))
    )
    yield Case("nonzero", call_case(lambda x: (x > 0).nonzero(), (4096, 4096)))
    yield Case("nonzero-rows", call_case(lambda x: (x > 0).nonzero(), (1_000_000,)))
    yield Case("sort", call_case(torch.sort, (1_000_000,)))
    yield Case("sort-rows", function_case(lambda x: x.sort(-1).values, (4096, 4096)))
    yield Case("sort-stable", call_case(lambda x: x.sort(stable=True), (1_000_000,)))
    yield Case("argsort", call_case(torch.argsort, (1_000_000,)))
    yield Case("argsort-rows", call_case(torch.argsort, (4096, 4096)))
    yield Case("topk-rows", function_case(lambda x: x.topk(16, -1).values, (4096, 4096)))
    yield Case("topk-flat", call_case(lambda x: x.topk(1000), (1_000_000,)))
    yield Case("cumsum-flat", function_case(lambda x: x.cumsum(0), (16_000_000,)))
    yield Case("cumsum-rows", function_case(lambda x: x.cumsum(-1), (65536, 192)))
    yield Case("cumprod-rows", function_case(lambda x: x.cumprod(-1), (65536, 192)))
    yield Case(
        "searchsorted",
        call_case(lambda x, y: torch.searchsorted(x.sort(-1).values, y), (65536, 128), (65536, 128)),
    )
    yield Case("multinomial", call_case(lambda x: torch.multinomial(x.abs(), 4), (4096, 4096)))
    yield Case("randperm", once(lambda device: lambda: torch.randperm(1_000_000, device=device)))

    def labels(device: str) -> Tensor:
        return indices(device, 1_000_000, 10_000)

    yield Case("unique-16M", on_inputs(torch.unique, lambda device: indices(device, 16_000_000, 10_000)))
    yield Case("unique-1M", on_inputs(torch.unique, labels))
    yield Case(
        "unique-inverse",
        on_inputs(lambda x: torch.unique(x, return_inverse=True, return_counts=True), labels),
    )
    yield Case(
        "unique-rows",
        on_inputs(
            lambda x: torch.unique(x, dim=0), lambda device: torch.randint(9, (100_000, 3), device=device)
        ),
    )
    yield Case("bincount", on_inputs(lambda x: torch.bincount(x, minlength=10_000), labels))
    yield Case(
        "one_hot", on_inputs(lambda x: F.one_hot(x, 1_000), lambda device: indices(device, 10_000, 1_000))
    )
    yield Case("histc", call_case(lambda x: torch.histc(x, 100), (1_000_000,)))
    yield Case(
        "repeat_interleave-counts",
        on_inputs(
            lambda x, n: x.repeat_interleave(n, 0),
            lambda device: tensor(device, 65536, 64, grad=False),
            lambda device: indices(device, 65536, 8),
        ),
    )
    yield Case("repeat_interleave-int", function_case(lambda x: x.repeat_interleave(4, 0), (65536, 64)))


def image_cases() -> Iterator[Case]:
    image = (16, 64, 64, 64)
    functions: dict[str, Callable[[Tensor], Tensor]] = {
        "upsample-bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "upsample-nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
        "upsample-bicubic": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
        "max_pool2d": lambda x: F.max_pool2d(x, 2),
        "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
        "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 1),
        "adaptive_avg_pool2d-7": lambda x: F.adaptive_avg_pool2d(x, 7),
        "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
        "unfold": lambda x: F.unfold(x, 3, padding=1),
        "fft2": lambda x: torch.fft.fft2(x).abs(),
        "rfft2-irfft2": lambda x: torch.fft.irfft2(torch.fft.rfft2(x)),
    }
    for name, function in functions.items():
        yield Case(f"{name}-fp32", function_case(function, image))
    grid = (16, 64, 64, 2)
    yield Case(
        "grid_sample-fp32", function_case(lambda x, g: F.grid_sample(x, g, align_corners=False), image, grid)
    )
    yield Case(
        "grid_sample-3d-fp32",
        function_case(
            lambda x, g: F.grid_sample(x, g, align_corners=False), (1, 16, 64, 64, 64), (1, 1, 1, 262144, 3)
        ),
    )
    yield Case("fft-1d-fp32", function_case(lambda x: torch.fft.rfft(x).abs(), (1024, 16384)))
    yield Case("max_pool3d-fp32", function_case(lambda x: F.max_pool3d(x, 2), (4, 16, 32, 32, 32)))


def geometry_cases() -> Iterator[Case]:
    def spd(x: Tensor) -> Tensor:
        return x @ x.mT + x.shape[-1] * torch.eye(x.shape[-1], device=x.device)

    yield Case("cdist-fp32", function_case(torch.cdist, (4096, 64), (4096, 64)))
    yield Case("cdist-batched-fp32", function_case(torch.cdist, (8, 1024, 3), (8, 1024, 3)))
    yield Case(
        "cdist-exact-fp32",
        function_case(
            lambda a, b: torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist"), (4096, 3), (4096, 3)
        ),
    )
    yield Case("cholesky-fp32", function_case(lambda x: torch.linalg.cholesky(spd(x)), (1024, 1024)))
    yield Case("cholesky-batched-fp32", function_case(lambda x: torch.linalg.cholesky(spd(x)), (256, 64, 64)))
    yield Case(
        "solve-fp32", function_case(lambda x, b: torch.linalg.solve(spd(x), b), (1024, 1024), (1024, 16))
    )
    yield Case("inv-batched-fp32", function_case(lambda x: torch.linalg.inv(spd(x)), (4096, 3, 3)))
    yield Case("det-batched-fp32", function_case(lambda x: torch.linalg.det(x), (4096, 16, 16)))
    yield Case("slogdet-fp32", function_case(lambda x: torch.linalg.slogdet(x).logabsdet, (1024, 1024)))
    yield Case("eigh-fp32", function_case(lambda x: torch.linalg.eigvalsh(spd(x)), (512, 512)))
    yield Case("eigh-batched-fp32", function_case(lambda x: torch.linalg.eigvalsh(spd(x)), (4096, 3, 3)))
    yield Case("svd-fp32", function_case(torch.linalg.svdvals, (512, 512)))
    yield Case("svd-batched-fp32", function_case(torch.linalg.svdvals, (4096, 3, 3)))
    yield Case("qr-fp32", call_case(torch.linalg.qr, (1024, 512)))
    yield Case("cross-fp32", function_case(lambda a, b: torch.linalg.cross(a, b), (262144, 3), (262144, 3)))
    yield Case("normalize-fp32", function_case(lambda x: F.normalize(x, dim=-1), (262144, 64)))
