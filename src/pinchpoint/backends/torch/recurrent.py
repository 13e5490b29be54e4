"""nn.LSTM, nn.GRU and nn.RNN as cuDNN runs them: one fused call with a reserve kept for backward.

The host would run them gate by gate. Sizes of the reserve are exact; the workspace is chosen by
cuDNN's own search and modelled by the nearest rule, so it counts as uncertain.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.modules.rnn as rnn_module

from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.patches import Patches
from pinchpoint.core.events import UNCERTAIN

# Values kept for backward per layer and step, in units of the hidden width.
_KEPT = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_FIXED_BYTES = 8 * 2**20
_GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def install(patches: Patches, observer: Observer) -> None:
    functions = compat.variable_functions()
    replaced = {kind: _wrap(kind, functions[kind], observer) for kind in _KEPT}
    patches.set(rnn_module, "_VF", types.SimpleNamespace(**{**functions, **replaced}))
    # On the device the weights of a module share one buffer: the same bytes, so nothing to pretend.
    patches.set(torch.nn.RNNBase, "flatten_parameters", lambda self: None)


def _wrap(kind: str, original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        source = args[0]
        packed = isinstance(args[1], torch.Tensor) and args[1].dim() == 1
        if not observer.on_device(source) or packed or observer.dynamic.calibrating:
            return original(*args)
        hidden, weights, _, layers, dropout, training, bidirectional, batch_first = args[1:9]
        state = list(hidden) if isinstance(hidden, (tuple, list)) else [hidden]
        call = _Call(kind, layers, bidirectional, batch_first, dropout if training else 0.0, len(state), observer)
        out = _Fused.apply(call, source, *state, *weights)
        return out[0], *out[1:]

    return run


class _Call:
    """What the fused call needs to know beside its tensors."""

    def __init__(
        self, kind: str, layers: int, bidirectional: bool, batch_first: bool, dropout: float, states: int, observer: Observer
    ):
        self.kind, self.layers, self.batch_first, self.dropout = kind, layers, batch_first, dropout
        self.directions = 2 if bidirectional else 1
        self.states = states
        self.observer = observer

    def reserve_bytes(self, steps_times_batch: int, hidden: int, item: int) -> int:
        unit = steps_times_batch * hidden * item * self.directions
        kept = _KEPT[self.kind] * self.layers + (self.layers - 1)
        mask = (self.layers - 1) * self.directions * steps_times_batch * hidden // 8 if self.dropout else 0
        return unit * kept + mask + 256

    def workspace_bytes(self, batch: int, steps: int, width: int, hidden: int, item: int, weight_bytes: int) -> int:
        """Gates, inputs and outputs of all steps, and a fixed part a layer; fitted to cuDNN 9.19 on an H200."""
        points = steps * batch * item
        moving = points * self.directions * (_GATES[self.kind] * hidden + width + hidden)
        if self.dropout:
            moving += points * self.directions * hidden
        if self.directions == 2:
            moving += 16 * points * hidden // 5  # both directions' outputs are joined for the next layer
        return moving + self.layers * (_FIXED_BYTES + 10 * batch * hidden * item) + 6 * weight_bytes // 5

    def hold(self, size: int) -> None:
        """A workspace: there while the call runs."""
        ledger = self.observer.ledger
        phase = ledger.phase or "forward"
        ledger.end_passing(ledger.add_passing(size, phase=phase, site=ledger.site(), op=UNCERTAIN))


class _Fused(torch.autograd.Function):
    """Allocates what cuDNN's recurrent forward and backward allocate, in their order."""

    @staticmethod
    def forward(ctx: Any, call: _Call, source: torch.Tensor, *rest: torch.Tensor) -> Any:
        states, weights = rest[: call.states], rest[call.states :]
        moved = source.transpose(0, 1).contiguous() if call.batch_first else source.contiguous()
        steps, batch = moved.shape[0], moved.shape[1]
        hidden = states[0].shape[-1]
        out = source.new_empty(steps, batch, hidden * call.directions)
        finals = [torch.empty_like(s) for s in states]
        item = source.element_size()
        weight_bytes = sum(w.numel() * item for w in weights)
        if source.dtype is not torch.float32:
            # Half-precision weights are compacted into a buffer of their own at every call.
            ctx.weight_buffer = source.new_empty(sum(w.numel() for w in weights))
        call_size = call.workspace_bytes(batch, steps, moved.shape[2], hidden, item, weight_bytes)
        reserve = source.new_empty(call.reserve_bytes(steps * batch, hidden, item), dtype=torch.uint8)
        call.hold(call_size)
        ctx.call, ctx.workspace = call, call_size
        ctx.save_for_backward(source, out, reserve, *states, *weights)
        call.observer.shadows.forget(out, *finals)
        shown = out.transpose(0, 1) if call.batch_first else out
        return (shown, *finals)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        call: _Call = ctx.call
        source, _, _, *rest = ctx.saved_tensors
        into_out = gradients[0].transpose(0, 1).contiguous() if call.batch_first else gradients[0].contiguous()
        states, weights = rest[: call.states], rest[call.states :]
        moved = source.transpose(0, 1).contiguous() if call.batch_first else source
        into_source = torch.empty_like(moved)
        into_states = [torch.empty_like(s) for s in states]
        call.hold(ctx.workspace)
        del moved, into_out
        again = source.transpose(0, 1).contiguous() if call.batch_first else source
        buffer = source.new_empty(sum(w.numel() for w in weights))
        call.hold(ctx.workspace)
        del again
        into_weights, at = [], 0
        for weight in weights:
            into_weights.append(buffer[at : at + weight.numel()].view(weight.shape))
            at += weight.numel()
        if call.batch_first:
            into_source = into_source.transpose(0, 1)
        return (None, into_source, *into_states, *into_weights)
