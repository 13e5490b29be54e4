"""The section of a trace: its numbers, and that hostile text stays text."""

from __future__ import annotations

from dataclasses import replace

from pinchpoint.core.records import Problem, Record, Trace
from pinchpoint.reporting.chart import Figure
from pinchpoint.reporting.report import page
from pinchpoint.reporting.sections import trace as section


def test_each_step_is_drawn_with_its_phases_and_memory(samples: dict[str, Record]) -> None:
    trace = samples["trace"]
    assert isinstance(trace, Trace)
    figures = {block.title: block for block in section.entry(trace).blocks if isinstance(block, Figure)}
    bars = {bar["name"]: bar for bar in figures["Steps"].data}
    assert bars["forward"]["x"] == [1, 2, 3]
    assert bars["backward"]["y"] == [300.0, 300.0, 300.0]
    assert figures["Memory at the end of each step"].data[0]["x"] == [1, 2, 3]


def test_text_of_a_trace_never_becomes_markup(samples: dict[str, Record]) -> None:
    trace = samples["trace"]
    assert isinstance(trace, Trace)
    text = "<script>bad()</script>"
    hostile = replace(
        trace,
        target=text,
        notes=(text,),
        problems=(Problem("wait", text, text, text, 3),),
        timeline=({"step": 0, "start_s": 0.0, "host_s": 1.0, "phases": {text: 1.0}},),
    )
    result = page([hostile], created=trace.created)
    assert text not in result
    assert "&lt;script&gt;bad()" in result
