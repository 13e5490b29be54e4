"""Time per part of a step (data, sampling, forward, consistency, backward, optimizer), as columns of log.csv.

Timing a part waits for the step's stream before both clock readings, which itself takes time. On CUDA only
some steps are therefore timed, and the columns of the others are empty. Work of the prefetch stream is not a
separate part; at most it slows down the others. On a CPU every step is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from pinchpoint.backends.torch import measurement
from pinchpoint.systems.common.training import logs
from pinchpoint.systems.common.training.torch_loop import READ_EVERY

Part = Literal["data", "sampling", "forward", "consistency", "backward", "optimizer"]
PARTS: tuple[Part, ...] = get_args(Part)


class Parts:
    """Seconds of each part of the steps that are timed."""

    def __init__(self, device: str, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device, self.clock = device, clock
        self._steps: dict[int, dict[str, float]] = {}
        self._now: dict[str, float] | None = None

    def begin(self, step: int) -> None:
        """Assign the parts that follow to `step`. Nothing is timed before the first call."""
        timed = self.device != "cuda" or step % READ_EVERY == 0
        self._now = self._steps.setdefault(step, dict.fromkeys(PARTS, 0.0)) if timed else None

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        """Time the block as `name`. Parts must not be nested."""
        seconds_by_part = self._now
        if seconds_by_part is None:
            yield
            return
        measurement.wait_stream(self.device)
        start = self.clock()
        yield
        measurement.wait_stream(self.device)
        seconds_by_part[name] += self.clock() - start

    def pop_step(self, step: int) -> dict[str, float] | None:
        """Return and forget the times of a step; None if it was not timed."""
        return self._steps.pop(step, None)

    def complete_row(self, row: logs.Row) -> Row:
        """Return a row of the log with the times of its step."""
        seconds_by_part = self.pop_step(row.step) or {}
        return _extended(row, {f"{name}_s": seconds for name, seconds in seconds_by_part.items()})


@dataclass(frozen=True)
class Row(logs.Row):
    """One step; None where it was not timed. validation: 1 - mIoU of the validation scenes."""

    data_s: float | None = None
    sampling_s: float | None = None
    forward_s: float | None = None
    consistency_s: float | None = None
    backward_s: float | None = None
    optimizer_s: float | None = None


_COLUMNS = tuple(f"{name}_s" for name in PARTS)


class Log(logs.Log):
    columns = (*logs.Log.columns, *_COLUMNS)

    @classmethod
    def row_of(cls, line: Mapping[str, str]) -> Row:
        return _extended(
            logs.Log.row_of(line), {name: float(line[name]) if line[name] else None for name in _COLUMNS}
        )

    @classmethod
    def cells_of(cls, row: logs.Row) -> list[Any]:
        seconds_by_part = (getattr(row, name, None) for name in _COLUMNS)
        return [
            *logs.Log.cells_of(row),
            *("" if seconds is None else f"{seconds:.6f}" for seconds in seconds_by_part),
        ]


def _extended(row: logs.Row, seconds_by_part: Mapping[str, float | None]) -> Row:
    columns: dict[str, Any] = {**{f.name: getattr(row, f.name) for f in fields(logs.Row)}, **seconds_by_part}
    return Row(**columns)


def mean_seconds(rows: Iterable[logs.Row]) -> dict[str, float]:
    """Return the mean seconds of each part over the timed rows, without the first if there are several."""
    timed = [row for row in rows if isinstance(row, Row) and row.forward_s is not None]
    timed = timed[1:] or timed
    if not timed:
        return {}
    return {name: sum(getattr(row, f"{name}_s") for row in timed) / len(timed) for name in PARTS}
