"""`watch_rebuilds`: modules, losses, optimizers and loaders that are built again after the first step."""

from __future__ import annotations

import sys
from functools import wraps
from types import FrameType
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.recording.source_lines import is_user_file

_KINDS = (torch.nn.Module, Optimizer, DataLoader)


def watch_rebuilds(recorder: Recorder, patches: Patches) -> None:
    for owner in _KINDS:
        original: Any = owner.__init__

        def build(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> None:
            _original(self, *args, **kwargs)
            if recorder.step and not torch.compiler.is_compiling() and recorder.is_here:
                frame = _builder(self, sys._getframe(1))
                if frame is not None:
                    recorder.event("rebuild", type(self).__name__, recorder.lines.place_of(frame))

        patches.set(owner, "__init__", wraps(original)(build))


def _builder(thing: Any, frame: FrameType | None) -> FrameType | None:
    """The user's frame that builds a thing; None if it is a part of something else that is being built, or
    if a module of a library builds it in its forward pass.
    """
    while frame is not None:
        if frame.f_code.co_name == "__init__" and frame.f_code.co_argcount:
            owner = frame.f_locals.get(frame.f_code.co_varnames[0])
            if owner is not thing and isinstance(owner, _KINDS):
                return None
        elif is_user_file(frame.f_code.co_filename):
            return frame
        elif frame.f_code.co_name == "forward":
            return None
        frame = frame.f_back
    return None
