"""Values and gradients of a variant against its baseline: how far apart, and where the worst is.

Arrays in, comparisons out; no framework. The error is the relative L2 error of a whole array, so
one wrong row of many still shows; shapes must be equal, NaN and infinity are refused, and a
gradient that is missing or zero where the baseline has one is a failure whatever its size. Only a
parameter's gradient that is zero but for rounding is held against that rounding instead.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pinchpoint.core.workload import Probe, Tolerance

# A sum over all points that is zero but for rounding keeps this many units of the largest gradients' rounding.
ROUNDING = 4.0


@dataclass(frozen=True)
class Rounding:
    """What rounding leaves of a gradient that would be zero without: `rms` by element, `norm` of the whole array.

    Both, since either alone takes small numbers for noise: elements are small in an array of many
    points, and beside a very large array every short one is.
    """

    rms: float = 0.0
    norm: float = 0.0

    def of(self, array: np.ndarray) -> float:
        """The norm an array of this shape may have."""
        return min(self.norm, self.rms * math.sqrt(array.size))

    def is_all_of(self, array: np.ndarray) -> bool:
        return _norm(array) <= self.of(array)


NO_ROUNDING = Rounding()


@dataclass(frozen=True)
class Comparison:
    """One array held against its baseline. `error` is None where it is no number.

    noise: the baseline's gradient is rounding and no more, so `tolerance` is that rounding in the
    units of `error`; `reason` says so. Elsewhere `reason` is why it is not ok.
    """

    name: str
    what: str  # output, gradient, points, distribution
    error: float | None
    tolerance: float
    ok: bool
    where: str = ""
    reason: str = ""
    noise: bool = False

    @property
    def strain(self) -> float:
        """How near its tolerance: above 1 is beyond it, infinite where the error is no number."""
        if self.error is None:
            return math.inf
        if self.tolerance > 0:
            return self.error / self.tolerance
        return math.inf if self.error > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(before: Probe, after: Probe, tolerance: Tolerance, *, at: str = "") -> list[Comparison]:
    """Every output and gradient of `after` against `before`. `at` is added to each place, such as "seed 1"."""
    found = _outputs(before.outputs, after.outputs, tolerance.outputs) + _gradients(
        before.gradients, after.gradients, tolerance.gradients
    )
    return [_with_place(item, at) for item in found]


def points(before: int, after: int, *, at: str = "") -> Comparison:
    """The points really pushed through must be as many."""
    reason = "" if before == after else f"{after:,} points were processed, the baseline processed {before:,}"
    return Comparison(
        "processed", "points", abs(after - before) / max(before, 1), 0.0, before == after, at, reason
    )


def _outputs(before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float) -> list[Comparison]:
    found = []
    for name in [*before, *(n for n in after if n not in before)]:
        if name not in before or name not in after:
            owner = "baseline" if name in before else "variant"
            found.append(
                Comparison(name, "output", None, tolerance, False, "", f"only the {owner} has this output")
            )
        else:
            found.append(arrays(name, "output", before[name], after[name], tolerance))
    return found


def _gradients(before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float) -> list[Comparison]:
    known = [
        array
        for value in before.values()
        if value is not None and (array := np.asarray(value)).dtype.kind in "fc"
    ]
    rounding = Rounding(
        max((ROUNDING * float(np.finfo(a.dtype).eps) * _rms(a) for a in known), default=0.0),
        max((ROUNDING * float(np.finfo(a.dtype).eps) * _norm(a) for a in known), default=0.0),
    )
    return [
        gradient(name, before.get(name), after.get(name), tolerance, rounding=rounding)
        for name in [*before, *(n for n in after if n not in before)]
    ]


def gradient(
    name: str, before: Any, after: Any, tolerance: float, *, rounding: Rounding = NO_ROUNDING
) -> Comparison:
    """One gradient; None is no gradient. `rounding`: what a baseline's gradient may be made of and count as none."""
    had, has = _is_something(before), _is_something(after)
    if had and after is None:
        return Comparison(
            name, "gradient", 1.0, tolerance, False, "", "no gradient where the baseline has one"
        )
    if had and not has:
        return Comparison(
            name, "gradient", 1.0, tolerance, False, "", "a zero gradient where the baseline has one"
        )
    if before is None or after is None:
        reason = "a gradient where the baseline has none" if has else ""
        return Comparison(name, "gradient", None if has else 0.0, tolerance, not has, "", reason)
    found = arrays(name, "gradient", before, after, tolerance)
    if found.error is None or not found.error or (had and found.ok):
        return found
    old = np.asarray(before)
    if rounding.is_all_of(old):
        # In the units of the error, which against exact zeros is absolute.
        allowed = rounding.of(old) / (_norm(old) or math.sqrt(old.size))
        if found.error <= allowed:
            said = "rounding and no more, by the size of the largest gradients; held against that, not against the tolerance"
            return replace(found, tolerance=allowed, ok=True, reason=said, noise=True)
    return (
        found
        if had
        else replace(found, tolerance=0.0, ok=False, reason="a gradient where the baseline's is zero")
    )


