"""The Triton kernel of `fused_sum` for CUDA. Imported only on machines with a GPU and Triton."""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.systems.density.model.radial import RadialTable

_SUMS = 4096  # per program: probes times channels


def sums(
    fields: Tensor,
    neighbours: Tensor,
    harmonics: list[Tensor],
    row: Tensor,
    right: Tensor,
    table: RadialTable,
    out: Tensor,
) -> None:
    """Write the sums to out: (T, B, L * C).

    row, right: (N,), the left knot of each pair and the fraction of the way to the next knot.
    """
    # The kernel relies on these layouts. With one probe or one slot, torch may store the harmonics by pair.
    fields, neighbours, row, right, values = (
        x.contiguous() for x in (fields, neighbours, row, right, table.values)
    )
    (tiles, slots), probes, total = neighbours.shape, out.shape[1], out.shape[2] // table.shapes[0][0]
    field = column = place = 0
    for degree, (layers, width) in enumerate(table.shapes):
        count, size = layers * width, 2 * degree + 1
        block = min(triton.next_power_of_2(count), max(16, min(64, _SUMS // probes)))
        _sums[(tiles, triton.cdiv(count, block))](
            fields,
            neighbours,
            harmonics[degree - 1].contiguous() if degree else right,
            row,
            right,
            values,
            out,
            slots,
            len(row),
            fields.stride(0),
            values.stride(0),
            field,
            column,
            place,
            count,
            width,
            total,
            SIZE=size,
            PROBES=probes,
            BLOCK=block,
            num_warps=4,
        )
        field, column, place = field + size * count, column + count, place + width


@triton.jit
def _sums(
    fields,
    neighbours,
    harmonics,
    rows,
    rights,
    table,
    out,
    slots,
    pairs,
    field_stride,
    table_stride,
    field,
    column,
    place,
    count,
    width,
    total,
    SIZE: tl.constexpr,
    PROBES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    tile = tl.program_id(0).to(tl.int64)
    probe = tl.arange(0, PROBES)
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channel < count
    sums_here = tl.zeros((PROBES, BLOCK), tl.float32)
    for slot in range(slots):
        pair = (tile * slots + slot) * PROBES + probe
        row = tl.load(rows + pair)
        right = tl.load(rights + pair)[:, None]
        left = table + row[:, None] * table_stride + column + channel[None, :]
        low = tl.load(left, mask=there[None, :], other=0.0)
        high = tl.load(left + table_stride, mask=there[None, :], other=0.0)
        atom = tl.load(neighbours + tile * slots + slot)
        own = fields + atom * field_stride + field + channel
        if SIZE == 1:
            angular = tl.load(own, mask=there, other=0.0)[None, :]
        else:
            angular = tl.zeros((PROBES, BLOCK), tl.float32)
            component = harmonics + pair
            for part in tl.static_range(SIZE):
                harmonic = tl.load(component)
                component += pairs  # incremented, because the product of both could exceed 2^31
                angular += harmonic[:, None] * tl.load(own + part * count, mask=there, other=0.0)[None, :]
        sums_here += ((1 - right) * low + right * high) * angular
    layer = channel // width
    to = out + (tile * PROBES + probe[:, None]) * (count // width * total)
    tl.store(to + (layer * total + place + channel % width)[None, :], sums_here, mask=there[None, :])
