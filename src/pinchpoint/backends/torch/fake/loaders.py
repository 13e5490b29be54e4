"""DataLoaders on the simulated device, and how a script is led from its training into its evaluation.

Batches are loaded in this process and on the host. Once the training steps are done, the training loader is
looked through for a larger batch, which is trained on too, and then ends, so that the script goes on with
what follows its epoch. Loaders of an evaluation end after a few equal batches; where memory grows with every
batch, the remaining ones are written to the ledger (see `repetition`). None of this happens before the
training steps are done.
"""

from __future__ import annotations

import functools
import inspect
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.fake.progress import Progress
from pinchpoint.backends.torch.ledger import kind_of_file
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.repetition import Repetition

_LOADER, _SERVED = "_pinchpoint_loader", "_pinchpoint_served"
_LOOKED_AT = 256  # batches of a loader that are looked through for a larger one ...
_LOOKING_S = 2.0  # ... for at most this long
_EQUAL, _EQUAL_S = 32, 0.5  # after this many batches of one size and this long, all are taken to have it
_EVALUATED = 12  # batches of an evaluation whose memory does not grow regularly
_REGULAR = 3  # batches after which growth by the same number of bytes counts as regular
_ALLOWED = 8  # batches for the training steps of a later epoch, or twice as many as the first steps took
_EMPTY_EPOCHS, _EMPTY_S = 10_000, 2.0  # epochs without batches, and seconds of them, before the script ends


@dataclass
class Served:
    """What one iterator of a loader has given so far."""

    turns: Repetition
    load: Callable[[], Any]  # loads the next one on the host
    line: str  # of the script, which asked for the first batch
    sizes: list[int] = field(default_factory=list)  # elements of each batch
    live: list[int] = field(default_factory=list)  # bytes on the device before each batch of an evaluation
    is_searched: bool = False
    largest: Any = None  # of the batches that were looked through, until it is given


