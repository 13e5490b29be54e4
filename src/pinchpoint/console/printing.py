"""Printing: tables on a terminal, plain aligned text when piped.

Results go to stdout; progress and remarks go to stderr, so that `| head` and `> file` get only results. Rich
is imported when something is printed, not before.
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

    from pinchpoint.core.records import Record

# A pipe has no width: rows must not be wrapped at 80 columns when another program reads them.
PIPE_WIDTH = 240


def stdout() -> Console:
    return _console(stderr=False)


def stderr() -> Console:
    return _console(stderr=True)


def say(text: str) -> None:
    """Print a remark for the user to stderr, without markup."""
    out = stderr()
    out.print(_wrap(text, out), markup=False, highlight=False, soft_wrap=True)


def show(text: str, *, style: str = "") -> None:
    """Print a line of a result to stdout, without markup. It is wrapped on a terminal, never when piped."""
    out = stdout()
    out.print(_wrap(text, out), style=style or None, markup=False, highlight=False, soft_wrap=True)


def show_summary(record: Record) -> None:
    """Print the summary of a record, one pair per line."""
    show_pairs(record.summary())


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


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = (), title: str = ""
) -> None:
    """Print a table without borders. right: the columns of numbers."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, show_edge=False, title=Text(title) if title else None, title_justify="left"
    )
    for name in columns:
        table.add_column(
            Text(name, style="bold"), justify="right" if name in right else "left", no_wrap=name in right
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    out = stdout()
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


def _wrap(text: str, out: Console) -> str:
    """Wrap text at the width of a terminal with a hanging indent; a single long word is not split."""
    if not out.is_terminal:
        return text
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        lines += textwrap.wrap(
            line,
            out.width,
            subsequent_indent=indent + "  ",
            break_long_words=False,
            break_on_hyphens=False,
            replace_whitespace=False,
        ) or [""]
    return "\n".join(lines)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, emoji=False)
