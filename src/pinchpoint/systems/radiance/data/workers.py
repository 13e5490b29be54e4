"""Worker processes that create sheets of cars; run as a program, this module is one of the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pinchpoint.systems.common.data.workers import Program, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.radiance.data.workers",
    "images of cars",
    hint="Run the command again with fewer --jobs or a smaller --size: it creates only the missing images.",
)


@dataclass(frozen=True)
class Order:
    """One sheet to create."""

    name: str
    seed: int
    first: int
    count: int
    size: int
    device: str
    bodies: bool = False


def make(order: dict[str, Any]) -> bytes:
    """Return the bytes of a sheet's file, from the fields of an order."""
    from pinchpoint.systems.radiance.data.sheets import make_sheet, pack

    del order["name"]
    return pack(make_sheet(**order))


if __name__ == "__main__":
    serve_pipes(make)
