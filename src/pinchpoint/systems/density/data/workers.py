"""Samples made by processes of their own, of molecules and of density files: run as a program it is one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pinchpoint.core.errors import PinchpointError, from_dict, to_dict
from pinchpoint.systems.common.workers import Program, made_by, serve_pipes
from pinchpoint.systems.density.data.file_samples import FileOrder, import_sample, pack_imported
from pinchpoint.systems.density.data.sample import Order, make_sample, pack

PROGRAM = Program(
    "pinchpoint.systems.density.data.workers",
    "samples",
    hint="run it again with fewer --jobs: it makes only what is missing",
)


def made_samples(orders: Sequence[Order], *, jobs: int) -> Iterator[tuple[Order, bytes]]:
    """Each order with its file's bytes, as they come ready. All processes end with the iteration, however it ends."""
    return made_by(PROGRAM, orders, jobs=jobs)


def imported_samples(
    orders: Sequence[FileOrder], *, jobs: int, refused: dict[str, PinchpointError]
) -> Iterator[tuple[FileOrder, bytes]]:
    """The same of files. One that cannot be used is added to `refused` by its path, and the others go on."""
    for order, data in made_by(PROGRAM, orders, jobs=jobs):
        if data.startswith(b"{"):
            refused[order.source] = from_dict(json.loads(data))
        else:
            yield order, data


def make(order: dict[str, Any]) -> bytes:
    """An order's values -> the bytes of the sample's file; of a density file that cannot be used, its error as JSON."""
    if "source" not in order:
        return pack(make_sample(Order(**order)))
    try:
        return pack_imported(import_sample(FileOrder(**order)))
    except PinchpointError as error:
        return json.dumps(to_dict(error)).encode()


if __name__ == "__main__":
    serve_pipes(make)
