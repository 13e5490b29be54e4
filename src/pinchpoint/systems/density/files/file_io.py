"""Files as bytes, plain or gzipped: read whole, written whole or not at all."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, write_bytes

_GZIP = b"\x1f\x8b"


def read_blob(path: str | Path) -> bytes:
    """The bytes of a file, unpacked where they are gzipped, whatever its name says."""
    path = Path(path)
    if not path.exists():
        raise BadInput(f"there is no file {path}", hint="name a file that exists")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}", hint="name a file that may be read"
        ) from error
    if not data.startswith(_GZIP):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise BadInput(
            f"cannot unpack {path}: {error}", hint="the file is cut short or damaged: copy it again"
        ) from error


def read_text_blob(path: str | Path) -> bytes:
    """The same of a file of text; one of anything else is refused."""
    data = read_blob(path)
    if b"\0" in data[:1024]:
        raise BadInput(
            f"{path} is a binary file",
            hint="give a file of text, or its right name: the name says the format",
        )
    return data


def write_blob(path: str | Path, data: bytes) -> Path:
    """Packed where the name ends in .gz. An old file stays as it is when the new one cannot be written whole."""
    path = check_writable(path)
    # Without a time stamp the same density gives the same file. Level 1: higher ones take thrice the time for 5 % less.
    return write_bytes(path, gzip.compress(data, compresslevel=1, mtime=0) if path.suffix == ".gz" else data)


def check_writable(path: str | Path) -> Path:
    """Refuse a path that cannot be written or is a file that someone protected, before the work."""
    path = Path(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise BadInput(f"{path} is read-only", hint="choose another -o, or allow writing it")
    return check_output(path)