def arrays(name: str, what: str, before: Any, after: Any, tolerance: float) -> Comparison:
    """One array against another of the same shape."""
    old, new = np.asarray(before), np.asarray(after)
    refused = unusable(old, new)
    if refused:
        return Comparison(name, what, None, tolerance, False, *refused)
    if old.size == 0:
        return Comparison(name, what, 0.0, tolerance, True)
    if old.dtype.kind in "biu" and new.dtype.kind in "biu":
        wrong = old != new
        error, allowed = float(wrong.mean()), 0.0
        worst = int(wrong.argmax())
    else:
        kind = np.complex128 if "c" in (old.dtype.kind, new.dtype.kind) else np.float64
        off = np.abs(new.astype(kind) - old.astype(kind))
        norm = _norm(old)
        # Against a baseline of exact zeros the error is absolute: there is nothing to be relative to.
        error, allowed = _norm(off) / norm if norm > 0 else _rms(off), tolerance
        worst = int(off.argmax())
    ok = error <= allowed
    where = _place(old, new, worst)
    return Comparison(name, what, error, allowed, ok, where, "" if ok else _reason(old, new, error, allowed))


def unusable(old: np.ndarray, new: np.ndarray) -> tuple[str, str] | None:
    """Where and why two arrays cannot be compared at all; None when they can."""
    if old.dtype.kind not in "biufc" or new.dtype.kind not in "biufc":
        return "", f"not an array of numbers ({old.dtype} and {new.dtype})"
    if old.shape != new.shape:
        turned = new.shape == old.shape[::-1] and np.array_equal(new, old.T)
        said = ": the baseline's result transposed" if turned else ""
        return "", f"shape {_shape(new)}, the baseline's is {_shape(old)}{said}"
    for owner, array in (("", new), ("the baseline itself has ", old)):
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            bad = ~np.isfinite(array)
            first = np.unravel_index(int(bad.argmax()), array.shape)
            kind = "NaN" if np.isnan(array[first]) else "infinity"
            return _index(
                first
            ), f"{owner}{int(bad.sum()):,} of {array.size:,} values not finite, the first is {kind}"
    return None


def _reason(old: np.ndarray, new: np.ndarray, error: float, allowed: float) -> str:
    said = f"error {error:.2e}, allowed {allowed:.0e}"
    if (
        old.ndim >= 2
        and old.shape[-1] == old.shape[-2]
        and np.allclose(new, np.swapaxes(old, -1, -2), rtol=1e-3, atol=0)
    ):
        return f"{said}: the baseline's result transposed"
    if old.ndim >= 1 and len(old) > 1:
        off = np.abs(new.astype(np.complex128) - old.astype(np.complex128)).reshape(len(old), -1)
        wrong = off.max(axis=1) > max(allowed, 1e-12) * (_rms(old) or 1.0)
        first = int(np.argmax(wrong))
        if first > 0 and bool(np.all(wrong[first:])):
            return f"{said}: rows {first:,} to {len(old) - 1:,} of {len(old):,} are wrong, all before agree"
    return said


def _is_something(value: Any) -> bool:
    return value is not None and bool(np.any(np.asarray(value)))


def _rms(array: np.ndarray) -> float:
    return _norm(array) / math.sqrt(array.size) if array.size else 0.0


def _norm(array: np.ndarray) -> float:
    return float(np.linalg.norm(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)))


def _place(old: np.ndarray, new: np.ndarray, flat: int) -> str:
    index = np.unravel_index(flat, old.shape)
    return f"{_index(index)}: {_number(new[index])}, baseline {_number(old[index])}"


def _index(index: tuple[Any, ...]) -> str:
    return f"[{', '.join(str(int(i)) for i in index)}]"


def _number(value: Any) -> str:
    return f"{value:.6g}" if np.asarray(value).dtype.kind in "fc" else str(value)


def _shape(array: np.ndarray) -> str:
    return f"({', '.join(str(n) for n in array.shape)})"


def _with_place(item: Comparison, at: str) -> Comparison:
    if not at:
        return item
    where = f"{item.where} ({at})" if item.where else at
    return replace(item, where=where)
