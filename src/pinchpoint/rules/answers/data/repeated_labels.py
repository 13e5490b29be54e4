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
from pinchpoint.rules.engine.source import Source, argument, method, receiver

_LABEL = re.compile(r"(^|_)(label|labels|target|targets|class|classes|y|gt)(_|$)")


def check(source: Source) -> Iterator[Match]:
    if "repeat_interleave" not in source.text:
        return
    for call in source.calls:
        if method(call) not in ("repeat", "repeat_interleave") or not call.args:
            continue
        name = ast.unparse(receiver(call))
        function = source.function(call)
        if function is None or not _LABEL.search(name.rpartition(".")[2].lower()):
            continue
        other = "repeat_interleave" if method(call) == "repeat" else "repeat"
        count = _count(call)
        if count in ("", "1"):
            continue
        for partner in patterns.method_calls(source, function, other):
            same = _count(partner) == count
            data = not _LABEL.search(ast.unparse(receiver(partner)).rpartition(".")[2].lower())
            if same and data and source.statement_loops(partner) == source.statement_loops(call):
                yield Match(call, {"name": name, "other": ast.unparse(receiver(partner)), "how": other})
                break


def _count(call: ast.Call) -> str:
    """How often the first axis is repeated."""
    if method(call) == "repeat_interleave":
        dim = argument(call, "dim", 1)
        return ast.unparse(call.args[0]) if call.args and (dim is None or ast.unparse(dim) == "0") else ""
    first = call.args[0] if call.args else None
    rest = call.args[1:]
    if isinstance(first, ast.Tuple | ast.List) and first.elts:
        first, rest = first.elts[0], first.elts[1:]
    ones = all(isinstance(arg, ast.Constant) and arg.value == 1 for arg in rest)
    return ast.unparse(first) if first is not None and ones else ""


RULE = Rule(
    number=532,
    name="repeated-labels",
    message="`{name}` is repeated in another order than `{other}`, which uses {how}.",
    hint="Use the same function for both.",
    check=check,
)
