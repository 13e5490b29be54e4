"""Worker processes that create bodies; run as a program, this module is one of the workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pinchpoint.systems.common.data.workers import Program, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.operator.data.workers",
    "bodies",
    hint="Run the command again with fewer --jobs or --panels: it creates only the missing bodies.",
)


@dataclass(frozen=True)
class Order:
    """One body to create."""

    kind: str
    name: str
    seed: int
    number: int
    panels: int
    device: str


def make(order: dict[str, Any]) -> bytes:
    """Return the bytes of a body's file, from the fields of an order."""
    from pinchpoint.systems.operator.data.body import make_body, pack

    return pack(make_body(**order))


if __name__ == "__main__":
    serve_pipes(make)
