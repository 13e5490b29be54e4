"""Sources of training and test scenes: a dataset made by `cloud data`, or a folder of the user's own files.

A folder of the user's own contains `train` and `test`, each with one file (.ply, .npz, .las, .laz) or one
folder of .npy files per scene. All scenes have labels and the same features. Classes are numbered from 0 if
the files do not name them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.dataset import Dataset, open_dataset
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.files.formats import READS, read_scene
from pinchpoint.systems.cloud.files.pointcept import is_scene_folder
from pinchpoint.systems.common.folders import KINDS

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")
UINT8_IGNORED = 255  # many tools write 255 for "no class", because unsigned 8-bit labels cannot be -1


class Source(Protocol):
    """Labelled scenes in two splits."""

    @property
    def path(self) -> Path: ...

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    def names(self, split: Split) -> list[str]: ...

    def scene(self, name: str) -> Scene: ...


@dataclass(frozen=True)
class Own:
    """Scenes from the user's own files. files: their paths by name, such as train/office.ply."""

    path: Path
    features: tuple[str, ...]
    classes: tuple[str, ...]
    files: dict[str, Path]
    ignore: tuple[int, ...] = ()  # labels that mean "no class" in these files, besides -1
    unused: tuple[str, ...] = ()  # arrays of the files that are not inputs, such as lang_feat
    target: str = ""  # the array to predict
    target_width: int = 0

    def names(self, split: Split) -> list[str]:
        return [name for name in self.files if name.startswith(f"{split}/")]

    def scene(self, name: str) -> Scene:
        return _read(
            self.files[name],
            self.features,
            len(self.classes),
            ignore=self.ignore,
            target=self.target,
            width=self.target_width,
        )


def open_source(
    path: str | Path,
    *,
    ignore: Sequence[int] = (),
    target: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Dataset | Own:
    """Open the scenes of a folder. All of the user's own files are read once to find their classes.

    ignore: labels that mean "no class" in the user's own files, besides -1; target: the array to predict,
    with which scenes need no labels; progress: called with (files read, total number of files).
    """
    folder = Path(path)
    own = any((folder / split).is_dir() for split in SPLITS)
    if any((folder / name).exists() for name in KINDS):
        if ignore:
            raise BadInput(
                f"--set ignore cannot be used with {folder}, which `cloud data` made.",
                hint="Leave out --set ignore: points without a class are -1 there.",
            )
        if target:
            raise BadInput(
                f"--target {target} cannot be used with {folder}, which `cloud data` made.",
                hint="Give a folder of your own scenes with that array.",
            )
        return open_dataset(folder)
    if not own:
        raise BadInput(
            f"{folder} does not contain a dataset."
            if folder.is_dir()
            else f"The folder {folder} does not exist.",
            hint="Make a dataset with `pinchpoint cloud data -o rooms`, or give a folder with your own scenes"
            " in train/ and test/.",
        )
    files = {f"{split}/{file.name}": file for split in SPLITS for file in _files(folder / split)}
    if not files:
        raise BadInput(
            f"There are no scenes in {folder / 'train'} and {folder / 'test'}.",
            hint=f"Put files there ({', '.join(READS)}), or folders with coord.npy and segment.npy.",
        )
    features: tuple[str, ...] | None = None
    class_names: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    largest_label, has_254, has_labels, width = 1, False, False, 0
    for number, file in enumerate(files.values(), start=1):
        scene = _read(file, features, ignore=ignore, target=target, width=width)
        features, class_names = scene.names, max(class_names, scene.classes, key=len)
        unused = tuple(dict.fromkeys((*unused, *scene.unused)))
        width = 0 if scene.targets is None else scene.targets.shape[1]
        if scene.labels is not None:
            has_labels = has_labels or bool((scene.labels >= 0).any())
            largest_label = max(largest_label, int(scene.labels.max()))
            has_254 = has_254 or bool((scene.labels == UINT8_IGNORED - 1).any())
        if progress is not None:
            progress(number, len(files))
    assert features is not None
    if largest_label == UINT8_IGNORED and not has_254 and len(class_names) <= largest_label:
        raise BadInput(
            f"The labels of {folder} go up to {UINT8_IGNORED}, but none is {UINT8_IGNORED - 1}: it is not"
            f" clear whether {UINT8_IGNORED} is a class.",
            hint=f"Give --set ignore={UINT8_IGNORED} if it means no class; otherwise name the"
            f" {UINT8_IGNORED + 1} classes in an .npz (`classes`).",
        )
    if target and not has_labels:
        return Own(folder, features, (), files, tuple(ignore), unused, target, width)
    classes = (
        class_names
        if len(class_names) > largest_label
        else tuple(str(number) for number in range(largest_label + 1))
    )
    return Own(folder, features, classes, files, tuple(ignore), unused, target, width)


def fingerprint(source: Dataset | Own) -> str:
    """Return a hash of the training files' contents, which identifies a source wherever it is stored."""
    if isinstance(source, Dataset):
        digests = [(name, source.rooms[name]["sha256"]) for name in source.names("train")]
    else:
        digests = [(name, _digest(source.files[name])) for name in source.names("train")]
    return hashlib.sha256(json.dumps(digests).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in READS or is_scene_folder(file))


def _read(
    file: Path,
    features: tuple[str, ...] | None,
    classes: int | None = None,
    *,
    ignore: Sequence[int] = (),
    target: str = "",
    width: int = 0,
) -> Scene:
    scene = read_scene(file, ignore=ignore, target=target)
    if scene.labels is None and not target:
        answers = " --target lang_feat trains without labels." if "lang_feat" in scene.unused else ""
        raise BadInput(
            f"{file} has no labels.",
            hint=f"Give every point a class in a column `label`, with -1 for none.{answers}",
        )
    if scene.targets is not None and width and scene.targets.shape[1] != width:
        raise BadInput(
            f"{target} of {file} has {scene.targets.shape[1]} columns, but other scenes have {width}.",
            hint="Give all scenes of a folder targets of the same width.",
        )
    if features is not None and scene.names != features:
        raise BadInput(
            f"{file} has the features {', '.join(scene.names) or 'none'}, but other scenes have"
            f" {', '.join(features) or 'none'}.",
            hint="Give all scenes of a folder the same columns.",
        )
    if classes and scene.labels is not None and scene.labels.max() >= classes:
        raise BadInput(
            f"{file} has the label {scene.labels.max()}, but there are {classes} classes.",
            hint="Train again with this file.",
        )
    return scene


def _digest(place: Path) -> str:
    """Return the digest of a file, or of all arrays of a folder."""
    digest = hashlib.sha256()
    for file in sorted([*place.glob("*.npy"), *place.glob("*.npz")]) if place.is_dir() else [place]:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{file.name if place.is_dir() else ''}:{content};".encode())
    return digest.hexdigest()
