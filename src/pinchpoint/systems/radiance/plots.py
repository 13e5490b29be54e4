"""Image sheets as PNG and movies as GIF or MP4; each file is written whole or not at all.

Letters: N images, A frames, H and W pixels. Images are (N, 3, W, W) in [-1, 1], frames (A, H, W, 3) uint8.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import write_bytes
from pinchpoint.systems.radiance.data.images import pillow, to_bytes

GAP = 2  # pixels between two images of a sheet
MOVIES = (".gif", ".mp4")
_COLOURS = 128


def tile_images(images: Tensor, *, columns: int, zoom: int = 1) -> np.ndarray:
    """Arrange (N, 3, W, W) row by row on white: (H, W', 3) uint8. zoom: factor by which each pixel is
    enlarged.
    """
    pixels = to_bytes(images).cpu().numpy().repeat(zoom, axis=1).repeat(zoom, axis=2)
    count, side = len(pixels), pixels.shape[1]
    rows = -(-count // columns)
    sheet = np.full((rows * (side + GAP) - GAP, columns * (side + GAP) - GAP, 3), 255, dtype=np.uint8)
    for number, picture in enumerate(pixels):
        top, left = (side + GAP) * (number // columns), (side + GAP) * (number % columns)
        sheet[top : top + side, left : left + side] = picture
    return sheet


def save_sheet(path: str | Path, sheet: np.ndarray) -> Path:
    """Write a sheet as PNG."""
    data = io.BytesIO()
    pillow().Image.fromarray(sheet).save(data, format="PNG")
    return write_bytes(path, data.getvalue())


def check_movie(path: str | Path) -> None:
    """Refuse an unknown suffix, or an MP4 without ffmpeg, before any frame is rendered."""
    suffix = Path(path).suffix.lower()
    if suffix not in MOVIES:
        raise BadInput(
            f"A movie cannot be written to {path}.",
            hint=f"Name a file that ends in {' or '.join(MOVIES)}.",
        )
    if suffix == ".mp4":
        _ffmpeg()


def save_movie(path: str | Path, frames: Sequence[np.ndarray], *, fps: float) -> Path:
    """Write frames as an endlessly looping GIF, or as an MP4."""
    check_movie(path)
    return write_bytes(path, _gif(frames, fps) if Path(path).suffix.lower() == ".gif" else _mp4(frames, fps))


def _gif(frames: Sequence[np.ndarray], fps: float) -> bytes:
    image = pillow().Image
    # One palette for all frames: with one per frame, the colours of what stands still flicker.
    palette = image.fromarray(np.concatenate(list(frames[:: max(1, len(frames) // 8)]))).quantize(_COLOURS)
    first, *others = [image.fromarray(frame).quantize(palette=palette, dither=0) for frame in frames]
    data = io.BytesIO()
    first.save(
        data,
        format="GIF",
        save_all=True,
        append_images=others,
        duration=round(1000 / fps),
        loop=0,
        disposal=1,
    )
    return data.getvalue()


def _mp4(frames: Sequence[np.ndarray], fps: float) -> bytes:
    """H.264 needs even sides: an odd side gets one more line of white."""
    high, wide = frames[0].shape[:2]
    full = [np.pad(frame, ((0, high % 2), (0, wide % 2), (0, 0)), constant_values=255) for frame in frames]
    size = f"{wide + wide % 2}x{high + high % 2}"
    with tempfile.TemporaryDirectory(prefix="pinchpoint-radiance-") as folder:
        movie = Path(folder) / "movie.mp4"
        command = [
            _ffmpeg(),
            "-v",
            "error",
            "-f",
            "rawvideo",
            "-pix_fmt",
            "rgb24",
            "-s",
            size,
            "-r",
            f"{fps:g}",
            "-i",
            "-",
            "-pix_fmt",
            "yuv420p",
            str(movie),
        ]
        result = subprocess.run(
            command, input=b"".join(frame.tobytes() for frame in full), capture_output=True, check=False
        )
        if result.returncode:
            raise BadInput(
                f"ffmpeg could not write the movie: {result.stderr.decode()[-200:].strip()}.",
                hint="Write a .gif instead.",
            )
        return movie.read_bytes()


def _ffmpeg() -> str:
    path = shutil.which("ffmpeg")
    if path:
        return path
    try:
        import imageio_ffmpeg  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise Missing(
            "Writing an MP4 needs ffmpeg, which is not installed.",
            hint="Write a .gif, or run: pip install imageio-ffmpeg",
        ) from error
    return imageio_ffmpeg.get_ffmpeg_exe()
