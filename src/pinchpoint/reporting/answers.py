"""The answer of a record in plain words: what it found, and what to change.

The terminal, the page and notebooks all begin with it. It is built from the record alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from pinchpoint.core.records import (
    Check,
    Checkpointing,
    Forecast,
    Law,
    Plan,
    Problem,
    Record,
    Study,
    Trace,
    Verdict,
)
from pinchpoint.core.units import GIB, show_bytes, show_count, show_seconds, show_size
from pinchpoint.reporting.html import Tone
from pinchpoint.reporting.record_reader import count, number, share, word

CHANGES = 5  # changes listed in an answer
TYPICAL_CARD_BYTES = 24 * GIB  # the card whose largest size a study mentions has about this memory
_TONES: dict[bool | None, Tone] = {True: "good", False: "bad", None: "warn"}


@dataclass(frozen=True)
class Answer:
    """The answer in one or two sentences, and what to change, the most useful first."""

    tone: Tone
    text: str
    changes: tuple[str, ...] = ()


def answer(record: Record) -> Answer:
    if isinstance(record, Forecast):
        return _forecast(record)
    if isinstance(record, Plan):
        return _plan(record)
    if isinstance(record, Checkpointing):
        return _checkpointing(record)
    if isinstance(record, Study):
        return _study(record)
    if isinstance(record, Verdict):
        return _verdict(record)
    if isinstance(record, Trace):
        return _trace(record)
    assert isinstance(record, Check), f"records of the kind {record.kind} have no answer"
    return _check(record)


def explain_size_check(study: Study) -> str:
    """What the size check is about, for readers who meet it for the first time."""
    return (
        f"The size check asks whether every run processed as many {study.axis} as requested, and whether the "
        "peak grows with them, or stays flat where the variant says so. Without it, a law or a largest size "
        "could come from runs that were capped or cut short."
    )


def _forecast(record: Forecast) -> Answer:
    total = f"the predicted total is {show_bytes(record.total_bytes)}"
    smallest = next((name for name, fits in record.fits.items() if fits and name != record.card), None)
    other = f" The smallest card that fits is {smallest}." if smallest else ""
    fits = record.fits.get(record.card)
    if record.card not in record.fits:
        text = f"It needs a card with room for {show_bytes(record.total_bytes)}, as predicted.{other}"
    elif fits:
        text = f"It fits {record.card}: {total}.{other}"
    elif fits is None:
        text = f"It is unknown whether it fits {record.card}: {total}, but the peak may be higher.{other}"
    else:
        text = f"It does not fit {record.card}: {total}.{other}"
    levers = sorted(record.levers, key=lambda lever: -lever.saves_bytes)
    changes = [f"{lever.name} saves {show_bytes(lever.saves_bytes)}: {lever.how}" for lever in levers]
    if record.lines:
        line = max(record.lines, key=lambda line: line.bytes)
        part = share(line.bytes, record.peak_allocated_bytes)
        changes.append(
            f"the line that holds most is {_place(line.file, line.line)}, with {part:.0%} of the peak"
        )
    tone = _TONES[fits] if record.card in record.fits else "plain"
    return Answer(tone, text, tuple(changes[:CHANGES]))


def _plan(record: Plan) -> Answer:
    budget = show_bytes(record.budget_bytes)
    if record.size is None:
        if record.possible_size is None:
            return Answer("bad", f"No {record.axis} was found that fits {budget}.", record.reasons[:CHANGES])
        possible = show_size(record.possible_size)
        text = f"It is unknown which {record.axis} fits {budget}: {possible} fits unless the peak is higher."
        return Answer("warn", text, record.reasons[:CHANGES])
    size = show_size(record.size)
    parts = [f"{size} {record.axis}" if record.axis.endswith("s") else f"{record.axis} {size}"]
    if record.variant:
        parts.append(f"the variant {record.variant}")
    if record.chunk is not None:
        parts.append(f"chunks of {show_size(record.chunk)}")
    if record.world_size is not None:
        parts.append(show_count(record.world_size, "GPU"))
    used = show_bytes(record.peak_bytes)
    return Answer("good", f"Use {', '.join(parts)}: the predicted total is {used} of {budget}.")


def _checkpointing(record: Checkpointing) -> Answer:
    budget, before = show_bytes(record.budget_bytes), show_bytes(record.before_bytes)
    count_of = show_count(len(record.modules), "module")
    after = show_bytes(record.peak_bytes)
    if record.fits and not record.modules:
        return Answer("good", f"It fits {budget} as it is: the predicted total is {after}.")
    if record.fits is False:
        text = f"It does not fit {budget}, even with {count_of} recomputed: {before} before, {after} after."
        return Answer("bad", text)
    longer = f"{share(record.extra_s, record.step_s):.0%}"
    text = (
        f"Recompute {count_of} in the backward pass: the predicted total falls from {before} to {after},"
        f" and a step takes about {longer} longer (estimated)."
    )
    if record.fits is None:
        text += f" It is unknown whether that fits {budget}."
    groups = [f"{word(g, 'modules')} frees {show_bytes(number(g, 'freed_bytes'))}" for g in record.groups]
    return Answer(_TONES[record.fits], text, tuple(groups[:CHANGES]))


def _study(record: Study) -> Answer:
    if not record.passed:
        text = "The size check failed: do not rely on the laws of this study."
        return Answer("bad", text, record.gate[:CHANGES])
    laws = sorted(record.laws, key=lambda law: law.slope_bytes_per_point)
    text = "The size check passed."
    if record.laws:
        first = record.laws[0]
        text = (
            f"Each {record.unit} adds {_slope(first)} to the peak ({first.variant}, {first.mode});"
            " the size check passed."
        )
    changes = []
    for mode in dict.fromkeys(law.mode for law in record.laws):
        of_mode = [law for law in laws if law.mode == mode]
        base = next(law for law in record.laws if law.mode == mode)
        if len(of_mode) > 1 and of_mode[0] is not base:
            changes.append(
                f"{mode}: {of_mode[0].variant} adds only {_slope(of_mode[0])} per {record.unit},"
                f" {base.variant} {_slope(base)}"
            )
    return Answer("good", text, (*changes, *_largest_sizes(record))[:CHANGES])


def _slope(law: Law) -> str:
    return show_bytes(law.slope_bytes_per_point) if law.slope_bytes_per_point >= 1 else "less than 1 B"


def _largest_sizes(record: Study) -> list[str]:
    """The largest size of each mode, of its best variant, on a typical card."""
    memory = {word(item, "card"): number(item, "memory_bytes") or 0.0 for item in record.cards}
    card = min(memory, key=lambda name: abs(memory[name] - TYPICAL_CARD_BYTES), default=None)
    sentences = []
    for mode in dict.fromkeys(word(item, "mode") for item in record.cards):
        items = [item for item in record.cards if word(item, "card") == card and word(item, "mode") == mode]
        best = max(items, key=lambda item: count(item, "size") or 0, default=None)
        size = count(best, "size") if best else None
        if best and size:
            low = count(best, "low") or size
            sentences.append(
                f"{mode}: about {_rounded(size)} {record.axis} fit {card} with {word(best, 'variant')}"
                f" (95 %: at least {_rounded(low)})"
            )
    return sentences


def _rounded(size: int) -> str:
    """Three digits, rounded down: a larger size need not fit."""
    scale = 10 ** max(0, len(str(size)) - 3)
    return f"{size // scale * scale:,}"


def _verdict(record: Verdict) -> Answer:
    if record.status == "pass":
        return Answer("good", f"Use {record.variant} instead of {record.baseline}: {record.reason}.")
    if record.status == "fail":
        return Answer("bad", f"Keep {record.baseline}, {record.variant} failed: {record.reason}.")
    return Answer("warn", f"It is open whether {record.variant} is better: {record.reason}.")


def _trace(record: Trace) -> Answer:
    if not record.problems:
        watched = f"in {show_count(record.steps, 'step')}" if record.steps else "in the run"
        return Answer("plain", f"Nothing worth changing was found {watched}.")
    first = record.problems[0]
    cost = "" if first.share is None else f"; the first takes {first.share:.0%} of the time of the steps"
    text = f"{show_count(len(record.problems), 'thing')} worth changing{cost}."
    return Answer("warn", text, tuple(_problem(problem) for problem in record.problems[:CHANGES]))


def _problem(problem: Problem) -> str:
    where = f"{_place(problem.file, problem.line)}: " if problem.file else ""
    cost = f" ({show_seconds(problem.cost_s)} in all)" if problem.cost_s is not None else ""
    return f"{where}{problem.what.rstrip('.')}{cost}. {problem.hint}"


def _check(record: Check) -> Answer:
    if record.error:
        return Answer("bad", f"The script failed: {record.error}. {record.conclusion()}")
    changes = [
        f"{_place(each.file, each.line) + ': ' if each.file else ''}{each.what} {each.hint}"
        for each in record.advice[:CHANGES]
    ]
    return Answer("warn" if record.advice else "good", record.conclusion(), tuple(changes))


def _place(file: str, line: int) -> str:
    return f"{'/'.join(file.replace(chr(92), '/').split('/')[-2:])}:{line}"
