"""Folders of datasets, runs and evaluations: each has a folder of its own, recognised by a file in it.

Pictures written among the images of a dataset would be trained on: `refuse_within` and `image_files` prevent
that.
"""

from __future__ import annotations

from pathlib import Path

from pinchpoint.core.errors import BadInput

RUN = "config.json"
KINDS = {"index.json": "a dataset", RUN: "a run", "evaluation.json": "an evaluation", "scan.json": "a scan"}
# How the files of images end: those that are read, and others, which are named.
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
UNREAD_IMAGES = frozenset(
    {".avif", ".dng", ".exr", ".hdr", ".heic", ".heif", ".jp2", ".jxl", ".ppm", ".psd", ".svg", ".tga"}
)


def refuse_others(folder: Path, *, own: str, hint: str = "Choose another folder with -o.") -> None:
    """Refuse a folder that belongs to something else. own: the file by which the caller recognises its own
    folders.
    """
    for name, kind in KINDS.items():
        if name != own and (folder / name).exists():
            raise BadInput(f"{folder} is the folder of {kind}: it holds {name}.", hint=hint)


def check_run_folder(folder: Path, *, resume: bool) -> None:
    """Refuse a folder of something else, a new run in a folder that holds one, and resuming where there is
    none.
    """
    exists = (folder / RUN).exists()
    if not exists:
        refuse_others(folder, own=RUN, hint="Choose a folder of its own for the run with -o.")
    if exists and not resume:
        raise BadInput(
            f"{folder} already holds a run.", hint="Continue it with --resume, or choose another -o."
        )
    if resume and not exists:
        raise BadInput(
            f"There is no run in {folder} to resume.",
            hint="Leave out --resume to start one, or name the folder of the run with -o.",
        )


def refuse_within(folder: Path, images: Path, *, hint: str) -> None:
    """Refuse an output folder that is the folder of the images or lies in it."""
    whole = folder.resolve()
    for at in (whole, *whole.parents):
        if at.exists() and images.exists() and at.samefile(images):  # however it is spelt, and through links
            within = (
                f"lies in {images}, the folder of the images: pictures written there would be trained on."
            )
            raise BadInput(f"{folder} {'is the folder of the images.' if at == whole else within}", hint=hint)


def image_files(folder: Path, *, suffixes: frozenset[str] = IMAGES) -> list[Path]:
    """The images in a folder and its subfolders, sorted. Hidden files, such as those macOS adds, are left
    out.
    """
    files = (file for file in folder.rglob("*") if file.suffix.lower() in suffixes)
    return sorted(file for file in files if not _hidden(file.relative_to(folder)) and file.is_file())


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
