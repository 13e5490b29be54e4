"""Procedural labelled rooms: eight classes that differ in shape at several scales, as seen by a scanner on a
tripod.

Letters: N points, P candidates. A room depends only on (seed, number); `points` is the exact number of
surface points to keep. Density falls with distance from the scanner and on slanted surfaces. Colours belong
to objects and say little about the class. With gaussians=True each point also has the values that a 3-D
Gaussian splat stores.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.room_layout import CLASSES, Layout, draw_layout
from pinchpoint.systems.cloud.data.scene import Scene, check_scene
from pinchpoint.systems.cloud.data.shapes import sample_surfaces
from pinchpoint.systems.common.data import sample_file

GENERATOR = 1  # version of the generator: changes whenever the same seed would give a different room
COLOURS = ("red", "green", "blue")
GAUSSIAN = ("opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3")
LEAST, MOST = 1_000, 5_000_000  # points of a room
_SPARE = 3  # candidates per point that is kept
_PALETTE = np.array(
    [
        (0.82, 0.80, 0.76),
        (0.55, 0.40, 0.28),
        (0.45, 0.45, 0.47),
        (0.25, 0.22, 0.20),
        (0.60, 0.30, 0.25),
        (0.3, 0.42, 0.55),
    ]
)
# Relative frequency of each palette colour (column) for each class (row). Every class can have every colour.
_TASTE = np.array(
    [
        (2, 4, 3, 2, 1, 1),
        (6, 2, 2, 1, 1, 1),
        (5, 2, 2, 1, 1, 2),
        (3, 4, 2, 2, 1, 1),
        (2, 3, 3, 3, 2, 2),
        (4, 4, 2, 2, 1, 1),
        (4, 1, 3, 3, 2, 1),
        (3, 2, 2, 2, 3, 3),
    ],
    dtype=np.float64,
)


@dataclass(frozen=True)
class Origin:
    """Everything that determines the numbers of a room."""

    generator: int
    seed: int
    points: int
    gaussians: bool
    number: int


@dataclass(frozen=True)
class Room:
    scene: Scene
    origin: Origin
    scanners: tuple[tuple[float, float, float], ...]  # positions of the scanners


def make_room(
    *, seed: int, number: int, points: int = 20_000, gaussians: bool = False, name: str = ""
) -> Room:
    """Make one room of exactly `points` points, in random order."""
    check_points(points)
    # Three generators, so that the number of points changes neither the room nor its paint, its rotation and
    # its scanners.
    draw, once, rng = (np.random.default_rng((seed, number, stream)) for stream in range(3))
    room = draw_layout(draw)
    scanners = _scanners(once, room)
    paint = _paint(once, room)
    noise, turn = once.uniform(0.002, 0.008), once.uniform(0, 2 * math.pi)
    shift = once.uniform(-1, 1, 3)  # a floor at z = 0 would lie on a cell border of every grid
    parts = [part for thing in room.things for part in thing.parts]
    thing_of = np.repeat(np.arange(len(room.things)), [len(thing.parts) for thing in room.things])
    at, normals, surface = sample_surfaces(parts, _SPARE * points, rng)
    density = _scan_density(at, normals, scanners)
    # The smallest of exponential random numbers divided by the weights are a weighted draw without
    # replacement, which is cheap and has an exact number of points.
    keep = rng.permutation(np.argpartition(rng.exponential(size=len(density)) / density, points)[:points])
    at, normals, thing, density = at[keep], normals[keep], thing_of[surface[keep]], density[keep]
    labels = np.array([each.label for each in room.things])[thing]
    columns = [_colours(rng, paint[thing], normals)]
    if gaussians:
        columns.append(
            _gaussians(rng, normals, density, spacing=math.sqrt(sum(part.area for part in parts) / points))
        )
    turning = np.array([(math.cos(turn), math.sin(turn), 0), (-math.sin(turn), math.cos(turn), 0), (0, 0, 1)])
    scene = Scene(
        name or room_name(number),
        ((at + noise * rng.standard_normal(at.shape)) @ turning + shift).astype(np.float32),
        np.concatenate(columns, axis=1).astype(np.float32),
        labels.astype(np.int16),
        feature_names(gaussians),
        CLASSES,
    )
    origin = Origin(GENERATOR, seed, points, gaussians, number)
    return Room(
        check_scene(scene), origin, tuple((x, y, z) for x, y, z in (scanners @ turning + shift).tolist())
    )


def feature_names(gaussians: bool) -> tuple[str, ...]:
    return COLOURS + (GAUSSIAN if gaussians else ())


def room_name(number: int) -> str:
    return f"room-{number:06d}"


def check_points(points: int) -> int:
    if not LEAST <= points <= MOST:
        raise BadInput(
            f"A room cannot have {points:,} points.", hint=f"Ask for {LEAST:,} to {MOST:,} points."
        )
    return points


def making_bytes(points: int) -> int:
    """Return the approximate memory to make one room, in bytes.

    It covers several copies of the candidates' coordinates, and NumPy itself.
    """
    return 1_000 * points + 2**27


def pack(room: Room) -> bytes:
    """Return the bytes of the room's file, which are the same for the same room."""
    scene = room.scene
    assert scene.labels is not None
    about: dict[str, Any] = {
        "name": scene.name,
        "names": scene.names,
        "classes": scene.classes,
        "scanners": room.scanners,
    }
    arrays = {"xyz": scene.xyz, "features": scene.features, "label": scene.labels}
    return sample_file.pack_arrays(arrays, about | {"origin": asdict(room.origin)})