class Loaders:
    """Hands out batches; knows which loader trains, and ends loaders once the training steps are done."""

    def __init__(self, observer: Observer, progress: Progress) -> None:
        self._observer, self._progress = observer, progress
        self._latest: tuple[Any, Any] = (None, None)  # loader and iterator of the last batch
        self._training: tuple[Any, Any] = (None, None)  # the same, of the last optimizer step
        self._training_lines: set[str] = set()  # of the script, which asked for batches that were trained on
        self._known: dict[int, Any] = {}  # loaders that gave no batch yet
        self._empty_epochs, self._empty_since_s = 0, 0.0
        self._live: int | None = None  # bytes on the device after the training steps
        self._allowed_until = (
            0  # number of training steps until which an ended loader gives batches again ...
        )
        self._allowed_batches = 0  # ... and how many it may give
        self._served_early = 0  # batches that were given before the training steps were done
        self._again: Any = None  # the iterator that gave batches again
        self.epochs_ended = 0  # before their last batch, once the training steps were done
        self.is_over = False  # whether the script gets no more batches to train on
        self.beyond = 0.0  # share by which the largest batch may exceed those that were looked at
        progress.loaders = self

    def created(self, loader: Any) -> None:
        self._known[id(loader)] = loader

    def after_step(self) -> None:
        """Remember the loader whose batch was trained on, and the line that asked for it."""
        self._training = self._latest
        served: Served | None = getattr(self._latest[1], _SERVED, None)
        self._training_lines |= {served.line} if served is not None else set()

    @property
    def trains(self) -> bool:
        return self._training[0] is not None

    @property
    def source(self) -> Any:
        """The iterator that gave the batch of the last optimizer step."""
        return self._training[1]

    def batches(self) -> int | None:
        """The number of batches of the loader that gave the last one, if known; 1 if there is no loader."""
        return 1 if self._latest[0] is None else _length(self._latest[0]) or None

    def larger_evaluation(self) -> int | None:
        """The batch size of a loader that gave no batch, if it is larger than that of training."""
        trained = getattr(self._training[0], "batch_size", None)
        sizes = [getattr(loader, "batch_size", None) or 0 for loader in self._known.values()]
        return max(sizes) if trained and sizes and max(sizes) > trained else None

    def next(self, iterator: Any, load: Callable[[], Any]) -> Any:
        """The next batch of an iterator. load: loads one on the host."""
        loader = getattr(iterator, _LOADER, None)
        self._known.pop(id(loader), None)
        if _SERVED not in vars(iterator):
            setattr(iterator, _SERVED, self._served(load))
        served: Served = getattr(iterator, _SERVED)
        follow = self._progress.is_late and self._progress.trains and self.trains
        self._served_early += not follow
        batch = self._follow(iterator, loader, served) if follow else load()
        self._latest = loader, iterator
        served.sizes.append(_elements(batch))
        return batch

    def _served(self, load: Callable[[], Any]) -> Served:
        return Served(Repetition(self._observer.ledger, _REGULAR, (1,)), load, _script_line())

    def _follow(self, iterator: Any, loader: Any, served: Served) -> Any:
        # A loop at another line, as of an evaluation, may go through the same loader.
        if loader is self._training[0] and served.line in self._training_lines:
            return self._after_training(iterator, served)
        served.live.append(self._observer.ledger.live_bytes())
        served.turns.mark()
        # An output and a batch stay alive from turn to turn, so the first turn says nothing about growth.
        if len(served.live) > 2:
            if served.live[-1] <= max(served.live[1:-1]):
                return self._largest(served, loader)
            left = _length(loader) - len(served.sizes)
            if left > 0 and served.turns.period() is not None:
                served.turns.extend(left, 1)
                raise StopIteration
            if len(served.live) > _EVALUATED:
                self._observer.ledger.observation.reasons.append(
                    f"memory grows irregularly during an evaluation, of which {len(served.sizes)} batches "
                    "were observed"
                )
                raise StopIteration
        return served.load()

    def allow(self, steps: int) -> None:
        """Let the loader that trains give batches for so many steps again, because they may differ."""
        self._allowed_until = self._progress.trained + steps
        self._allowed_batches = max(_ALLOWED, 2 * self._served_early)

    def _after_training(self, iterator: Any, served: Served) -> Any:
        if self._progress.trained < self._allowed_until and self._allowed_batches > 0:
            self._allowed_batches -= 1
            self._again, self._empty_epochs = iterator, 0
            return served.load()
        live = self._observer.ledger.live_bytes()
        if iterator is self._training[1] and iterator is not self._again:
            self._live = live if self._live is None else self._live
            if self._find_larger(served, self._training[0]):
                return self._largest(served, self._training[0])
        elif self._progress.has_evaluated() and self.left_behind():
            # What the evaluation left behind is alive in the next epoch too: one step shows it.
            self._live = None
            return served.load()
        if self._progress.loops.increments.want_batch():
            return served.load()
        self.epochs_ended += 1
        self._empty_epochs += 1
        if self._empty_epochs == 1:
            self._empty_since_s = time.monotonic()
        is_endless = self._empty_epochs > 1 and time.monotonic() - self._empty_since_s > _EMPTY_S
        if self._progress.has_evaluated() or is_endless or self._empty_epochs > _EMPTY_EPOCHS:
            loops = self._progress.loops
            if not loops.enclose() or (self.is_over and not loops.runs_special):
                self._progress.stop()
            self.is_over = True  # and so is the loop over the epochs
        raise StopIteration

    def left_behind(self) -> bool:
        """Whether more is on the device than after the training steps."""
        return self._live is not None and self._observer.ledger.live_bytes() > self._live

    def _largest(self, served: Served, loader: Any) -> Any:
        """The largest of the remaining batches, once, if it is larger than every batch so far."""
        if not self._find_larger(served, loader):
            raise StopIteration
        batch, served.largest = served.largest, None
        return batch

    def _find_larger(self, served: Served, loader: Any) -> bool:
        """Look through the remaining batches, once, for one that is larger than every batch so far."""
        if served.is_searched or not _may_vary(loader, served.sizes):
            return served.largest is not None
        served.is_searched = True
        sizes = list(served.sizes)
        most = max(sizes)
        start_s = time.monotonic()
        for batch in islice(_until(served.load, start_s + _LOOKING_S), _LOOKED_AT):
            sizes.append(_elements(batch))
            if sizes[-1] > most:
                served.largest, most = batch, sizes[-1]
            if len(sizes) > _EQUAL and len(set(sizes)) == 1 and time.monotonic() - start_s > _EQUAL_S:
                break
        count = _length(loader)
        if count > len(sizes) > 1 and len(set(sizes)) > 1:
            # The maximum of values with an exponential tail grows by their deviation with every factor of e.
            reach = statistics.pstdev(sizes) * math.log(count / len(sizes)) / most
            self.beyond = max(self.beyond, reach)
            self._observer.note(
                f"batches of a DataLoader differ in size: {len(sizes):,} of {count:,} were looked at, "
                "and the largest of them was run"
            )
        return served.largest is not None

    def want_more(self) -> bool:
        """Whether the training loader gives a larger batch than those that were trained on."""
        loader, iterator = self._training
        served: Served | None = getattr(iterator, _SERVED, None)
        if served is None:
            return False
        # The last batch may have been loaded ahead of its step, as accelerate does.
        return self._find_larger(served, loader) or served.sizes[-1] > max(served.sizes[:-1], default=0)


