"""Worker processes that make rooms; run as a program, this module is one of the workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pinchpoint.systems.cloud.data.data_settings import Order
from pinchpoint.systems.cloud.data.rooms import make_room, pack
from pinchpoint.systems.common.data.workers import Program, run_workers, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.cloud.data.workers",
    "rooms",
    hint="run it again with fewer --jobs or --points: it makes only what is missing",
)


def made_rooms(orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Yield each order with the bytes of its file, as they finish.

    All processes end when the iteration ends.
    """
    return run_workers(PROGRAM, orders, jobs=jobs)


def make(order: dict[str, Any]) -> bytes:
    """Return the bytes of a room's file."""
    return pack(make_room(**order))


if __name__ == "__main__":
    serve_pipes(make)
