"""The device is fixed in the code.

`.cuda()` and `.to("cuda")` fail on a machine without a GPU, and always use the first one or the current
one. Take the device from one place: an argument, a setting, or the device of a tensor. Files that ask
`torch.cuda.is_available()` are not reported.

Bad:

    import torch

    def scores(model, images):
        with torch.no_grad():
            return model(images.cuda()).softmax(-1)

Good:

    import torch

    def scores(model, images, device):
        with torch.no_grad():
            return model(images.to(device)).softmax(-1)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pinchpoint.rules.engine import patterns
from pinchpoint.rules.engine.devices import device_argument
from pinchpoint.rules.engine.rule import Match, Rule
from pinchpoint.rules.engine.source import Source, argument, method, receiver


def check(source: Source) -> Iterator[Match]:
    if not source.uses("torch"):
        return
    asks = "is_available" in source.text or "is_cuda" in source.text
    for call in source.calls:
        if asks:
            if _is_guarded_only(source, call):
                yield Match(call, {"code": patterns.shorten(call)})
            continue
        name = source.name(call.func)
        device = argument(call, "device", 0 if name == "torch.device" else None)
        fixed = isinstance(device, ast.Constant) and str(device.value).startswith("cuda")
        if fixed and name.startswith("torch.") and not _is_guarded(source, call):
            yield Match(call, {"code": patterns.shorten(call)})
            continue
        if method(call) not in ("cuda", "to") or _is_guarded(source, call):
            continue
        device = device_argument(source, call)
        fixed = isinstance(device, ast.Constant) and str(device.value).startswith("cuda")
        bare = method(call) == "cuda" and not call.args and not call.keywords
        if (bare or fixed) and source.name(receiver(call)) != "torch":
            yield Match(call, {"code": patterns.shorten(call)})


def _is_guarded_only(source: Source, call: ast.Call) -> bool:
    """`if torch.cuda.is_available(): model = model.cuda()`: runs without a GPU, but cannot use another
    device."""
    if method(call) != "cuda" or call.args or call.keywords or source.name(receiver(call)) == "torch":
        return False
    return any(
        isinstance(parent, ast.If) and ast.unparse(parent.test) == "torch.cuda.is_available()"
        for parent in source.ancestors(call)
    )


def _is_guarded(source: Source, call: ast.Call) -> bool:
    """Whether a test that speaks of CUDA or the device is around the call, or a method `cuda` of its own."""
    function = source.function(call)
    if function is not None and function.name in ("cuda", "to", "_apply"):
        return True
    return any(
        isinstance(parent, ast.If | ast.IfExp)
        and any(word in ast.unparse(parent.test).lower() for word in ("cuda", "gpu", "device"))
        for parent in source.ancestors(call)
    )


RULE = Rule(
    number=406,
    name="cuda-hard-coded",
    message="The device is fixed in `{code}`.",
    hint="Take the device as an argument and use .to(device).",
    check=check,
)
