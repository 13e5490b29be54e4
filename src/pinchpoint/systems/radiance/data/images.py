"""Training images as bytes on a device, from a `radiance data` set or any folder of image files.

All images are square and have the same size; with `size`, their short side is scaled to it and they are
cropped to the centre. Transparent pixels get the background of the renders, white or black. Letters: N
images, B images of a batch, W pixels per side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.common.data.dataset_folder import INDEX
from pinchpoint.systems.common.folders import IMAGES, UNREAD_IMAGES, image_files, refuse_others
from pinchpoint.systems.radiance.data.dataset import Dataset, open_dataset

MOST_BROKEN = 0.05  # largest fraction of broken files in a folder
_NAMED = 3  # broken files listed in the error
# Formats of animations and of several pages. In others, such as the MPO files of cameras, the first of
# several is the image, and the rest are previews of it.
_PAGED = ("GIF", "TIFF", "PNG", "WEBP")


@dataclass(frozen=True)
class Images:
    """Images on a device, one byte per channel."""

    source: str
    pixels: Tensor  # (N, W, W, 3) uint8
    skipped: tuple[str, ...] = ()  # files that could not be read, and why
    enlarged_count: int = 0  # images that were smaller than the size
    classes: tuple[str, ...] = ()
    labels: Tensor | None = None  # (N,) int64, the index of each image's class
    turns: Tensor | None = None  # (N,) azimuth u of each camera, in turns, where it is known

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> int:
        return self.pixels.shape[1]

    def batch(self, numbers: Tensor | Sequence[int]) -> Tensor:
        """The images with these indices, (B, 3, W, W) in [-1, 1]."""
        index = torch.as_tensor(numbers, device=self.pixels.device)
        return from_bytes(self.pixels[index])

    def refuse_enlarged(self, what: str, *, hint: str) -> None:
        """Raise an error if too many images were smaller and are therefore blurred.

        what: the end of the error, which says what the size is needed for.
        """
        if self.enlarged_count > MOST_BROKEN * len(self):
            raise BadInput(
                f"{self.enlarged_count:,} of the {len(self):,} images in {self.source} are smaller than the "
                f"{self.size} x {self.size} pixels {what}.",
                hint=hint,
            )

    def keep_labels(self, *, classes: bool, turns: bool) -> Images:
        """Return the images with only the requested labels."""
        return replace(
            self,
            classes=self.classes if classes else (),
            labels=self.labels if classes else None,
            turns=self.turns if turns else None,
        )

    def to(self, device: str | torch.device) -> Images:
        labels, turns = (None if part is None else part.to(device) for part in (self.labels, self.turns))
        return replace(self, pixels=self.pixels.to(device), labels=labels, turns=turns)


def from_bytes(pixels: Tensor) -> Tensor:
    """(B, W, W, 3) uint8 -> (B, 3, W, W) in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def to_bytes(images: Tensor) -> Tensor:
    """(B, 3, W, W) in [-1, 1] -> (B, W, W, 3) uint8."""
    return ((images.detach().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)


def open_images(
    path: str | Path, *, size: int | None = None, white: bool = True, device: str | torch.device = "cpu"
) -> Images:
    """Open all images of a `radiance data` set, or of a folder and its subfolders.

    In a folder, the classes are its subfolders, if there are several and every image is in one of them.
    Broken files, animations and images in formats that are not supported are skipped and listed in `skipped`.
    Raises an error if these are more than 5 %, or if sizes differ and `size` is not given.
    white: whether transparent pixels become white or black.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise BadInput(
            f"The image size is {size} pixels, but it must be at least 1.", hint="Give a size of 1 or more."
        )
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is not a folder.",
            hint="Name a folder of images, or create one: pinchpoint radiance data -o DIR",
        )
    refuse_others(folder, own=INDEX, hint="Name a folder of images, or one that `radiance data` created.")
    files = image_files(folder)
    if not files and (folder / INDEX).exists():  # next to a user's own images, index.json can be any file
        return _of_dataset(open_dataset(folder), size, device)
    others = image_files(folder, suffixes=UNREAD_IMAGES)
    if not files and not others:
        raise BadInput(
            f"{folder} does not contain any images.",
            hint=f"Name a folder with {', '.join(sorted(IMAGES))} files, or create one: "
            "pinchpoint radiance data -o DIR",
        )
    pixels, names, skipped, enlarged_count = _read_all(folder, sorted([*files, *others]), size, white)
    classes, labels = _subfolders(names)
    images = Images(str(folder), torch.from_numpy(np.stack(pixels)), skipped, enlarged_count, classes, labels)
    return images.to(device)


def _subfolders(names: list[str]) -> tuple[tuple[str, ...], Tensor | None]:
    """The classes, and the index of each image's class, by the first folder of each name."""
    folders = [Path(name).parts[0] if len(Path(name).parts) > 1 else "" for name in names]
    classes = tuple(sorted(set(folders)))
    if len(classes) < 2 or "" in classes:
        return (), None
    return classes, torch.tensor([classes.index(folder) for folder in folders])


def _of_dataset(data: Dataset, size: int | None, device: str | torch.device) -> Images:
    pixels = data.pixels()
    if size is not None and size != data.size:
        image = pillow().Image
        pixels = np.stack([_crop_square(image.fromarray(one), size) for one in pixels])
    enlarged_count = len(pixels) if size is not None and size > data.size else 0
    labels = data.labels()
    images = Images(
        str(data.path),
        torch.from_numpy(pixels),
        enlarged_count=enlarged_count,
        classes=data.classes,
        labels=None if labels is None else torch.from_numpy(labels),
        turns=torch.from_numpy(data.factor("u").astype(np.float32)),
    )
    return images.to(device)


def _read_all(
    folder: Path, files: list[Path], size: int | None, white: bool
) -> tuple[list[np.ndarray], list[str], tuple[str, ...], int]:
    """The images, their names, the files that could not be read, and the number of enlarged images."""
    imaging, enlarged_count = pillow(), 0
    images: list[np.ndarray] = []
    names: list[str] = []
    skipped: list[str] = []
    for file in files:
        name = str(file.relative_to(folder))
        try:
            image = _opaque(imaging, file, white)
        except Exception as error:  # given arbitrary bytes, pillow's readers may raise any exception
            skipped.append(f"{name}: {_reason(error, file)}")
            continue
        pixels = _crop_square(image, size) if size is not None else np.array(image)
        if images and pixels.shape != images[0].shape:
            raise BadInput(
                f"{folder} contains images of several sizes: {names[0]} is {_show_size(images[0])}, "
                f"{name} is {_show_size(pixels)}.",
                hint="Give --size: images are scaled to it and cropped to the centre.",
            )
        if pixels.shape[0] != pixels.shape[1]:
            raise BadInput(
                f"{folder / name} is {_show_size(pixels)}, not square.",
                hint="Give --size: images are cropped to the centre.",
            )
        if not images and pixels.nbytes * len(files) > free_bytes():
            raise BadInput(
                f"{len(files):,} images of {_show_size(pixels)} take "
                f"{show_bytes(pixels.nbytes * len(files))}, but only {show_bytes(free_bytes())} "
                "of memory is free.",
                hint="Give a smaller --size, or fewer images.",
            )
        images.append(pixels)
        names.append(name)
        enlarged_count += size is not None and min(image.size) < size
    if len(skipped) > MOST_BROKEN * len(files):
        others = f"; and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
        raise BadInput(
            f"{len(skipped):,} of the {len(files):,} images in {folder} cannot be used, more than "
            f"{MOST_BROKEN:.0%}: "
            f"{'; '.join(skipped[:_NAMED])}{others}.",
            hint="Remove broken files or copy them again, and convert the others to PNG.",
        )
    return images, names, tuple(skipped), enlarged_count


def _opaque(imaging: Any, file: Path, white: bool) -> Any:
    """The image as displayed, with three channels: rotated by its EXIF tag, on white or black."""
    if file.suffix.lower() in UNREAD_IMAGES:
        raise ValueError(f"{file.suffix.lower()} files are not supported")
    with imaging.Image.open(file) as file_image:
        if getattr(file_image, "n_frames", 1) > 1 and file_image.format in _PAGED:
            raise ValueError(f"it has {file_image.n_frames} frames, and none is known to be the image")
        image = imaging.ImageOps.exif_transpose(file_image)
        image.load()
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode.startswith("I"):
        image = _of_8_bits(imaging, image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        behind = imaging.Image.new("RGBA", image.size, "white" if white else "black")
        image = imaging.Image.alpha_composite(behind, image)
    return image.convert("RGB")


def _of_8_bits(imaging: Any, image: Any) -> Any:
    """Convert 16-bit grey to 8 bits, 65535 to 255; pillow's own conversion turns everything
    above 255 white.
    """
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"its pixels range from {values.min()} to {values.max()}, beyond 16 bits")
    grey = np.rint(values / 257).astype(np.uint8)
    clear = image.info.get("transparency")  # the grey value that is transparent
    if not isinstance(clear, int):
        return imaging.Image.fromarray(grey)
    return imaging.Image.fromarray(
        np.stack((grey, np.where(values == clear, 0, 255).astype(np.uint8)), axis=2)
    )


def _crop_square(image: Any, size: int) -> np.ndarray:
    """Scale by the short side and crop to the centre: (size, size, 3)."""
    wide, high = image.size
    short = min(wide, high)
    left, top = (wide - short) // 2, (high - short) // 2
    # Crop first, so that the filter does not mix in pixels outside the crop. 1 is Resampling.LANCZOS, which
    # averages over all source pixels when it shrinks an image.
    return np.array(image.crop((left, top, left + short, top + short)).resize((size, size), resample=1))


def _show_size(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"


def _reason(error: Exception, file: Path) -> str:
    return str(error).replace(str(file), file.name)[:100] or type(error).__name__


def pillow() -> Any:
    """PIL with the modules used here. Raises `Missing` if it is not installed."""
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise Missing(
            "Reading and writing images needs pillow, which is not installed.",
            hint='Run: pip install "pinchpoint[radiance]"',
        ) from error
    return PIL
