"""Scratch: arrays on disk beside an output, for clouds that do not fit into memory.

Arrays are appended to and then mapped. The folder is hidden, and is removed at the end, also after Ctrl-C.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput


class Scratch:
    """Named arrays in a temporary folder beside `output`."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._folder = tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.")

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def append(self, name: str, values: np.ndarray) -> None:
        """Add rows to an array, which has the dtype and width of the first rows."""
        try:
            with self._path(name).open("ab") as file:
                file.write(np.ascontiguousarray(values).data)
        except OSError as error:
            raise self._full(error) from error

    def create(self, name: str, dtype: Any, points: int) -> np.ndarray:
        """Return a new array (points,) of zeros that may be written anywhere."""
        size = points * np.dtype(dtype).itemsize
        try:
            with self._path(name).open("wb") as file:
                # Reserved, because writing to a mapped file on a full disk ends the process.
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
        except OSError as error:
            raise self._full(error) from error
        return self.load(name, dtype, mode="r+")

    def load(self, name: str, dtype: Any, width: int | None = None, *, mode: Any = "r") -> np.ndarray:
        """Return an array (N,) or (N, width), mapped from disk; an empty one if nothing was appended."""
        path, shape = self._path(name), (-1,) if width is None else (-1, width)
        if not path.exists() or not path.stat().st_size:
            return np.empty((0, *shape[1:]), dtype)
        return np.memmap(path, dtype, mode=mode).reshape(shape)

    def _path(self, name: str) -> Path:
        return Path(self._folder.name) / name

    def _full(self, error: OSError) -> BadInput:
        return BadInput(
            f"Cannot write temporary files beside {self._output}: {error.strerror}.",
            hint="Free some space, or choose an -o on another disk.",
        )
