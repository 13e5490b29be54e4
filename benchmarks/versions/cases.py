"""Small training steps whose forecasts are compared between versions of torch, as variants of `STEPS`.

They cover what differs by version: attention with its masks, dropouts and heads, convolutions, recurrent
layers, checkpointing, optimizers with foreach and fused kernels, autocast, and gradient scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from pinchpoint.core.workload import Case, Variant, Workload

WIDTH, HEADS, ROWS = 256, 4, 256


class Block(nn.Module):
    """A block of a GPT; `mask` is None, "causal", "padding" or "bias"."""

    def __init__(self, *, mask: str | None = "causal", dropout: float = 0.0, key_heads: int = HEADS) -> None:
        super().__init__()
        self.mask, self.dropout, self.key_heads = mask, dropout, key_heads
        size = WIDTH // HEADS
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = nn.Linear(WIDTH, key_heads * size), nn.Linear(WIDTH, key_heads * size)
        self.bias = nn.Parameter(torch.zeros(1, HEADS, ROWS, ROWS)) if mask == "bias" else None
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def split(y: torch.Tensor, heads: int) -> torch.Tensor:
            return y.view(len(x), ROWS, heads, WIDTH // HEADS).transpose(1, 2)

        y = self.before(x)
        mask = torch.ones(len(x), 1, 1, ROWS, dtype=torch.bool, device=x.device)
        mixed = F.scaled_dot_product_attention(
            split(self.query(y), HEADS),
            split(self.key(y), self.key_heads),
            split(self.value(y), self.key_heads),
            attn_mask={"padding": mask, "bias": self.bias}.get(self.mask or ""),
            dropout_p=self.dropout,
            is_causal=self.mask == "causal",
            enable_gqa=self.key_heads != HEADS,
        )
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.after(x))


class Unbatched(nn.Module):
    """Attention over heads as the only other dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.Linear(64, 3 * 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.all(x).split(64, -1)
        return F.scaled_dot_product_attention(query, key, value)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(y)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(128, 256, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


def _step(
    model: nn.Module,
    shape: tuple[int, ...],
    device: str,
    *,
    half: torch.dtype | None = torch.bfloat16,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
    **options: Any,
) -> Callable[[], None]:
    model = model.to(device)
    optimize = optimizer(model.parameters(), lr=1e-3, **options)
    data = torch.randn(shape, device=device)
    scaler = torch.amp.GradScaler("cuda", enabled=half is torch.float16)

    def step() -> None:
        with torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None):
            loss = model(data).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimize)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimize)
        scaler.update()
        optimize.zero_grad()

    return step


def gpt_bf16_dropout(size: int, device: str) -> Callable[[], None]:
    return _step(nn.Sequential(Block(dropout=0.1), Block(dropout=0.1)), (size, ROWS, WIDTH), device)


def gpt_fp16_scaler_fused(size: int, device: str) -> Callable[[], None]:
    return _step(nn.Sequential(Block(), Block()), (size, ROWS, WIDTH), device, half=torch.float16, fused=True)


def attention_bf16_padding(size: int, device: str) -> Callable[[], None]:
    return _step(Block(mask="padding"), (size, ROWS, WIDTH), device, foreach=True)


def attention_fp32_learned_bias(size: int, device: str) -> Callable[[], None]:
    return _step(Block(mask="bias"), (size, ROWS, WIDTH), device, half=None)


def attention_fp32_grouped(size: int, device: str) -> Callable[[], None]:
    return _step(Block(key_heads=2), (size, ROWS, WIDTH), device, half=None)


def attention_unbatched(size: int, device: str) -> Callable[[], None]:
    return _step(Unbatched(), (size, ROWS, 64), device)


def residual_network(size: int, device: str) -> Callable[[], None]:
    model = nn.Sequential(Residual(64), Residual(64)).to(memory_format=torch.channels_last)
    return _step(model, (size, 64, 32, 32), device, optimizer=torch.optim.SGD, momentum=0.9)


def recurrent_network(size: int, device: str) -> Callable[[], None]:
    return _step(Recurrent(), (size, 64, 128), device, half=None)


def checkpointed_gpt(size: int, device: str) -> Callable[[], None]:
    return _step(Checkpointed(), (size, ROWS, WIDTH), device)


_STEPS = (
    gpt_bf16_dropout,
    gpt_fp16_scaler_fused,
    checkpointed_gpt,
    attention_bf16_padding,
    attention_fp32_learned_bias,
    attention_fp32_grouped,
    attention_unbatched,
    residual_network,
    recurrent_network,
)


def _build(size: int, *, device: str, mode: str, variant: str, seed: int) -> Case:
    torch.manual_seed(seed)
    step = next(step for step in _STEPS if step.__name__ == variant)
    return Case(step=step(size, device), processed=size)


STEPS = Workload(
    name="steps",
    axis="examples",
    framework="torch",
    build=_build,
    variants=tuple(Variant(step.__name__, "") for step in _STEPS),
    modes=("train",),
)
