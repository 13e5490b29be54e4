"""Operations whose output size or value depends on the data: masks, nonzero, unique, item(), numpy().

Counts are exact where real values are available (shadows). Otherwise they come from a calibration: a
small run of the same code with real values, and one power law per source line. Without a calibration
a count raises `NeedsCalibration`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.data_dependent import counted_outputs
from pinchpoint.backends.torch.data_dependent.count_laws import Bound, Law, resample
from pinchpoint.backends.torch.data_dependent.counted_outputs import (
    ALIGNMENTS,
    COUNTING,
    INDEXING,
    KEPT_BOXES,
)
from pinchpoint.backends.torch.data_dependent.decisions import (
    Decisions,
    asked_by_package,
    exchanged_by_package,
)
from pinchpoint.backends.torch.data_dependent.nonzero_counts import NonzeroCounts, has_no_mask, is_whole
from pinchpoint.backends.torch.data_dependent.shadow_values import Shadows
from pinchpoint.backends.torch.data_dependent.unknown_values import DataFloat, DataNumber, NeedsCalibration
from pinchpoint.backends.torch.ledger import Site

_aten = torch.ops.aten
_ALIKE = {_aten.equal.default: True, _aten.allclose.default: True}

# Operations whose boolean result is most likely true in a run without NaN or infinity.
_LIKELY_TRUE = ("isfinite", "all", "any", "logical_not")

_SAMPLED = 512  # values stored from each array that is read, for the first _TURNS reads of a line
_TURNS = 64
_FEW = 256  # elements of a mask whose places are taken to be the first ones
_LARGE_FLOAT = 1000.0  # that an unknown float of an array is guessed to be
_LARGER = 8  # times its own number is what another rank of a parallel job is taken to have
_NAMED_COUNT = 100  # a smaller number is more likely a class or an index, and has no uncertainty


@dataclass
class Dynamic:
    """Provides data-dependent values and counts for one run.

    calibrating: compute real values for everything and record what each line reads
    assume: without a law, assume half of the possible count (mid), one (low) or all (high)
    guess: use this value for every unknown number that is read, to see whether it matters
    """

    laws: Mapping[str, Law] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, list[float]] = field(default_factory=dict)
    bound: Bound = "mid"
    calibrating: bool = False
    assume: bool = False
    guess: int | None = None
    decisions: Decisions = field(default_factory=Decisions)
    # Whether enough was seen: values that are new from here on are assumed.
    is_late: Callable[[], bool] = lambda: False
    optimizer_steps: Callable[[], int] = lambda: 0  # taken so far
    events: Callable[[], int] = lambda: 0  # allocations and frees so far
    size: int = 0  # points of the run; values read with item() are fitted against it
    most: Callable[[], int] = lambda: 1  # without a size: the largest dimension so far
    add_reason: Callable[[str, str], None] = lambda site, what: None  # why it is unknown what fits
    unknown_site: str = ""  # the line that last read an unknown count
    unknown_limit: int | None = None  # the largest possible count of the mask that needs a calibration
    largest: tuple[int, str] = (0, "")  # the largest count computed from the data, and its line
    counts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    scalars: dict[str, list[float]] = field(default_factory=dict)
    array_samples: dict[str, list[float]] = field(default_factory=dict)
    reads: int = 0  # how often values or counts were asked for
    late_sites: dict[str, None] = field(default_factory=dict)  # lines with masks that are used late, in order
    late_numbers: dict[str, None] = field(default_factory=dict)  # lines that read numbers late, in order
    late_guess: int = 1  # which these numbers are taken to be
    float_arrays: dict[str, bool] = field(
        default_factory=dict
    )  # lines that read some -> whether any was late
    float_guess: int = 0  # which these are taken to be: see `floats`
    received: dict[str, float] = field(default_factory=dict)  # lines with numbers of other ranks -> largest
    missed: dict[str, None] = field(default_factory=dict)  # lines with numbers of others that are unknown
    larger_received: bool = False  # whether these numbers are taken to be larger than those of this rank
    nonzero: NonzeroCounts = field(default_factory=NonzeroCounts)
    _turns: dict[str, int] = field(default_factory=dict)
    _memo: dict[tuple[Any, ...], tuple[Any, int]] = field(default_factory=dict)

    def receive(self, own: torch.Tensor, where: str) -> torch.Tensor:
        """Numbers of other ranks: those of this rank, or larger ones to see if they matter.

        What packages exchange among themselves, such as checks that all ranks agree, is taken to agree.
        """
        if exchanged_by_package():
            return own.clone()
        most = float(own.max()) if own.numel() else 0.0
        self.received[where] = max(self.received.get(where, 0), most)
        if not self.larger_received:
            return own.clone()
        return ~own if own.dtype is torch.bool else own * _LARGER + 1

    def miss_received(self, where: str) -> None:
        """Keep the line that gets whole numbers of other ranks, for which none of this rank can stand."""
        if not exchanged_by_package():
            self.missed[where] = None

    def shadow_limit(self, usual: int) -> int:
        return 2**62 if self.calibrating else usual

    def handles(self, func: Any) -> bool:
        return (
            func in COUNTING
            or func in INDEXING
            or func in _ALIKE
            or func in ALIGNMENTS
            or func is _aten._local_scalar_dense.default
            or func.name() in KEPT_BOXES
        )

    def run(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        *,
        shadow: Any,
        plain: Callable[..., Any],
        site: Site,
        shadows: Shadows,
    ) -> Any:
        where = f"{site.file}:{site.line}"
        self.reads += not (func in INDEXING and has_no_mask(args[1]))
        if func is _aten._local_scalar_dense.default:
            return self.value(args[0], shadow, where)
        if func in _ALIKE:
            return self.decide(_ALIKE[func]) if shadow is None else shadow
        if func in INDEXING:
            return counted_outputs.index(self, func, args, kwargs, plain, where, shadows)
        if func in ALIGNMENTS:
            return counted_outputs.align(self, args, plain, where, shadows)
        rows = counted_outputs.rows(self, func, args, kwargs, shadow, plain, where)
        if func is _aten.nonzero.default and shadow is None and args[0].dim() == 1 and len(rows) <= _FEW:
            # A loop over the few places of a mask uses them as indices: they are the first ones.
            shadows.set_value(rows, torch.arange(len(rows)).unsqueeze(1))
        return rows

    # --- Values

    def value(self, tensor: torch.Tensor, shadow: Any, where: str) -> Any:
        key = f"{where}:item"
        if shadow is not None:
            if self.calibrating:
                self.scalars.setdefault(key, []).append(float(shadow))
                if isinstance(shadow, int) and not isinstance(shadow, bool) and shadow >= 0:
                    self.counts.setdefault(key, []).append((self._points(), shadow))
            return shadow
        if not is_whole(tensor):
            if key in self.values:
                return self.decide(bool(self.values[key])) if tensor.dtype is torch.bool else self.values[key]
            operation = getattr(tensor, "_pinchpoint_op", "")
            if tensor.dtype is torch.bool:
                return self.decide(any(word in operation for word in _LIKELY_TRUE))
            return 1.0
        return self._number(key, key)

    def decide(self, likely: bool) -> bool:
        """The way a branch goes that depends on an unknown value; in a calibration values are real."""
        if self.calibrating:
            return likely
        steps = self.optimizer_steps()
        is_late = bool(steps) and self.is_late()
        return self.decisions.decide(likely, steps, is_late=is_late, events=self.events())

    def _number(self, key: str, turn: str) -> int:
        """An unknown whole number: from a law, from the calibration, guessed, assumed, or an error."""
        law = self.laws.get(turn) or self.laws.get(key)
        value = self.values.get(turn, self.values.get(key))
        if law is not None and (self.size or (self.bound != "mid" and (value or 0) >= _NAMED_COUNT)):
            return law.count(self._points(), self.bound)
        if value is not None:
            return int(value)
        if self.guess is not None:
            return self.guess
        if self.calibrating:
            return 1  # read from a host tensor that is too large to allocate
        if self.assume:
            return self._assumed(self.size or self.most())
        if self._assume_late(key, is_number=True):
            return self._late_number()
        raise NeedsCalibration(key)

    def _assume_late(self, key: str, *, is_number: bool = False) -> bool:
        """Whether a value may be assumed because it is read late; the line is kept.

        is_number: whether any number is possible, so that another one is tried too if the script reads it.
        """
        if not self.is_late():
            return False
        lines = self.late_numbers if is_number and not asked_by_package() else self.late_sites
        lines[key.rsplit(":", 1)[0]] = None
        return True

    def _late_number(self) -> int:
        return 1 if asked_by_package() else self.late_guess

    def _assume_number(self, key: str) -> bool:
        return self._assume_late(key, is_number=True)

    def _points(self) -> int:
        """The size that numbers are fitted against; 1 for a script, whose only run has no size."""
        return max(self.size, 1)

    def number(
        self,
        tensor: torch.Tensor,
        real: torch.Tensor | None,
        plain: Callable[[], Any],
        line: Callable[[], str],
    ) -> Any:
        """The result of item(). plain: torch's own result; line: the line that runs when it is called.

        An unknown whole number can be logged but not used; a float can be logged, and int() makes it a count.
        """
        self.reads += 1
        is_known = real is not None and not self.calibrating
        if is_whole(tensor) and tensor.numel() == 1 and real is None and not self.calibrating:
            key = f"{line()}:item"
            if key not in self.laws and key not in self.values and self.guess is None and not self.assume:
                self.unknown_site = key
                return DataNumber(key, self._late_number(), self.decide, self._assume_number)
        value = plain()
        return (
            value
            if is_known or type(value) is not float
            else DataFloat(value, lambda count: self._whole(count, line()), self.decide)
        )

    def _whole(self, count: int, where: str) -> int:
        """The count that a float is converted to at this line: `count` if the float's value is real."""
        key = f"{where}:int"
        turn = self._turn(key)
        if not self.calibrating:
            return self._number(key, turn)
        for name in (key, turn):
            self.scalars.setdefault(name, []).append(count)
            if count >= 0:
                self.counts.setdefault(name, []).append((self._points(), count))
        return count

    def array(
        self, tensor: torch.Tensor, real: np.ndarray[Any, Any] | None, dtype: Any, where: str
    ) -> np.ndarray[Any, Any] | None:
        """The result of numpy() and tolist(): the data, or values like the calibration's.

        None for unknown floats.
        """
        key = f"{where}:array"
        self.reads += 1
        turn = self._turn(key)
        is_count = tensor.dtype is torch.bool or is_whole(tensor)
        if real is not None:
            if self.calibrating:
                self._sample(real, is_count, key, turn)
            return real
        shape, size = tuple(tensor.shape), tensor.numel()
        sample = self.samples.get(turn) or self.samples.get(key)
        if sample:
            law = self.laws.get(turn) or self.laws.get(key)
            return resample(sample, law, dtype, size, self._points(), self.bound).reshape(shape)
        if is_count and not (self.calibrating or self.assume):
            if self.guess is None and not self._assume_late(key, is_number=True):
                raise NeedsCalibration(key)
            most = self._late_number() + 1 if self.guess is None else self.guess
            return (np.arange(size) % (most or 2)).astype(dtype).reshape(shape)
        return None

    def floats(self, shape: tuple[int, ...], dtype: Any, where: str) -> np.ndarray[Any, Any]:
        """An array of unknown floats: zeros; by another guess ones, or large values of both signs in turn."""
        if self.calibrating or asked_by_package():
            return np.zeros(shape, dtype)
        self.float_arrays[where] = self.float_arrays.get(where, False) or self.is_late()
        if not self.float_guess or not (self.is_late() or not self.optimizer_steps()):
            # Allocated by calloc: a large result takes no memory until it is written to.
            return np.zeros(shape, dtype)
        if self.float_guess == 1:
            return np.ones(shape, dtype)
        array = np.full(shape, _LARGE_FLOAT, dtype)
        array.reshape(-1)[1::2] *= -1
        return array

    def _sample(self, real: np.ndarray[Any, Any], is_count: bool, key: str, turn: str) -> None:
        if np.iscomplexobj(real):
            return
        flat = real.reshape(-1)
        some = flat[:: -(-len(flat) // _SAMPLED) or 1].astype(np.float64).tolist()
        for name in (key, turn) if self._turns[key] <= _TURNS else (key,):
            self.array_samples[name] = some
            if is_count:
                total = int(np.abs(flat.astype(np.int64)).sum())
                self.counts.setdefault(name, []).append(
                    (len(flat) if flat.dtype == np.bool_ else self._points(), total)
                )

    def calibration_results(self) -> dict[str, Any]:
        """The results of a calibration, for `count_laws.dynamic_options`."""
        return {"seen": self.counts, "values": self.scalars, "samples": self.array_samples}

    # --- Counts

    def count(
        self, tensor: torch.Tensor, real: int | None, key: str, most: int, known_limit: int | None = None
    ) -> int:
        """A count from the data, an earlier use of the same mask, a law or an assumption; else an error.

        most: the number of elements, for which laws are fitted. known_limit: a smaller one. A
        whole mask that a known number of elements was written to most likely has that number.
        """
        if real is not None:
            if self.calibrating:
                for name in (key, self._turn(key)):
                    self.counts.setdefault(name, []).append((most, real))
            elif real > self.largest[0]:
                self.largest = (real, key)
            return real
        storage = tensor.untyped_storage()
        memo = (
            compat.storage_key(storage),
            tensor.storage_offset(),
            tuple(tensor.shape),
            compat.version(tensor),
        )
        entry = self._memo.get(memo)
        if entry is not None and entry[0]() is storage:
            return entry[1]
        law = self.laws.get(self._turn(key)) or self.laws.get(key)
        share = self.nonzero.share(tensor)
        limit = most if known_limit is None else known_limit
        if law is not None and share is not None and share.parts is not None:
            # The parts of a fixed total: more in one part is less in the others.
            likely = law.count(most, "high" if self.bound == "high" else "mid")
            count = share.take_counted(min(likely, limit), limit)
        elif law is not None:
            # At least one if one is possible: many losses treat an empty tensor as a special case.
            least = min(1, law.count(most, "high"), limit)
            # Fewer parts of a total would each have more: the number of parts has no range of its own.
            bound = "mid" if self.nonzero.is_hit_list(tensor) else self.bound
            count = max(least, min(law.count(most, bound), limit))
        elif known_limit is not None and tensor.numel() * tensor.element_size() == storage.nbytes():
            count = known_limit
        elif self.nonzero.is_hit_list(tensor):
            count = most
        elif self.assume or self.calibrating:
            # A calibration does not know every value either: some weights are too large to hold.
            count = share.take(limit, self.bound) if share is not None else self._assumed(limit)
        elif self._assume_late(key):
            count = limit
        else:
            self.unknown_limit = limit
            raise NeedsCalibration(key)
        self._memo[memo] = (weakref.ref(storage), count)
        return count

    def unlimited(self, tensor: torch.Tensor, real: int | None, key: str) -> int:
        """A count that is limited by values, not by the number of elements, of which one is assumed each."""
        most = tensor.numel()
        law = self.laws.get(key)
        if real is not None or (law is None and not self.assume):
            return self.count(tensor, real, key, most)
        if law is not None:
            return law.count(most, self.bound)
        self.add_reason(key, "the size of its result depends on unknown values and has no upper limit")
        return most

    def _assumed(self, most: int) -> int:
        return {"low": min(1, most), "mid": -(-most // 2), "high": most}[self.bound]

    def _turn(self, key: str) -> str:
        """The key of a line and its turn: a network's mask changes from step to step."""
        self._turns[key] = self._turns.get(key, 0) + 1
        return f"{key}#{self._turns[key]}"
