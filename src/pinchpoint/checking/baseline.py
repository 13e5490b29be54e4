"""A forecast to compare another one with: a record, or the same script at another git revision.

The files of a revision are written to a temporary folder, with links to what git does not track, such as
data. Packages of the repository that are installed, also in editable mode, are imported from there too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pinchpoint.core.errors import BadInput, CannotFake, Missing, TargetFailed, TimedOut
from pinchpoint.core.records import Forecast, load
from pinchpoint.core.units import show_bytes
from pinchpoint.reporting.comparisons.compare import compare
from pinchpoint.reporting.comparisons.comparison import Comparison, escape_markdown

_OWN_SOURCE = Path(__file__).resolve().parents[2]  # the folder that pinchpoint itself is imported from


@dataclass(frozen=True)
class Baseline:
    """forecast: None if there is none, for the reason in `note`."""

    name: str
    forecast: Forecast | None
    note: str = ""


@dataclass(frozen=True)
class Judgement:
    """What a forecast means for a pull request. failures: sentences; empty if it passes."""

    forecast: Forecast
    comparison: Comparison | None
    failures: tuple[str, ...]
    notes: tuple[str, ...]

    def to_markdown(self) -> str:
        """The judgement for the summary of a job: the answer first."""
        forecast = self.forecast
        sign = "❌" if self.failures else "✅"
        name = escape_markdown(forecast.target)
        blocks = [f"### {sign} {name}: {show_bytes(forecast.peak_allocated_bytes)} allocated at the peak"]
        blocks += [f"> **{escape_markdown(sentence)}**" for sentence in self.failures]
        if self.comparison is not None:
            blocks.append(self.comparison.to_markdown().rstrip())
        else:
            rows = [
                f"| {escape_markdown(head)} | {escape_markdown(value)} |"
                for head, value in forecast.summary()
            ]
            blocks.append("\n".join(["| | |", "|---|---|", *rows]))
        notes = [*self.notes, *(f"the peak may be higher: {reason}" for reason in forecast.reasons)]
        if notes:
            blocks.append("\n".join(f"- {escape_markdown(note)}" for note in notes))
        return "\n\n".join(blocks) + "\n"


def judge(
    forecast: Forecast, baseline: Baseline | None, *, max_growth: float | None, card: str | None
) -> Judgement:
    """Compare a forecast with its baseline, if there is one, and with the limits.

    max_growth: 0.05 allows a peak that is 5 % higher. card: must be known to be large enough.
    """
    if baseline is None or baseline.forecast is None:
        notes = () if baseline is None else (f"there is no comparison with {baseline.name}: {baseline.note}",)
        failures: tuple[str, ...] = ()
        if card is not None and not forecast.fits[card]:
            unknown = forecast.fits[card] is None
            failures = (f"It is unknown whether it fits {card}." if unknown else f"It does not fit {card}.",)
        return Judgement(forecast, None, failures, notes)
    comparison = compare(baseline.forecast, forecast)
    return Judgement(forecast, comparison, comparison.failures(max_growth=max_growth, card=card), ())


def find_baseline(source: str, predict_again: Callable[[], Forecast]) -> Baseline:
    """Return the forecast in a record, or that of a git revision.

    predict_again: predicts the same target in the current folder. A revision in which it cannot be predicted,
    such as one without the script, is a baseline without a forecast.
    """
    if source.endswith(".json"):
        record = load(Path(source))
        if not isinstance(record, Forecast):
            raise BadInput(
                f"{source} is a {record.kind}, not a forecast.", hint="Give a record of `predict -o`."
            )
        return Baseline(source, record)
    with checkout(source):
        try:
            return Baseline(source, predict_again())
        except (BadInput, TargetFailed, CannotFake, TimedOut) as error:
            return Baseline(source, None, error.what)


@contextlib.contextmanager
def checkout(revision: str) -> Iterator[Path]:
    """Make the files of a revision the current folder, at the same place of the repository."""
    root = Path(_git("rev-parse", "--show-toplevel"))
    commit = _commit_of(revision)
    place = Path.cwd().relative_to(root)
    with tempfile.TemporaryDirectory(prefix="pinchpoint-") as scratch:
        folder = Path(scratch).resolve() / "files"
        folder.mkdir()
        # An index of its own, so that neither the files nor the index of the repository change.
        index = {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
        _git("read-tree", commit, variables=index)
        _git("-C", str(root), "checkout-index", "--all", f"--prefix={folder}/", variables=index)
        _link_untracked(root, folder)
        (folder / place).mkdir(parents=True, exist_ok=True)
        earlier = os.environ.get("PYTHONPATH")
        paths = [*_import_paths(root, folder), *([earlier] if earlier else [])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            with contextlib.chdir(folder / place):
                yield folder
        finally:
            if earlier is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = earlier


def check_baseline(target: str | None, source: str) -> None:
    """Raise if there is no such revision or record, or if a target is the same file at every revision."""
    if (
        not source.endswith(".json")
        and target is not None
        and os.path.isabs(target.rpartition(":")[0] or target)
    ):
        raise BadInput(
            f"{target} is an absolute path, so that no other revision of it can be predicted.",
            hint="Change to a folder of the repository, and give the path from there.",
        )
    if source.endswith(".json"):
        load(Path(source))
    else:
        _commit_of(source)


def _commit_of(revision: str) -> str:
    return _git(
        "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}", name=revision
    )


def _git(*arguments: str, name: str = "", variables: dict[str, str] | None = None) -> str:
    try:
        process = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, env={**os.environ, **(variables or {})}
        )
    except FileNotFoundError as error:
        raise Missing(
            "The program git is not installed.", hint="Install git, or give --against a record."
        ) from error
    if process.returncode == 0:
        return process.stdout.strip()
    if name:
        raise BadInput(
            f"There is no git revision {name!r} here, and no such record.",
            hint="Fetch it first (`git fetch origin main`), or give a FILE.json that `predict -o` wrote.",
        )
    reason = process.stderr.strip().splitlines() or ["it failed"]
    raise BadInput(
        f"The command git {arguments[0]} failed: {reason[-1].removeprefix('fatal: ').rstrip('.')}.",
        hint="Run it inside a git repository, or give --against a record.",
    )


def _link_untracked(root: Path, folder: Path) -> None:
    """Link what git does not track, such as data and ignored folders, where the revision has no such file."""
    listing = _git("-C", str(root), "ls-files", "--others", "--directory", "-z")
    for name in filter(None, listing.split("\0")):
        link = folder / name.rstrip("/")
        if link.parent.is_dir() and not os.path.lexists(link):
            link.symlink_to(root / name.rstrip("/"))


def _import_paths(root: Path, folder: Path) -> list[str]:
    """The folders of the revision for those of the repository that packages are imported from."""
    sources = [Path(path).resolve() for path in sys.path if path]
    for distribution in metadata.distributions():
        with contextlib.suppress(ValueError, KeyError, AttributeError, TypeError):
            url = urlsplit(json.loads(distribution.read_text("direct_url.json") or "")["url"])
            if url.scheme == "file":
                place = Path(unquote(url.path)).resolve()
                sources += [place, place / "src"]
    paths = dict.fromkeys(
        str(folder / source.relative_to(root))
        for source in sources
        if source.is_relative_to(root) and source != _OWN_SOURCE and not (source / "pinchpoint").is_dir()
    )
    # An environment inside the repository is linked, not part of the revision.
    return [path for path in paths if os.path.isdir(path) and Path(path).resolve().is_relative_to(folder)]
