"""Decompression of LZ4 blocks, in which VTK's compressor LZ4 writes arrays, without a library.

A block is a series of sequences: a byte with two lengths of four bits (15: more bytes follow), as many
bytes to copy from the block, and a place behind the end of the output from which bytes are repeated. The
last sequence has only bytes to copy.
"""

from __future__ import annotations

_LONG = 15  # of a length of four bits: further bytes belong to it
_SHORTEST = 4  # bytes that are repeated at least


def decompress_lz4(block: bytes, size: int) -> bytes:
    """The `size` bytes in a block. Raises ValueError or IndexError if the block is damaged."""
    output = bytearray()
    at, end = 0, len(block)
    while at < end:
        lengths = block[at]
        at += 1
        # Calls only for long lengths: blocks of numbers have a sequence every few bytes.
        count = lengths >> 4
        if count == _LONG:
            count, at = _long_length(block, at)
        output += block[at : at + count]
        at += count
        if at >= end:
            break
        offset = block[at] | block[at + 1] << 8
        at += 2
        count = lengths & 15
        if count == _LONG:
            count, at = _long_length(block, at)
        count += _SHORTEST
        start = len(output) - offset
        if offset == 0 or start < 0 or start + offset + count > size:
            raise ValueError("a compressed block is damaged")
        if count <= offset:
            output += output[start : start + count]
        else:  # a piece that reaches beyond the end repeats itself
            output += (output[start:] * (count // offset + 1))[:count]
    if at != end or len(output) != size:
        raise ValueError("a compressed block is damaged")
    return bytes(output)


def _long_length(block: bytes, at: int) -> tuple[int, int]:
    """The length of which the first four bits are set, and the place after its further bytes."""
    count = _LONG
    while block[at] == 255:
        count += 255
        at += 1
    return count + block[at], at + 1
