"""The size of the next chunk, from a model of bytes per point that learns from previous chunks.

The first chunks are trials: a quarter of a tile, a tile, and then at most 8 times the largest so far, until
`fixed + bytes_per_point * chunk` reaches the goal. After that the chunk does not change, which keeps shapes
constant; it shrinks only when memory runs out or a chunk exceeds the bound. The model is pure arithmetic and
needs neither a framework nor a device.
"""

from __future__ import annotations

from pinchpoint.backends.stream_backend import Room
from pinchpoint.core.errors import DoesNotFit, first_line
from pinchpoint.core.units import show_bytes

GROWTH = (
    8  # a slope from small chunks is inaccurate, so no trial exceeds the last one by more than this factor
)


class Pace:
    """Chooses the chunks for `count` points.

    chunk: set by the caller; otherwise the model finds one that fits `room`. No chunk is larger than `most`.
    """

    def __init__(
        self,
        count: int,
        *,
        tile: int,
        room: Room | None = None,
        chunk: int | None = None,
        bytes_per_point: int | None = None,
        held_bytes: int = 0,
        most: int | None = None,
        whole: bool = False,
    ) -> None:
        self.count = count
        self.tile = max(1, min(tile, count))
        self.room = room
        self.held_bytes = held_bytes
        self.fixed_bytes: float | None = held_bytes if bytes_per_point else None
        self.bytes_per_point: float | None = bytes_per_point
        self.peak_bytes: int | None = None
        self.halvings = 0
        # A fixed chunk with padding keeps its shape even if there are fewer points.
        self.settled_chunk = None if chunk is None else max(1, chunk if whole else min(chunk, count))
        self._trials: list[tuple[int, int]] = []
        self._confirmed_chunk: int | None = None  # the settled chunk, once it is known to be within the bound
        self._top = count + self.tile if most is None else min(count + self.tile, most)

    def next(self, remaining: int) -> int:
        """The chunk for the remaining points."""
        if self.settled_chunk is not None:
            return self.settled_chunk
        if self.bytes_per_point is None and not self._trials:
            return self.tile if self.count <= self.tile else -(-self.tile // 4)
        most = self._most()
        reach = most if not self._trials else min(most, self._growth())
        chunk = max(self.tile, reach - reach % self.tile)
        calls = -(-remaining // chunk)
        if reach == most or calls == 1:
            # The same number of calls with the least padding: one leftover point must not cost a whole chunk.
            chunk = self.settled_chunk = self._up(-(-remaining // calls))
        return chunk

    def is_trial(self) -> bool:
        """Whether the memory of the next chunk should be measured."""
        return self.room is not None and (
            self.settled_chunk is None or self.settled_chunk != self._confirmed_chunk
        )

    def record(self, chunk: int, peak_bytes: int) -> None:
        """Learn from the peak of a chunk. Raises if even one tile exceeds the bound."""
        self.peak_bytes = max(self.peak_bytes or 0, peak_bytes)
        if self.room is None:
            return
        over = peak_bytes > self.room.bound_bytes
        if over and chunk <= self.tile:
            raise self._too_small(f"A chunk of {chunk:,} points takes {show_bytes(peak_bytes)}", peak_bytes)
        if self.settled_chunk is not None and not over:
            self._confirmed_chunk = self.settled_chunk
            return
        self._learn(chunk, peak_bytes)
        if over:
            self.settled_chunk = None
            share = self.room.goal_bytes / peak_bytes
            self._top = max(self.tile, min(int(chunk * share), chunk - self.tile))

    def halve(self, chunk: int, *, why: BaseException, free_bytes: int | None) -> None:
        """Use half the chunk from now on, after memory ran out. Raises below one tile."""
        half = chunk // 2
        if half >= self.tile:
            half -= half % self.tile
        elif chunk > self.tile:
            half = self.tile
        else:
            free = "" if free_bytes is None else f", with {show_bytes(free_bytes)} free"
            raise DoesNotFit(
                f"Memory ran out at a chunk of {chunk:,} points{free}: {first_line(why, length=200)}",
                hint=f"Free memory, or allow chunks below {self.tile:,} points with a smaller tile=.",
            ) from why
        self.halvings += 1
        self.settled_chunk = half

    def _most(self) -> int:
        """The largest chunk for the goal, from what is known so far."""
        assert self.room is not None, "a fixed chunk needs no model"
        if self.bytes_per_point is None:
            return self._top  # after one trial, the slope is not known yet
        slope, fixed_bytes = self.bytes_per_point, self.fixed_bytes or 0
        most = int((self.room.goal_bytes - fixed_bytes) // slope)
        need = fixed_bytes + slope * self.tile
        if not self._trials and need > self.room.bound_bytes:
            raise self._too_small(
                f"A chunk of {self.tile:,} points takes {show_bytes(need)} according to bytes_per_point", need
            )
        return min(most, self._top)

    def _growth(self) -> int:
        largest = max(chunk for chunk, _ in self._trials)
        return self.tile if largest < self.tile else GROWTH * largest

    def _learn(self, chunk: int, peak_bytes: int) -> None:
        self._trials.append((chunk, peak_bytes))
        others = [trial for trial in self._trials if trial[0] != chunk]
        if not others:
            return
        before, least = others[-1]
        slope = max(1.0, (peak_bytes - least) / (chunk - before))
        fixed_bytes = peak_bytes - slope * chunk
        if fixed_bytes < 0:  # the curve bends upwards, so the average per point is the better guess
            slope, fixed_bytes = peak_bytes / chunk, 0.0
        self.bytes_per_point, self.fixed_bytes = slope, fixed_bytes

    def _up(self, points: int) -> int:
        return -(-points // self.tile) * self.tile if points > self.tile else self.tile

    def _too_small(self, what: str, need_bytes: float) -> DoesNotFit:
        assert self.room is not None
        before = f", of which {show_bytes(self.held_bytes)} were in use before" if self.held_bytes else ""
        return DoesNotFit(
            f"{what}{before}, but the budget is {show_bytes(self.room.bound_bytes)}.",
            hint=f"Give a budget of at least {show_bytes(need_bytes * 1.05)}, or a tile below {self.tile:,}.",
            need_bytes=round(need_bytes * 1.05),
        )
