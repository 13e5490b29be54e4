"""Reading and writing of whole files as bytes, plain or compressed. Files are written atomically."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_output, open_output, write_bytes
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes

COMPRESSED = (".gz", ".bz2", ".xz")
# The first bytes of a compressed file, and its reader.
_READERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}
# Without a time stamp, the same density gives the same file. Higher levels of gzip than 1 take three times
# longer and save 5 %.
_WRITERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": lambda data: gzip.compress(data, compresslevel=1, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=1),
}


def bare_path(path: str | Path) -> Path:
    """Return the path without the ending of a compressed file: CHGCAR for CHGCAR.gz."""
    path = Path(path)
    return path.with_suffix("") if path.suffix.lower() in COMPRESSED else path


def read_blob(path: str | Path) -> bytes:
    """Return the bytes of a file. Compressed bytes are decompressed, whatever the name of the file."""
    path = Path(path)
    if not path.exists():
        raise BadInput(f"There is no file {path}.", hint="Give a file that exists.")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}.", hint="Give a file that you are allowed to read."
        ) from error
    reader = next((reader for start, reader in _READERS.items() if data.startswith(start)), None)
    if reader is None:
        return data
    most = free_bytes() // 2
    try:
        with reader(io.BytesIO(data)) as file:
            text = file.read(most + 1)
    except (EOFError, OSError, zlib.error, lzma.LZMAError, ValueError) as error:
        raise BadInput(
            f"{path} cannot be decompressed: {str(error).rstrip('.')}.",
            hint="Copy the file again: it is truncated or damaged.",
        ) from error
    if len(text) > most:
        raise BadInput(
            f"{path} contains more than {show_bytes(most)}, half of the free memory.",
            hint="Use a machine with more memory.",
        )
    return text


def check_text(data: bytes, *, name: str) -> bytes:
    """Return the bytes of a text file; raise BadInput for a binary file. name: used in the message."""
    if b"\0" in data[:1024]:
        raise BadInput(f"{name} is a binary file.", hint="Give a text file with a structure or a density.")
    return data


def read_text_blob(path: str | Path) -> bytes:
    """Return the bytes of a text file; raise BadInput for a binary file."""
    return check_text(read_blob(path), name=str(path))


def write_blob(path: str | Path, data: bytes | Iterable[bytes | memoryview]) -> Path:
    """Write a file, compressed if the name ends in .gz, .bz2 or .xz.

    data: the bytes, or parts of them, each of which is used before the next is requested. If the new file
    cannot be written completely, an old file of that name is kept.
    """
    path = check_writable(path)
    compress = _WRITERS.get(path.suffix.lower())
    if compress is not None:
        return write_bytes(path, compress(data if isinstance(data, bytes) else b"".join(map(bytes, data))))
    with open_output(path) as file:
        for part in (data,) if isinstance(data, bytes) else data:
            file.write(part)
    return path


def check_writable(path: str | Path) -> Path:
    """Raise BadInput, before any work is done, for a path that cannot be written or a read-only file."""
    path = Path(path)
    if path.exists() and not os.access(path, os.W_OK):
        raise BadInput(f"{path} is read-only.", hint="Choose another -o, or make the file writable.")
    return check_output(path)
