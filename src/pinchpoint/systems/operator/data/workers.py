"""Worker processes that create bodies; run as a program, this module is one of them.

Only one process uses a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pinchpoint.systems.common.data.workers import Program, run_workers, serve_pipes

PROGRAM = Program(
    "pinchpoint.systems.operator.data.workers",
    "bodies",
    hint="Run it again with fewer --jobs or --panels: it creates only the missing bodies.",
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


def made_bodies(orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Each order with its file's bytes, as they finish.

    All processes end with the iteration, however it ends.
    """
    return run_workers(PROGRAM, orders, jobs=jobs)


def make(order: dict[str, Any]) -> bytes:
    """The bytes of the body's file, from the fields of an order."""
    from pinchpoint.systems.operator.data.body import make_body, pack

    return pack(make_body(**order))


if __name__ == "__main__":
    serve_pipes(make)
