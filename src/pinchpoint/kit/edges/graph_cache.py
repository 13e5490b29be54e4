"""Edges kept on disk by the content of what they were made from.

The caller owns the folder and the object; nothing is shared otherwise. The name of a file is a hash of
the points' own bytes, their dtype and shape, the lattice and the radii, so that two meshes of equal size
never meet. A file carries a hash of what it holds: a damaged one is made anew, with a warning.
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
_DIGEST = 32  # bytes of the hash a file begins with


class GraphCache:
    """A folder of graphs. most_bytes: what it may hold; the graphs unused for longest are removed beyond that."""

    def __init__(self, folder: str | Path, *, most_bytes: int | None = None) -> None:
        self.folder = Path(folder)
        self.most_bytes = most_bytes
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(
                f"cannot make the folder {folder}: {error.strerror}", hint="name a folder that can be made"
            ) from error

    def lattice_edges(
        self, points: Tensor, lattice: Lattice, radii: Sequence[float]
    ) -> list[tuple[Edges, Edges]]:
        """`lattice_edges_multi(points, lattice, radii)`, read from the folder where it has been made before."""
        require_lattice(lattice)
        check_points(points, axes=len(lattice.shape))
        key = graph_key(points, lattice, radii)
        path = self.folder / f"{key}{_SUFFIX}"
        graph = _read(path)
        if graph is None:
            graph = lattice_edges_multi(points, lattice, radii)
            write_bytes(path, _packed(graph))
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
            with contextlib.suppress(
                FileNotFoundError
            ):  # another process of the same folder removed it first
                files.append((path, path.stat()))
        left = self.most_bytes
        for path, stat in sorted(
            files, key=lambda file: (file[0] == newest, file[1].st_mtime_ns), reverse=True
        ):
            left -= stat.st_size
            if left < 0 and path != newest:
                path.unlink(missing_ok=True)


def graph_key(points: Tensor, lattice: Lattice, radii: Sequence[float]) -> str:
    """A name for the graph of these points: equal only for equal bytes, dtype, shape, lattice and radii."""
    plain = points.detach().cpu().contiguous()
    told = [_FORMAT, str(plain.dtype), tuple(plain.shape), [int(size) for size in lattice.shape]]
    told += [[float(value).hex() for value in values] for values in (lattice.low, lattice.high, radii)]
    digest = hashlib.sha256(repr(told).encode())
    digest.update(plain.numpy().data)
    return digest.hexdigest()


def _packed(graph: list[tuple[Edges, Edges]]) -> bytes:
    plain = [
        [(edges.offsets.cpu(), edges.sources.cpu(), edges.source_count) for edges in both] for both in graph
    ]
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    return hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue()


def _read(path: Path) -> list[tuple[Edges, Edges]] | None:
    """The graph of a file; None where there is none, or one that is damaged."""
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}", hint="make the file readable, or remove it"
        ) from error
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        warnings.warn(f"{path} is damaged; the graph is made anew and the file replaced", stacklevel=3)
        return None
    plain = torch.load(io.BytesIO(data[_DIGEST:]), weights_only=True)
    return [(Edges(*into_tokens), Edges(*into_points)) for into_tokens, into_points in plain]
