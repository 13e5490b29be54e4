"""How an exception of a target is classed: raised by the target itself, or by the simulation it runs in.

An exception belongs to the simulation if pinchpoint or the part of torch that runs without values could not
do something that a GPU can do. Everything else is reported as raised by the target. A shape error inside an
operation is the target's, because a GPU would raise it too, and the hint says so.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from types import CodeType
from typing import Any

from pinchpoint.core.errors import Bug, CannotFake, PinchpointError, TargetFailed
from pinchpoint.core.targets import PINCHPOINT, SHIPPED_TARGETS, explain_failure, user_frame

OPERATION = "pinchpoint_operation"  # attribute of an exception: the operation that raised it
SAME_ON_GPU = "pinchpoint_same_on_gpu"  # attribute of an exception: the operation raises it on a GPU too

# Parts of torch that run operations without values, or dispatch them to us.
_WITHOUT_VALUES = (
    "/torch/_subclasses/",
    "/torch/_meta_registrations",
    "/torch/_prims",
    "/torch/_refs/",
    "/torch/_decomp/",
    "/torch/_ops.py",
    "/torch/_library/",
    "/torch/fx/experimental/",
    "/torch/utils/_python_dispatch",
    "/torch/utils/_device",
)
# Types that a wrong shape, type or index of the user may have too; others are faults of the code that raised.
_OF_OPERATIONS = (RuntimeError, TypeError, ValueError, IndexError)
_TEXTS = re.compile(
    r"not implemented for '"  # torch has the operation for this type on the GPU only
    r"|[Nn]ot ?[Ii]mplemented|Could not run '|no fake impl|FakeTensor|[Ff]ake tensor|fake mode|\bmeta\b|Meta"
    r"|data_ptr|data[- ]dependent|Cannot access (data|storage)|ATen_cuda|not compiled with CUDA|"
    r"Found no NVIDIA driver|No CUDA GPUs|Cannot access accelerator"
    r"|libcuda|libcudart|module 'torch._C' has no|_pinchpoint"
)
MESH = "Mesh should not be bigger than default world size"
SAME_DEVICE = "Expected all tensors to be on the same device"
# What torch's C++ code says of wrong shapes and types before it calls an operation.
_SHAPES = re.compile(
    r"shape '.*' is invalid for input of size|must match the size of tensor|size mismatch|"
    r"shapes? .* (cannot be|are not) |[Ee]xpected .*(dimension|channels|D tensor|-D |size)|"
    r"must match except in dimension|must have the same (dtype|size|number)|same dtype|"
    r"Dimension out of range|Error\(s\) in loading state_dict"
)
_CALL = re.compile(r"^([\w.<>]+)\(\) (got an unexpected|got multiple|takes|missing)")


def failure(text: str, error: BaseException, doing: str) -> PinchpointError:
    """The error to show for an exception that escaped from a target. `doing` begins the sentence."""
    for link in causes(error):
        if isinstance(link, PinchpointError):
            return link  # it has its message and hint, even if a library wrapped it
    if is_of_simulation(error):
        return _cannot_simulate(text, error)
    own = explain_failure(text, error, doing)
    if isinstance(error, SyntaxError):
        return own
    if SAME_DEVICE in str(error):
        return TargetFailed(own.what, hint='Move this tensor to the GPU first, such as with .to("cuda").')
    if MESH in str(error):
        return TargetFailed(own.what, hint="Give a --world-size that the sizes of the mesh multiply to.")
    if getattr(error, SAME_ON_GPU, False) or _is_of_shapes(error):
        return TargetFailed(
            own.what,
            hint="A GPU would raise this error too: fix the line. --debug shows the whole traceback.",
        )
    return TargetFailed(
        own.what,
        hint="Fix the line. If it works on a GPU, it is pinchpoint that does not support it yet: "
        "run with --debug and report what it prints.",
    )


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error followed by its causes and the errors that were being handled."""
    link: Any = error
    links: list[BaseException] = []
    while link is not None and link not in links:
        links.append(link)
        yield link
        link = link.__cause__ or link.__context__


def is_of_simulation(error: BaseException) -> bool:
    """Whether the simulation raised an exception that a run on a GPU would not."""
    if type(error).__module__.startswith("torch._subclasses"):
        return True
    if isinstance(error, TypeError) and (call := _CALL.match(str(error))) and _is_ours(call[1]):
        return True  # one of our functions in place of torch's lacks an argument
    if isinstance(error, SyntaxError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    file = last.filename if last is not None else PINCHPOINT
    is_ours = file.startswith(PINCHPOINT) and not file.startswith(SHIPPED_TARGETS)
    if (is_ours or any(part in file for part in _WITHOUT_VALUES)) and (
        isinstance(error, NotImplementedError)
        or not isinstance(error, _OF_OPERATIONS)
        or (is_ours and user_frame(error) is None)
    ):
        return True
    on_purpose = last is not None and re.search(r"\b(raise|assert)\b", last.line or "") is not None
    if on_purpose and not is_ours and "/torch/" not in file:
        return False
    return says_simulation(error)


def _is_of_shapes(error: BaseException) -> bool:
    """Whether torch's own code, not the target's, complains about shapes or types."""
    frames = traceback.extract_tb(error.__traceback__)
    line = (frames[-1].line or "") if frames else ""
    by_user = frames and "/torch/" not in frames[-1].filename and re.search(r"\b(raise|assert)\b", line)
    return isinstance(error, _OF_OPERATIONS) and not by_user and _SHAPES.search(str(error)) is not None


def says_simulation(error: BaseException) -> bool:
    """Whether the text of an operation's error is about running without values or without a GPU."""
    return _TEXTS.search(str(error)) is not None


def _cannot_simulate(text: str, error: BaseException) -> PinchpointError:
    frame = user_frame(error)
    said = " ".join(str(error).split())
    said = f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__
    if frame is None:
        return Bug(
            f"pinchpoint failed while it predicted {text}: {said}",
            hint="This is a bug in pinchpoint: run again with --debug and report what it prints.",
        )
    operation = getattr(error, OPERATION, None)
    what = repr(operation) if operation else f"`{linecache.getline(frame[0], frame[1]).strip()}`"
    return CannotFake(
        f"pinchpoint cannot simulate {what} at {frame[0]}:{frame[1]}: {said}",
        hint="Predict the step without this operation. If it runs on a GPU, pinchpoint does not support it "
        "yet: run with --debug and report what it prints.",
    )


def _is_ours(qualname: str) -> bool:
    """Whether a function of this qualified name is defined in our backends."""
    for name, module in list(sys.modules.items()):
        if name.startswith("pinchpoint.backends."):
            loader: Any = getattr(module, "__loader__", None)
            code = loader.get_code(name) if hasattr(loader, "get_code") else None
            if code is not None and qualname in _qualnames(code):
                return True
    return False


def _qualnames(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {code.co_qualname}.union(*(_qualnames(one) for one in inner))
