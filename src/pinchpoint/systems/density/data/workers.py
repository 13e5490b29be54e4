"""Worker processes that make samples of molecules and density files; run as a program, it is one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pinchpoint.core.errors import PinchpointError, from_dict, to_dict
from pinchpoint.systems.common.data.workers import Program, run_workers, serve_pipes
from pinchpoint.systems.density.data.file_samples import FileOrder, import_sample, pack_file_sample
from pinchpoint.systems.density.data.sample import Order, make_sample, pack

PROGRAM = Program(
    "pinchpoint.systems.density.data.workers",
    "samples",
    hint="Run the command again with fewer --jobs; it makes only the missing samples.",
)


def import_samples(
    orders: Sequence[FileOrder], *, jobs: int, refused: dict[str, PinchpointError]
) -> Iterator[tuple[FileOrder, bytes]]:
    """Yield each order of a density file with its bytes; a file that cannot be used is added to `refused`
    instead.
    """
    for order, data in run_workers(PROGRAM, orders, jobs=jobs):
        if data.startswith(b"{"):
            refused[order.source] = from_dict(json.loads(data))
        else:
            yield order, data


def make(order: dict[str, Any]) -> bytes:
    """Return the bytes of a sample's file; for a density file that cannot be used, its error as JSON."""
    if "source" not in order:
        return pack(make_sample(Order(**order)))
    try:
        return pack_file_sample(import_sample(FileOrder(**order)))
    except PinchpointError as error:
        return json.dumps(to_dict(error)).encode()


if __name__ == "__main__":
    serve_pipes(make)
