"""Recurrent layers and cells as CUDA runs them; the host would run them gate by gate.

nn.LSTM, nn.GRU and nn.RNN are one call of cuDNN, which saves a reserve for backward; `cudnn_rnn` computes the
memory that the library uses. LSTMCell and GRUCell are two matrix products and one fused kernel of torch.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.modules.rnn as rnn_module

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.kernels import cudnn_rnn
from pinchpoint.backends.torch.observer import Observer


def install(patches: Patches, observer: Observer) -> None:
    functions = compat.variable_functions()
    replacements = {kind: _wrap(kind, functions[kind], observer) for kind in cudnn_rnn.GATES}
    replacements |= {
        "lstm_cell": _wrap_cell(functions["lstm_cell"], _LstmCell, observer),
        "gru_cell": _wrap_cell(functions["gru_cell"], _GruCell, observer),
    }
    compat.set_variable_functions(
        patches.set, rnn_module, types.SimpleNamespace(**{**functions, **replacements})
    )
    patches.set(torch.nn.RNNBase, "flatten_parameters", lambda self: _flatten(self, observer))


def _flatten(layer: torch.nn.RNNBase, observer: Observer) -> None:
    """Move the weights of a layer into one buffer, as cuDNN needs them; the old blocks are freed."""
    weights = [w for w in compat.flat_weights(layer) if isinstance(w, torch.Tensor)]
    if observer.dynamic.calibrating or not weights or not all(map(observer.on_device, weights)):
        return
    if len({w.dtype for w in weights}) > 1 or len({id(w) for w in weights}) < len(weights):
        return
    with torch.no_grad():
        buffer = weights[0].new_empty(sum(w.numel() for w in weights))
        for weight, part in zip(weights, buffer.split([w.numel() for w in weights]), strict=True):
            weight.data = part.view(weight.shape)
            observer.ledger.set_role(weight, "weights")


def _wrap(kind: str, original: Callable[..., Any], observer: Observer) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        source = args[0]
        if not observer.on_device(source) or observer.dynamic.calibrating:
            return original(*args)
        is_packed = isinstance(args[1], torch.Tensor) and args[1].dim() == 1
        steps = args[1].shape[0] if is_packed else None
        hidden, weights, _, layers, dropout, training, bidirectional, *rest = args[1 + is_packed :]
        state = list(hidden) if isinstance(hidden, (tuple, list)) else [hidden]
        job = _Job(
            kind,
            layers,
            2 if bidirectional else 1,
            bool(rest and rest[0]),
            bool(dropout) and training,
            training,
            len(state),
            steps,
            observer,
        )
        out = _Fused.apply(job, source, *state, *weights)
        return out[0], *out[1:]

    return run


def _wrap_cell(
    original: Callable[..., Any], fused: type[torch.autograd.Function], observer: Observer
) -> Callable[..., Any]:
    def run(
        source: torch.Tensor,
        hidden: Any,
        input_weight: torch.Tensor,
        hidden_weight: torch.Tensor,
        input_bias: torch.Tensor | None = None,
        hidden_bias: torch.Tensor | None = None,
    ) -> Any:
        if not observer.on_device(source) or observer.dynamic.calibrating:
            return original(source, hidden, input_weight, hidden_weight, input_bias, hidden_bias)
        state, carried = hidden if isinstance(hidden, (tuple, list)) else (hidden, hidden)
        input_gates = F.linear(source, input_weight)
        hidden_gates = F.linear(state, hidden_weight)
        # Under autocast every argument of a cell is cast; the products above were.
        carried = carried.to(input_gates.dtype)
        return fused.apply(observer, input_gates, hidden_gates, carried, input_bias, hidden_bias)

    return run


class _LstmCell(torch.autograd.Function):
    """Allocates what CUDA's fused LSTM cell does: the gates are kept in a workspace for backward."""

    @staticmethod
    def forward(
        ctx: Any, observer: Observer, input_gates: Any, hidden_gates: Any, cell: Any, *biases: Any
    ) -> Any:
        workspace = torch.empty_like(input_gates)
        hidden, new_cell = torch.empty_like(cell), torch.empty_like(cell)
        ctx.has_bias = biases[0] is not None
        ctx.set_materialize_grads(False)  # torch's C++ code does without the gradient of an unused result
        ctx.save_for_backward(input_gates, hidden_gates, cell, new_cell, workspace)
        observer.shadows.forget(hidden, new_cell)
        return hidden, new_cell

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        _, _, cell, _, workspace = ctx.saved_tensors
        gates, cell_gradient = torch.empty_like(workspace), torch.empty_like(cell)
        bias = gates.sum(0) if ctx.has_bias else None
        return None, gates, gates, cell_gradient, bias, bias


