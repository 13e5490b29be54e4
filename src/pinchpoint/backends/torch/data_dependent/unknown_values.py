"""Numbers that nobody knows: what stands for one, and how asking too much of it is told."""

from __future__ import annotations

import math
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
        if type(made) is float:
            return DataFloat(made, self._refuse)
        return DataNumber(self.site, made) if type(made) is int else made

    def _refuse(self, count: int) -> int:
        raise NeedsCalibration(self.site)

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

    def __mod__(self, other: Any) -> Any:
        return self._with(operator.mod, other)

    def __truediv__(self, other: Any) -> Any:
        return self._with(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(lambda a, b: b / a, other)

    __radd__ = __add__
    __rmul__ = __mul__

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

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


class DataFloat(float):
    """A float read from the device: a float to every library, but its data decide what int() makes of it.

    whole: told the count that int(), round(), floor or ceil would give, answers with the one to use; it
    raises `NeedsCalibration` where nobody knows. Arithmetic keeps it; float() and numpy give plain values.
    """

    _whole: Callable[[int], int]

    def __new__(cls, value: float, whole: Callable[[int], int] | None = None) -> Any:
        if whole is None:
            return float(value)  # a library that rebuilds numbers by their type
        made = super().__new__(cls, value)
        made._whole = whole
        return made

    def __int__(self) -> int:
        return self._whole(int(float(self)))

    __trunc__ = __int__

    def __floor__(self) -> int:
        return self._whole(math.floor(float(self)))

    def __ceil__(self) -> int:
        return self._whole(math.ceil(float(self)))

    def __round__(self, digits: Any = None) -> Any:
        if digits is None:
            return self._whole(round(float(self)))
        return DataFloat(round(float(self), digits), self._whole)

    def _keep(self, made: Any) -> Any:
        return DataFloat(made, self._whole) if type(made) is float else made

    def __add__(self, other: Any) -> Any:
        return self._keep(float.__add__(self, other))

    def __sub__(self, other: Any) -> Any:
        return self._keep(float.__sub__(self, other))

    def __rsub__(self, other: Any) -> Any:
        return self._keep(float.__rsub__(self, other))

    def __mul__(self, other: Any) -> Any:
        return self._keep(float.__mul__(self, other))

    def __truediv__(self, other: Any) -> Any:
        return self._keep(float.__truediv__(self, other))

    def __rtruediv__(self, other: Any) -> Any:
        return self._keep(float.__rtruediv__(self, other))

    def __floordiv__(self, other: Any) -> Any:
        return self._keep(float.__floordiv__(self, other))

    def __mod__(self, other: Any) -> Any:
        return self._keep(float.__mod__(self, other))

    def __pow__(self, other: Any, modulo: None = None) -> Any:
        return self._keep(float.__pow__(self, other))

    def __neg__(self) -> Any:
        return self._keep(float.__neg__(self))

    def __abs__(self) -> Any:
        return self._keep(float.__abs__(self))

    __radd__ = __add__
    __rmul__ = __mul__

    def __copy__(self) -> DataFloat:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DataFloat:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)  # to another process goes the value alone


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
