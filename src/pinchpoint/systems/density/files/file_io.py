"""Reading and writing of whole files as bytes, plain or gzipped. Files are written atomically."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from pathlib import Path

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, write_bytes
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes

_GZIP = b"\x1f\x8b"


def read_blob(path: str | Path) -> bytes:
    """Return the bytes of a file. Gzipped bytes are decompressed, whatever the name of the file."""
    path = Path(path)
    if not path.exists():
        raise BadInput(f"There is no file {path}.", hint="Give a file that exists.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}.", hint="Give a file that you are allowed to read."
        ) from error
    if not data.startswith(_GZIP):
        return data
    most = free_bytes() // 2
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise BadInput(
            f"{path} cannot be decompressed: {error}.",
            hint="Copy the file again: it is truncated or damaged.",
        ) from error
    if len(text) > most:
        raise BadInput(
            f"{path} contains more than {show_bytes(most)}, half of the free memory.",
            hint="Use a machine with more memory.",
        )
    return text


def read_text_blob(path: str | Path) -> bytes:
    """Return the bytes of a text file; raise BadInput for a binary file."""
    data = read_blob(path)
    if b"\0" in data[:1024]:
        raise BadInput(
            f"{path} is a binary file.",
            hint="Give a text file, or correct its name, which determines the format.",
        )
    return data


def write_blob(path: str | Path, data: bytes) -> Path:
    """Write a file, gzipped if the name ends in .gz.

    If the new file cannot be written completely, an old file of that name is kept.
    """
    path = check_writable(path)
    # Without a time stamp, the same density gives the same file. Higher levels than 1 take three times longer
    # and save 5 %.
    return write_bytes(path, gzip.compress(data, compresslevel=1, mtime=0) if path.suffix == ".gz" else data)


def check_writable(path: str | Path) -> Path:
    """Raise BadInput, before any work is done, for a path that cannot be written or a read-only file."""
    path = Path(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise BadInput(f"{path} is read-only.", hint="Choose another -o, or make the file writable.")
    return check_output(path)