def unpack(data: bytes, *, where: str) -> Room:
    """Return the room of a file's bytes.

    Raises BadInput, naming the file, if they are not a room or are damaged.
    """
    try:
        arrays, about = sample_file.unpack_arrays(data)
        scene = Scene(
            about["name"],
            arrays["xyz"],
            arrays["features"],
            arrays["label"],
            tuple(about["names"]),
            tuple(about["classes"]),
        )
        return Room(
            check_scene(scene, where),
            Origin(**about["origin"]),
            tuple((x, y, z) for x, y, z in about["scanners"]),
        )
    except sample_file.FAILURES as error:
        raise BadInput(
            f"{where} is not a room of a dataset: {error}",
            hint="Give a room-*.npz made by `pinchpoint cloud data`.",
        ) from error


def _scanners(rng: np.random.Generator, room: Layout) -> np.ndarray:
    """Return the positions (n, 3) of one or two scanners."""
    count = int(rng.integers(1, 3))
    flat = rng.uniform(-0.35, 0.35, (count, 2)) * room.size[:2]
    return np.concatenate([flat, rng.uniform(1.2, 1.7, (count, 1))], axis=1)


def _scan_density(at: np.ndarray, normals: np.ndarray, scanners: np.ndarray) -> np.ndarray:
    """Return (P,) sampling densities: rays at equal angles spread out with distance and on slanted
    surfaces.
    """
    total = np.zeros(len(at))
    for scanner in scanners:
        ray = at - scanner
        square = (ray**2).sum(axis=1)
        facing = np.abs((ray * normals).sum(axis=1)) / np.sqrt(square)
        total += (0.15 + facing) / (0.8 + square)
    return total


def _paint(rng: np.random.Generator, room: Layout) -> np.ndarray:
    """Return (things, 3): the colour of each object in the light of this room."""
    taste = _TASTE / _TASTE.sum(axis=1, keepdims=True)
    picks = [rng.choice(len(_PALETTE), p=taste[each.label]) for each in room.things]
    return (_PALETTE[picks] + 0.1 * rng.standard_normal((len(picks), 3))) * (
        1 + 0.08 * rng.standard_normal(3)
    )


def _colours(rng: np.random.Generator, paint: np.ndarray, normals: np.ndarray) -> np.ndarray:
    """Return colours (N, 3) in 0..1 from the paint (N, 3) of each point, with light from above and noise."""
    light = 0.85 + 0.15 * np.abs(normals[:, 2:]) + 0.07 * rng.standard_normal((len(paint), 1))
    return np.clip(paint * light + 0.04 * rng.standard_normal(paint.shape), 0, 1)


def _gaussians(
    rng: np.random.Generator, normals: np.ndarray, density: np.ndarray, *, spacing: float
) -> np.ndarray:
    """Return (N, 8): opacity in 0..1, logarithms of two scales along the surface and one across it, and the
    rotation from z to the normal.
    """
    count = len(normals)
    opacity = rng.beta(4, 1.5, (count, 1))
    along = spacing * np.sqrt(density.mean() / density)[:, None] * rng.lognormal(-0.3, 0.35, (count, 2))
    scales = np.log(np.concatenate([along, 0.15 * along.min(axis=1, keepdims=True)], axis=1))
    # Half a turn about the axis half way between z and the normal takes one onto the other.
    half = normals + (0.0, 0.0, 1.0) + 1e-6
    half /= np.linalg.norm(half, axis=1, keepdims=True)
    return np.concatenate([opacity, scales, np.zeros((count, 1)), half], axis=1)
