"""Bodies made by processes of their own: run as a program it is one of them. A GPU is used by one process alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.systems.common.workers import Program, made_by, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.operator.data.workers",
    "bodies",
    hint="run it again with fewer --jobs or --panels: it makes only what is missing",
)


@dataclass(frozen=True)
class Order:
    """One body to make."""

    kind: str
    name: str
    seed: int
    number: int
    panels: int
    device: str


def made_bodies(orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Each order with its file's bytes, as they come ready. All processes end with the iteration, however it ends."""
    return made_by(PROGRAM, orders, jobs=jobs)


def make(order: dict[str, Any]) -> bytes:
    """An order's values -> the bytes of the body's file."""
    from pinchpoint.systems.operator.data.body import make_body, pack

    return pack(make_body(**order))


if __name__ == "__main__":
    serve_pipes(make)
