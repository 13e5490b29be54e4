"""Pictures to train on, held as bytes where they are used: of our own data sets and of any folder of image files.

Letters: N images, B of a batch, W pixels a side. Every image is square and of one size; with `size` all are scaled so that
their short side is that and cut to the middle. What is transparent is laid over what renders have behind them: white or black.
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
from pinchpoint.systems.common.dataset_folder import INDEX
from pinchpoint.systems.common.folders import IMAGES, image_files, refuse_others
from pinchpoint.systems.radiance.data.dataset import Dataset, open_dataset

MOST_BROKEN = 0.05  # of the files of a folder
_NAMED = 3  # of them, where they are too many


@dataclass(frozen=True)
class Images:
    """Images on a device, one byte a channel."""

    source: str
    pixels: Tensor  # (N, W, W, 3) uint8
    skipped: tuple[str, ...] = ()  # files that could not be read, and why
    enlarged: int = 0  # images that were smaller

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> int:
        return self.pixels.shape[1]

    def batch(self, numbers: Tensor | Sequence[int]) -> Tensor:
        """The images of these numbers, (B, 3, W, W) in [-1, 1]."""
        index = torch.as_tensor(numbers, device=self.pixels.device)
        return from_bytes(self.pixels[index])

    def refuse_enlarged(self, what: str, *, hint: str) -> None:
        """Refuse images of which too many were smaller, and so are blurred; what: they are to be good for."""
        if self.enlarged > MOST_BROKEN * len(self):
            raise BadInput(
                f"{self.enlarged:,} of the {len(self):,} images in {self.source} are smaller than the {self.size} x {self.size} "
                f"{what}",
                hint=hint,
            )

    def to(self, device: str | torch.device) -> Images:
        return replace(self, pixels=self.pixels.to(device))


def from_bytes(pixels: Tensor) -> Tensor:
    """(B, W, W, 3) uint8 -> (B, 3, W, W) in [-1, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


def to_bytes(images: Tensor) -> Tensor:
    """(B, 3, W, W) in [-1, 1] -> (B, W, W, 3) uint8."""
    return ((images.detach().float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)


def open_images(
    path: str | Path, *, size: int | None = None, white: bool = True, device: str | torch.device = "cpu"
) -> Images:
    """All images of a data set of `radiance data`, or of a folder and the folders in it.

    Broken files are left out and named in `skipped`; where they are more than 5 % of all, or where sizes differ and no `size`
    is given, the folder is refused. white: behind what is transparent; black without.
    """
    folder = Path(path)
    if size is not None and size < 1:
        raise BadInput(f"images of {size} pixels", hint="give a size of 1 or more")
    if not folder.is_dir():
        raise BadInput(
            f"{folder} is no folder",
            hint="name a folder of images, or make one: pinchpoint radiance data -o DIR",
        )
    refuse_others(folder, own=INDEX, hint="name a folder of images, or one that `radiance data` made")
    files = image_files(folder)
    if not files and (folder / INDEX).exists():  # beside images of one's own an index.json may be anything
        return _of_dataset(open_dataset(folder), size, device)
    if not files:
        raise BadInput(
            f"{folder} holds no images",
            hint=f"name a folder with {', '.join(sorted(IMAGES))} files, or make one: pinchpoint radiance data -o DIR",
        )
    held, skipped, enlarged = _read_all(folder, files, size, white)
    return Images(str(folder), torch.from_numpy(np.stack(held)).to(device), skipped, enlarged)


def _of_dataset(data: Dataset, size: int | None, device: str | torch.device) -> Images:
    pixels = data.pixels()
    if size is not None and size != data.size:
        image = pillow().Image
        pixels = np.stack([_squared(image.fromarray(one), size) for one in pixels])
    enlarged = len(pixels) if size is not None and size > data.size else 0
    return Images(str(data.path), torch.from_numpy(pixels).to(device), enlarged=enlarged)


def _read_all(
    folder: Path, files: list[Path], size: int | None, white: bool
) -> tuple[list[np.ndarray], tuple[str, ...], int]:
    """Images, the files that are none, and how many were enlarged."""
    imaging, enlarged = pillow(), 0
    held: list[np.ndarray] = []
    names: list[str] = []
    skipped: list[str] = []
    for file in files:
        name = str(file.relative_to(folder))
        try:
            image = _opaque(imaging, file, white)
        except (OSError, ValueError, SyntaxError, EOFError, imaging.Image.DecompressionBombError) as error:
            skipped.append(f"{name}: {_reason(error, file)}")
            continue
        made = _squared(image, size) if size is not None else np.array(image)
        if held and made.shape != held[0].shape:
            raise BadInput(
                f"{folder} holds images of several sizes: {names[0]} is {_shown(held[0])}, {name} is {_shown(made)}",
                hint="give --size: images are scaled to it and cut to the middle",
            )
        if made.shape[0] != made.shape[1]:
            raise BadInput(
                f"{folder / name} is {_shown(made)}, not square",
                hint="give --size: images are cut to the middle",
            )
        if not held and made.nbytes * len(files) > free_bytes():
            raise BadInput(
                f"{len(files):,} images of {_shown(made)} take {show_bytes(made.nbytes * len(files))}; "
                f"{show_bytes(free_bytes())} of memory are free",
                hint="give a smaller --size, or fewer images",
            )
        held.append(made)
        names.append(name)
        enlarged += size is not None and min(image.size) < size
    if len(skipped) > MOST_BROKEN * len(files):
        others = f"; and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
        raise BadInput(
            f"{len(skipped):,} of the {len(files):,} images in {folder} are broken, more than {MOST_BROKEN:.0%}: "
            f"{'; '.join(skipped[:_NAMED])}{others}",
            hint="take the broken files away, or copy them again",
        )
    return held, tuple(skipped), enlarged


def _opaque(imaging: Any, file: Path, white: bool) -> Any:
    """The image as it is meant to be seen: turned as its camera says, over white or black, three channels."""
    with imaging.Image.open(file) as opened:
        image = imaging.ImageOps.exif_transpose(opened)
        image.load()
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, of which no range is known")
    if image.mode.startswith("I"):
        image = _of_8_bits(imaging, image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        behind = imaging.Image.new("RGBA", image.size, "white" if white else "black")
        image = imaging.Image.alpha_composite(behind, image)
    return image.convert("RGB")


def _of_8_bits(imaging: Any, image: Any) -> Any:
    """Grey of 16 bits, 65535 as 255; pillow's own conversion takes all above 255 for white."""
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"its pixels go from {values.min()} to {values.max()}, beyond 16 bits")
    grey = np.rint(values / 257).astype(np.uint8)
    clear = image.info.get("transparency")  # the one value that is transparent
    if not isinstance(clear, int):
        return imaging.Image.fromarray(grey)
    return imaging.Image.fromarray(
        np.stack((grey, np.where(values == clear, 0, 255).astype(np.uint8)), axis=2)
    )


def _squared(image: Any, size: int) -> np.ndarray:
    """(size, size, 3): scaled by its short side and cut to the middle."""
    wide, high = image.size
    short = min(wide, high)
    left, top = (wide - short) // 2, (high - short) // 2
    # Cut first: a filter that reaches over the cut would mix in what is left out. 1 is Resampling.LANCZOS, which looks at all
    # pixels under one when it shrinks.
    return np.array(image.crop((left, top, left + short, top + short)).resize((size, size), resample=1))


def _shown(pixels: np.ndarray) -> str:
    return f"{pixels.shape[1]} x {pixels.shape[0]}"


def _reason(error: Exception, file: Path) -> str:
    return str(error).replace(str(file), file.name)[:100] or type(error).__name__


def pillow() -> Any:
    """PIL with the parts used here; Missing where it is not installed."""
    try:
        import PIL
        import PIL.Image
        import PIL.ImageOps
    except ImportError as error:
        raise Missing(
            "images need pillow, which is not installed", hint='pip install "pinchpoint[radiance]"'
        ) from error
    return PIL
