"""Layout of a procedural room: walls with openings, furniture that does not overlap, and things on top of it.

Coordinates are in metres with z up; the origin is in the middle of the floor. Everything is drawn from one
generator, which determines the room.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from pinchpoint.systems.cloud.data import furniture
from pinchpoint.systems.cloud.data.shapes import Surface, Vector, box, flat, move_surfaces

CLASSES = ("floor", "ceiling", "wall", "table", "chair", "shelf", "lamp", "clutter")
_TRIES = 12


@dataclass(frozen=True)
class Thing:
    """One object: its class and its surfaces. It has one colour."""

    label: int
    parts: list[Surface]


@dataclass(frozen=True)
class Layout:
    size: Vector  # of the room
    things: list[Thing] = field(default_factory=list)
    footprints: list[tuple[float, float, float]] = field(default_factory=list)  # x, y, radius on the floor

    def add(self, name: str, parts: list[Surface], to: Vector = (0.0, 0.0, 0.0), turn: float = 0.0) -> None:
        self.things.append(Thing(CLASSES.index(name), move_surfaces(parts, to, turn)))

    def reserve_spot(self, rng: np.random.Generator, radius: float) -> tuple[float, float] | None:
        """Reserve and return a free place on the floor; return None if no try succeeds."""
        half = np.array(self.size[:2]) / 2 - radius - 0.05
        if (half <= 0).any():
            return None
        for x, y in rng.uniform(-half, half, (_TRIES, 2)).tolist():
            if all(math.hypot(x - a, y - b) > radius + r for a, b, r in self.footprints):
                self.footprints.append((x, y, radius))
                return x, y
        return None


def draw_layout(rng: np.random.Generator) -> Layout:
    size = (rng.uniform(2.8, 4.6), rng.uniform(2.8, 4.2), rng.uniform(2.3, 2.9))
    room = Layout(size)
    _shell(rng, room)
    _shelves(rng, room)
    _tables(rng, room)
    for _ in range(int(rng.integers(1, 5))):
        parts, (long, wide, _high) = furniture.chair(rng)
        if spot := room.reserve_spot(rng, math.hypot(long, wide) / 2):
            room.add("chair", parts, (*spot, 0.0), rng.uniform(0, 2 * math.pi))
    for _ in range(int(rng.integers(2, 5))):
        if rng.random() < 0.55:
            if spot := room.reserve_spot(rng, 0.22):
                room.add("lamp", furniture.floor_lamp(rng), (*spot, 0.0))
        else:
            x, y = rng.uniform(-0.35, 0.35, 2) * size[:2]
            room.add("lamp", furniture.hanging_lamp(rng, size[2]), (float(x), float(y), 0.0))
    if rng.random() < 0.6 and (spot := room.reserve_spot(rng, 0.25)):
        room.add("clutter", furniture.coat_stand(rng), (*spot, 0.0))
    for _ in range(int(rng.integers(4, 10))):
        parts, radius = furniture.clutter(rng, max_size=0.7)
        if spot := room.reserve_spot(rng, radius):
            room.add("clutter", parts, (*spot, 0.0), rng.uniform(0, math.pi))
    return room


def _shell(rng: np.random.Generator, room: Layout) -> None:
    a, b, c = room.size
    room.add("floor", [flat((-a / 2, -b / 2, 0), (a, 0, 0), (0, b, 0))])
    room.add("ceiling", [flat((-a / 2, -b / 2, c), (a, 0, 0), (0, b, 0))])
    for place in np.linspace(-0.4, 0.4, int(rng.integers(2, 5))) if rng.random() < 0.25 else ():
        room.add("ceiling", box((-a / 2, float(place) * b, c - 0.15), (a, 0.12, 0.15)))
    for side, (long, deep) in enumerate(((a, b), (b, a), (a, b), (b, a))):
        # A wall is built along x at y = 0, then rotated and shifted to its side.
        turn = side * math.pi / 2
        out = (deep / 2 * math.sin(turn), -deep / 2 * math.cos(turn), 0.0)
        room.add("wall", _wall(rng, long, c), out, turn)
    for _ in range(int(rng.integers(0, 3))):
        thick = rng.uniform(0.12, 0.4)
        x, y = (float(rng.choice([-1, 1])) * (extent / 2 - thick / 2) for extent in (a, b))
        if rng.random() < 0.5:
            x = float(rng.uniform(-0.4, 0.4)) * a
        room.add("wall", box((x - thick / 2, y - thick / 2, 0), (thick, thick, c)))
        room.footprints.append((x, y, 0.6 * thick))


def _wall(rng: np.random.Generator, long: float, high: float) -> list[Surface]:
    """Return a wall along x, centred at zero, with an opening for a door, for a window, or without one."""
    kind = rng.random()
    if kind < 0.35:
        return [flat((-long / 2, 0, 0), (long, 0, 0), (0, 0, high))]
    wide = rng.uniform(0.8, 1.0) if kind < 0.6 else rng.uniform(0.6, 0.6 * long)
    low, top = (0.0, 2.0) if kind < 0.6 else (rng.uniform(0.5, 1.0), rng.uniform(1.5, 2.1))
    left = float(rng.uniform(-long / 2 + 0.1, long / 2 - wide - 0.1))
    parts = [
        flat((-long / 2, 0, 0), (left + long / 2, 0, 0), (0, 0, high)),
        flat((left + wide, 0, 0), (long / 2 - left - wide, 0, 0), (0, 0, high)),
        flat((left, 0, top), (wide, 0, 0), (0, 0, high - top)),
    ]
    return parts if low == 0 else [*parts, flat((left, 0, 0), (wide, 0, 0), (0, 0, low))]


def _shelves(rng: np.random.Generator, room: Layout) -> None:
    a, b, _ = room.size
    for _ in range(int(rng.integers(1, 5))):
        hung = rng.random() < 0.2
        parts, (long, deep, _high), levels = (furniture.wall_board if hung else furniture.shelf)(rng)
        side = int(rng.integers(4))
        run, out = ((a, b), (b, a), (a, b), (b, a))[side]
        along = float(rng.uniform(-1, 1)) * max(0.0, run / 2 - long / 2 - 0.05)
        turn = side * math.pi / 2
        cos, sin = math.cos(turn), math.sin(turn)
        gap = 0.01
        x, y = along * cos + (out / 2 - gap) * sin, along * sin - (out / 2 - gap) * cos
        steps = [t * long / 2 for t in (-0.8, -0.27, 0.27, 0.8)]
        spots = [
            (x + s * cos - deep / 2 * sin, y + s * sin + deep / 2 * cos, 0.3 * deep + long / 10)
            for s in steps
        ]
        if not hung:
            if any(math.hypot(p - q, r - s) < t + u for p, r, t in spots for q, s, u in room.footprints):
                continue
            room.footprints.extend(spots)
        room.add("shelf", parts, (x, y, 0.0), turn)
        for level in levels:
            for _ in range(int(rng.integers(0, 4))):
                thing, radius = furniture.clutter(rng, max_size=0.25)
                if radius > 0.6 * deep:
                    continue
                s, t = float(rng.uniform(-0.4, 0.4)) * long, deep / 2
                spot = (x + s * cos - t * sin, y + s * sin + t * cos, level + 0.03)
                room.add("clutter", thing, spot, turn + rng.uniform(-0.3, 0.3))


def _tables(rng: np.random.Generator, room: Layout) -> None:
    for _ in range(int(rng.integers(1, 4))):
        parts, (long, wide, high) = furniture.table(rng)
        spot = room.reserve_spot(rng, 0.45 * math.hypot(long, wide))
        if spot is None:
            continue
        turn = float(rng.uniform(0, 2 * math.pi))
        room.add("table", parts, (*spot, 0.0), turn)
        for side in range(4):
            if high > 0.6 and rng.random() < 0.45:
                reach = (long if side % 2 == 0 else wide) / 2 + rng.uniform(-0.1, 0.25)
                facing = turn + side * math.pi / 2
                seat, _ = furniture.chair(rng)
                # The back of a chair is at -x, so it is rotated to face the table.
                to = (spot[0] + reach * math.cos(facing), spot[1] + reach * math.sin(facing), 0.0)
                if max(abs(to[0]) - room.size[0] / 2, abs(to[1]) - room.size[1] / 2) < -0.3:
                    room.add("chair", seat, to, facing + math.pi + rng.uniform(-0.4, 0.4))
        for _ in range(int(rng.integers(0, 6))):
            s, t = rng.uniform(-0.33, 0.33, 2) * (long, wide)
            at = (
                spot[0] + s * math.cos(turn) - t * math.sin(turn),
                spot[1] + s * math.sin(turn) + t * math.cos(turn),
                high,
            )
            if rng.random() < 0.15:
                room.add("lamp", furniture.desk_lamp(rng), at, rng.uniform(0, 2 * math.pi))
            else:
                room.add("clutter", furniture.clutter(rng, max_size=0.3)[0], at, rng.uniform(0, 2 * math.pi))
