"""Numbers with unknown values (`DataNumber`, `DataFloat`), and the error when a value is needed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any


class NeedsCalibration(Exception):
    """A count depends on data that only a real run provides."""

    def __init__(self, site: str) -> None:
        super().__init__(site)
        self.site = site


Decide = Callable[[bool], bool]


def _as_likely(likely: bool) -> bool:
    return likely


class DataNumber:
    """A count read from the device whose data is unknown: it can be logged, but not used as a size.

    It is not an int, which torch's argument parser would accept. Used as a size or an index it raises
    `NeedsCalibration`, unless `late` accepts its site; in arithmetic and in print its value is `value`.
    """

    def __init__(
        self,
        site: str,
        value: int = 1,
        decide: Decide = _as_likely,
        late: Callable[[str], bool] = lambda site: False,
    ) -> None:
        self.site, self.value, self._decide, self._late = site, value, decide, late

    def __index__(self) -> int:
        return self._refuse(self.value)

    __int__ = __index__

    def _with(self, work: Callable[[Any, Any], Any], other: Any) -> Any:
        result = work(self.value, other.value if isinstance(other, DataNumber) else other)
        if type(result) is float:
            return DataFloat(result, self._refuse, self._decide)
        return DataNumber(self.site, result, self._decide, self._late) if type(result) is int else result

    def _refuse(self, count: int) -> int:
        if self._late(self.site):
            return count
        raise NeedsCalibration(self.site)

    def _compare(self, work: Callable[[Any, Any], Any], other: Any) -> bool:
        return self._decide(bool(self._with(work, other)))

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
        return self._decide(bool(self.value))

    def __round__(self, digits: int | None = None) -> Any:
        return self

    def __eq__(self, other: object) -> bool:
        return self._compare(operator.eq, other)

    def __lt__(self, other: Any) -> bool:
        return self._compare(operator.lt, other)

    def __gt__(self, other: Any) -> bool:
        return self._compare(operator.gt, other)

    def __le__(self, other: Any) -> bool:
        return self._compare(operator.le, other)

    def __ge__(self, other: Any) -> bool:
        return self._compare(operator.ge, other)

    def __hash__(self) -> int:
        return hash(self.value)

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)

    def __repr__(self) -> str:
        return str(self.value)


class DataFloat(float):
    """A float read from the device; libraries see an ordinary float, but int() of it depends on its data.

    whole: takes the count that int(), round(), floor or ceil would return and returns the one to use; it
    raises `NeedsCalibration` if that is unknown. decide: takes the answer that a comparison would give and
    returns the one to use. Arithmetic returns a DataFloat again; float() and numpy return plain values.
    """

    _whole: Callable[[int], int]
    _decide: Decide

    def __new__(
        cls, value: float, whole: Callable[[int], int] | None = None, decide: Decide = _as_likely
    ) -> Any:
        if whole is None:
            return float(value)  # for a library that rebuilds numbers by their type
        number = super().__new__(cls, value)
        number._whole, number._decide = whole, decide
        return number

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
        return DataFloat(round(float(self), digits), self._whole, self._decide)

    def _keep(self, value: Any) -> Any:
        return DataFloat(value, self._whole, self._decide) if type(value) is float else value

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

    def __bool__(self) -> bool:
        return self._decide(float(self) != 0)

    def __lt__(self, other: Any) -> Any:
        return self._compare(float.__lt__(self, _plain(other)), other)

    def __le__(self, other: Any) -> Any:
        return self._compare(float.__le__(self, _plain(other)), other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(float.__gt__(self, _plain(other)), other)

    def __ge__(self, other: Any) -> Any:
        return self._compare(float.__ge__(self, _plain(other)), other)

    def _compare(self, likely: Any, other: Any) -> Any:
        if not isinstance(likely, bool) or (type(other) is float and math.isinf(other)):
            return likely  # values are finite: `loss < best` is certain while `best` is infinite
        return self._decide(likely)

    def __copy__(self) -> DataFloat:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> DataFloat:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)  # another process receives only the value


def _plain(other: Any) -> Any:
    return float(other) if isinstance(other, DataNumber) else other


def calibration_site(error: BaseException | None, unknown: str) -> str | None:
    """The line whose count is unknown, if that caused the error, which libraries may have wrapped.

    torch refuses an unknown count as a size with a TypeError in one of many wordings. A TypeError of the
    user's own code occurs again in the calibration and is reported from there.
    """
    while error is not None:
        if isinstance(error, NeedsCalibration):
            return error.site
        if isinstance(error, TypeError) and unknown:
            return unknown
        error = error.__cause__ or error.__context__
    return None
