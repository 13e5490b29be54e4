"""Worker processes that make rooms; run as a program, this module is one of the workers."""

from __future__ import annotations

from typing import Any

from pinchpoint.systems.cloud.data.rooms import make_room, pack
from pinchpoint.systems.common.data.workers import Program, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.cloud.data.workers",
    "rooms",
    hint="Run the command again with fewer --jobs or --points: it makes only the missing rooms.",
)


def make(order: dict[str, Any]) -> bytes:
    """Return the bytes of a room's file, from the fields of an order."""
    return pack(make_room(**order))


if __name__ == "__main__":
    serve_pipes(make)
