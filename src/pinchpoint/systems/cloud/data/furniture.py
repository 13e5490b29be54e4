"""Furniture of procedural rooms: random tables, chairs, shelves, lamps and clutter, centred at the origin on
the floor.

No single cue identifies a class: boards lie at every height in tables, seats, shelves and piles of books;
thin posts carry lamps, chairs, tables and coat stands; a stool is a small round table. Classes differ in how
parts of several sizes are combined, which is what a sparse cloud shows least.
"""

from __future__ import annotations

import math

import numpy as np

from pinchpoint.systems.cloud.data.shapes import Surface, Vector, ball, box, disc, drum, move_surfaces, pipe

Rng = np.random.Generator
BOARD = (0.015, 0.05)  # metres


def table(rng: Rng) -> tuple[list[Surface], Vector]:
    """Return the surfaces and the size of the bounding box, whose height is that of the table top."""
    high = float(
        rng.choice(
            [rng.uniform(0.36, 0.5), rng.uniform(0.66, 0.8), rng.uniform(0.9, 1.05)], p=[0.15, 0.7, 0.15]
        )
    )
    thick = rng.uniform(*BOARD)
    if rng.random() < 0.35:
        radius = rng.uniform(0.4, 0.7)
        parts = drum((0, 0, high - thick), radius, thick)
        long = wide = 2 * radius
    else:
        long, wide = rng.uniform(0.9, 1.9), rng.uniform(0.6, 0.95)
        parts = box((-long / 2, -wide / 2, high - thick), (long, wide, thick))
    style = rng.random()
    under = high - thick
    if style < 0.6:
        parts += _legs(rng, long, wide, under)
    elif style < 0.8:
        parts += drum((0, 0, 0), rng.uniform(0.18, 0.3), 0.03)
        parts.append(pipe((0, 0, 0), (0, 0, under), rng.uniform(0.03, 0.07)))
    else:
        for side in (-1, 1):
            parts += box((side * (long / 2 - 0.06) - 0.015, -0.35 * wide, 0), (0.03, 0.7 * wide, under))
    return parts, (long, wide, high)


def chair(rng: Rng) -> tuple[list[Surface], Vector]:
    high, thick = rng.uniform(0.38, 0.52), rng.uniform(*BOARD)
    if rng.random() < 0.08:
        high = rng.uniform(0.6, 0.78)  # a bar stool, as high as a table
    long, wide = rng.uniform(0.36, 0.52), rng.uniform(0.36, 0.52)
    under = high - thick
    if rng.random() < 0.3:
        parts = drum((0, 0, under), long / 2, thick)
    else:
        parts = box((-long / 2, -wide / 2, under), (long, wide, thick))
    if rng.random() < 0.7:
        parts += _legs(rng, long, wide, under)
    else:
        parts.append(pipe((0, 0, 0.05), (0, 0, under), rng.uniform(0.02, 0.04)))
        for turn in np.linspace(0, 2 * math.pi, 5, endpoint=False):
            parts.append(pipe((0, 0, 0.07), (0.26 * math.cos(turn), 0.26 * math.sin(turn), 0.03), 0.018))
    if rng.random() < 0.9:
        back = rng.uniform(0.3, 0.55)
        if rng.random() < 0.5:
            parts += box((-long / 2, -wide / 2, high + 0.12), (0.03, wide, back - 0.12))
            for side in (-1, 1):
                parts.append(
                    pipe(
                        (-long / 2, side * 0.4 * wide, under),
                        (-long / 2, side * 0.4 * wide, high + 0.12),
                        0.015,
                    )
                )
        else:
            for place in np.linspace(-0.45, 0.45, 4):
                parts.append(
                    pipe(
                        (-long / 2, place * wide, under), (-long / 2 - 0.06, place * wide, high + back), 0.014
                    )
                )
            parts += box((-long / 2 - 0.07, -wide / 2, high + back - 0.08), (0.03, wide, 0.08))
    if rng.random() < 0.25:
        for side in (-1, 1):
            parts += box((-long / 2, side * wide / 2 - 0.02, high + 0.18), (long, 0.04, 0.03))
    return parts, (long + 0.1, wide, high)


def shelf(rng: Rng) -> tuple[list[Surface], Vector, list[float]]:
    """Return a shelf with its back at y = 0, facing +y.

    The results are the surfaces, the size, and the heights of the boards, on which things can stand.
    """
    long, deep = rng.uniform(0.5, 1.8), rng.uniform(0.22, 0.45)
    high = float(rng.choice([rng.uniform(0.8, 1.1), rng.uniform(1.3, 2.1)], p=[0.3, 0.7]))
    thick = rng.uniform(0.015, 0.03)
    count = max(2, round(high / rng.uniform(0.25, 0.45)))
    levels = [float(z) for z in np.linspace(rng.uniform(0.02, 0.12), high - thick, count)]
    parts: list[Surface] = []
    for level in levels:
        parts += box((-long / 2, 0, level), (long, deep, thick))
    if rng.random() < 0.6:
        for side in (-1, 1):
            parts += box((side * (long / 2) - 0.01, 0, 0), (0.02, deep, high))
    else:
        for side in (-1, 1):
            for y in (0.02, deep - 0.02):
                parts.append(
                    pipe((side * (long / 2 - 0.02), y, 0), (side * (long / 2 - 0.02), y, high), 0.015)
                )
    if rng.random() < 0.4:
        parts += box((-long / 2, 0, 0), (long, 0.01, high))
    return parts, (long, deep, high), levels


