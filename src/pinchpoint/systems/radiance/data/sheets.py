"""Sheets: files of a dataset with the pictures of consecutive cars and their factors."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data.sample_file import FAILURES, pack_arrays, unpack_arrays
from pinchpoint.systems.radiance.data.cars import BODIES, GENERATOR, RANGES, body_of, draw_car
from pinchpoint.systems.radiance.data.sphere_tracing import picture

FACTORS = (*RANGES, "u", "v")  # columns of a sheet's factors
BODY = "body"  # one more column, the index of the body type, in a set with body types
_SUPERSAMPLE = 3
_RAYS = 1 << 22  # rays rendered at a time; at least those of one car


@dataclass(frozen=True)
class Origin:
    """Origin of a sheet: the cars number first, first + 1, ... of a seed, with body types or not."""

    seed: int
    size: int
    first: int
    count: int
    generator: int = GENERATOR
    bodies: bool = False


@dataclass(frozen=True)
class Sheet:
    """n pictures of W pixels per side."""

    origin: Origin
    pixels: np.ndarray  # (n, W, W, 3) uint8
    factors: np.ndarray  # (n, len(FACTORS)) float64, or one more with body types


def make_sheet(
    *, seed: int, first: int, count: int, size: int, device: str = "cpu", bodies: bool = False
) -> Sheet:
    numbers = range(first, first + count)
    pairs = [draw_car(seed, number, body=body_of(number) if bodies else None) for number in numbers]
    together = max(1, _RAYS // (size * _SUPERSAMPLE) ** 2)
    pixels = []
    for start in range(0, count, together):
        cars, poses = zip(*pairs[start : start + together], strict=True)
        pictures = picture(list(cars), list(poses), size=size, supersample=_SUPERSAMPLE, device=device)
        pixels.append((pictures.rgb * 255).round().to(torch.uint8).cpu().numpy())
    factors = np.array([[getattr(car, name) for name in RANGES] + [pose.u, pose.v] for car, pose in pairs])
    if bodies:
        types = np.array([[float(tuple(BODIES).index(body_of(number)))] for number in numbers])
        factors = np.concatenate([factors, types], axis=1)
    return Sheet(Origin(seed, size, first, count, bodies=bodies), np.concatenate(pixels), factors)


def making_bytes(size: int, count: int) -> int:
    """Host memory that a process needs to create a sheet: torch itself, the rays rendered at a time, and the
    sheet.
    """
    rays = min(max(_RAYS, (size * _SUPERSAMPLE) ** 2), count * (size * _SUPERSAMPLE) ** 2)
    return 400_000_000 + 30 * rays + 3 * count * size * size * 3


def sheet_name(first: int, count: int) -> str:
    return f"cars-{first:06d}-{count:02d}"


def pack(sheet: Sheet) -> bytes:
    return pack_arrays({"pixels": sheet.pixels, "factors": sheet.factors}, asdict(sheet.origin))


def unpack(data: bytes, *, where: str) -> Sheet:
    """The sheet in the bytes of a file. Raises `BadInput` if they are not a sheet."""
    try:
        arrays, about = unpack_arrays(data)
        sheet = Sheet(Origin(**about), arrays["pixels"], arrays["factors"])
        shape = (sheet.origin.count, sheet.origin.size, sheet.origin.size, 3)
        if sheet.pixels.shape != shape or sheet.pixels.dtype != np.uint8:
            raise ValueError(f"its pictures are {sheet.pixels.dtype} {sheet.pixels.shape}, not uint8 {shape}")
        return sheet
    except FAILURES as error:
        raise BadInput(
            f"{where} is not a sheet of cars: {error}.",
            hint="Create it again with: pinchpoint radiance data",
        ) from error
