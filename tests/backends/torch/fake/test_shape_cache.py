"""A result from the cache is the result that the shape rule gives: shapes, strides, dtypes, and aliases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import storage_key, tree_leaves
from pinchpoint.backends.torch.fake.shape_cache import ShapeCache

_aten = torch.ops.aten


def _describe(result: Any, inputs: list[Any]) -> Any:
    """What a caller can tell about a result: types, layouts, and which storages are shared with inputs."""
    if result is None:
        return None
    if isinstance(result, (list, tuple)):
        return (type(result), [_describe(part, inputs) for part in result])
    shared = [storage_key(t.untyped_storage()) == storage_key(result.untyped_storage()) for t in inputs]
    return (
        tuple(result.shape),
        result.stride(),
        result.dtype,
        result.storage_offset(),
        shared,
        [result is t for t in inputs],
        result.untyped_storage().nbytes(),
    )


def _calls(make: Any) -> list[tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    a, b, ints = make(4, 6), make(4, 6), make(3, dtype=torch.int64)
    permuted, image = make(6, 4).t(), make(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    weight = make(5, 3, 3, 3)
    return [
        (_aten.add.Tensor, (a, b), {}),
        (_aten.add.Tensor, (a, permuted), {}),
        (_aten.mul.Tensor, (ints, 2), {}),
        (_aten.mul.Tensor, (ints, 2.0), {}),
        (_aten.mul.Tensor, (ints, True), {}),
        (_aten.mm.default, (a, permuted.t()), {}),
        (_aten.t.default, (a,), {}),
        (_aten.view.default, (a, [6, 4]), {}),
        (_aten._unsafe_view.default, (a, [6, 4]), {}),
        (_aten.slice.Tensor, (a, 0, 1, 3), {}),
        (_aten.slice.Tensor, (a[1:], 0, 1, 3), {}),
        (_aten.split.Tensor, (a, 2), {}),
        (_aten.add_.Tensor, (a, b), {}),
        (_aten.native_layer_norm.default, (a, [6], None, None, 1e-5), {}),
        (
            _aten.convolution.default,
            (image, weight, None, [1, 1], [1, 1], [1, 1], False, [0], 1),
            {},
        ),
        (_aten.index.Tensor, (a, [ints]), {}),
        (_aten._to_copy.default, (a,), {"dtype": torch.bfloat16}),
        (_aten.empty_like.default, (permuted,), {}),
        (_aten._foreach_add.List, ([a, b], [b, a]), {}),
        (_aten._foreach_add_.List, ([a, b], [b, a]), {}),
        (_aten.sum.default, (a,), {}),
    ]


def test_a_second_call_gives_what_the_shape_rule_gives() -> None:
    mode = compat.fake_mode()
    cache = ShapeCache(mode)

    def make(*shape: int, dtype: Any = torch.float32) -> Any:
        with mode:
            return torch.empty(*shape, dtype=dtype)

    for func, args, kwargs in _calls(make):
        runs = []

        def run(func: Any = func, args: Any = args, kwargs: Any = kwargs, runs: Any = runs) -> Any:
            runs.append(func)
            with mode:
                return func(*args, **kwargs)

        inputs = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        expected = _describe(run(), inputs)
        first = _describe(cache.call(func, args, kwargs, run), inputs)
        again = _describe(cache.call(func, args, kwargs, run), inputs)
        assert first == expected == again, func
        assert len(runs) <= 2, f"{func} is not cached"


def _results(file: Path) -> list[tuple[Any, Any, bool]]:
    """Of each call, in a process that reads and writes `file`: the cache's result, the rule's, and whether
    the cache ran the rule.
    """
    mode = compat.fake_mode()
    cache, results = ShapeCache(mode), []
    cache.read(file)

    def make(*shape: int, dtype: Any = torch.float32) -> Any:
        with mode:
            return torch.empty(*shape, dtype=dtype)

    for func, args, kwargs in _calls(make):
        runs = []

        def rule(func: Any = func, args: Any = args, kwargs: Any = kwargs, runs: Any = runs) -> Any:
            runs.append(func)
            with mode:
                return func(*args, **kwargs)

        inputs = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
        cached, needed = _describe(cache.call(func, args, kwargs, rule), inputs), bool(runs)
        results.append((cached, _describe(rule(), inputs), needed))
    cache.write(file)
    return results


def test_results_from_a_file_are_what_the_shape_rules_give(tmp_path: Path) -> None:
    first, second = (_results(tmp_path / "shapes.pickle") for _ in range(2))
    assert all(cached == expected for cached, expected, _ in (*first, *second))
    assert sum(needed for _, _, needed in first) >= len(first) - 1  # `_foreach_add_` returns nothing
    assert not any(needed for _, _, needed in second)


def test_a_result_whose_call_another_process_cannot_make_is_not_written(tmp_path: Path) -> None:
    mode, file = compat.fake_mode(), tmp_path / "shapes.pickle"
    cache = ShapeCache(mode)
    with mode:
        a = torch.empty(3)
    for extra in (object(), 2):
        cache.call(_aten.mul.Tensor, (a, extra), {}, lambda: a.new_empty(3))
    cache.write(file)
    later = ShapeCache(mode)
    later.read(file)
    runs: list[Any] = []
    for extra in (object(), 2):
        later.call(_aten.mul.Tensor, (a, extra), {}, lambda extra=extra: runs.append(extra))
    assert len(runs) == 1 and runs[0] != 2


def test_numbers_of_different_types_are_different_calls() -> None:
    mode = compat.fake_mode()
    cache = ShapeCache(mode)
    with mode:
        ints = torch.empty(3, dtype=torch.int64)
    types = []
    for factor in (1, 1.0, True):

        def run(factor: float = factor) -> Any:
            with mode:
                return _aten.mul.Tensor(ints, factor)

        types.append(cache.call(_aten.mul.Tensor, (ints, factor), {}, run).dtype)
    assert types == [torch.int64, torch.float32, torch.int64]


@pytest.mark.parametrize("name", ["nonzero", "masked_select", "_local_scalar_dense"])
def test_results_that_depend_on_values_are_computed_every_time(name: str) -> None:
    cache = ShapeCache(compat.fake_mode())
    func = getattr(_aten, name).default
    results = [cache.call(func, (), {}, lambda value=value: value) for value in ("first", "second")]
    assert results == ["first", "second"]
