"""Comparison of a variant's values and gradients with its baseline: the errors, and where the worst is.

The module takes plain arrays and uses no framework. The error is the relative L2 error of a whole
array, so that one wrong row among many is still visible. Shapes must be equal, NaN and infinity are
refused, and a gradient that is missing or zero where the baseline has one fails, whatever its size. Only
a parameter's gradient that consists of rounding errors is compared with the size of that rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pinchpoint.core.workload import Probe, Tolerance

# A sum over all points that is exactly zero without rounding may reach this many units of the rounding of the
# largest gradients.
ROUNDING = 4.0


@dataclass(frozen=True)
class Rounding:
    """The size of rounding errors in a gradient that should be zero: per element (`rms`), in total (`norm`).

    Both limits apply, because either alone mistakes small numbers for noise: the elements of an array
    of many points are small, and so is every short array beside a very large one.
    """

    rms: float = 0.0
    norm: float = 0.0

    def limit(self, array: np.ndarray) -> float:
        """Return the largest norm that rounding may give an array of this shape."""
        return min(self.norm, self.rms * math.sqrt(array.size))

    def explains(self, array: np.ndarray) -> bool:
        return _norm(array) <= self.limit(array)


NO_ROUNDING = Rounding()


@dataclass(frozen=True)
class Comparison:
    """The comparison of one array with its baseline. `error` is None if it is not a number.

    noise: the baseline's gradient is only rounding, so `tolerance` is that rounding in the units of
    `error`, and `reason` says so. Otherwise `reason` says why the comparison failed.
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
        """The error divided by the tolerance.

        Above 1 it fails, and it is infinite if the error is not a number.
        """
        if self.error is None:
            return math.inf
        if self.tolerance > 0:
            return self.error / self.tolerance
        return math.inf if self.error > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(before: Probe, after: Probe, tolerance: Tolerance, *, at: str = "") -> list[Comparison]:
    """Compare every output and gradient of `after` with `before`.

    `at`, such as "seed 1", is added to each place.
    """
    comparisons = _compare_outputs(before.outputs, after.outputs, tolerance.outputs) + _compare_gradients(
        before.gradients, after.gradients, tolerance.gradients
    )
    return [_with_place(item, at) for item in comparisons]


def compare_counts(before: int, after: int, *, at: str = "") -> Comparison:
    """Compare the numbers of points processed, which must be equal."""
    reason = (
        "" if before == after else f"{after:,} points were processed, but the baseline processed {before:,}"
    )
    return Comparison(
        "processed", "points", abs(after - before) / max(before, 1), 0.0, before == after, at, reason
    )


def _compare_outputs(
    before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float
) -> list[Comparison]:
    comparisons = []
    for name in [*before, *(n for n in after if n not in before)]:
        if name not in before or name not in after:
            owner = "baseline" if name in before else "variant"
            comparisons.append(
                Comparison(name, "output", None, tolerance, False, "", f"only the {owner} has this output")
            )
        else:
            comparisons.append(compare_arrays(name, "output", before[name], after[name], tolerance))
    return comparisons


def _compare_gradients(
    before: Mapping[str, Any], after: Mapping[str, Any], tolerance: float
) -> list[Comparison]:
    arrays = [
        array
        for value in before.values()
        if value is not None and (array := np.asarray(value)).dtype.kind in "fc"
    ]
    rounding = Rounding(
        max((ROUNDING * float(np.finfo(a.dtype).eps) * _rms(a) for a in arrays), default=0.0),
        max((ROUNDING * float(np.finfo(a.dtype).eps) * _norm(a) for a in arrays), default=0.0),
    )
    return [
        compare_gradient(name, before.get(name), after.get(name), tolerance, rounding=rounding)
        for name in [*before, *(n for n in after if n not in before)]
    ]


