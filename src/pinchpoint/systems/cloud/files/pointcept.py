"""Scene folders with one .npy file per property, in the layout of Pointcept and SceneSplat.

A folder contains `coord.npy` (N, 3), optionally `color.npy`, `normal.npy`, `opacity.npy`, `scale.npy` and
`quat.npy`, and labels in `segment.npy` (or `segment20.npy`, `segment200.npy`). Instance numbers and the
language features of SceneSplat are not features, but a subset keeps them. `pc_*.npy`, the scan that
SceneSplat evaluates on, is another cloud and is not read.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import write_bytes
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.npz import TARGETS, XYZ, arrays_scene, xyz_key

_SEGMENTS = ("segment", "segment20", "segment200")
_OTHER_CLOUD = "pc_"  # prefix of the arrays of another cloud


def is_scene_folder(path: Path) -> bool:
    return path.is_dir() and any((path / f"{name}.npy").is_file() for name in XYZ)


def read_folder(path: str | Path, *, targets: bool = True) -> dict[str, np.ndarray]:
    """Return all arrays of the folder by file name; each has one row per point.

    targets: whether that is required of language features, too. Some folders store each of them once.
    """
    path = Path(path)
    if not is_scene_folder(path):
        raise BadInput(
            f"{path} does not contain a scene: it has no coord.npy.",
            hint="Give the folder of one scene, not of a split.",
        )
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        if file.stem.startswith(_OTHER_CLOUD):
            continue
        try:
            # Mapped first: a header that claims more rows than the file has is refused at once. Language
            # features stay mapped: they take more memory than everything else together.
            mapped = np.load(file, allow_pickle=False, mmap_mode="r")
            values = mapped if file.stem in TARGETS else np.array(mapped)
        except Exception as error:  # given arbitrary bytes, numpy may raise any exception
            raise BadInput(
                f"Cannot read {file}: {str(error)[:200] or type(error).__name__}",
                hint="Copy or write the file again.",
            ) from error
        arrays[file.stem] = values
    count = len(arrays[xyz_key(arrays, str(path))])
    for name, values in arrays.items():
        if values.shape[:1] != (count,) and (targets or name not in TARGETS):
            raise BadInput(
                f"{path / name}.npy has shape {values.shape}, but there are {count:,} points.",
                hint="Give one row per point.",
            )
    return arrays


def folder_scene(arrays: dict[str, np.ndarray], where: str) -> Scene:
    """Return the unvalidated scene of a folder, with the labels of the first segment file."""
    segments = [name for name in _SEGMENTS if name in arrays]
    cloud = {name: values for name, values in arrays.items() if name not in _SEGMENTS}
    if segments:
        cloud["segment"] = arrays[segments[0]]
    return arrays_scene(cloud, where)


def write_folder(path: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write a new folder atomically."""
    path = Path(path)
    if path.exists():
        raise BadInput(f"{path} already exists.", hint="Choose another -o.")
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        for name, values in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, values)
            write_bytes(temporary / f"{name}.npy", buffer.getvalue())
        temporary.chmod(0o755)
        os.rename(temporary, path)
    except BaseException:  # including Ctrl-C, so that no partial folder remains
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return path
