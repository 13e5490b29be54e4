"""Folders of data sets, runs and evaluations: each has one of its own, known by a file in it.

Pictures that one of them leaves among images to train on would count as such: `refuse_within`, `image_files`.
"""

from __future__ import annotations

from pathlib import Path

from pinchpoint.core.errors import BadInput

RUN = "config.json"
KINDS = {"index.json": "a data set", RUN: "a run", "evaluation.json": "an evaluation", "scan.json": "a scan"}
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp"})  # how their files end


def refuse_others(folder: Path, *, own: str, hint: str = "choose another folder with -o") -> None:
    """Refuse a folder that belongs to another kind of thing. own: the file that the asking kind is known by."""
    for name, kind in KINDS.items():
        if name != own and (folder / name).exists():
            raise BadInput(f"{folder} is the folder of {kind}: {name} is in it", hint=hint)


def check_run_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder of something else, one that holds a run already, and one that holds none to resume."""
    there = (folder / RUN).exists()
    if not there:
        refuse_others(folder, own=RUN, hint="choose a folder of its own for the run with -o")
    if there and not resume:
        raise BadInput(f"{folder} already holds a run", hint="go on with --resume, or choose another -o")
    if resume and not there:
        raise BadInput(
            f"no run in {folder} to resume",
            hint="leave out --resume to begin one, or name the run's folder with -o",
        )


def refuse_within(folder: Path, images: Path, *, hint: str) -> None:
    """Refuse an output folder that is the one of the images, or lies in it."""
    whole = folder.resolve()
    for at in (whole, *whole.parents):
        if at.exists() and images.exists() and at.samefile(images):  # however it is spelt, and through links
            within = (
                f"lies in {images}, the folder of the images: pictures written there would count among them"
            )
            raise BadInput(f"{folder} {'is the folder of the images' if at == whole else within}", hint=hint)


def image_files(folder: Path) -> list[Path]:
    """Of a folder and the folders in it, by name. Hidden ones, as those that macOS leaves beside each file, are none."""
    found = (file for file in folder.rglob("*") if file.suffix.lower() in IMAGES)
    return sorted(file for file in found if not _hidden(file.relative_to(folder)) and file.is_file())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
