"""Bytes that cuDNN uses for a recurrent call: the reserve saved for backward, and the workspace.

The library documents neither. The workspace of a call is the largest plan of its passes; each plan is linear
in steps, input width and hidden width. The figures below come from 851 calls of every kind on an H200 with
cuDNN 9.19 (benchmarks/results/rnn_probe_h200.json), and from 260 calls on packed sequences
(packed_probe_h200.json); tests compare with both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pinchpoint.core.events import Span
from pinchpoint.core.units import MIB

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# Values saved for backward per layer and step, in units of the hidden width.
_SAVED_WIDTHS = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_SPREAD = 10  # per cent by which another version of the library, or another card, may use more or less
_STREAM_BYTES = 8 * MIB  # per layer and direction
_LONG = 256  # steps beyond which the gates of a call are no longer all kept in memory
_NARROW_FORWARD, _NARROW_BACKWARD = 192, 128  # hidden widths up to which each pass has special kernels


@dataclass(frozen=True)
class Call:
    """The shapes of one call.

    bfloat16: has no special kernels for narrow layers
    total: rows of a packed call, whose sequences end early
    projection: the width to which outputs are projected, or 0
    """

    kind: str
    batch: int
    steps: int
    width: int
    hidden: int
    layers: int
    directions: int
    dropout: bool
    item_bytes: int
    bfloat16: bool = False
    training: bool = True
    total: int | None = None
    projection: int = 0

    @property
    def rows(self) -> int:
        """Rows of all steps together."""
        return self.steps * self.batch if self.total is None else self.total

    @property
    def is_measured(self) -> bool:
        """Whether such calls were measured: all but those with projections."""
        return not self.projection

    @property
    def padded_rows(self) -> int:
        return self.steps * self.batch

    @property
    def projected_bytes(self) -> int:
        """Bytes of the outputs of every layer at the projected width."""
        return self.rows * self.projection * self.directions * self.layers * self.item_bytes

    def narrow(self, limit: int) -> bool:
        """Whether kernels keep the recurrent weights on the chip; with one gate, the limit is doubled."""
        return not self.bfloat16 and self.hidden <= (2 * limit if GATES[self.kind] == 1 else limit)

    @property
    def weights(self) -> int:
        """Elements of all weight matrices, without biases."""
        inputs = self.width + (self.layers - 1) * self.hidden * self.directions
        recurrent = GATES[self.kind] * (inputs + self.layers * self.hidden)
        return self.directions * self.hidden * (recurrent + self.layers * self.projection)


def reserve_bytes(call: Call) -> int:
    """Bytes that forward saves for backward."""
    if not call.training:
        return 0
    unit = call.rows * call.hidden * call.item_bytes * call.directions
    widths = _SAVED_WIDTHS[call.kind] * call.layers + (call.layers - 1)
    # One bit for every value that dropout between layers covers, in both halves of a bidirectional layer.
    dropped = (call.layers - 1) * call.directions**2 * call.padded_rows * call.hidden
    mask = dropped // 8 if call.dropout else 0
    return unit * widths + mask + 256 + call.projected_bytes


def workspace(call: Call, *, backward: bool = False) -> Span:
    """Workspace while a pass runs; the span is wide if no such call was measured."""
    usual = workspace_bytes(call, backward=backward)
    if call.is_measured:
        return Span(usual, least=usual * (100 - _SPREAD) // 100, most=usual * (100 + _SPREAD) // 100)
    return Span(usual, least=0, most=2 * usual)


def workspace_bytes(call: Call, *, backward: bool = False) -> int:
    """Workspace of forward, or of either half of backward.

    Forward in training already allocates what backward needs.
    """
    if call.total is not None:
        value_bytes = call.item_bytes * max(_packed_plans(call))
        return value_bytes + _fixed_bytes(call) + 256
    narrow = call.narrow(_NARROW_BACKWARD if backward else _NARROW_FORWARD)
    plans = [_forward(call, narrow), *(_backward(call, narrow) if call.training else ())]
    value_bytes = call.batch * call.item_bytes * max(plan.values(call) for plan in plans)
    return value_bytes + _fixed_bytes(call) + 8 * call.batch + 256


def _fixed_bytes(call: Call) -> int:
    """What does not depend on the plan: a copy of the weights, streams, and projected outputs."""
    stream_bytes = call.layers * call.directions * _STREAM_BYTES
    return stream_bytes + call.weights * call.item_bytes + call.projected_bytes


def _packed_plans(call: Call) -> list[int]:
    """Values of the plans of a packed call: a multiple of its rows, and of its batch once per layer."""
    rows, hidden, wide = call.rows, call.hidden, max(call.hidden, call.width)
    deep, state = int(call.layers > 1), call.layers * call.batch * call.hidden
    if call.directions == 2:
        per_row, once = {"lstm": (12, 16), "gru": (10, 10)}.get(call.kind, (6, 6))
        forward = per_row * hidden * rows + once * state
        joined = ((2 + 2 * deep) * hidden + 4 * wide) * rows + (16 if call.kind == "lstm" else 6) * state
        return [forward, joined] if call.training else [forward]
    once, once_back = {"lstm": (6, 3), "gru": (3, 1)}.get(call.kind, (1, 1))
    in_memory = min(rows, _LONG * call.batch)
    forward = (GATES[call.kind] * in_memory + int(call.dropout) * deep * rows) * hidden + once * state
    ahead = rows if not deep else _steps_ahead(call) * call.batch
    back = wide * rows + hidden * ahead + once_back * state
    return [forward, back] if call.training else [forward]


class _Plan(NamedTuple):
    """Values per batch entry: widths for every step, and hidden widths once per layer."""

    hidden: int
    width: int
    once: int
    wider: int = 0  # multiples of the larger of the two widths
    for_steps: int = 0  # hidden widths for some steps only, times their number

    def values(self, call: Call) -> int:
        per_step = (
            self.hidden * call.hidden + self.width * call.width + self.wider * max(call.hidden, call.width)
        )
        return call.steps * per_step + (self.once * call.layers + self.for_steps) * call.hidden


def _forward(call: Call, narrow: bool) -> _Plan:
    if call.directions == 2 and narrow:
        return {"lstm": _Plan(30, 1, 18), "gru": _Plan(24, 1, 10)}.get(call.kind, _Plan(12, 1, 10))
    if call.directions == 2:
        return {"lstm": _Plan(14, 1, 24), "gru": _Plan(12, 1, 14)}.get(call.kind, _Plan(8, 1, 10))
    dropped = int(call.dropout)
    if narrow:
        return {"lstm": _Plan(21 + dropped, 1, 8), "gru": _Plan(16, 1, 4)}.get(call.kind, _Plan(6, 1, 4))
    gates = GATES[call.kind] * min(call.steps, _LONG)
    return _Plan(1 + dropped, 1, {"lstm": 10, "gru": 5}.get(call.kind, 3), for_steps=gates)


def _backward(call: Call, narrow: bool) -> list[_Plan]:
    kind, deep = call.kind, int(call.layers > 1)
    if call.directions == 1:
        once = 11 if kind == "lstm" else 5
        if narrow:
            return [_Plan({"lstm": 15, "gru": 17}.get(kind, 12) + deep, 2, once + 1, wider=1)]
        return [_Plan(2, 2, once, wider=1, for_steps=_steps_ahead(call))]
    # Both directions run together; their gradients are joined between layers.
    once = 26 if kind == "lstm" else 14
    joined = _Plan((({"lstm": 18, "gru": 20}.get(kind, 15)) if narrow else 6) + 2 * deep, 4, once, wider=2)
    if kind == "lstm":
        return [joined]
    split = {("gru", True): 24, ("gru", False): 10}.get((kind, narrow), 19 if narrow else 10)
    return [joined, _Plan(split + 2 * deep, 2, once)]


def _steps_ahead(call: Call) -> int:
    """Steps of gradients in flight between layers, which run one behind another."""
    if call.layers == 1:
        return call.steps
    if call.batch > 8 and call.steps < _LONG // 2:
        return min(call.steps, 16)
    return min(call.steps, (16 if call.batch <= 8 else 8) * (call.layers + 1))
