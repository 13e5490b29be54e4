"""Plain English: errors are full sentences, and phrases of an earlier, literal style do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.source import ERRORS, PLACEHOLDER, Module, read_module

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

PHRASES = (
    r"\bmend(s|ed)?\b",
    r"is no number any ?more",
    r"\bin no chunks\b",
    r"pixels a side",
    r"\bis told anyway\b",
    r"\bgone on with\b",
    r"\bunless said\b",
    r"\bis assumed, and said\b",
    r"\bare met stands in\b",
    r"\bthat says cuda\b",
    r"\bderivatives are not there\b",
    r"\bafter it is asked for\b",
    r"\bturn what it makes\b",
    r"\bbytes an edge\b",
    r"\ban earlier (report|guide|trainer)\b",
)
# Finite verbs; words that are nouns as well (points, runs, samples) are left out.
VERBS = set(
    re.findall(
        r"[a-z']+",
        """
        accepts allocates allows am appears applies are aren't asks be became becomes been begins belongs
        breaks came can can't cannot comes compares computes contains converges could covers defines depends
        describes did didn't died differs diverged do does doesn't don't downloads ended ends equals exceeds
        exists exited expects explains failed fails fills fit fits follows gave gets gives goes grew grows had
        happened happens has hasn't have holds imports includes installs is isn't keeps lacks leaves lie lies
        loads makes matches may mean means might mixes must needs occurs overlaps passed passes prints
        produces puts raised raises ran reaches reads refers refuses remains repeats requires returned returns
        rose saves says sees selects sends shall should shows sits stands starts stays stopped stops stores
        supports takes took tried tries varies wants was wasn't went were will won't would writes
        """,
    )
)


def words(message: str) -> list[str]:
    """The words of a message, without quoted names, options and placeholders."""
    text = re.sub(r"`[^`]*`|'[^'\s]*'|\"[^\"]*\"|\{\}|--[\w-]+", " ", message)
    return re.findall(r"[a-z]+(?:'t)?", text.lower())


def complaint(message: str) -> str | None:
    """Why a message is not a sentence; None if it is one."""
    if not message.replace(PLACEHOLDER, "").strip():
        return None  # passed on from elsewhere
    if not VERBS & set(words(message)):
        return "has no verb"
    first = message.split()[0]
    if first[0].islower() and first != "pinchpoint" and not re.search(r"[_.=(\-\d/]", first):
        return "does not start with a capital letter"
    return (
        None if re.search(r"([.?!…]|\{\})['\")\]`]*$", message.strip()) else "does not end with a full stop"
    )


def old_phrases(text: str) -> Iterator[re.Match[str]]:
    lower = text.lower()
    for phrase in PHRASES:
        # To look for its first words first is ten times as fast as the pattern.
        if re.split(r"[(?]|.\?|\\b", phrase.removeprefix(r"\b"))[0] in lower:
            yield from re.finditer(phrase, text, re.IGNORECASE)


def test_errors_are_full_sentences(package: list[Module]) -> None:
    offenders = [
        f"{module.place}:{line}: {reason}: {message!r}"
        for module in package
        for line, message in module.messages
        if (reason := complaint(message))
    ]
    assert offenders == []


def test_no_text_uses_a_phrase_of_the_old_style(package: list[Module]) -> None:
    pages = [(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")) for path in PAGES]
    offenders = [
        f"{place}:{text[: match.start()].count(chr(10)) + 1}: {match.group()}"
        for place, text in [*((module.place, module.text) for module in package), *pages]
        for match in old_phrases(text)
    ]
    assert offenders == []


def test_the_check_sees_a_phrase_in_any_case_after_others() -> None:
    text = "It recommends\nto Mend a file,\nand an Earlier report, told anyway, is TOLD anyway."
    assert [match.group() for match in old_phrases(text)] == ["Mend", "is TOLD anyway", "an Earlier report"]
    assert all(list(old_phrases(re.sub(r"\\b|[()?]", "", phrase).split("|")[0])) for phrase in PHRASES), (
        "a phrase is not seen at all"
    )


def test_every_error_class_is_checked(package: list[Module]) -> None:
    classes = {module.place: module.classes for module in package}
    assert {name for name, _ in classes["core/errors.py"]} == ERRORS
    derived = {name for names in classes.values() for name, bases in names if bases & ERRORS}
    assert derived <= ERRORS, "add the new class to ERRORS"


def test_the_formatter_is_switched_off_nowhere() -> None:
    switch = "# fmt: " + "skip"
    offenders = [
        str(path.relative_to(ROOT))
        for folder in ("src", "tests", "benchmarks", "docs", "examples")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if switch in path.read_text(encoding="utf-8")
    ]
    assert offenders == []


@pytest.mark.parametrize(
    "message",
    [
        "the view dense twice",
        "images of 4 pixels a side",
        "{} = {}",
        "no views",
        "--cell -1",
        "a chunk of {} rays",
        "{} rays",
        "the size 'is' nothing",
        "lower case is refused.",
        "The end is not marked",
    ],
)
def test_the_check_refuses_what_is_not_a_sentence(message: str) -> None:
    assert complaint(message)


@pytest.mark.parametrize(
    "message",
    [
        "The view `dense` is listed twice.",
        "{} needs {} bytes, but the budget is {} bytes.",
        "Cannot write {}: {}.",
        "Importing {} raised {}: {}",
        "bytes_per_point is {}, but it must be at least 1.",
        "{}",
    ],
)
def test_the_check_allows_sentences(message: str) -> None:
    assert complaint(message) is None


def test_the_check_sees_every_way_to_write_a_message() -> None:
    source = """
raise BadInput("a" if x else f"b {x} c", hint="")
error = errors.Missing("d " + name, hint="")
return DoesNotFit(text, hint="")
"""
    assert [text for _, text in read_module(source).messages] == ["a", "b {} c", "d {}"]