class _GruCell(torch.autograd.Function):
    """Allocates what CUDA's fused GRU cell does: five rows of gates are kept for backward."""

    @staticmethod
    def forward(
        ctx: Any, observer: Observer, input_gates: Any, hidden_gates: Any, hidden: Any, *biases: Any
    ) -> Any:
        workspace = hidden.new_empty(hidden.shape[0], 5 * hidden.shape[1])
        out = torch.empty_like(hidden)
        ctx.has_bias = biases[0] is not None
        ctx.save_for_backward(input_gates, hidden_gates, hidden, workspace)
        observer.shadows.forget(out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        input_gates, hidden_gates, hidden, _ = ctx.saved_tensors
        gate_gradients = torch.empty_like(input_gates), torch.empty_like(hidden_gates)
        hidden_gradient = torch.empty_like(hidden)
        biases = [gates.sum(0) if ctx.has_bias else None for gates in gate_gradients]
        return None, *gate_gradients, hidden_gradient, *biases


@dataclass(frozen=True)
class _Job:
    """What the fused call needs besides its tensors.

    packed_steps: steps of the longest sequence of a packed call
    """

    kind: str
    layers: int
    directions: int
    batch_first: bool
    dropout: bool
    training: bool
    states: int
    packed_steps: int | None
    observer: Observer

    def shapes(self, inputs: torch.Tensor, state: torch.Tensor, weight: torch.Tensor) -> cudnn_rnn.Call:
        """The shapes of a call.

        inputs: (steps, batch, width), or (total, width) packed
        state: (layers x directions, batch, width of outputs), which projections make narrower than hidden
        weight: (gates x hidden, width)
        """
        hidden, outputs = weight.shape[0] // cudnn_rnn.GATES[self.kind], state.shape[-1]
        packed_steps = self.packed_steps
        call = cudnn_rnn.Call(
            kind=self.kind,
            batch=state.shape[1],
            steps=inputs.shape[0] if packed_steps is None else packed_steps,
            width=inputs.shape[-1],
            hidden=hidden,
            layers=self.layers,
            directions=self.directions,
            dropout=self.dropout,
            item_bytes=inputs.element_size(),
            bfloat16=inputs.dtype is torch.bfloat16,
            training=self.training,
            total=None if packed_steps is None else inputs.shape[0],
            projection=outputs if outputs != hidden else 0,
        )
        if not call.is_measured:
            self.observer.note(
                "cuDNN's memory for recurrent layers with projections is estimated: it was not measured"
            )
        return call

    @contextmanager
    def workspace(self, call: cudnn_rnn.Call, *, backward: bool = False) -> Iterator[None]:
        """Allocate the library's workspace while its call runs."""
        span, ledger = cudnn_rnn.workspace(call, backward=backward), self.observer.ledger
        block = ledger.add_temporary(
            span, phase=ledger.phase or "forward", site=ledger.site(), op=f"cudnn {self.kind}"
        )
        yield
        ledger.free_temporary(block)


class _Fused(torch.autograd.Function):
    """Allocates what cuDNN's recurrent forward and backward allocate, in their order."""

    @staticmethod
    def forward(ctx: Any, job: _Job, source: torch.Tensor, *rest: torch.Tensor) -> Any:
        states, weights = rest[: job.states], rest[job.states :]
        inputs = source.transpose(0, 1).contiguous() if job.batch_first else source.contiguous()
        call = job.shapes(inputs, states[0], weights[0])
        out = source.new_empty(*inputs.shape[:-1], states[0].shape[-1] * call.directions)
        finals = [torch.empty_like(s) for s in states]
        if source.dtype is not torch.float32:
            # Half-precision weights are copied into a separate buffer at every call.
            ctx.weight_buffer = source.new_empty(sum(w.numel() for w in weights))
        with job.workspace(call):
            reserve = source.new_empty(cudnn_rnn.reserve_bytes(call), dtype=torch.uint8)
        ctx.job, ctx.call = job, call
        ctx.set_materialize_grads(False)  # an unused state has no gradient; that of the output is made below
        ctx.save_for_backward(source, out, reserve, *states, *weights)
        job.observer.shadows.forget(out, *finals)
        outputs = out.transpose(0, 1) if job.batch_first else out
        return (outputs, *finals)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> Any:
        job: _Job = ctx.job
        if not job.training:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        source, out, _, *rest = ctx.saved_tensors
        first = gradients[0]
        if first is None:
            output_gradient = torch.zeros_like(out)
        else:
            output_gradient = (first.transpose(0, 1) if job.batch_first else first).contiguous()
        states, weights = rest[: job.states], rest[job.states :]
        inputs = source.transpose(0, 1).contiguous() if job.batch_first else source
        source_gradient = torch.empty_like(inputs)
        state_gradients = [torch.empty_like(s) for s in states]
        with job.workspace(ctx.call, backward=True):
            pass
        del inputs, output_gradient, first
        again = source.transpose(0, 1).contiguous() if job.batch_first else source
        buffer = source.new_empty(sum(w.numel() for w in weights))
        with job.workspace(ctx.call, backward=True):
            pass
        del again
        weight_gradients, at = [], 0
        for weight in weights:
            weight_gradients.append(buffer[at : at + weight.numel()].view(weight.shape))
            at += weight.numel()
        if job.batch_first:
            source_gradient = source_gradient.transpose(0, 1)
        return (None, source_gradient, *state_gradients, *weight_gradients)
