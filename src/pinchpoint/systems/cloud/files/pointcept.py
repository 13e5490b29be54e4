"""Folders of one scene with an .npy file for each property, as Pointcept lays them out.

`coord.npy` (N, 3), and beside it `color.npy`, `normal.npy`, `opacity.npy`, `scale.npy`, `quat.npy`, labels in `segment.npy`
(or `segment20.npy`, `segment200.npy`). Instance numbers are no features; thinning keeps them.
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
from pinchpoint.systems.cloud.files.npz import XYZ, arrays_scene, xyz_key

_SEGMENTS = ("segment", "segment20", "segment200")


def is_scene_folder(path: Path) -> bool:
    return path.is_dir() and any((path / f"{name}.npy").is_file() for name in XYZ)


def read_folder(path: str | Path) -> dict[str, np.ndarray]:
    """Every array of the folder by the name of its file; one row a point each."""
    path = Path(path)
    if not is_scene_folder(path):
        raise BadInput(
            f"{path} holds no scene: there is no coord.npy",
            hint="name the folder of one scene, not of a split",
        )
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        try:
            values = np.load(file, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadInput(f"cannot read {file}: {error}", hint="copy or write the file again") from error
        arrays[file.stem] = values
    count = len(arrays[xyz_key(arrays, str(path))])
    for name, values in arrays.items():
        if values.shape[:1] != (count,):
            raise BadInput(
                f"{path / name}.npy has shape {values.shape} for {count:,} points",
                hint="give one row for each point",
            )
    return arrays


def folder_scene(arrays: dict[str, np.ndarray], where: str) -> Scene:
    """The cloud of a folder; not checked yet. Of several labels, those of the first segment file."""
    held = [name for name in _SEGMENTS if name in arrays]
    cloud = {name: values for name, values in arrays.items() if name not in _SEGMENTS}
    if held:
        cloud["segment"] = arrays[held[0]]
    return arrays_scene(cloud, where)


def write_folder(path: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    """Write a folder that is not there yet, whole or not at all."""
    path = Path(path)
    if path.exists():
        raise BadInput(f"{path} is there already", hint="choose another -o")
    beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        for name, values in arrays.items():
            held = io.BytesIO()
            np.save(held, values)
            write_bytes(beside / f"{name}.npy", held.getvalue())
        beside.chmod(0o755)
        os.rename(beside, path)
    except BaseException:  # Ctrl-C too: nothing half written stays
        shutil.rmtree(beside, ignore_errors=True)
        raise
    return path
