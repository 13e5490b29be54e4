"""Printing: tables on a terminal, plain aligned text when piped.

Results go to stdout; progress and remarks go to stderr, so that `| head` and `> file` get only results.
What is narrow has 80 columns when piped, for people to read; other rows are one line each, for programs.
Rich is imported when something is printed, not before.
"""

from __future__ import annotations

import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pinchpoint.console import interrupts

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from pinchpoint.core.records import Record

# A pipe has no width: lists must not be wrapped when another program reads them, summaries are for people.
PIPE_WIDTH = 240
NARROW_WIDTH = 80


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def say(text: str) -> None:
    """Print a remark for the user to stderr, without markup. It is one line in a log."""
    out = stderr()
    text = _wrap(text, out.width) if out.is_terminal else text
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def show(text: str, *, style: str = "") -> None:
    """Print a line of a result to stdout, without markup. It is wrapped on a terminal, never when piped."""
    out = stdout()
    text = _wrap(text, out.width) if out.is_terminal else text
    out.print(text, style=style or None, markup=False, highlight=False, soft_wrap=True)


def show_narrow(text: str, *, style: str = "") -> None:
    """Print a line of a result to stdout, without markup, wrapped between words when piped too."""
    show(_wrap(text, narrow_width()), style=style)


def narrow_width() -> int:
    """The columns of narrow output: those of the terminal, or 80 when piped."""
    out = stdout()
    return out.width if out.is_terminal else NARROW_WIDTH


def show_answer(text: str, *, tone: str = "plain") -> None:
    """Print the answer of a command, which comes before everything else; `tone` is its colour."""
    colours = {"good": "bold green", "warn": "bold yellow", "bad": "bold red"}
    show_narrow(text, style=colours.get(tone, "bold"))


def show_summary(record: Record) -> None:
    """Print the summary of a record, one pair per line: a long path is shortened in the middle."""
    pairs = record.summary()
    width = max(len(label) for label, _ in pairs)
    room = max(narrow_width() - width - 2, 20)
    for label, value in pairs:
        text = shorten_path(value, room) if " " not in value else value
        lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
        for number, line in enumerate(lines):
            show(f"{'' if number else label:<{width}}  {line}")


def shell_command(*words: object, processes: str = "1") -> str:
    """A pinchpoint command, quoted for a shell; started by torchrun if several processes train together."""
    program = (
        ["pinchpoint"]
        if processes == "1"
        else ["torchrun", "--nproc-per-node", processes, "-m", "pinchpoint"]
    )
    return shlex.join([*program, *map(str, words)])


def show_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    width = max((len(label) for label, _ in pairs), default=0)
    for label, value in pairs:
        show(f"{label:<{width}}  {value}")


def shorten_path(path: str, length: int) -> str:
    """A path without folders in its middle if it is longer than `length`: `/home/.../task/train.py`."""
    parts = path.split("/")
    root = "/".join(parts[: 1 if parts[0] else 2])
    ends = ["/".join(["...", *parts[-kept:]]) for kept in range(len(parts) - 2, 0, -1)]
    candidates = [path, *(f"{root}/{end}" for end in ends[:-1]), *ends]
    return next((one for one in candidates if len(one) <= length), candidates[-1])


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table without borders. right: the columns of numbers."""
    _print_table(_table(columns, rows, right, title), PIPE_WIDTH)


def show_narrow_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    unbroken: Sequence[str] = (),
) -> None:
    """Print a table of 80 columns when piped; text that is too wide continues in the next line of its cell.

    A table whose numbers and words need more columns gets them: nothing is cut. unbroken: further columns
    whose cells stay in one line, as those of `right` do.
    """
    from rich.measure import Measurement

    table = _table(columns, rows, right, "")
    for column, name in zip(table.columns, columns, strict=True):
        column.no_wrap = column.no_wrap or name in unbroken
    wide = _console(stderr=False, pipe_width=1000)
    _print_table(table, max(NARROW_WIDTH, Measurement.get(wide, wide.options, table).minimum))


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str], title: str
) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, show_edge=False, title=Text(title) if title else None, title_justify="left"
    )
    for name in columns:
        table.add_column(
            Text(name, style="bold"),
            justify="right" if name in right else "left",
            no_wrap=name in right,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def _print_table(table: Table, pipe_width: int) -> None:
    out = _console(stderr=False, pipe_width=pipe_width)
    if out.is_terminal:
        out.print(table)
        return
    with out.capture() as capture:
        out.print(table)
    # Rich pads the last column with blanks, which `diff` and editors show.
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def show_json(text: str) -> None:
    """Print JSON exactly as it is, never wrapped or coloured."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


@contextmanager
def explain_interrupt(text: str) -> Iterator[None]:
    """Within this context, Ctrl-C and SIGTERM print `stopped; <text>`; the text says what was saved."""
    try:
        yield
    except KeyboardInterrupt as stop:
        say(f"stopped; {text}")
        raise SystemExit(130) from stop
    except SystemExit as stop:
        if stop.code == 143:
            say(f"stopped; {text}")
        raise


@contextmanager
def loading(what: str) -> Iterator[None]:
    """On a terminal, show what is being loaded while a large library is imported."""
    out = stderr()
    if not out.is_terminal:
        yield
        return
    with out.status(f"loading {what}", spinner="dots"):
        yield


@contextmanager
def progress(label: str) -> Iterator[Callable[[str], None]]:
    """Show the progress of long work; call the yielded function with the name of each stage.

    On a terminal this is one line with a spinner, the stage and the seconds; when piped, one line per stage.
    """
    interrupts.begin_work()
    console, start = stderr(), time.perf_counter()
    if not console.is_terminal:

        def log(stage: str) -> None:
            say(f"[{time.perf_counter() - start:5.1f} s] {label}: {stage}")

        yield log
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # else a result for a file would go to the terminal
    ) as bar:
        task = bar.add_task(label)
        yield lambda stage: bar.update(task, description=f"{label}: {stage}")


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """On a terminal, show a line with a spinner below what is printed; when piped, nothing."""
    interrupts.begin_work()
    out = stderr()
    if not out.is_terminal:
        yield lambda text: None
        return
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    spinner = Spinner("dots")
    with Live(spinner, console=out, transient=True, redirect_stdout=sys.stdout.isatty()):
        yield lambda text: spinner.update(text=Text(text))


def _wrap(text: str, width: int) -> str:
    """Wrap text with a hanging indent; a single long word is not split."""
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]
    return "\n".join(lines)


def _console(*, stderr: bool, pipe_width: int = PIPE_WIDTH) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else pipe_width, emoji=False)
