"""Sample files of every system: arrays and a JSON text in one npz, with a checksum of its own."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.files import parse_json
from pinchpoint.core.host_memory import free_bytes

_MOST_RATIO, _SMALL = 1040, 4096  # deflate makes data at most 1032 times smaller
# No measured data is so much smaller when compressed; an archive that is, and large, is meant to do harm.
_BOMB_RATIO, _LARGE = 200, 2**30
# What reading a file may raise if it is truncated, changed or no sample at all, here or where its text is
# interpreted.
FAILURES = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    EOFError,
    zlib.error,
    zipfile.BadZipFile,
)


def pack_arrays(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> bytes:
    """The bytes of a file; the same sample always gives the same bytes."""
    about = about | {"sha256": _digest(arrays, about)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, about=np.array(json.dumps(about, sort_keys=True)))  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def load_npz(source: str | Path | io.BytesIO) -> dict[str, Any]:
    """The arrays of an npz file by name; other members as bytes. Raises one of FAILURES if it is damaged.

    A member that claims a larger array than it holds is refused before memory is taken for it, and so are
    arrays that do not fit into the free memory.
    """
    try:
        _check_claims(source)
        if isinstance(source, io.BytesIO):
            source.seek(0)
        with np.load(source, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError:
        raise
    except Exception as error:  # given arbitrary bytes, zipfile and numpy may raise any exception
        raise ValueError(str(error)[:200] or type(error).__name__) from error


def _check_claims(source: str | Path | io.BytesIO) -> None:
    total = packed = 0
    with zipfile.ZipFile(source) as archive:
        for member in archive.infolist():
            if member.file_size > _MOST_RATIO * member.compress_size + _SMALL:
                raise ValueError(f"{member.filename} claims more bytes than it can hold")
            if member.filename.endswith(".npy"):
                with archive.open(member) as file:
                    _check_claim(file, member)
            total += member.file_size
            packed += member.compress_size
    if total > _LARGE and total > _BOMB_RATIO * packed:
        raise ValueError(f"its {packed:,} bytes expand to {total:,} bytes")
    if total > (free := free_bytes()):
        raise ValueError(f"its arrays need {total:,} bytes, but only {free:,} bytes of memory are free")


def _check_claim(file: Any, member: zipfile.ZipInfo) -> None:
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    )
    shape, _, dtype = read_header(file)
    claimed = prod(shape) * dtype.itemsize
    if claimed > member.file_size:
        raise ValueError(
            f"{member.filename} claims {claimed:,} bytes in its header, but holds {member.file_size:,}"
        )


def unpack_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the text of a file. Raises one of FAILURES if it is not a sample or was changed."""
    arrays = load_npz(io.BytesIO(data))
    about = parse_json(str(arrays.pop("about")))
    if about.pop("sha256") != _digest(arrays, about):
        raise ValueError("its sha256 does not match its content")
    return arrays, about


def _digest(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()
