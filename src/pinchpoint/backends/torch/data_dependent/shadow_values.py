"""Real values behind fake tensors, worked out only when someone asks.

A device tensor made from data carries the recipe of how it was computed. Reading it (item, a mask,
nonzero) runs the recipe on the host; most are never read and cost nothing. Weights carry none, so
what depends on them is unknown and no training happens for real.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor, storage_key, tree_leaves, tree_map_only

Version = tuple[int, int]
_SHADOW = "_pinchpoint_shadow"
_READ_LIMIT = (
    100_000_000  # elements worked out for one reading: a second of the host's time, half a GiB of it
)
_LOST = -1
# Writes its verdict into a scalar that stays zero in a healthy run.
_KEEPS_VALUES = {"aten::_amp_foreach_non_finite_check_and_unscale_"}


class Shadow:
    """One value: known, or the `index`-th result of a recipe."""

    __slots__ = ("index", "recipe", "value", "version")

    def __init__(self, recipe: Recipe | None = None, index: int = 0) -> None:
        self.recipe, self.index = recipe, index
        self.value: torch.Tensor | None = None
        self.version: Version | None = None  # of the value when it was first known


class Recipe:
    """A call to make later, with shadows in place of its tensors. version: how often a value was written to."""

    __slots__ = ("args", "failed", "func", "kwargs", "results", "size", "version", "versions")

    def __init__(self, func: Any, args: Any, kwargs: Any, version: Callable[[torch.Tensor], Version]) -> None:
        self.func, self.args, self.kwargs, self.version = func, args, kwargs, version
        self.results: list[Any] | None = None
        self.failed = False
        self.size = 0  # elements it will make
        # An input that is written to before the recipe runs would give the wrong result.
        self.versions = [(s, None if s.value is None else version(s.value)) for s in self.inputs()]

    def inputs(self) -> list[Shadow]:
        return [leaf for leaf in tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Shadow)]

    def run(self, below: Callable[[], Any]) -> None:
        for shadow, seen in self.versions:
            now = None if shadow.value is None else self.version(shadow.value)
            if now is not None and (now != (seen or shadow.version) or now[1] == _LOST):
                self.failed = True
                return
        args, kwargs = tree_map_only(Shadow, lambda s: s.value, (self.args, self.kwargs))
        try:
            with torch.no_grad(), below():
                result = self.func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, IndexError):
            # A GPU-only operation, or values only a real run could make valid: unknown, then.
            self.failed = True
            return
        self.results = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]


class Shadows:
    """Follows values along operations. below: a context in which operations run for real."""

    def __init__(self, below: Callable[[], Any]) -> None:
        self._below = below
        # Below autograd torch counts no writes, so they are counted here, by storage.
        self._writes: dict[int, int] = {}
        self._lost: dict[
            int, torch.UntypedStorage
        ] = {}  # written with what nobody knows; held, so that keys stay theirs

    def _version(self, value: torch.Tensor) -> Version:
        key = storage_key(value.untyped_storage())
        return compat.version(value), _LOST if key in self._lost else self._writes.get(key, 0)

    def _know(self, shadow: Shadow, value: torch.Tensor | None) -> Shadow:
        shadow.value = value
        shadow.version = None if value is None else self._version(value)
        return shadow

    def give(self, fake: FakeTensor, value: torch.Tensor) -> None:
        setattr(fake, _SHADOW, self._know(Shadow(), value))

    def forget(self, *fakes: Any) -> None:
        """What lies in them is no value: a stand-in's outputs, and weights, whose training does not happen here."""
        for fake in fakes:
            setattr(fake, _SHADOW, None)

    def real(self, fake: FakeTensor) -> torch.Tensor | None:
        """The values, if they can be known."""
        shadow = fake.__dict__.get(_SHADOW)
        return None if shadow is None else self._work_out(shadow)

    def follow(self, func: Any, args: Any, kwargs: Any, out: Any, *, limit: int, now: bool) -> Any:
        """Note how `out` came about. now: run it at once and return the real result.

        A write cannot wait: it is done at once up to `limit` elements, and beyond that forgotten.
        """
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        shadows = [t.__dict__.get(_SHADOW) for t in tensors]
        mutable = compat.is_mutable(func)
        if any(s is None for s in shadows) or (mutable and any(t.numel() > limit for t in tensors)):
            self._forget_written(func, args)
            return None
        made_of = tree_map_only(torch.Tensor, lambda t: t.__dict__[_SHADOW], (args, kwargs))
        recipe = Recipe(func, made_of[0], made_of[1], self._version)
        fakes = [t for t in tree_leaves(out) if type(t) is FakeTensor]
        given = {id(t) for t in tensors}
        for index, fake in enumerate(fakes):
            if id(fake) not in given:
                recipe.size += fake.numel()
                setattr(fake, _SHADOW, Shadow(recipe=recipe, index=index))
        if mutable or now:
            if any(self._work_out(s) is None for s in shadows):  # type: ignore[arg-type]
                self._forget_written(func, args)
                return None
            recipe.run(self._below)
            if recipe.failed:
                self._forget_written(func, args)
            elif mutable:
                self._count_writes(func, args)
        return recipe.results

    def result(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run `func` on the values behind its arguments at once, or None when some are unknown."""
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if any(self.real(tensor) is None for tensor in tensors):  # type: ignore[arg-type]
            return None
        real_args, real_kwargs = tree_map_only(torch.Tensor, self.real, (args, kwargs))
        try:
            with torch.no_grad(), self._below():
                return func(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError, IndexError):
            return None  # as in a recipe: unknown, and the caller asks for a calibration where a count hangs on it

    def _count_writes(self, func: Any, args: Any) -> None:
        for fake in _written(func, args):
            value = fake.__dict__[_SHADOW].value
            key = storage_key(value.untyped_storage())
            self._writes[key] = self._writes.get(key, 0) + 1

    def _forget_written(self, func: Any, args: Any) -> None:
        """Written with values nobody knows: what was known before is no longer true."""
        if not compat.is_mutable(func) or func.name() in _KEEPS_VALUES:
            return
        for fake in _written(func, args):
            shadow = fake.__dict__.get(_SHADOW)
            if shadow is None:
                continue
            self.forget(fake)
            # A view's values lie in its base's storage, which must be found to be given up.
            value = self._work_out(shadow) if compat.is_view(fake) else shadow.value
            if value is None:
                shadow.recipe = None
            else:
                storage = value.untyped_storage()
                self._lost[storage_key(storage)] = storage

    def _work_out(self, shadow: Shadow) -> torch.Tensor | None:
        """Run what the value needs, inputs first; a loop, since chains grow long."""
        stack = [shadow]
        left = _READ_LIMIT
        while stack:
            top = stack[-1]
            recipe = top.recipe
            if top.value is not None or recipe is None or recipe.failed:
                stack.pop()
            elif recipe.results is not None:
                self._know(top, recipe.results[top.index] if top.index < len(recipe.results) else None)
                if top.value is None:
                    recipe.failed = True
                stack.pop()
            elif missing := [s for s in recipe.inputs() if s.value is None]:
                if any(s.recipe is None or s.recipe.failed for s in missing):
                    recipe.failed = True
                else:
                    stack += missing
            elif recipe.size > left:
                recipe.failed = True
            else:
                left -= recipe.size
                recipe.run(self._below)
        known = shadow.value is not None and self._version(shadow.value)[1] != _LOST
        return shadow.value if known else None


def _written(func: Any, args: Any) -> list[FakeTensor]:
    """The arguments an operation writes into."""
    return [
        fake
        for argument, value in zip(compat.arguments_of(func), args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for fake in tree_leaves(value)
        if type(fake) is FakeTensor
    ]
