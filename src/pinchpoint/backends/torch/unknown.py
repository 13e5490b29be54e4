"""Counts that nobody knows: what stands for one, and how asking too much of it is told."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any


class NeedsCalibration(Exception):
    """A count depends on data that only a real run can show."""

    def __init__(self, site: str) -> None:
        super().__init__(site)
        self.site = site


class DataNumber:
    """A count read from the device whose data is unknown: fine to log, not to size a tensor with.

    No int: as one it would slip through torch's argument parser. Used as a size or an index it
    raises `NeedsCalibration`; in arithmetic and in print it stands for one.
    """

    def __init__(self, site: str, value: int = 1) -> None:
        self.site, self.value = site, value

    def __index__(self) -> int:
        raise NeedsCalibration(self.site)

    __int__ = __index__

    def _with(self, work: Callable[[Any, Any], Any], other: Any) -> Any:
        made = work(self.value, other.value if isinstance(other, DataNumber) else other)
        return DataNumber(self.site, made) if type(made) is int else made

    def __add__(self, other: Any) -> Any:
        return self._with(operator.add, other)

    def __sub__(self, other: Any) -> Any:
        return self._with(operator.sub, other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(lambda a, b: b - a, other)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, other)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(operator.floordiv, other)

    def __truediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(lambda a, b: b / a, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __float__(self) -> float:
        return float(self.value)

    def __round__(self, digits: int | None = None) -> Any:
        return self

    def __eq__(self, other: object) -> bool:
        return bool(self._with(operator.eq, other))

    def __lt__(self, other: Any) -> bool:
        return bool(self._with(operator.lt, other))

    def __gt__(self, other: Any) -> bool:
        return bool(self._with(operator.gt, other))

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __hash__(self) -> int:
        return hash(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __repr__(self) -> str:
        return str(self.value)


def calibration_wanted(error: BaseException | None, unknown: str) -> str | None:
    """The line whose count is unknown, if that is what an error came from; libraries wrap errors.

    torch refuses an unknown count as a size with a TypeError of its own, in one of many wordings. A
    TypeError of the user's own comes up again in the calibration and is reported from there.
    """
    while error is not None:
        if isinstance(error, NeedsCalibration):
            return error.site
        if isinstance(error, TypeError) and unknown:
            return unknown
        error = error.__cause__ or error.__context__
    return None
