"""`choose`: the modules to recompute so that a run stays below a limit, at the least extra time.

Each row is a stretch of the run: the bytes alive at the most, and what every module would free of them. A
choice must bring every row below the limit. Modules inside each other exclude each other. A first choice is
made greedily, by bytes freed per second, and improved by leaving out and exchanging modules. Then all choices
are gone through that could be cheaper, up to a number of them: few modules have the best choice for certain.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PASSES = 4  # of the improvement
_NODES = 60_000  # partial choices that are looked at for a cheaper one, divided by the number of modules
_WEIGHTS = (0.0, 0.5, 1.0)  # of the time of the host, against that of the GPU, for which choices are made
_HALVINGS = 12  # in the search for the smallest peak


@dataclass(frozen=True)
class Candidate:
    """A module that can be recomputed. freed_bytes: at the most.

    device_s, host_s: what that takes on the GPU and on the host, per step; estimates.
    """

    name: str
    class_name: str
    freed_bytes: int
    device_s: float
    host_s: float = 0.0
    is_layer: bool = False  # one that transformers can recompute by itself
    has_batch_norm: bool = False
    keeps_products: bool = False  # the results of products in it are kept, and only the rest is recomputed


@dataclass(frozen=True)
class Profile:
    """What a run would free if modules were recomputed. rows: bytes alive, and freed bytes by candidate.

    device_s, host_s: what a step takes on the GPU and on the host, without recomputation. The host runs ahead
    of the GPU, so that a step takes the longer of the two.
    """

    candidates: tuple[Candidate, ...]
    rows: tuple[tuple[int, dict[int, int]], ...]
    device_s: float = 0.0
    host_s: float = 0.0

    def peak(self, chosen: Iterable[int] = ()) -> int:
        """The estimated peak with these candidates recomputed."""
        chosen = tuple(chosen)
        return max((alive - sum(freed.get(c, 0) for c in chosen) for alive, freed in self.rows), default=0)

    def seconds(self, chosen: Iterable[int]) -> float:
        """By how much a step becomes longer."""
        return max(self._times(chosen)) - max(self.device_s, self.host_s)

    def is_bound_by_device(self, chosen: Iterable[int]) -> bool:
        device_s, host_s = self._times(chosen)
        return device_s >= host_s

    def _times(self, chosen: Iterable[int]) -> tuple[float, float]:
        chosen = tuple(chosen)
        device_s = self.device_s + sum(self.candidates[c].device_s for c in chosen)
        return device_s, self.host_s + sum(self.candidates[c].host_s for c in chosen)


def read_profile(
    recorded: Mapping[str, Any], *, least_bytes: int = 0, without: Container[str] = ()
) -> Profile:
    """The profile in the forecast of a run that recorded its modules, as `seen["recomputation"]`.

    Outermost modules, those that free less than `least_bytes`, and those of the classes `without` are left
    out.
    """
    numbers: dict[int, int] = {}
    candidates: list[Candidate] = []
    for number, module in enumerate(recorded.get("modules", ())):
        is_useful = module["freed_bytes"] > least_bytes and "." in module["name"]
        if is_useful and module["class"] not in without:
            numbers[number] = len(candidates)
            candidates.append(
                Candidate(
                    module["name"],
                    module["class"],
                    module["freed_bytes"],
                    module["device_s"],
                    module["host_s"],
                    module["is_layer"],
                    module["has_batch_norm"],
                    module["keeps_products"],
                )
            )
    rows = [
        (alive, {numbers[int(at)]: size for at, size in freed.items() if int(at) in numbers})
        for alive, freed in recorded.get("rows", ())
    ]
    return Profile(tuple(candidates), tuple(rows), recorded.get("device_s", 0.0), recorded.get("host_s", 0.0))


def choose(profile: Profile, limit_bytes: int) -> frozenset[int] | None:
    """Numbers of the candidates to recompute; None if no choice is found that stays below the limit."""
    choices: list[frozenset[int]] = []
    for weight in _WEIGHTS:
        search = _Search(profile, limit_bytes, weight)
        if not search.fill():
            return None
        search.improve()
        choices.append(_Branches(profile, limit_bytes, weight, frozenset(search.chosen)).best)
        if not weight and profile.is_bound_by_device(choices[0]):
            break  # the host does not matter
    return min(choices, key=profile.seconds)


def choose_smallest(profile: Profile) -> frozenset[int]:
    """The choice with the smallest peak that is found, whatever its time."""
    low, high, best = 0, profile.peak(), frozenset[int]()
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        search = _Search(profile, middle, weight=0.5)
        if search.fill():
            best, high = frozenset(search.chosen), min(middle, profile.peak(search.chosen))
        else:
            low = middle
    return best


class _Search:
    def __init__(self, profile: Profile, limit_bytes: int, weight: float) -> None:
        self.times = [(1 - weight) * c.device_s + weight * c.host_s for c in profile.candidates]
        rows = [(alive - limit_bytes, freed) for alive, freed in profile.rows if alive > limit_bytes]
        self.excess = [excess for excess, _ in rows]  # bytes above the limit; negative where it is met
        self.freed: list[dict[int, int]] = [{} for _ in profile.candidates]  # row -> bytes, by candidate
        for row, (_, freed) in enumerate(rows):
            for candidate, size in freed.items():
                self.freed[candidate][row] = size
        self.chosen: set[int] = set()
        self.related = _related([candidate.name for candidate in profile.candidates])

    def _change(self, candidate: int, sign: int) -> None:
        for row, size in self.freed[candidate].items():
            self.excess[row] -= sign * size
        (self.chosen.add if sign > 0 else self.chosen.discard)(candidate)

    def _is_met(self) -> bool:
        return all(excess <= 0 for excess in self.excess)

    def _seconds(self, candidate: int) -> float:
        return self.times[candidate]

    def _gain(self, candidate: int, replaced: Sequence[int]) -> int:
        """By how much the excess over all rows falls."""
        change = dict(self.freed[candidate])
        for other in replaced:
            for row, size in self.freed[other].items():
                change[row] = change.get(row, 0) - size
        return sum(max(self.excess[row], 0) - max(self.excess[row] - size, 0) for row, size in change.items())

    def fill(self) -> bool:
        """Add the candidate that frees most per second until every row is below the limit."""
        while not self._is_met():
            best, best_rate, best_replaced = None, 0.0, ()
            for candidate in range(len(self.freed)):
                if candidate in self.chosen:
                    continue
                replaced = tuple(self.related[candidate] & self.chosen)
                gain = self._gain(candidate, replaced)
                seconds = self._seconds(candidate) - sum(map(self._seconds, replaced))
                rate = gain / max(seconds, 1e-9)
                if gain > 0 and rate > best_rate:
                    best, best_rate, best_replaced = candidate, rate, replaced
            if best is None:
                return False
            for other in best_replaced:
                self._change(other, -1)
            self._change(best, 1)
        return True

    def improve(self) -> None:
        for _ in range(_PASSES):
            if not (self._leave_out() | self._exchange()):
                return

    def _leave_out(self) -> bool:
        before = len(self.chosen)
        for candidate in sorted(self.chosen, key=self._seconds, reverse=True):
            self._change(candidate, -1)
            if not self._is_met():
                self._change(candidate, 1)
        return len(self.chosen) < before

    def _exchange(self) -> bool:
        """Replace one chosen module by a cheaper one, or by two that are cheaper together."""
        is_better = False
        for candidate in sorted(self.chosen, key=self._seconds, reverse=True):
            self._change(candidate, -1)
            better = self._cheaper(self._seconds(candidate))
            is_better = is_better or bool(better)
            for other in better or (candidate,):
                self._change(other, 1)
        return is_better

    def _cheaper(self, limit_s: float) -> tuple[int, ...]:
        """The cheapest one or two modules, cheaper than the limit, that meet every row; none: empty."""
        over = [row for row, excess in enumerate(self.excess) if excess > 0]
        free = [
            candidate
            for candidate in range(len(self.freed))
            if candidate not in self.chosen and not self.related[candidate] & self.chosen
        ]
        free = sorted(
            (
                c
                for c in free
                if self._seconds(c) < limit_s and any(self.freed[c].get(r, 0) > 0 for r in over)
            ),
            key=self._seconds,
        )
        best: tuple[int, ...] = ()
        for candidate in free:
            if all(self.excess[row] <= self.freed[candidate].get(row, 0) for row in over):
                best, limit_s = (candidate,), self._seconds(candidate)
                break
        for at, first in enumerate(free):
            if 2 * self._seconds(first) >= limit_s:
                break
            for second in free[at + 1 :]:
                if self._seconds(first) + self._seconds(second) >= limit_s:
                    break
                if second in self.related[first]:
                    continue
                both = (self.freed[first], self.freed[second])
                if all(self.excess[row] <= sum(each.get(row, 0) for each in both) for row in over):
                    best, limit_s = (first, second), self._seconds(first) + self._seconds(second)
                    break
        return best


class _Branches(_Search):
    """Goes through the choices that may be cheaper than the best one so far (branch and bound)."""

    def __init__(self, profile: Profile, limit_bytes: int, weight: float, best: frozenset[int]) -> None:
        super().__init__(profile, limit_bytes, weight)
        self.best, self.best_s = best, sum(map(self._seconds, best))
        self.nodes = 0
        self.order: list[list[int]] = [[] for _ in self.excess]  # by row, those that free most per second
        for candidate, freed in enumerate(self.freed):
            for row, size in freed.items():
                if size > 0:
                    self.order[row].append(candidate)
        for row, candidates in enumerate(self.order):
            candidates.sort(key=lambda c, row=row: -self.freed[c][row] / max(self._seconds(c), 1e-9))
        self._visit(set(), 0.0)

    def _visit(self, excluded: set[int], seconds: float) -> None:
        self.nodes += 1
        row = max(range(len(self.excess)), key=self.excess.__getitem__, default=None)
        if row is None or self.excess[row] <= 0:
            if seconds < self.best_s:
                self.best, self.best_s = frozenset(self.chosen), seconds
            return
        excluded = set(excluded)
        for candidate in self.order[row]:
            if candidate in self.chosen or candidate in excluded:
                continue
            if (
                self.nodes > _NODES // len(self.freed)
                or seconds + self._least_s(row, excluded) >= self.best_s
            ):
                return
            self._change(candidate, 1)
            self._visit(excluded | self.related[candidate], seconds + self._seconds(candidate))
            self._change(candidate, -1)
            excluded.add(candidate)

    def _least_s(self, row: int, excluded: set[int]) -> float:
        """The least seconds to bring one row below the limit, if parts of modules could be recomputed."""
        left, seconds = self.excess[row], 0.0
        for candidate in self.order[row]:
            if candidate in self.chosen or candidate in excluded:
                continue
            size = self.freed[candidate][row]
            if size >= left:
                return seconds + self._seconds(candidate) * left / size
            left, seconds = left - size, seconds + self._seconds(candidate)
        return math.inf


def _related(names: Sequence[str]) -> list[set[int]]:
    """For each candidate, those of modules that it contains or that contain it, and others of the same."""
    numbers: dict[str, list[int]] = {}
    for at, name in enumerate(names):
        numbers.setdefault(name, []).append(at)
    related: list[set[int]] = [set() for _ in names]
    for at, name in enumerate(names):
        related[at].update(other for other in numbers[name] if other != at)
        parent = name
        while "." in parent:
            parent = parent.rpartition(".")[0]
            for other in numbers.get(parent, ()):
                related[at].add(other)
                related[other].add(at)
    return related