def compare_gradient(
    name: str, before: Any, after: Any, tolerance: float, *, rounding: Rounding = NO_ROUNDING
) -> Comparison:
    """Compare one gradient; None means no gradient.

    `rounding`: the size up to which the baseline's gradient counts as zero.
    """
    had, has = _is_nonzero(before), _is_nonzero(after)
    if had and after is None:
        return Comparison(
            name, "gradient", 1.0, tolerance, False, "", "there is no gradient, but the baseline has one"
        )
    if had and not has:
        return Comparison(
            name, "gradient", 1.0, tolerance, False, "", "the gradient is zero, but the baseline's is not"
        )
    if before is None or after is None:
        reason = "there is a gradient, but the baseline has none" if has else ""
        return Comparison(name, "gradient", None if has else 0.0, tolerance, not has, "", reason)
    result = compare_arrays(name, "gradient", before, after, tolerance)
    if result.error is None or not result.error or (had and result.ok):
        return result
    old = np.asarray(before)
    if rounding.explains(old):
        # In the units of the error, which is absolute where the baseline is exactly zero.
        limit = rounding.limit(old) / (_norm(old) or math.sqrt(old.size))
        if result.error <= limit:
            reason = (
                "the baseline's gradient is only rounding, given the size of the largest gradients;"
                " it is compared with that rounding instead of the tolerance"
            )
            return replace(result, tolerance=limit, ok=True, reason=reason, noise=True)
    return (
        result
        if had
        else replace(
            result, tolerance=0.0, ok=False, reason="the gradient is not zero, but the baseline's is"
        )
    )


def compare_arrays(name: str, what: str, before: Any, after: Any, tolerance: float) -> Comparison:
    """Compare two arrays of the same shape."""
    old, new = np.asarray(before), np.asarray(after)
    refusal = why_incomparable(old, new)
    if refusal:
        return Comparison(name, what, None, tolerance, False, *refusal)
    if old.size == 0:
        return Comparison(name, what, 0.0, tolerance, True)
    if old.dtype.kind in "biu" and new.dtype.kind in "biu":
        wrong = old != new
        error, limit = float(wrong.mean()), 0.0
        worst = int(wrong.argmax())
    else:
        kind = np.complex128 if "c" in (old.dtype.kind, new.dtype.kind) else np.float64
        difference = np.abs(new.astype(kind) - old.astype(kind))
        norm = _norm(old)
        # Where the baseline is exactly zero the error is absolute, because there is nothing to divide by.
        error, limit = _norm(difference) / norm if norm > 0 else _rms(difference), tolerance
        worst = int(difference.argmax())
    ok = error <= limit
    where = _place(old, new, worst)
    return Comparison(name, what, error, limit, ok, where, "" if ok else _reason(old, new, error, limit))


def why_incomparable(old: np.ndarray, new: np.ndarray) -> tuple[str, str] | None:
    """Return where and why two arrays cannot be compared, or None if they can."""
    if old.dtype.kind not in "biufc" or new.dtype.kind not in "biufc":
        return "", f"the values are not arrays of numbers ({old.dtype} and {new.dtype})"
    if old.shape != new.shape:
        transposed = new.shape == old.shape[::-1] and np.array_equal(new, old.T)
        explanation = ": it is the baseline's result transposed" if transposed else ""
        return "", f"the shape is {_shape(new)}, but the baseline's is {_shape(old)}{explanation}"
    for subject, array in (("", new), ("in the baseline itself, ", old)):
        if array.dtype.kind in "fc" and not np.isfinite(array).all():
            bad = ~np.isfinite(array)
            first = np.unravel_index(int(bad.argmax()), array.shape)
            kind = "NaN" if np.isnan(array[first]) else "infinity"
            counts = f"{int(bad.sum()):,} of {array.size:,}"
            return _index(first), f"{subject}{counts} values are not finite; the first is {kind}"
    return None


def _reason(old: np.ndarray, new: np.ndarray, error: float, limit: float) -> str:
    text = f"the error is {error:.2e}, but {limit:.0e} is allowed"
    if (
        old.ndim >= 2
        and old.shape[-1] == old.shape[-2]
        and np.allclose(new, np.swapaxes(old, -1, -2), rtol=1e-3, atol=0)
    ):
        return f"{text}: it is the baseline's result transposed"
    if old.ndim >= 1 and len(old) > 1:
        difference = np.abs(new.astype(np.complex128) - old.astype(np.complex128)).reshape(len(old), -1)
        wrong = difference.max(axis=1) > max(limit, 1e-12) * (_rms(old) or 1.0)
        first = int(np.argmax(wrong))
        if first > 0 and bool(np.all(wrong[first:])):
            return f"{text}: rows {first:,} to {len(old) - 1:,} of {len(old):,} are wrong; all before agree"
    return text


def _is_nonzero(value: Any) -> bool:
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
