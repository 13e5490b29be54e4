"""The rooms of a dataset: one order per room, with its name and everything that determines it.

Training rooms are numbered from 0 and test rooms from 900,000, so datasets of every size share the same test
rooms.
"""

from __future__ import annotations

from dataclasses import dataclass

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.rooms import check_points, room_name

FIRST_TEST = 900_000


@dataclass(frozen=True)
class Order:
    """One room to make."""

    name: str
    seed: int
    number: int
    points: int
    gaussians: bool


def orders_of(*, train: int, test: int, points: int, seed: int, gaussians: bool) -> list[Order]:
    """Return the orders, training rooms first. Raises BadInput for counts that make no dataset."""
    if train < 0 or test < 0 or train + test == 0 or train > FIRST_TEST:
        raise BadInput(
            f"A dataset cannot have {train:,} rooms for training and {test:,} for testing.",
            hint=f"Ask for at least one room in total, and for at most {FIRST_TEST:,} for training.",
        )
    if seed < 0:
        raise BadInput(f"The seed {seed} is negative.", hint="Give a seed of 0 or more.")
    check_points(points)
    numbers = (*range(train), *range(FIRST_TEST, FIRST_TEST + test))
    return [Order(room_name(number), seed, number, points, gaussians) for number in numbers]
