"""Sample files of every system: arrays and a JSON text in one npz, with a checksum of its own."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from typing import Any

import numpy as np

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


def unpack_arrays(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the text of a file. Raises one of FAILURES if it is not a sample or was changed."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        about = json.loads(str(file["about"]))
        arrays = {key: file[key] for key in file.files if key != "about"}
    if about.pop("sha256") != _digest(arrays, about):
        raise ValueError("its sha256 does not match its content")
    return arrays, about


def _digest(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()
