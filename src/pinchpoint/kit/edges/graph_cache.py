"""A cache of edges on disk, keyed by the content of the points they connect.

The caller owns the folder and the object; nothing else is shared. The name of a file is a hash of the
points' bytes, their dtype and shape, the lattice and the radii, so that two meshes of equal size never
collide. A file contains a hash of its content: a damaged file is replaced, with a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.kit.edges.edges import Edges
from pinchpoint.kit.edges.lattice import Lattice, require_lattice
from pinchpoint.kit.edges.neighbours import check_points, lattice_edges_multi

_FORMAT = 1
_SUFFIX = ".edges"
_DIGEST = 32  # bytes of the hash at the start of a file


class GraphCache:
    """A folder of graphs.

    most_bytes: its size limit; beyond it, the least recently used graphs are removed.
    """

    def __init__(self, folder: str | Path, *, most_bytes: int | None = None) -> None:
        self.folder = Path(folder)
        self.most_bytes = most_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"The folder {folder} cannot be created: {error.strerror}.",
                hint="Name a folder that can be created.",
            ) from error

    def lattice_edges(
        self, points: Tensor, lattice: Lattice, radii: Sequence[float]
    ) -> list[tuple[Edges, Edges]]:
        """`lattice_edges_multi(points, lattice, radii)`, read from the folder if it was stored there."""
        require_lattice(lattice)
        check_points(points, axes=len(lattice.shape))
        key = graph_key(points, lattice, radii)
        path = self.folder / f"{key}{_SUFFIX}"
        graph = _load(path)
        if graph is None:
            graph = lattice_edges_multi(points, lattice, radii)
            write_bytes(path, _pack(graph))
            self._trim(path)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)
        return [
            (into_tokens.to(points.device), into_points.to(points.device))
            for into_tokens, into_points in graph
        ]

    def _trim(self, newest: Path) -> None:
        if self.most_bytes is None:
            return
        files = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            # Another process that uses the same folder may remove the file first.
            with contextlib.suppress(FileNotFoundError):
                files.append((path, path.stat()))
        free_bytes = self.most_bytes
        for path, stat in sorted(
            files, key=lambda file: (file[0] == newest, file[1].st_mtime_ns), reverse=True
        ):
            free_bytes -= stat.st_size
            if free_bytes < 0 and path != newest:
                path.unlink(missing_ok=True)


def graph_key(points: Tensor, lattice: Lattice, radii: Sequence[float]) -> str:
    """A name for the graph of these points: equal only if bytes, dtype, shape, lattice and radii are."""
    plain = points.detach().cpu().contiguous()
    description = [_FORMAT, str(plain.dtype), tuple(plain.shape), [int(size) for size in lattice.shape]]
    description += [[float(value).hex() for value in values] for values in (lattice.low, lattice.high, radii)]
    digest = hashlib.sha256(repr(description).encode())
    digest.update(plain.numpy().data)
    return digest.hexdigest()


def _pack(graph: list[tuple[Edges, Edges]]) -> bytes:
    plain = [
        [(edges.offsets.cpu(), edges.sources.cpu(), edges.source_count) for edges in both] for both in graph
    ]
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    return hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue()


def _load(path: Path) -> list[tuple[Edges, Edges]] | None:
    """The graph in a file, or None if the file is missing or damaged."""
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read: {error.strerror}.", hint="Make the file readable, or remove it."
        ) from error
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        warnings.warn(
            f"{path} is damaged; the graph is computed again and the file is replaced.", stacklevel=3
        )
        return None
    plain = torch.load(io.BytesIO(data[_DIGEST:]), weights_only=True)
    return [(Edges(*into_tokens), Edges(*into_points)) for into_tokens, into_points in plain]
