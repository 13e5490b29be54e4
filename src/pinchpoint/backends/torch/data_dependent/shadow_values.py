"""`Shadows`: real values behind fake tensors, computed only when they are read.

A device tensor computed from data carries the recipe of its computation. Reading it (item, a mask,
nonzero) runs the recipe on the host; most tensors are never read and cost nothing. Weights carry no
values, so what depends on them is unknown, and nothing is trained for real.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor, storage_key, tree_leaves
from pinchpoint.backends.torch.data_dependent.host_runs import OnHost

_FULL = torch.ops.aten.full.default
Version = tuple[int, int]
Leaf = TypeVar("Leaf")
_SHADOW = "_pinchpoint_shadow"
_READ_LIMIT = 200_000_000  # elements computed for one read: two seconds, and a part of them in memory
_LOST = -1
_SMALL = 1_000_000  # elements of a mask that is examined at once
# Comparisons whose result is the same for all finite values: of a tensor with itself, with infinity, ...
_OF_ITSELF = {"aten::eq.Tensor": True, "aten::ne.Tensor": False}
_OF_INFINITY = {"aten::eq.Scalar": False, "aten::ne.Scalar": True}
_FINITE = {
    "aten::isnan": False,
    "aten::isinf": False,
    "aten::isposinf": False,
    "aten::isneginf": False,
    "aten::isfinite": True,
}
# ... and operations that do not depend on the other side if one side has this value.
_ABSORBS = {
    "aten::bitwise_and.Tensor": False,
    "aten::logical_and": False,
    "aten::mul.Tensor": False,
    "aten::bitwise_or.Tensor": True,
    "aten::logical_or": True,
}
# Operations whose result does not depend on the values of their input: the value, or its position.
_CONSTANTS = {"aten::zeros_like": 0, "aten::new_zeros": 0, "aten::ones_like": 1, "aten::new_ones": 1}
_COPIES = {"aten::clone", "aten::_to_copy"}
_FILLED = {"aten::full_like": 1, "aten::new_full": 2}
_ABSORBED_BY_NUMBER = {"aten::bitwise_and.Scalar": False, "aten::bitwise_or.Scalar": True}
# Writes its result into a scalar that stays zero if all gradients are finite.
_KEEPS_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}


class Shadow:
    """One value: known, or the `index`-th result of a recipe."""

    __slots__ = ("__weakref__", "copies", "has_views", "index", "recipe", "value", "version")

    def __init__(self, recipe: Recipe | None = None, index: int = 0) -> None:
        self.recipe, self.index = recipe, index
        self.copies: list[weakref.ref[Shadow]] = []  # copies of this value that are not computed yet
        self.has_views = False  # whether another tensor may share its memory
        self.value: torch.Tensor | None = None
        self.version: Version | None = None  # version of the value when it was first set


class Recipe:
    """A call to run later, with shadows in place of tensors. version: the number of writes to a value."""

    __slots__ = ("args", "dtypes", "failed", "func", "kwargs", "results", "size", "version", "versions")

    def __init__(self, func: Any, args: Any, kwargs: Any, version: Callable[[torch.Tensor], Version]) -> None:
        self.func, self.args, self.kwargs, self.version = func, args, kwargs, version
        self.results: list[Any] | None = None
        self.failed = False
        self.size = 0  # number of elements in its results
        self.dtypes: list[torch.dtype] = []  # of its results
        # An input that is written to before the recipe runs would lead to a wrong result.
        self.versions = [(s, None if s.value is None else version(s.value)) for s in self.inputs()]

    def inputs(self) -> list[Shadow]:
        return _leaves(Shadow, self.args, self.kwargs)

    def run(self, on_host: OnHost) -> None:
        for shadow, version in self.versions:
            now = None if shadow.value is None else self.version(shadow.value)
            if now is not None and (now != (version or shadow.version) or now[1] == _LOST):
                self.failed = True
                return
        args, kwargs = _mapped(Shadow, lambda s: s.value, self.args, self.kwargs)
        result = on_host(self.func, args, kwargs)
        if result is None:
            self.failed = True
            return
        self.results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if len(self.results) == len(self.dtypes) and not compat.is_mutable(self.func):
            self.results = [
                t if t.dtype is dtype else t.to(dtype)
                for t, dtype in zip(self.results, self.dtypes, strict=True)
            ]


class Shadows:
    """Tracks values through operations. below: a context in which operations run for real."""

    def __init__(self, below: Callable[[], Any]) -> None:
        self._on_host = OnHost(below)
        # Below autograd torch does not count writes, so they are counted here, by storage.
        self._writes: dict[int, int] = {}
        # Storages that unknown values were written to; these references keep their keys unique.
        self._lost_storages: dict[int, torch.UntypedStorage] = {}

    def _version(self, value: torch.Tensor) -> Version:
        key = storage_key(value.untyped_storage())
        return compat.version(value), _LOST if key in self._lost_storages else self._writes.get(key, 0)

    def _set_value(self, shadow: Shadow, value: torch.Tensor | None) -> Shadow:
        shadow.value = value
        shadow.version = None if value is None else self._version(value)
        return shadow

    def set_value(self, fake: FakeTensor, value: torch.Tensor) -> None:
        setattr(fake, _SHADOW, self._set_value(Shadow(), value))

    def forget(self, *fakes: Any) -> None:
        """Mark values as unknown: outputs of replaced kernels, and weights, which are not trained."""
        for fake in fakes:
            setattr(fake, _SHADOW, None)

    def share(self, fake: FakeTensor, source: FakeTensor) -> None:
        """Give a tensor whose storage was replaced by that of `source` the values of `source`."""
        shadow = source.__dict__.get(_SHADOW)
        setattr(fake, _SHADOW, shadow)
        if shadow is not None:
            shadow.has_views = True

    def follows(self, fake: torch.Tensor) -> bool:
        """Whether the values of a tensor may be known; unlike `real`, this computes nothing."""
        return fake.__dict__.get(_SHADOW) is not None

    def real(self, fake: FakeTensor) -> torch.Tensor | None:
        """The values, or None if they are unknown."""
        shadow = fake.__dict__.get(_SHADOW)
        return None if shadow is None else self._compute(shadow)

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, *, limit: int, now: bool) -> Any:
        """Record how `out` is computed. now: run it at once and return the real result.

        A write runs at once up to `limit` elements, of masks up to eight times as many. A larger one is
        deferred if it is elementwise and no other tensor shares the memory; otherwise values are forgotten.
        """
        tensors = _leaves(torch.Tensor, args, kwargs)
        shadows = [t.__dict__.get(_SHADOW) for t in tensors]
        mutable = compat.is_mutable(func)
        too_large = mutable and any(t.numel() > limit * _mask_factor(t) for t in tensors)
        if too_large and self._defer_write(func, args, kwargs):
            return None
        if too_large or any(s is None for s in shadows):
            self._forget_written(func, args)
            answer = None if mutable else self._certain(func, args)
            constant = _constant(func, args)
            if constant is not None:
                recipe = Recipe(_FULL, (list(out.shape), constant), {"dtype": out.dtype}, self._version)
                recipe.size = out.numel()
                setattr(out, _SHADOW, Shadow(recipe=recipe))
            elif answer is not None:
                # One element, expanded: a check of a huge tensor takes no memory on the host.
                self.set_value(out, torch.full((), answer, dtype=out.dtype).expand(out.shape))
            return None
        sources = _mapped(torch.Tensor, lambda t: t.__dict__[_SHADOW], args, kwargs)
        recipe = Recipe(func, sources[0], sources[1], self._version)
        fakes = [t for t in tree_leaves(out) if type(t) is FakeTensor]
        inputs = {id(t) for t in tensors}
        for index, fake in enumerate(fakes):
            if id(fake) not in inputs:
                recipe.size += fake.numel()
                recipe.dtypes.append(fake.dtype)
                setattr(fake, _SHADOW, Shadow(recipe=recipe, index=index))
        if _gives_views(func):
            for tensor in (*tensors, *fakes):
                tensor.__dict__[_SHADOW].has_views = True
        if func.name() in _COPIES and len(fakes) == 1 and shadows[0] is not None:
            shadows[0].copies.append(weakref.ref(fakes[0].__dict__[_SHADOW]))
        if mutable or now:
            self._copy_before_write(func, args)
            if any(self._compute(s) is None for s in shadows):  # type: ignore[arg-type]
                self._forget_written(func, args)
                return None
            recipe.run(self._on_host)
            if recipe.failed:
                self._forget_written(func, args)
            elif mutable:
                self._count_writes(func, args)
        return recipe.results

    def _defer_write(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Record a write as a new value of the tensor, computed when it is read; False if that is wrong."""
        target, plain = args[0] if args else None, _without_write(func)
        if plain is None or type(target) is not FakeTensor or compat.is_view(target):
            return False
        shadows = [tensor.__dict__.get(_SHADOW) for tensor in _leaves(torch.Tensor, args, kwargs)]
        if any(one is None for one in shadows) or target.__dict__[_SHADOW].has_views:
            return False
        sources = _mapped(torch.Tensor, lambda t: t.__dict__[_SHADOW], args, kwargs)
        recipe = Recipe(plain, sources[0], sources[1], self._version)
        recipe.size, recipe.dtypes = target.numel(), [target.dtype]
        setattr(target, _SHADOW, Shadow(recipe=recipe))
        return True

    def result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run `func` on the values behind its arguments at once; None if some are unknown."""
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(self.real(tensor) is None for tensor in tensors):  # type: ignore[arg-type]
            return None
        self._copy_before_write(func, args)
        real_args, real_kwargs = _mapped(torch.Tensor, self.real, args, kwargs)
        return self._on_host(func, real_args, real_kwargs)

    def after_write(self, func: Any, args: Any, *, is_known: bool) -> None:
        """Update the values of what an operation wrote to, after `result` computed it or failed to."""
        if not is_known:
            self._forget_written(func, args)
        elif compat.is_mutable(func):
            self._count_writes(func, args)

    def _certain(self, func: Any, args: Any) -> bool | None:
        """The result that a comparison of unknown values has in every element, if there is one.

        Values are assumed to be finite, as in a healthy run. `and` with a known False, and `or` with a known
        True, do not depend on the other side.
        """
        name = func.name()
        if name in _OF_ITSELF and args[0] is args[1]:
            return _OF_ITSELF[name]
        if name in _OF_INFINITY and args[1] in (math.inf, -math.inf):
            return _OF_INFINITY[name]
        if name in _FINITE:
            return _FINITE[name]
        if name in _ABSORBED_BY_NUMBER and args[1] is _ABSORBED_BY_NUMBER[name]:
            return _ABSORBED_BY_NUMBER[name]
        if name not in _ABSORBS or not all(_can_absorb(t, _ABSORBS[name]) for t in args[:2]):
            return None
        for side in args[:2]:
            value = self.real(side)
            if value is not None and bool((value == _ABSORBS[name]).all()):
                return _ABSORBS[name]
        return None

    def _copy_before_write(self, func: Any, args: Any) -> None:
        """Compute the copies of what an operation is about to write to: a copy has the values from before."""
        if not compat.is_mutable(func):
            return
        for fake in written_arguments(func, args):
            shadow = fake.__dict__.get(_SHADOW)
            for reference in shadow.copies if shadow is not None else ():
                copy = reference()
                if copy is not None:
                    self._compute(copy)
            if shadow is not None:
                shadow.copies.clear()

    def _count_writes(self, func: Any, args: Any) -> None:
        for fake in written_arguments(func, args):
            value = fake.__dict__[_SHADOW].value
            key = storage_key(value.untyped_storage())
            self._writes[key] = self._writes.get(key, 0) + 1

    def _forget_written(self, func: Any, args: Any) -> None:
        """Forget the values of tensors that unknown values were written to."""
        if compat.is_mutable(func) and func.name() not in _KEEPS_VALUES:
            self.lose(*written_arguments(func, args))

    def lose(self, *fakes: Any) -> None:
        """Forget the values of tensors that unknown values were written to, and of their bases."""
        for fake in fakes:
            shadow = fake.__dict__.get(_SHADOW)
            if shadow is None:
                continue
            self.forget(fake)
            # A view's values are in its base's storage, which must be found to be marked as lost.
            value = self._compute(shadow) if compat.is_view(fake) else shadow.value
            if value is None:
                shadow.recipe = None
            else:
                storage = value.untyped_storage()
                self._lost_storages[storage_key(storage)] = storage

    def _compute(self, shadow: Shadow) -> torch.Tensor | None:
        """Compute a value, inputs first; a loop instead of recursion, because chains grow long."""
        stack = [shadow]
        budget = _READ_LIMIT
        while stack:
            top = stack[-1]
            recipe = top.recipe
            if top.value is not None or recipe is None or recipe.failed:
                stack.pop()
            elif recipe.results is not None:
                self._set_value(top, recipe.results[top.index] if top.index < len(recipe.results) else None)
                if top.value is None:
                    recipe.failed = True
                else:
                    top.recipe = None  # frees the values that nothing else needs
                stack.pop()
            elif unknown_inputs := [s for s in recipe.inputs() if s.value is None]:
                if any(s.recipe is None or s.recipe.failed for s in unknown_inputs):
                    recipe.failed = True
                else:
                    stack += unknown_inputs
            elif recipe.size > budget:
                recipe.failed = True
            else:
                budget -= recipe.size
                recipe.run(self._on_host)
        is_valid = shadow.value is not None and self._version(shadow.value)[1] != _LOST
        return shadow.value if is_valid else None


def _leaves(kind: type[Leaf], args: Any, kwargs: Any) -> list[Leaf]:
    """Everything of a kind among an operation's arguments; schemas nest lists only once."""
    leaves: list[Leaf] = []
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, kind):
            leaves.append(value)
        elif isinstance(value, (list, tuple)):
            leaves += [item for item in value if isinstance(item, kind)]
    return leaves


