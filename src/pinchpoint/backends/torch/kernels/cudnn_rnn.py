"""Bytes that cuDNN uses for a recurrent call: the reserve saved for backward, and the workspace.

The library documents neither. The workspace of a call is the largest plan of its passes; each plan is linear
in steps, input width and hidden width. The figures below come from 851 calls of every kind on an H200 with
cuDNN 9.19: see benchmarks/results/rnn_probe_h200.json and the test that compares with it.
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
        """Whether such calls were measured: packed calls only for their reserve, projections not at all."""
        return self.total is None and not self.projection

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
    dropped = (call.layers - 1) * call.directions**2 * call.rows * call.hidden
    mask = dropped // 8 if call.dropout else 0
    return unit * widths + mask + 256 + call.projected_bytes


def workspace(call: Call, *, backward: bool = False) -> Span:
    """Workspace while a pass runs; the span is wide if no such call was measured.

    A packed call gets its share of the padded call's workspace.
    """
    padded_bytes = workspace_bytes(call, backward=backward)
    if call.is_measured:
        return Span(
            padded_bytes,
            least=padded_bytes * (100 - _SPREAD) // 100,
            most=padded_bytes * (100 + _SPREAD) // 100,
        )
    return Span(padded_bytes * call.rows // (call.steps * call.batch), least=0, most=2 * padded_bytes)


def workspace_bytes(call: Call, *, backward: bool = False) -> int:
    """Workspace of forward, or of either half of backward, with every sequence padded to the longest.

    Forward in training already allocates what backward needs.
    """
    narrow = call.narrow(_NARROW_BACKWARD if backward else _NARROW_FORWARD)
    plans = [_forward(call, narrow), *(_backward(call, narrow) if call.training else ())]
    value_bytes = call.batch * call.item_bytes * max(plan.values(call) for plan in plans)
    stream_bytes = call.layers * call.directions * _STREAM_BYTES
    projection_bytes = (
        call.steps * call.batch * call.projection * call.directions * call.layers * call.item_bytes
    )
    return (
        value_bytes + stream_bytes + call.weights * call.item_bytes + 8 * call.batch + 256 + projection_bytes
    )


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
