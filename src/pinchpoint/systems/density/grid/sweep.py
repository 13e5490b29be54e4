"""The model over bricks of probes by `pinchpoint.stream`: constant shapes, a peak that does not grow with the grid.

N bricks, B probes of a brick, K slots, O outputs. Inside a chunk bricks pass in tiles of a fixed number, the last one
filled up, and chunks are whole tiles: a brick gets the same bits from every chunk that is no smaller than a tile. How many
bricks a tile holds follows from the width of the model and the device; a budget that is too small for it halves it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core import host_memory
from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.units import show_bytes
from pinchpoint.forecasting.cards import Card
from pinchpoint.streaming.stream import Flow, stream
from pinchpoint.systems.density.grid.bricks import SLOTS, Surroundings, classes_of

# Of a tile, pairs times the bytes of an atom's fields (times `heavy`), twice what a pair takes at the peak: on a GPU as much
# as stays below 1 GiB with weights and workspace, so that starting kernels costs little; on a CPU what suits its caches.
TILE_BYTES = {"cuda": 1536 * 2**20, "cpu": 16 * 2**20}
MOST_BRICKS = 512  # of a tile
TILES = 16  # of a chunk
Forward = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Swept:
    """values: (n, B, O) of the bricks asked for, in their order, and how they went through."""

    values: np.ndarray
    pairs: int  # of a probe and a slot
    tile: int  # most bricks of a tile
    chunk: int  # most probes at one time
    calls: int
    halvings: int  # of chunks and of tiles, because memory ran out or the budget is small
    peak_bytes: int | None  # where chunks were watched for a budget
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
    progress: Progress | None = None,
) -> Swept:
    """`forward(fields, species, neighbours, vectors)` of bricks: all, or those whose numbers are given.

    fields: called once a chunk, (A, W). chunk: probes at one time. heavy: how many times the bytes a pair takes
    that are usual for the width of the fields. progress(done, total): in probes.
    """
    device, dtype, probes = species.device, surroundings.offsets.dtype, surroundings.bricks.probes
    chosen = (
        torch.arange(surroundings.bricks.count)
        if numbers is None
        else torch.from_numpy(np.asarray(numbers, np.int64))
    )
    chosen = chosen.to(device)
    tiles = _Tiles(width=round(fields().shape[1] * dtype.itemsize * heavy * probes), device=device.type)
    classes = classes_of(surroundings, chosen, least=tiles.bricks(2 * SLOTS))
    # Half, as TILE_BYTES tells. A GPU that runs out says so; a machine that does ends the process.
    need = tiles.width * classes[0].slots // 2 if classes else 0
    if device.type == "cpu" and need > host_memory.free_bytes():
        raise DoesNotFit(
            f"{classes[0].slots:,} atoms lie round one brick of {probes} probes, which takes {show_bytes(need)} of main memory; "
            f"{show_bytes(host_memory.free_bytes())} are free",
            hint="give a finer --grid, so that bricks are smaller, or check the unit of the structure's lengths",
            need_bytes=need,
        )
    rows_of_host = torch.empty(0, dtype=dtype).numpy().dtype
    # Rows lie class by class, each filled by its own stream, and are put in order at the end.
    values, flows = np.empty((len(chosen), probes, outputs), rows_of_host), []
    largest = 1
    done, pairs, tell = 0, 0, progress or (lambda count, total: None)
    for kind in classes:
        # One slot that is not in use, where there are no neighbours: not every kernel takes nothing.
        run = _Runner(forward, fields, species, surroundings, max(1, kind.slots), outputs)
        start, size = done, len(kind.rows)
        out = values[start : start + size]
        if kind.slots == 0:  # empty space: one brick tells them all
            out[:] = run.of(chosen[kind.rows[:1]], 1).cpu().numpy()
            tell((start + size) * probes, len(chosen) * probes)
        else:
            tile, made = _through(
                run,
                chosen[kind.rows],
                out,
                tiles,
                budget,
                chunk,
                lambda n, s=start: tell((s + n) * probes, len(chosen) * probes),
            )
            flows += made
            largest = max(largest, tile)
            pairs += size * probes * kind.slots
        done += size
    order = torch.cat([kind.rows for kind in classes]) if classes else torch.arange(0)
    sorted_back = np.empty_like(values)
    sorted_back[order.cpu().numpy()] = values
    peaks = [flow.peak_bytes for flow in flows if flow.peak_bytes is not None]
    return Swept(
        sorted_back,
        pairs,
        tile=largest,
        chunk=max((flow.chunk for flow in flows), default=0) * probes,
        calls=sum(flow.calls for flow in flows),
        halvings=sum(flow.halvings for flow in flows) + tiles.halvings,
        peak_bytes=max(peaks, default=None),
        slots=tuple(kind.slots for kind in classes),
    )


class _Tiles:
    """Bricks of a tile for a number of slots. width: bytes of a brick for each slot."""

    def __init__(self, *, width: int, device: str) -> None:
        self.width, self.bytes, self.halvings = width, TILE_BYTES.get(device, TILE_BYTES["cpu"]), 0

    def bricks(self, slots: int) -> int:
        most = self.bytes // (self.width * max(slots, 1))
        return max(1, min(most, MOST_BRICKS) >> self.halvings)

    def evened(self, slots: int, count: int) -> int:
        """The same number of tiles with the least filling, for so many bricks."""
        tiles = -(-count // self.bricks(slots))
        return -(-count // max(1, tiles))


class _Runner:
    """What stream calls with the numbers of bricks: tile after tile, each of one shape."""

    def __init__(
        self,
        forward: Forward,
        fields: Callable[[], Tensor],
        species: Tensor,
        surroundings: Surroundings,
        slots: int,
        outputs: int,
    ) -> None:
        self.forward, self.fields, self.species = forward, fields, species
        self.surroundings, self.slots, self.outputs = surroundings, slots, outputs

    def of(self, numbers: Tensor, tile: int) -> Tensor:
        """numbers: (C,) -> (C, B, O)."""
        with torch.no_grad():
            fields = self.fields()
            short = -len(numbers) % tile
            filled = torch.cat([numbers, numbers[-1:].expand(short)]) if short else numbers
            made = fields.new_empty((len(filled), self.surroundings.bricks.probes, self.outputs))
            for part, rows in zip(
                *(x.split(self.surroundings.block(tile)) for x in (filled, made)), strict=True
            ):
                atoms, apart = self.surroundings.nearby(part, self.slots)
                for at in range(0, len(part), tile):
                    vectors = self.surroundings.vectors(apart[at : at + tile])
                    rows[at : at + tile] = self.forward(fields, self.species, atoms[at : at + tile], vectors)
            return made[: len(numbers)]


def _through(
    run: _Runner,
    numbers: Tensor,
    out: np.ndarray,
    tiles: _Tiles,
    budget: str | int | Card | None,
    chunk: int | None,
    progress: Callable[[int], None],
) -> tuple[int, list[Flow]]:
    """All bricks of a class into `out`, with ever smaller tiles where they do not fit; the largest tile that ran."""
    flows: list[Flow] = []
    done = largest = 0

    def told(count: int) -> None:
        nonlocal done, largest
        if count > done:
            done, largest = count, max(largest, tile)
        progress(done)

    while True:
        tile = tiles.evened(run.slots, len(numbers))
        wanted = None if budget is not None else TILES * tile
        if chunk is not None:
            wanted = max(1, chunk // run.surroundings.bricks.probes)
            tile = min(tile, wanted)
            wanted -= wanted % tile
        try:
            stream(
                lambda part, tile=tile: run.of(part, tile),
                numbers[done:],
                device=str(numbers.device),
                out=out[done:],
                pad=False,  # tiles have one shape already
                # A quarter of stream's tile is its first trial: one of ours, so that no chunk begins inside a tile. Where a
                # tile is one brick a chunk may be, too: the least that can be asked for.
                tile=tile if wanted is not None or tile == 1 else 4 * tile,
                chunk="auto" if wanted is None else wanted,
                most=None if wanted is not None else TILES * tile,
                budget=budget,
                progress=lambda count, _, before=done: told(before + count),
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
            f"even {probes} probes at one time do not fit: {error.what}",
            hint=f"free memory{elsewhere}",
            need_bytes=need,
        )
    asked = (
        budget.name if isinstance(budget, Card) else budget if isinstance(budget, str) else show_bytes(budget)
    )
    return DoesNotFit(
        f"even {probes} probes at one time do not fit into {asked}, with all that the atoms take on the device",
        hint=f"give --budget at least {math.ceil(need / 2**20)}MiB{elsewhere}",
        need_bytes=need,
    )
