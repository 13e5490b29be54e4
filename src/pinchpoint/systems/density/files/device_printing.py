"""Printing of numbers by a GPU: the same text as `number_printing`, by the same arithmetic in float64.

Letters as there. The text of a chunk is computed while that of the chunk before is written to the file.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pinchpoint.systems.density.files.number_printing import (
    DIGITS,
    FAR_FROM_HALF,
    SMALLEST_SCALED,
    characters_of,
    exact_digits,
    is_wide,
    line_chunks,
    tables_of,
)

_LINES = 2**15  # per chunk: with temporaries, their numbers take about 20 MiB on the device


_AT_ONCE = 2**20  # numbers whose size is compared together


class DevicePrinter:
    """Prints the numbers of a density on a device, as `characters_of` prints them on the host.

    density: (nx, ny, nz) float64; x is fastest in the text, and every number is multiplied by `factor`.
    largest: the largest absolute value, infinite or NaN if any number is.
    """

    def __init__(self, density: Tensor, factor: float) -> None:
        self.values = (density.permute(2, 1, 0) * factor).reshape(-1)
        sizes = (part.abs() for part in self.values.split(_AT_ONCE))
        extremes = [torch.stack([size.max(), -torch.where(size > 0, size, 1.0).min()]) for size in sizes]
        self.largest, least = torch.stack(extremes).amax(dim=0).tolist()
        self.least = -least
        self.wide = is_wide(self.largest, self.least)
        self.tables = {
            name: torch.from_numpy(table.view(np.int32) if table.dtype == np.uint32 else table).to(
                density.device
            )
            for name, table in vars(tables_of(self.wide)).items()
        }

    def chunks(self, *, per_line: int) -> Iterator[memoryview]:
        """Yield the text, `per_line` numbers per line. A chunk is valid until the next one is requested."""
        buffers: list[Tensor | None] = [None, None]
        before: tuple[Tensor, torch.cuda.Event | None] | None = None
        for turn, numbers in enumerate(line_chunks(self.values, per_line, _LINES)):
            try:
                text = _lines(numbers, self.tables, self.wide)
            except torch.OutOfMemoryError:
                text = torch.from_numpy(
                    characters_of(numbers.cpu().numpy(), per_line=numbers.shape[1], wide=self.wide)
                )
            now = _to_host(text, buffers, turn % 2)
            if before is not None:
                yield _when_there(*before)
            before = now
        if before is not None:
            yield _when_there(*before)


def device_printer(density: np.ndarray, factor: float, device: str) -> DevicePrinter | None:
    """Return a printer for a density (nx, ny, nz), or None if the device has too little free memory."""
    try:
        return DevicePrinter(torch.from_numpy(np.ascontiguousarray(density, np.float64)).to(device), factor)
    except torch.OutOfMemoryError:
        return None


def _to_host(text: Tensor, buffers: list[Tensor | None], turn: int) -> tuple[Tensor, torch.cuda.Event | None]:
    """Start to copy text to one of two buffers, and return it with the event of its arrival."""
    if not text.is_cuda:
        return text, None
    buffer = buffers[turn]
    if buffer is None or len(buffer) < text.numel():
        buffer = buffers[turn] = torch.empty(text.numel(), dtype=torch.uint8, pin_memory=True)
    host = buffer[: text.numel()]
    host.copy_(text.view(-1), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host, event


def _when_there(host: Tensor, event: torch.cuda.Event | None) -> memoryview:
    if event is not None:
        event.synchronize()
    return host.view(-1).numpy().data


def _lines(values: Tensor, tables: dict[str, Tensor], wide: bool) -> Tensor:
    """Return the text (R, characters) of values (R, n), one line per row."""
    rows, count = values.shape
    words = _words(values.reshape(-1), tables, wide)
    # Of each word of four characters, those that `number_printing` leaves.
    taken = [*range(3), *range(4, 15), *range(15 if wide else 16, 20)]
    fields = words.view(torch.uint8).index_select(1, torch.tensor(taken, device=values.device))
    text = torch.empty(rows, count * len(taken) + 1, dtype=torch.uint8, device=values.device)
    text[:, :-1] = fields.view(rows, -1)
    text[:, -1] = ord("\n")
    return text


def _words(values: Tensor, tables: dict[str, Tensor], wide: bool) -> Tensor:
    """Return the words (N, 5) int32 of values (N,): lead, four digits, four, three and an E, exponent."""
    size = values.abs()
    exponent = tables["first"][size.view(torch.int64) >> 52]
    exponent = exponent + (size >= tables["power"][exponent])
    scaled = size * tables["scale"][exponent]
    whole = scaled.round()
    odd = (scaled - whole).abs() > FAR_FROM_HALF
    if wide:
        odd |= (size < SMALLEST_SCALED) & (size > 0)
    at = odd.nonzero()[:, 0]
    if len(at):
        digits, exponents = exact_digits(size[at].cpu().numpy())
        whole[at] = torch.from_numpy(digits).to(whole)
        exponent[at] = torch.from_numpy(exponents).to(exponent)
    over = whole >= 10.0**DIGITS
    whole = torch.where(over, 10.0 ** (DIGITS - 1), whole)
    exponent = exponent + over
    # Not the integer part of a quotient: a GPU multiplies by the reciprocal.
    top = torch.div(whole, 1000, rounding_mode="floor")
    first = torch.div(top, 10_000, rounding_mode="floor")
    words = torch.empty(len(values), 5, dtype=torch.int32, device=values.device)
    words[:, 0] = tables["lead"][(values.view(torch.int64) >> 63) & 1]
    words[:, 1] = tables["four"][first.long()]
    words[:, 2] = tables["four"][(top - first * 10_000).long()]
    words[:, 3] = tables["three"][(whole - top * 1000).long()]
    words[:, 4] = tables["exponent"][exponent]
    return words
