"""The section of a check: its advice in order, its fixes, and that hostile text stays text."""

from __future__ import annotations

from dataclasses import replace

from pinchpoint.core.records import Check, Record
from pinchpoint.reporting.report import page
from pinchpoint.reporting.sections import check as section


def test_the_page_shows_costs_fixes_and_the_gain(samples: dict[str, Record]) -> None:
    check = samples["check"]
    assert isinstance(check, Check)
    entry = section.entry(check)
    assert entry.headline.value == "1"
    text = page([check], created=check.created)
    for part in ("sync-in-loop", "100.00 ms", "20.0%", "1.25", "1.20 to 1.30", "A note."):
        assert part in text


def test_each_group_has_a_table_and_the_steps_are_shown(samples: dict[str, Record]) -> None:
    check = samples["check"]
    assert isinstance(check, Check)
    wait = check.advice[0]
    wrong = replace(wait, rule="PP501", name="gradient-cut", cost_s=None, share=None, seen="ran")
    unread = replace(wrong, rule="PP402", name="unpinned", diff="-a\n+b\n")
    text = page([replace(check, advice=(wait, wrong, unread))], created="")
    titles = (
        "Measured costs",
        "Correctness",
        "Without a measured cost",
        "Fixes",
        "Phases",
        "Steps",
    )
    places = [text.index(f">{title}<") for title in titles]
    assert places == sorted(places)
    assert "3 things to change: 1 with a measured cost, 1 about correctness, 1 without" in text
    assert "device per step" not in text


def test_text_of_a_check_never_becomes_markup(samples: dict[str, Record]) -> None:
    check = samples["check"]
    assert isinstance(check, Check)
    text = "<script>bad()</script>"
    advice = replace(check.advice[0], what=text, hint=text, file=text, diff=text, name=text)
    result = page([replace(check, advice=(advice,), target=text, notes=(text,), error=text)], created="")
    assert text not in result
