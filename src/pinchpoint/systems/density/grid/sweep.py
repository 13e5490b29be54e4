"""Evaluation of a model over bricks of probes with `pinchpoint.stream`.

Shapes are constant, and the peak does not depend on the grid. Letters: N bricks, B probes per brick, K slots,
O outputs. Within a chunk, bricks are processed in tiles of a fixed number of bricks, the last one padded.
Chunks are whole tiles: a brick gets the same bits from every chunk that is not smaller than a tile. The
number of bricks per tile follows from the width of the model and the device; it is halved if the budget is
too small.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from pinchpoint.backends.torch import measurement
from pinchpoint.core import host_memory
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting.cards import Card
from pinchpoint.streaming.stream import Flow, stream
from pinchpoint.systems.density.grid.bricks import SLOTS, SlotClass, Surroundings, classes_of

# Bytes per tile: pairs times the bytes of an atom's fields (times `heavy`), twice what the pairs take at the
# peak, and twice what the probes take besides. On a GPU, as much as stays below 1 GiB with weights and
# workspace, so that kernel launches cost little; on a CPU, what suits its caches.
TILE_BYTES = {"cuda": 1536 * 2**20, "cpu": 16 * 2**20}
MOST_BRICKS = 1024  # per tile
TILES = 16  # per chunk
Forward = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class SweepResult:
    """The result of a sweep. values: (n, B, O) for the requested bricks, in their order."""

    values: np.ndarray
    pairs: int  # pairs of a probe and a neighbour slot
    tile: int  # largest number of bricks in a tile
    chunk: int  # largest number of probes in a chunk
    calls: int
    halvings: int  # how often chunks or tiles were halved because of memory or the budget
    peak_bytes: int | None  # known only where chunks were tracked for a budget
    slots: tuple[int, ...]


def sweep(
    forward: Forward,
    fields: Callable[[], Tensor],
    species: Tensor,
    surroundings: Surroundings,
    *,
    outputs: int,
    numbers: np.ndarray | None = None,
    budget: str | int | Card | None = None,
    chunk: int | None = None,
    heavy: float = 1.0,
    probe_bytes: int = 0,
    progress: Progress | None = None,
) -> SweepResult:
    """Evaluate `forward(fields, species, neighbours, vectors)` for all bricks, or those in `numbers`.

    fields: called once per chunk, returns (A, W). chunk: probes processed together. heavy: how many times
    more bytes a pair takes than the width of the fields suggests. probe_bytes: what a probe takes at the peak
    besides its pairs. progress(done, total): counts probes.
    """
    device, dtype, probes = species.device, surroundings.offsets.dtype, surroundings.bricks.probes
    brick_numbers = (
        torch.arange(surroundings.bricks.count, device=device)
        if numbers is None
        else torch.from_numpy(np.asarray(numbers, np.int64)).to(device)
    )
    tiles = _Tiles(
        width=round(fields().shape[1] * dtype.itemsize * heavy * probes),
        fixed=2 * probe_bytes * probes,
        device=device.type,
    )
    classes = classes_of(surroundings, brick_numbers, least=tiles.bricks(2 * SLOTS))
    # Half, see TILE_BYTES. Out of memory is an error on a GPU, but on the host it kills the process.
    need = (tiles.width * classes[0].slots + tiles.fixed) // 2 if classes else 0
    if device.type == "cpu" and need > host_memory.free_bytes():
        raise DoesNotFit(
            f"One brick of {probes} probes has {classes[0].slots:,} atoms around it, which takes "
            f"{show_bytes(need)} of main memory, but only {show_bytes(host_memory.free_bytes())} are free.",
            hint="Give a finer --grid, so that bricks are smaller, or check the unit of the structure's "
            "lengths.",
            need_bytes=need,
        )
    tell = progress or (lambda count, total: None)
    run = _Runner(forward, fields, species, surroundings, 1, outputs)
    if device.type == "cuda" and budget is None and chunk is None:
        at_once = _sweep_at_once(run, brick_numbers, classes, tiles)
        if at_once is not None:
            tell(len(brick_numbers) * probes, len(brick_numbers) * probes)
            return at_once
    rows_of_host = torch.empty(0, dtype=dtype).numpy().dtype
    # Rows are stored class by class, each filled by its own stream, and reordered at the end.
    values, flows = np.empty((len(brick_numbers), probes, outputs), rows_of_host), []
    largest = 1
    done = pairs = 0
    for kind in classes:
        # One unused slot if there are no neighbours, because not every kernel accepts empty inputs.
        run = replace(run, slots=max(1, kind.slots))
        start, size = done, len(kind.rows)
        out = values[start : start + size]
        if kind.slots == 0:  # empty space: one brick stands for all
            out[:] = run.of(brick_numbers[kind.rows[:1]], 1).cpu().numpy()
            tell((start + size) * probes, len(brick_numbers) * probes)
        else:
            tile, class_flows = _sweep_class(
                run,
                brick_numbers[kind.rows],
                out,
                tiles,
                budget,
                chunk,
                lambda n, s=start: tell((s + n) * probes, len(brick_numbers) * probes),
            )
            flows += class_flows
            largest = max(largest, tile)
            pairs += size * probes * kind.slots
        done += size
    order = torch.cat([kind.rows for kind in classes]) if classes else torch.arange(0)
    in_order = np.empty_like(values)
    in_order[order.cpu().numpy()] = values
    peaks = [flow.peak_bytes for flow in flows if flow.peak_bytes is not None]
    return SweepResult(
        in_order,
        pairs,
        tile=largest,
        chunk=max((flow.chunk for flow in flows), default=0) * probes,
        calls=sum(flow.calls for flow in flows),
        halvings=sum(flow.halvings for flow in flows) + tiles.halvings,
        peak_bytes=max(peaks, default=None),
        slots=tuple(kind.slots for kind in classes),
    )


def _sweep_at_once(
    run: _Runner, numbers: Tensor, classes: list[SlotClass], tiles: _Tiles
) -> SweepResult | None:
    """Compute all classes without waiting for the device in between.

    Returns None if a class has more than one chunk, or if memory ran out. run: with any number of slots.
    """
    sizes = [tiles.even_tile(kind.slots, len(kind.rows)) if kind.slots else 1 for kind in classes]
    if not classes or any(
        kind.slots and len(kind.rows) > TILES * size for kind, size in zip(classes, sizes, strict=True)
    ):
        return None
    probes = run.surroundings.bricks.probes
    try:
        values = run.fields().new_empty(len(numbers), probes, run.outputs)
        for kind, size in zip(classes, sizes, strict=True):
            # In empty space, one brick stands for all; it has one unused slot.
            rows = kind.rows if kind.slots else kind.rows[:1]
            values[kind.rows] = replace(run, slots=max(1, kind.slots)).of(numbers[rows], size)
        values_on_host = _host_memory(values.shape, values.dtype, pinned=values.is_cuda)
        values_on_host.copy_(values)
    except Exception as error:
        if not measurement.is_oom(error):
            raise
        error.__traceback__ = None  # its frames refer to the tensors that filled the memory
        torch.cuda.empty_cache()
        return None
    busy = [len(kind.rows) for kind in classes if kind.slots]
    return SweepResult(
        values_on_host.numpy(),
        pairs=sum(len(kind.rows) * probes * kind.slots for kind in classes),
        tile=max(sizes),
        chunk=max(busy, default=0) * probes,
        calls=len(busy),
        halvings=0,
        peak_bytes=None,
        slots=tuple(kind.slots for kind in classes),
    )


def _host_memory(shape: torch.Size, dtype: torch.dtype, *, pinned: bool) -> Tensor:
    """Return memory of the host, pinned if the system permits it.

    A GPU copies to pinned memory without a detour; torch keeps it for the next sweep.
    """
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    except RuntimeError:
        if not pinned:
            raise
        return torch.empty(shape, dtype=dtype)


class _Tiles:
    """The number of bricks per tile for a given number of slots.

    width: bytes per brick and slot; fixed: bytes per brick besides.
    """

    def __init__(self, *, width: int, device: str, fixed: int = 0) -> None:
        self.width, self.fixed, self.halvings = width, fixed, 0
        self.bytes = TILE_BYTES.get(device, TILE_BYTES["cpu"])

    def bricks(self, slots: int) -> int:
        most = self.bytes // (self.width * max(slots, 1) + self.fixed)
        return max(1, min(most, MOST_BRICKS) >> self.halvings)

    def even_tile(self, slots: int, count: int) -> int:
        """Return the bricks per tile that pad `count` bricks least.

        The number of tiles is the smallest possible.
        """
        tiles = -(-count // self.bricks(slots))
        return -(-count // max(1, tiles))


@dataclass(frozen=True, eq=False)
class _Runner:
    """Computes the bricks that `stream` requests by number, tile after tile, with constant shapes."""

    forward: Forward
    fields: Callable[[], Tensor]
    species: Tensor
    surroundings: Surroundings
    slots: int
    outputs: int

    def of(self, numbers: Tensor, tile: int) -> Tensor:
        """Return the values (C, B, O) of the bricks with these numbers (C,)."""
        with torch.no_grad():
            fields = self.fields()
            short = -len(numbers) % tile
            padded = torch.cat([numbers, numbers[-1:].expand(short)]) if short else numbers
            values = fields.new_empty((len(padded), self.surroundings.bricks.probes, self.outputs))
            for part, rows in zip(
                *(x.split(self.surroundings.block(tile)) for x in (padded, values)), strict=True
            ):
                atoms, apart = self.surroundings.nearby(part, self.slots)
                for at in range(0, len(part), tile):
                    vectors = self.surroundings.vectors(apart[at : at + tile])
                    rows[at : at + tile] = self.forward(fields, self.species, atoms[at : at + tile], vectors)
            return values[: len(numbers)]


def _sweep_class(
    run: _Runner,
    numbers: Tensor,
    out: np.ndarray,
    tiles: _Tiles,
    budget: str | int | Card | None,
    chunk: int | None,
    progress: Callable[[int], None],
) -> tuple[int, list[Flow]]:
    """Write the values of all bricks of a class to `out`, halving the tiles until they fit.

    Returns the largest tile that ran, and the flows.
    """
    flows: list[Flow] = []
    done = largest = 0

    def advance(count: int) -> None:
        nonlocal done, largest
        if count > done:
            done, largest = count, max(largest, tile)
        progress(done)

    while True:
        tile = tiles.even_tile(run.slots, len(numbers))
        chunk_bricks = None if budget is not None else TILES * tile
        if chunk is not None:
            chunk_bricks = max(1, chunk // run.surroundings.bricks.probes)
            tile = min(tile, chunk_bricks)
            chunk_bricks -= chunk_bricks % tile
        try:
            stream(
                lambda part, tile=tile: run.of(part, tile),
                numbers[done:],
                device=str(numbers.device),
                out=out[done:],
                pad=False,  # all tiles already have the same shape
                # `stream` first tries a quarter of its tile, which is one of ours, so that no chunk begins
                # inside a tile. If a tile is one brick, a chunk may be one brick too, the smallest
                # possible.
                tile=tile if chunk_bricks is not None or tile == 1 else 4 * tile,
                chunk="auto" if chunk_bricks is None else chunk_bricks,
                most=None if chunk_bricks is not None else TILES * tile,
                budget=budget,
                progress=lambda count, _, before=done: advance(before + count),
                report=flows.append,
            )
        except DoesNotFit as error:
            if tile == 1:
                raise _nothing_fits(
                    run.surroundings.bricks.probes, error, budget, numbers.device.type
                ) from error
            tiles.halvings += 1
            continue
        return largest, flows


def _nothing_fits(probes: int, error: DoesNotFit, budget: str | int | Card | None, device: str) -> DoesNotFit:
    need, elsewhere = error.need_bytes, ", or use --device cpu" if device == "cuda" else ""
    if budget is None or need is None:
        return DoesNotFit(
            f"Even a chunk of {probes} probes does not fit: {error.what}",
            hint=f"Free memory{elsewhere}.",
            need_bytes=need,
        )
    budget_text = (
        budget.name if isinstance(budget, Card) else budget if isinstance(budget, str) else show_bytes(budget)
    )
    return DoesNotFit(
        f"Even a chunk of {probes} probes does not fit into {budget_text}, including the memory of the atoms "
        "on the device.",
        hint=f"Set --budget to at least {math.ceil(need / 2**20)}MiB{elsewhere}.",
        need_bytes=need,
    )