def wall_board(rng: Rng) -> tuple[list[Surface], Vector, list[float]]:
    """Return a shelf of one board that hangs on a wall, at the height of a table or above."""
    long, deep, level = rng.uniform(0.4, 1.4), rng.uniform(0.15, 0.35), rng.uniform(0.7, 1.7)
    parts = box((-long / 2, 0, level), (long, deep, 0.025))
    for side in (-1, 1):
        parts.append(
            pipe((0.35 * side * long, 0.01, level - 0.15), (0.35 * side * long, deep - 0.04, level), 0.012)
        )
    return parts, (long, deep, level), [level]


def floor_lamp(rng: Rng) -> list[Surface]:
    high, radius = rng.uniform(1.1, 1.8), rng.uniform(0.16, 0.3)
    parts = drum((0, 0, 0), rng.uniform(0.1, 0.18), 0.025)
    parts.append(pipe((0, 0, 0), (0, 0, high), rng.uniform(0.01, 0.02)))
    return parts + _shade(rng, (0, 0, high), radius)


def desk_lamp(rng: Rng) -> list[Surface]:
    """Return a lamp that stands on furniture, with its foot at zero."""
    reach, high = rng.uniform(0.05, 0.25), rng.uniform(0.25, 0.5)
    parts = drum((0, 0, 0), rng.uniform(0.05, 0.09), 0.02)
    parts += [
        pipe((0, 0, 0), (-reach, 0, 0.6 * high), 0.01),
        pipe((-reach, 0, 0.6 * high), (0, 0, high), 0.01),
    ]
    return parts + _shade(rng, (0, 0, high), rng.uniform(0.05, 0.1))


def hanging_lamp(rng: Rng, ceiling: float) -> list[Surface]:
    low, radius = ceiling - rng.uniform(0.4, 1.1), rng.uniform(0.16, 0.3)
    return [pipe((0, 0, low), (0, 0, ceiling), 0.008), *_shade(rng, (0, 0, low), radius)]


def clutter(rng: Rng, *, max_size: float = 0.4) -> tuple[list[Surface], float]:
    """Return a random object of at most `max_size` metres, and the radius that it needs.

    The object is a box, a pile of books, a ball, a vase, or a bin.
    """
    style = rng.random()
    size = max_size * rng.uniform(0.25, 1.0)
    if style < 0.3:
        a, b, c = size * rng.uniform(0.4, 1, 3)
        return box((-a / 2, -b / 2, 0), (float(a), float(b), float(c))), math.hypot(a, b) / 2
    if style < 0.55:
        parts, level = [], 0.0
        long, wide = rng.uniform(0.15, 0.3), rng.uniform(0.1, 0.22)
        for _ in range(int(rng.integers(1, 6))):
            thick = rng.uniform(0.012, 0.05)
            parts += move_surfaces(
                box((-long / 2, -wide / 2, 0), (long, wide, thick)), (0, 0, level), rng.uniform(-0.3, 0.3)
            )
            level += thick
        return parts, math.hypot(long, wide) / 2
    if style < 0.7:
        return [ball((0, 0, size / 2), size / 2)], size / 2
    if style < 0.85:
        radius = 0.3 * size
        return [
            pipe((0, 0, 0), (0, 0, size), radius, radius * rng.uniform(0.5, 1.4)),
            disc((0, 0, 0.003), radius),
        ], 1.4 * radius
    return drum((0, 0, 0), 0.25 * size, size), 0.25 * size


def coat_stand(rng: Rng) -> list[Surface]:
    """Return a coat stand: clutter that has the pole of a lamp, but no shade."""
    high = rng.uniform(1.2, 1.8)
    parts = [
        *drum((0, 0, 0), rng.uniform(0.12, 0.2), 0.025),
        pipe((0, 0, 0), (0, 0, high), rng.uniform(0.012, 0.022)),
    ]
    for turn in np.linspace(0, 2 * math.pi, 4, endpoint=False):
        parts.append(pipe((0, 0, high - 0.1), (0.15 * math.cos(turn), 0.15 * math.sin(turn), high), 0.01))
    return parts


def _legs(rng: Rng, long: float, wide: float, high: float) -> list[Surface]:
    radius = rng.uniform(0.012, 0.03)
    x, y, out = long / 2 - 0.05, wide / 2 - 0.05, rng.uniform(0, 0.04)
    return [
        pipe((i * (x + out), j * (y + out), 0), (i * x, j * y, high), radius)
        for i in (-1, 1)
        for j in (-1, 1)
    ]


def _shade(rng: Rng, at: Vector, radius: float) -> list[Surface]:
    x, y, z = at
    if rng.random() < 0.3:
        return [ball((x, y, z), 0.7 * radius)]
    return [pipe((x, y, z - 0.4 * radius), (x, y, z + 0.9 * radius), radius, radius * rng.uniform(0.4, 0.9))]