def _script_line() -> str:
    """The innermost line of the user's code that runs now; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if kind_of_file(frame.f_code.co_filename) == "user":
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _until(load: Callable[[], Any], deadline_s: float) -> Iterator[Any]:
    while time.monotonic() < deadline_s:
        try:
            yield load()
        except StopIteration:
            return


def _length(loader: Any) -> int:
    try:
        return len(loader)
    except TypeError:  # an iterable dataset
        return 0


def _elements(batch: Any) -> int:
    return sum(leaf.numel() for leaf in compat.tree_leaves(_plain(batch)) if isinstance(leaf, torch.Tensor))


def _plain(batch: Any) -> Any:
    """A mapping or an object with tensors, such as a tokenizer's or a graph library's batch, as a dict."""
    if isinstance(batch, (torch.Tensor, dict, list, tuple)):
        return batch
    data: Any = getattr(batch, "data", None)
    return dict(data) if hasattr(data, "items") else getattr(batch, "__dict__", {})


def _may_vary(loader: Any, sizes: list[int]) -> bool:
    """Whether batches may differ in size. Samples that are stacked must be equal, so the first few tell."""
    if len(set(sizes)) > 1:
        return True
    stacks = getattr(loader, "collate_fn", None) is torch.utils.data.default_collate
    return not (stacks and (getattr(loader, "batch_size", None) or 1) > 1)


def install(patches: Patches, observer: Observer, progress: Progress) -> Callable[[], None]:
    """Patch DataLoader; returns a function that patches transformers' Trainer once it is imported."""
    loaders = Loaders(observer, progress)
    original_init = torch.utils.data.DataLoader.__init__
    original_iter: Callable[..., Any] = torch.utils.data.DataLoader.__iter__
    signature = inspect.signature(original_init)

    @functools.wraps(original_init)  # Lightning makes loaders again, with the arguments of this signature
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        call = signature.bind(self, *args, **kwargs)
        if call.arguments.pop("num_workers", 0):
            observer.note("DataLoader workers run in the main process")
        for name in (
            "persistent_workers",
            "prefetch_factor",
            "multiprocessing_context",
            "worker_init_fn",
            "timeout",
        ):
            call.arguments.pop(name, None)
        original_init(**call.arguments)
        loaders.created(self)

    def iterate(self: Any) -> Any:
        iterator = original_iter(self)
        setattr(iterator, _LOADER, self)
        return iterator

    patches.set(torch.utils.data.DataLoader, "__init__", init)
    patches.set(torch.utils.data.DataLoader, "__iter__", iterate)
    original_next: Callable[..., Any] = compat.LoaderIterator.__next__

    def load(self: Any) -> Any:
        """Load data on the host without observing it, unless the dataset itself uses the device."""
        if getattr(self, "_pinchpoint_observed", False):
            return original_next(self)
        try:
            with compat.without_modes():
                return original_next(self)
        except (AssertionError, RuntimeError, NotImplementedError) as error:
            if not any(word in str(error) for word in ("CUDA", "NVIDIA", "fake", "Fake")):
                raise
            self._pinchpoint_observed = True
            compat.restart_loader(self)
            return original_next(self)

    patches.set(compat.LoaderIterator, "__next__", lambda self: loaders.next(self, lambda: load(self)))
    return _Trainer(patches, progress, loaders)


class _Trainer:
    """Lets transformers' Trainer evaluate, and end its training, once its steps are done."""

    def __init__(self, patches: Patches, progress: Progress, loaders: Loaders) -> None:
        self._patches, self._progress, self._loaders = patches, progress, loaders
        self._is_patched = False

    def __call__(self) -> None:
        if self._is_patched or "transformers.trainer_callback" not in sys.modules:
            return
        self._is_patched = True
        flow: Any = sys.modules["transformers.trainer_callback"].DefaultFlowCallback
        original: Callable[..., Any] = flow.on_step_end

        def on_step_end(callback: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            control = original(callback, args, state, control, **kwargs)
            if self._progress.is_late and not self._loaders.want_more():
                strategy = getattr(args.eval_strategy, "value", args.eval_strategy)
                control.should_evaluate = control.should_evaluate or strategy != "no"
                control.should_training_stop = True
            return control

        self._patches.set(flow, "on_step_end", on_step_end)
