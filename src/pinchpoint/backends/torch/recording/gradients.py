"""`watch_gradients`: parameters of an optimizer that never have a gradient when it steps."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.optim import Optimizer

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.torch.recording.phases import Watched

_LISTED = 50


def watch_gradients(recorder: Recorder, watched: Watched) -> None:
    without: dict[int, dict[int, weakref.ref[Any]]] = {}

    def look(optimizer: Optimizer) -> None:
        suspects = without.get(id(optimizer))
        if suspects is None:
            suspects = without[id(optimizer)] = {
                id(parameter): weakref.ref(parameter)
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
        # Only those without a gradient so far are looked at again: none, after the first step of most models.
        for key, reference in list(suspects.items()):
            parameter = reference()
            if parameter is None or parameter.grad is not None:
                del suspects[key]

    def report() -> None:
        names = _names(watched)
        rows: list[dict[str, Any]] = []
        for suspects in without.values():
            for key, reference in suspects.items():
                parameter = reference()
                if parameter is not None:
                    reason = (
                        "it does not take part in the loss, or its gradient is cut by no_grad or detach"
                        if parameter.requires_grad
                        else "requires_grad is False, but the optimizer has it"
                    )
                    shape = [int(size) for size in parameter.shape]
                    rows.append({"name": names.get(key, ""), "shape": shape, "reason": reason})
        recorder.parts["without_gradient"] = rows[:_LISTED]

    watched.before_step.append(look)
    recorder.on_finish.append(report)


def _names(watched: Watched) -> dict[int, str]:
    """Names of parameters, by identity, from the models that were called."""
    names: dict[int, str] = {}
    for model in watched.models.values():
        for name, parameter in torch.nn.Module.named_parameters(model):
            names.setdefault(id(parameter), f"{type(model).__name__}.{name}")
    return names
