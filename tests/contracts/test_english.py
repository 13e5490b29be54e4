"""Plain English: errors are full sentences, and phrases of an earlier, literal style do not come back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "pinchpoint"
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
ERRORS = {
    "PinchpointError",
    "BadInput",
    "NotConverged",
    "TargetFailed",
    "CannotFake",
    "TimedOut",
    "Missing",
    "Bug",
    "DoesNotFit",
    "Diverged",
}
PLACEHOLDER = "{}"
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


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may be, values replaced by a placeholder; none where that is not known."""
    match node:
        case ast.Constant(value=str(value)):
            yield value
        case ast.JoinedStr(values=parts):
            yield "".join(str(p.value) if isinstance(p, ast.Constant) else PLACEHOLDER for p in parts)
        case ast.IfExp(body=first, orelse=second):
            yield from texts(first)
            yield from texts(second)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            ends = list(texts(right)) or [PLACEHOLDER]
            yield from (start + end for start in list(texts(left)) or [PLACEHOLDER] for end in ends)
        case _:
            pass


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Line and message of every error of ours that a module creates."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in ERRORS:
                yield from ((node.lineno, text) for text in texts(node.args[0]))


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def test_errors_are_full_sentences() -> None:
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {reason}: {message!r}"
        for path in modules()
        for line, message in messages(path.read_text(encoding="utf-8"))
        if (reason := complaint(message))
    ]
    assert offenders == []


def test_no_text_uses_a_phrase_of_the_old_style() -> None:
    pattern = re.compile("|".join(PHRASES), re.IGNORECASE)
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {found.group()}"
        for path in [*modules(), *PAGES]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for found in pattern.finditer(line)
    ]
    assert offenders == []


def test_every_error_class_is_checked() -> None:
    tree = ast.parse((SOURCE / "core" / "errors.py").read_text(encoding="utf-8"))
    assert {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)} == ERRORS
    derived = [
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & ERRORS
    ]
    assert set(derived) <= ERRORS, "add the new class to ERRORS"


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
    assert [text for _, text in messages(source)] == ["a", "b {} c", "d {}"]
