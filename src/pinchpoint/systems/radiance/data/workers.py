"""Sheets of cars made by processes of their own: run as a program it is one of them. A GPU is used by one
process alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.systems.common.data.workers import Program, run_workers, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.radiance.data.workers",
    "pictures of cars",
    hint="run it again with fewer --jobs or a smaller --size: it makes only what is missing",
)


@dataclass(frozen=True)
class Order:
    """One sheet to make."""

    name: str
    seed: int
    first: int
    count: int
    size: int
    device: str


def made_sheets(orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Each order with its file's bytes, as they come ready. All processes end with the iteration, however it
    ends.
    """
    return run_workers(PROGRAM, orders, jobs=jobs)


def make(order: dict[str, Any]) -> bytes:
    """An order's values -> the bytes of the sheet's file."""
    from pinchpoint.systems.radiance.data.sheets import make_sheet, pack

    del order["name"]
    return pack(make_sheet(**order))


if __name__ == "__main__":
    serve_pipes(make)
