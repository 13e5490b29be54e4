"""`watch_gradients`: parameters of an optimizer that never have a gradient when it steps."""

from __future__ import annotations

import weakref

import torch
from torch.optim import Optimizer

from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.torch.recording.phases import Watched

_LISTED = 50


class _Suspect:
    """A parameter that had no gradient so far. It is described while it is alive."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.reference = weakref.ref(parameter)
        self.name: str | None = None
        self.shape = [int(size) for size in parameter.shape]
        self.needs_gradient = parameter.requires_grad


def watch_gradients(recorder: Recorder, watched: Watched) -> None:
    without: dict[int, dict[int, _Suspect]] = {}

    def look(optimizer: Optimizer) -> None:
        suspects = without.get(id(optimizer))
        if suspects is None:
            suspects = without[id(optimizer)] = {
                id(parameter): _Suspect(parameter)
                for group in optimizer.param_groups
                for parameter in group["params"]
            }
        # Only those without a gradient so far are looked at again: none, after the first step of most models.
        for key, suspect in list(suspects.items()):
            parameter = suspect.reference()
            if parameter is not None and parameter.grad is not None:
                del suspects[key]
        if any(suspect.name is None for suspect in suspects.values()):
            names = _names(watched)
            for key, suspect in suspects.items():
                suspect.name = suspect.name or names.get(key, "")

    def report() -> None:
        recorder.parts["without_gradient"] = [
            {"name": suspect.name or "", "shape": suspect.shape, "reason": _reason(suspect)}
            for suspects in without.values()
            for suspect in suspects.values()
        ][:_LISTED]

    watched.before_step.append(look)
    watched.after_closure.append(look)  # which computes the gradients in the step
    recorder.on_finish.append(report)


def _reason(suspect: _Suspect) -> str:
    if suspect.needs_gradient:
        return "it does not take part in the loss, or its gradient is cut by no_grad or detach"
    return "requires_grad is False, but the optimizer has it"


def _names(watched: Watched) -> dict[int, str]:
    """Names of parameters, by identity, from the models that were called."""
    names: dict[int, str] = {}
    for model in list(watched.models):
        for name, parameter in torch.nn.Module.named_parameters(model):
            names.setdefault(id(parameter), f"{type(model).__name__}.{name}")
    return names
