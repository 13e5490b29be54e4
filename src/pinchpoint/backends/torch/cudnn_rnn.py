"""Bytes cuDNN takes for a recurrent call: the reserve kept for backward, and the workspace while it runs.

The library says neither in its documentation. The workspace is the larger of two plans, each linear
in steps, input width and hidden width; the figures below reproduce 918 of 923 calls recorded on an
H200 with cuDNN 9.19 to 0.01 %, the rest within 4 % (benchmarks/results/rnn_probe_h200.json).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pinchpoint.core.units import MIB

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
# Values kept for backward per layer and step, in units of the hidden width.
_KEPT = {"lstm": 5, "gru": 6, "rnn_tanh": 1, "rnn_relu": 1}
_STREAM_BYTES = 8 * MIB  # of each layer and direction
_LONG = 256  # steps after which the gates of a call are no longer all held


@dataclass(frozen=True)
class Call:
    """One call's shapes. item_bytes: of an element; bfloat16 has no kernels of its own for narrow layers."""

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

    @property
    def narrow(self) -> bool:
        """Are the recurrent weights small enough for the kernels that keep them on the chip?"""
        return not self.bfloat16 and self.hidden <= (384 if GATES[self.kind] == 1 else 192)

    @property
    def weights(self) -> int:
        """Elements of all weight matrices, biases left out."""
        inputs = self.width + (self.layers - 1) * self.hidden * self.directions
        return self.directions * GATES[self.kind] * self.hidden * (inputs + self.layers * self.hidden)


def reserve_bytes(call: Call) -> int:
    """What forward leaves for backward."""
    if not call.training:
        return 0
    unit = call.steps * call.batch * call.hidden * call.item_bytes * call.directions
    kept = _KEPT[call.kind] * call.layers + (call.layers - 1)
    # A bit for every value dropped between layers, in both halves of a two-way layer's doubled width.
    dropped = (call.layers - 1) * call.directions**2 * call.steps * call.batch * call.hidden
    mask = dropped // 8 if call.dropout else 0
    return unit * kept + mask + 256


def workspace_bytes(call: Call) -> int:
    """While forward, or either half of backward, runs: the same for all three."""
    plans = _two_ways(call) if call.directions == 2 else _one_way(call)
    values = max(plan.values(call) for plan in plans)
    moving = call.batch * call.item_bytes * values
    fixed = call.layers * call.directions * _STREAM_BYTES
    return moving + fixed + call.weights * call.item_bytes + 8 * call.batch + 256


class _Plan(NamedTuple):
    """Values per batch entry: hidden and input widths held for every step, and hidden widths held once a layer."""

    hidden: int
    width: int
    wider: int  # of the larger of the two widths
    once: int
    steps_hidden: int = 0  # hidden widths held for some steps only

    def values(self, call: Call) -> int:
        a_step = self.hidden * call.hidden + self.width * call.width + self.wider * max(call.hidden, call.width)
        return call.steps * a_step + (self.once * call.layers + self.steps_hidden) * call.hidden


def _one_way(call: Call) -> tuple[_Plan, _Plan]:
    lstm, deep = call.kind == "lstm", int(call.layers > 1)
    if call.narrow:
        hidden = {"lstm": 15, "gru": 17}.get(call.kind, 12)
        joined = _Plan(hidden + deep, 2, 1, 12 if lstm else 6)
        return (_Plan(21 + call.dropout, 1, 0, 8) if lstm else joined), joined
    gates = GATES[call.kind] * min(call.steps, _LONG)
    ahead = call.steps if not deep else min(call.steps, (16 if call.batch <= 8 else 8) * (call.layers + 1))
    return (
        _Plan(1 + call.dropout, 1, 0, 10 if lstm else 5, steps_hidden=gates),
        _Plan(2, 2, 1, 11 if lstm else 5, steps_hidden=ahead),
    )


def _two_ways(call: Call) -> tuple[_Plan, _Plan]:
    """Both directions at once, their outputs joined between layers."""
    kind, deep = call.kind, int(call.layers > 1)
    if kind == "lstm":
        split = _Plan(30, 1, 0, 18) if call.narrow else _Plan(14, 1, 0, 24)
        return split, _Plan((18 if call.narrow else 6) + 2 * deep, 4, 2, 26)
    if kind == "gru":
        split = _Plan(24 + 2 * deep, 2, 0, 14) if call.narrow else _Plan(12, 1 + deep, 0, 14)
        return split, _Plan((20 if call.narrow else 6) + 2 * deep, 4, 2, 14)
    return (
        _Plan((19 if call.narrow else 10) + 2 * deep, 2, 0, 14),
        _Plan((15 if call.narrow else 6) + 2 * deep, 4, 2, 14),
    )
