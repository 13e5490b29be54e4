"""The field workload in torch: the network, its points and three variants of processing them.

Letters: P points, C points per chunk, H = 256 hidden units. Training fits the network to a known field
by least squares with Adam. Inference integrates the network over the box (the mean over the points),
so neither needs a result for every point. Point i depends only on i and the seed, so `chunked`
generates each chunk when it needs it and stores nothing that grows with P.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Case, Probe

WIDTH = 256
LAYERS = 5
CHUNK = 16_384
# Powers of 1/g with g**4 = g + 1: strides of a low-discrepancy sequence, any section of which fills the box
# evenly.
STRIDES = (0.8191725133961645, 0.6710436067037893, 0.5497004779019703)

Batches = Callable[[], Iterator[Tensor]]


class Field(nn.Module):
    """The network: coordinates (P, 3) in [-1, 1] -> values (P, 1)."""

    def __init__(self, *, recompute: bool) -> None:
        super().__init__()
        widths = [3] + [WIDTH] * LAYERS
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairwise(widths))
        self.head = nn.Linear(WIDTH, 1)
        self.recompute = recompute

    def forward(self, coordinates: Tensor) -> Tensor:
        hidden = coordinates
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
        return self.head(hidden)


def points(start: int, stop: int, *, seed: int, device: str) -> Tensor:
    """Return points start..stop of an endless low-discrepancy sequence: (stop - start, 3) in [-1, 1]."""
    # In float64, because at point 1e8 a float32 product has no digits left after the decimal point.
    index = torch.arange(start + 1, stop + 1, dtype=torch.float64, device=device)[:, None]
    strides = torch.tensor(STRIDES, dtype=torch.float64, device=device)
    shift = (0.5 + 0.6180339887498949 * seed) % 1.0
    return (2 * torch.frac(shift + index * strides) - 1).float()


def truth(coordinates: Tensor) -> Tensor:
    """Return the field to learn: (P, 3) -> (P, 1)."""
    x, y, z = coordinates.unbind(dim=1)
    return (torch.sin(3 * x) * torch.cos(2 * y) + z * z)[:, None]


def build(size: int, *, device: str, mode: str, variant: str, seed: int, chunk: int | None = None) -> Case:
    """Build one case. Only the variant `chunked` uses `chunk`."""
    if chunk is not None and chunk < 1:
        raise BadInput(
            f"The chunk is {chunk} points, but must be at least 1.", hint="Give --chunk a number above 0."
        )
    torch.manual_seed(seed)
    field = Field(recompute=variant == "checkpoint").to(device)
    bounds = _chunk_bounds(size, (chunk or CHUNK) if variant == "chunked" else size)
    batches = (
        _generate_chunks(bounds, seed, device) if variant == "chunked" else _hold_all(size, seed, device)
    )
    return Case(
        step=_train(field, batches, size) if mode == "train" else _infer(field, batches, size),
        processed=sum(stop - start for start, stop in bounds),
        probe=lambda: _probe(field, batches, size, gradients=mode == "train"),
    )


def _chunk_bounds(size: int, chunk: int) -> list[tuple[int, int]]:
    return [(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def _generate_chunks(bounds: list[tuple[int, int]], seed: int, device: str) -> Batches:
    return lambda: (points(start, stop, seed=seed, device=device) for start, stop in bounds)


def _hold_all(size: int, seed: int, device: str) -> Batches:
    coordinates = points(0, size, seed=seed, device=device)
    return lambda: iter((coordinates,))


def _train(field: Field, batches: Batches, size: int) -> Callable[[], Tensor]:
    optimizer = torch.optim.Adam(field.parameters(), lr=1e-3)

    def step() -> Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=field.head.weight.device)
        for coordinates in batches():
            # Divide by the number of all points, not of the chunk: the chunks, ragged or not, then add up
            # to the mean.
            loss = (field(coordinates) - truth(coordinates)).square().sum() / size
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return step


def _infer(field: Field, batches: Batches, size: int) -> Callable[[], Tensor]:
    @torch.no_grad()
    def step() -> Tensor:
        total = torch.zeros((), device=field.head.weight.device)
        for coordinates in batches():
            total += field(coordinates).sum() / size
        return total

    return step


def _probe(field: Field, batches: Batches, size: int, *, gradients: bool) -> Probe:
    """Return the values, the loss or the integral, and the gradients of weights and coordinates."""
    field.zero_grad()
    values, slopes = [], []
    total = torch.zeros((), device=field.head.weight.device)
    with torch.set_grad_enabled(gradients):
        for coordinates in batches():
            leaf = coordinates.clone().requires_grad_(gradients)
            out = field(leaf)
            part = (out - truth(leaf)).square().sum() / size if gradients else out.sum() / size
            if gradients:
                part.backward()
                slopes.append(leaf.grad)
            values.append(out.detach())
            total += part.detach()
    by_parameter = {name: p.grad for name, p in field.named_parameters()} if gradients else {}
    by_name = {**by_parameter, "coordinates": torch.cat(slopes)} if gradients else {}
    return Probe(
        outputs={"values": _array(torch.cat(values)), "loss" if gradients else "integral": _array(total)},
        gradients={
            name: None if gradient is None else _array(gradient) for name, gradient in by_name.items()
        },
    )


def _array(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy().copy()
