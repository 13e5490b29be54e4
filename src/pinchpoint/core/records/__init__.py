"""Records: the result of each verb, as frozen dataclasses that can be saved as JSON and loaded again."""

from pinchpoint.core.records.base import SCHEMA, Record, now, script_command
from pinchpoint.core.records.check import Advice, Check, Gain
from pinchpoint.core.records.checkpointing import Checkpointing
from pinchpoint.core.records.reading import KINDS, load
from pinchpoint.core.records.results import (
    BREAKDOWN,
    Forecast,
    Inside,
    Law,
    Lever,
    Line,
    Plan,
    Point,
    Status,
    Study,
    Verdict,
)
from pinchpoint.core.records.trace import Problem, Trace, TraceEvent, TracePhase

__all__ = [
    "BREAKDOWN",
    "KINDS",
    "SCHEMA",
    "Advice",
    "Check",
    "Checkpointing",
    "Forecast",
    "Gain",
    "Inside",
    "Law",
    "Lever",
    "Line",
    "Plan",
    "Point",
    "Problem",
    "Record",
    "Status",
    "Study",
    "Trace",
    "TraceEvent",
    "TracePhase",
    "Verdict",
    "load",
    "now",
    "script_command",
]
