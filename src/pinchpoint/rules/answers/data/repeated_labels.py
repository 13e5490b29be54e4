"""Labels are repeated in another order than the data.

`repeat(n)` gives a b c a b c, `repeat_interleave(n)` gives a a b b c c. Where one is used for the data and
the other for the labels, most rows get the label of another row.

Bad:

    import torch

    def views(images, labels, count):
        images = images.repeat_interleave(count, dim=0)
        labels = labels.repeat(count)
        return images, labels

Good:

    import torch

    def views(images, labels, count):
        images = images.repeat_interleave(count, dim=0)
        labels = labels.repeat_interleave(count, dim=0)
        return images, labels
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver, root

_LABEL = re.compile(r"(^|_)(label|labels|target|targets|class|classes|y|gt)(_|$)")


def check(source: Source) -> Iterator[Match]:
    repeats = [(call, *how) for call in source.calls if (how := _repeat(source, call)) is not None]
    for call, value, order, count in repeats:
        function = source.function(call)
        if function is None or not _is_label(value):
            continue
        for partner, other, other_order, other_count in repeats:
            if source.function(partner) is not function or _is_label(other) or other_count != count:
                continue
            if other_order != order and source.statement_loops(partner) == source.statement_loops(call):
                yield Match(
                    call, {"name": ast.unparse(value), "other": patterns.shorten(other), "order": other_order}
                )
                break


def _is_label(value: ast.expr) -> bool:
    return _LABEL.search(ast.unparse(value).rpartition(".")[2].lower()) is not None


def _repeat(source: Source, call: ast.Call) -> tuple[ast.expr, str, str] | None:
    """What is repeated along its first axis, in which order, and how often; None for other calls."""
    if source.name(call.func) == "torch.repeat_interleave" and len(call.args) > 1:
        dim = argument(call, "dim", 2)
        return (call.args[0], "a a b b", ast.unparse(call.args[1])) if _is_first(dim) else None
    if method(call) == "repeat_interleave" and call.args:
        dim = argument(call, "dim", 1)
        return (receiver(call), "a a b b", ast.unparse(call.args[0])) if _is_first(dim) else None
    if method(call) == "repeat" and call.args:
        first, rest = call.args[0], call.args[1:]
        if isinstance(first, ast.Tuple | ast.List) and first.elts:
            first, rest = first.elts[0], first.elts[1:]
        ones = all(isinstance(arg, ast.Constant) and arg.value == 1 for arg in rest)
        once = isinstance(first, ast.Constant) and first.value == 1
        return (receiver(call), "a b a b", ast.unparse(first)) if ones and not once else None
    if method(call) in ("reshape", "view", "flatten"):
        # x.unsqueeze(1).expand(-1, n, -1).reshape(...)
        spread = receiver(call)
        if isinstance(spread, ast.Call) and method(spread) in ("expand", "repeat") and len(spread.args) > 1:
            inner = receiver(spread)
            new_axis = (
                isinstance(inner, ast.Call)
                and method(inner) == "unsqueeze"
                and ast.unparse(inner.args[0]) == "1"
            )
            if new_axis or ast.unparse(inner).endswith("[:, None]"):
                return root(inner), "a a b b", ast.unparse(spread.args[1])
    return None


def _is_first(dim: ast.expr | None) -> bool:
    return dim is None or ast.unparse(dim) == "0"


RULE = Rule(
    number=532,
    name="repeated-labels",
    message="`{name}` is repeated in another order than `{other}`, which goes {order}.",
    hint="Use the same function for both.",
    check=check,
)
