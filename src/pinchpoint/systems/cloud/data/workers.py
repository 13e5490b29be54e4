"""Rooms made by processes of their own: run as a program it is one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pinchpoint.systems.cloud.data.data_settings import Order
from pinchpoint.systems.cloud.data.rooms import make_room, pack
from pinchpoint.systems.common.workers import Program, run_workers, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.cloud.data.workers",
    "rooms",
    hint="run it again with fewer --jobs or --points: it makes only what is missing",
)


def made_rooms(orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Each order with its file's bytes, as they come ready. All processes end with the iteration, however it ends."""
    return run_workers(PROGRAM, orders, jobs=jobs)


def make(order: dict[str, Any]) -> bytes:
    """An order's values -> the bytes of the room's file."""
    return pack(make_room(**order))


if __name__ == "__main__":
    serve_pipes(make)
