"""transformers: its `generate` is assumed to reach the maximum length that the script asks for.

Whether a sequence ends earlier depends on weights. The longest run needs the most memory, so the criteria
that read tokens or scores are answered with "not finished", and only the maximum length ends the loop. Once
the tokens allocate regularly (see `repetition`), the loop ends early, and the remaining tokens are written to
the ledger; of very many, only the last ones and some of those before. On a small Llama with 20,000 tokens,
one in 15 gives the same reserved bytes as all of them and one in 95 gives 22 % less; the fewest bytes with
which the run completes agree within 0.2 % in both cases, because the last tokens decide about them. The
sequences that `generate` returns are then shorter than in a real run.

A quantised cache keeps its newest tokens as they are, and quantises all of them once they are too many
(`residual_length`). If that happens in tokens that are not run, the new ones are assumed to stay unquantised,
and one layer is quantised at the end with its whole length, which is an upper estimate.

transformers also asks whether a tensor is fake, and then builds attention masks that a real run leaves out.
The answer is therefore no.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.repetition import WINDOW, Repetition

_NOTE = "generate() is assumed to reach its maximum length: sequences that end earlier need less memory"
_FIRST = 2 * WINDOW + 4  # tokens that are run however large the model is: a window may begin within them
_NEAR = 192  # tokens until a sliding window is full that are run
_GROWS = (
    "the cache is assumed to grow beyond its sliding window, which is far away: the peak is an upper estimate"
)
_UNQUANTISED = (
    "the quantised cache is assumed to keep all new tokens unquantised: the peak is an upper estimate"
)
_GROUP = 64  # elements with one scale, of which a quantised tensor has a whole number
_FEWEST = 32  # remaining tokens that are worth a shortcut
_MOST_EVENTS = 100_000  # of the tokens that are written; a replay takes about 0.3 s


class Generation:
    """Patches transformers once the script has imported it. Call it before every module call: it is cheap."""

    def __init__(self, patches: Patches, observer: Observer, written: Callable[[int], None]) -> None:
        self._patches, self._observer, self._written = patches, observer, written
        self._is_patched = False
        self._is_told = False  # that no tensor is fake
        self._tokens: Repetition | None = None  # of the loop that runs now
        self._length = 0  # of its sequences
        self._window: int | None = None  # of its model's sliding attention
        self._cache: Callable[[], Any] = lambda: None  # of its model; a weak reference

    def __call__(self) -> None:
        imports: Any = sys.modules.get("transformers.utils.import_utils")
        if not self._is_told and hasattr(imports, "is_fake_tensor"):
            self._is_told = True
            self._patches.set(imports, "is_fake_tensor", lambda tensor: False)
        if self._is_patched or "transformers.generation.stopping_criteria" not in sys.modules:
            return
        self._is_patched = True
        criteria: Any = sys.modules["transformers.generation.stopping_criteria"]
        patched = self._criteria(criteria.StoppingCriteriaList.__call__)
        self._patches.set(criteria.StoppingCriteriaList, "__call__", patched)
        mixin: Any = getattr(sys.modules.get("transformers.generation.utils"), "GenerationMixin", None)
        update = vars(mixin).get(compat.UPDATE_ARGUMENTS) if mixin is not None else None
        if update is not None:
            self._patches.set(mixin, compat.UPDATE_ARGUMENTS, self._watch(update))
        heuristic = vars(mixin).get(compat.EARLY_STOP) if mixin is not None else None
        if heuristic is not None:  # of beam search: whether an open beam can still become the best one
            is_static = isinstance(heuristic, staticmethod)
            original = heuristic.__func__ if is_static else heuristic

            def check(*args: Any, **kwargs: Any) -> Any:
                return self._assume(original(*args, **kwargs), True)

            self._patches.set(mixin, compat.EARLY_STOP, staticmethod(check) if is_static else check)

    def is_starting(self) -> bool:
        """Whether a loop runs its first tokens, or the first ones after its sliding window is full."""
        return self._tokens is not None and self._tokens.turns < _FIRST

    def _criteria(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(criteria: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            result = self._assume(original(criteria, input_ids, *args, **kwargs), False)
            longest = getattr(criteria, "max_length", None)
            if longest is not None and self._observer.on_device(result):
                layer = _quantised_layer(self._cache(), longest - input_ids.shape[1])
                left = self._shortcut(input_ids.shape[1], longest, self._window)
                if left:
                    if layer is not None:
                        _quantise(layer, longest)
                        self._observer.note(_UNQUANTISED)
                    result = torch.full_like(result, True)  # its values are known
                    self._written(left)
            return result

        return call

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember the model and its cache. Reading the locals of a frame would keep its tensors alive."""

        def update(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            self._window = _window(model)
            cache = result.get("past_key_values")
            cache = getattr(cache, "self_attention_cache", cache)
            self._cache = weakref.ref(cache) if hasattr(cache, "layers") else lambda: None
            return result

        return update

    def _assume(self, result: Any, answer: bool) -> Any:
        """The same result, whose values are `answer` if they are unknown."""
        observer = self._observer
        if observer.on_device(result) and observer.shadow(result) is None:
            observer.note(_NOTE)
            observer.shadows.set_value(result, torch.full(result.shape, answer, dtype=result.dtype))
        return result

    def _shortcut(self, length: int, longest: int, window: int | None) -> int:
        """Write the remaining tokens to the ledger if they can be foreseen; returns how many.

        window: of sliding attention. A cache stops growing there, so a near one is waited for.
        """
        if self._tokens is None or length != self._length + 1:
            self._tokens = Repetition(self._observer.ledger)
        self._length = length
        self._tokens.mark()
        left = longest - length
        if window is not None and length <= window < longest:
            if window - length <= _NEAR:
                self._tokens = Repetition(self._observer.ledger)  # what was regular so far will change
                return 0
            self._observer.note(_GROWS)
        period = self._tokens.period() if left >= _FEWEST else None
        if period is None or left % period:
            return 0
        stride = self._tokens.extend(left, period, _MOST_EVENTS)
        if stride > 1:
            self._observer.note(
                f"of the many tokens before the last ones, one in {stride} is replayed: "
                "the reserved bytes are approximate"
            )
        self._tokens = None
        return left


def _quantised_layer(cache: Any, left: int) -> Any:
    """The first layer of a cache that will be quantised again within `left` tokens; None if there is none."""
    layers = getattr(cache, "layers", None)
    if not layers or not isinstance(residual := getattr(layers[0], "residual_length", None), int):
        return None
    keys = layers[0].keys  # those that are not quantised; without dimensions if there are none
    waiting = keys.shape[-2] if isinstance(keys, torch.Tensor) and keys.dim() == 4 else 0
    return layers[0] if residual - waiting <= left else None


def _quantise(layer: Any, length: int) -> None:
    """Quantise keys and values of this length in a copy of a layer, use them, and quantise them again."""
    layer = copy.copy(layer)
    now = layer.keys, layer.values  # those that are not quantised: there are some, because turns were regular

    def states(tokens: int) -> list[torch.Tensor]:
        return [one.new_empty(*one.shape[:-2], tokens, one.shape[-1]) for one in now]

    layer.is_initialized = False
    layer.update(*states(-(-length // _GROUP) * _GROUP))
    layer.update(*states(1))
    layer.residual_length = 1  # from now on, it is quantised at every token
    layer.update(*states(1))


def _window(model: Any) -> int | None:
    """The sliding window of a model's attention, if it has one."""
    config = getattr(model, "config", None)
    window = getattr(getattr(config, "text_config", None) or config, "sliding_window", None)
    return window if isinstance(window, int) and not isinstance(window, bool) else None