def _mapped(kind: type[Any], change: Callable[[Any], Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """An operation's arguments with everything of a kind changed. `tree_map_only` takes longer."""

    def changed(value: Any) -> Any:
        if isinstance(value, kind):
            return change(value)
        if isinstance(value, (list, tuple)):
            items = [change(item) if isinstance(item, kind) else item for item in value]
            return items if isinstance(value, list) else tuple(items)
        return value

    return tuple([changed(value) for value in args]), {name: changed(v) for name, v in kwargs.items()}


def _mask_factor(tensor: torch.Tensor) -> int:
    return 8 if tensor.element_size() == 1 else 1


def _can_absorb(side: Any, value: bool) -> bool:
    """Whether `value` in a small tensor of this kind decides `and` or `or`: zero also does among integers."""
    if not isinstance(side, torch.Tensor) or side.numel() > _SMALL or side.dtype.is_floating_point:
        return False
    return side.dtype is torch.bool or not (value or side.dtype.is_complex)


def _constant(func: Any, args: Any) -> Any:
    """The value of every element of the result, if it does not depend on the input."""
    name = func.name()
    if name in _FILLED and len(args) > _FILLED[name]:
        return args[_FILLED[name]]
    return _CONSTANTS.get(name)


def _without_write(func: Any) -> Any | None:
    """The operator that returns what an elementwise one writes to its first argument: add for add_."""
    library, name = func.name().split(".")[0].split("::")
    if library != "aten" or not name.endswith("_"):
        return None
    if torch.Tag.pointwise not in func.tags or compat.is_random(func):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    for overload in () if packet is None else packet.overloads():  # pow_.Scalar is pow.Tensor_Scalar
        plain = getattr(packet, overload)
        if not compat.is_mutable(plain) and _argument_types(plain) == _argument_types(func):
            return plain
    return None


def _argument_types(func: Any) -> list[tuple[str, bool]]:
    return [(str(argument.type), argument.kwarg_only) for argument in compat.arguments_of(func)]


def _gives_views(func: Any) -> bool:
    """Whether results of an operator may share memory with its arguments, without a write."""
    aliases = [argument.alias_info for argument in compat.arguments_of(func)]
    return not compat.is_mutable(func) and any(alias is not None for alias in aliases)


def written_arguments(func: Any, args: Any) -> list[FakeTensor]:
    """The arguments that an operation writes to."""
    return [
        fake
        for argument, value in zip(compat.arguments_of(func), args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for fake in tree_leaves(value)
        if type(fake) is FakeTensor
    ]
