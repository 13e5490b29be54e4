"""Arrays and a text in one npz that tells whether it is as it was written: the bytes of a sample of any system."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from typing import Any

import numpy as np

# What a file that is cut, changed or no sample at all may raise, here or where its text is made into one.
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


def packed(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> bytes:
    """The bytes of a file: the same for the same sample."""
    about = about | {"sha256": _digest(arrays, about)}
    held = io.BytesIO()
    np.savez(held, **arrays, about=np.array(json.dumps(about, sort_keys=True)))  # pyright: ignore[reportArgumentType]
    return held.getvalue()


def opened(data: bytes) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays and the text of a file. Raises one of FAILURES where it is none, or not as it was written."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        about = json.loads(str(held["about"]))
        arrays = {key: held[key] for key in held.files if key != "about"}
    if about.pop("sha256") != _digest(arrays, about):
        raise ValueError("its sha256 is not that of what it holds")
    return arrays, about


def _digest(arrays: dict[str, np.ndarray], about: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, values in sorted(arrays.items()):
        digest.update(f"{name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return digest.hexdigest()
