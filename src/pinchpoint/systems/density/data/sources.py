"""A user's density files: found, identified by their contents, and split into training and test files.

The contents of a file determine its split, so it stays the same when other files are added, moved or renamed:
a file is a test file if a number computed from its sha256 and the seed is below the fraction. Of several
files with the same bytes, only one is used.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.systems.common.folders import KINDS
from pinchpoint.systems.density.files.file_io import read_blob
from pinchpoint.systems.density.files.formats import holds_density

TEST = 0.1  # default fraction of test files
_SOUGHT = re.compile(r"CHGCAR.*|.+\.(vasp|chgcar|cube|cub|npz|h5|hdf5|json)(\.(gz|bz2|xz))?", re.IGNORECASE)
_ENDING = re.compile(r"(\.(vasp|chgcar|cube|cub|npz|h5|hdf5|json))?(\.(gz|bz2|xz))?$", re.IGNORECASE)
# Files of these names are often something else: in a folder, they are looked into.
_MAYBE = re.compile(r"(?!CHGCAR).+\.(vasp|h5|hdf5|json)(\.(gz|bz2|xz))?", re.IGNORECASE)
_BARE = ("CHGCAR", "CHG", "PARCHG", "AECCAR0", "AECCAR1", "AECCAR2")
_MOST_NAMED = 3  # files named in one message


@dataclass(frozen=True)
class Source:
    """A file. content: sha256 of its bytes, decompressed; test: None if its split is not determined yet."""

    path: str
    name: str  # of the sample
    content: str
    test: bool | None = None


@dataclass(frozen=True)
class Sources:
    """Files to import, files that cannot be read with their errors, and notes for the user."""

    files: list[Source]
    refusals: dict[str, PinchpointError]
    notes: list[str]


def find_files(places: Iterable[str | Path], *, besides: str | Path | None = None) -> list[Path]:
    """Return the given files, and the density files in the given folders.

    These are CHGCAR*, .vasp, .cube, .npz, .h5 and .json files, compressed or not. Folders are searched
    recursively. Folders of datasets, runs and evaluations, the folder `besides`, names that begin with a dot,
    and .vasp, .h5 and .json files without a density are skipped. Each file is listed once.
    """
    files: dict[Path, Path] = {}
    for place in map(Path, places):
        if place.is_dir():
            inside = _inside(place, None if besides is None else Path(besides).resolve())
            if not inside:
                raise BadInput(
                    f"{place} contains no density files.",
                    hint="Give a folder with CHGCAR, .vasp, .cube, .npz, .h5 or .json files.",
                )
        else:
            _check_named(place)
            inside = [place]
        for file in inside:
            files.setdefault(file.resolve(), file)
    return list(files.values())


def read_sources(
    paths: Sequence[str | Path],
    test_paths: Sequence[str | Path],
    *,
    besides: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sources:
    """Read all files of both lists.

    A file in both lists, or with the same bytes as a test file, is a test file. progress(done, total) counts
    files.
    """
    test_files = {file.resolve() for file in find_files(test_paths, besides=besides)}
    all_files = find_files([*test_paths, *paths], besides=besides)
    files: dict[str, Source] = {}
    refusals: dict[str, PinchpointError] = {}
    notes: list[str] = []
    # Test files come first, so that a copy of one among the others is not used for training.
    for number, file in enumerate(
        sorted(all_files, key=lambda file: (file.resolve() not in test_files, str(file)))
    ):
        if progress is not None:
            progress(number, len(all_files))
        try:
            content = hashlib.sha256(read_blob(file)).hexdigest()
        except PinchpointError as error:
            refusals[str(file)] = error
            continue
        if (first := files.get(content)) is not None:
            notes.append(f"{file} has the same contents as {first.path} and is left out")
            continue
        files[content] = Source(
            str(file),
            f"{_label(file)}-{content[:10]}",
            content,
            True if file.resolve() in test_files else None,
        )
    # Sorted by hash, so that the last ones, which training uses for validation, are a random mix.
    return Sources(sorted(files.values(), key=lambda source: source.content), refusals, notes)


def split_files(files: Sequence[Source], *, fraction: float, seed: int) -> list[Source]:
    """Assign each file to training or testing.

    At least one file is a training file, and at least one a test file if the fraction is above 0.
    """
    numbers = {source.content: _number(source.content, seed) for source in files}
    free = sorted(
        (source for source in files if source.test is None), key=lambda source: numbers[source.content]
    )
    test_contents = {source.content for source in files if source.test} | {
        s.content for s in free if numbers[s.content] < fraction
    }
    if not test_contents and fraction > 0:
        test_contents = {source.content for source in free[:1]}
    if free and len(test_contents) == len(files):
        test_contents.discard(free[-1].content)
    if len(test_contents) == len(files):
        raise BadInput(
            f"Of {len(files)} density file{'s' if len(files) != 1 else ''} none is left to train on.",
            hint="Give more files, fewer --test-files, or --test 0.",
        )
    return [replace(source, test=source.content in test_contents) for source in files]


def refusal(
    refusals: dict[str, PinchpointError], *, total: int, tell: Callable[[str], None] | None = None
) -> BadInput:
    """Return one error for all files that cannot be used, naming the first few.

    tell: if there are several, called with the text for each file. total: files that were given; if all are
    bad, leaving them out is no remedy.
    """
    first = next(iter(refusals.values()))
    texts = [
        error.what if path in error.what else f"{path}: {error.what}" for path, error in refusals.items()
    ]
    again = "The other files are kept; run the command again, with --skip-bad to leave bad files out."
    if len(texts) == total:
        again = "No file can be used."
    if len(texts) == 1:
        other = f"Or leave the file out. {again}" if total > 1 else again
        return BadInput(texts[0], hint=f"{first.hint} {other}")
    more = f"; and {len(texts) - _MOST_NAMED:,} more" if len(texts) > _MOST_NAMED else ""
    names = f": {'; '.join(text.rstrip('.') for text in texts[:_MOST_NAMED])}{more}"
    if tell is not None:
        for text in texts:
            tell(text)
        names = ", each named above"
    return BadInput(
        f"{len(texts):,} of {total:,} files cannot be used{names}.",
        hint=f"{first.hint} {again}" if len(texts) == total else f"{first.hint} Or leave them out. {again}",
    )


def _check_named(place: Path) -> None:
    """Raise BadInput for a file that does not exist."""
    if not place.exists():
        raise BadInput(f"There is no file {place}.", hint="Give files or folders that exist.")


def _inside(folder: Path, besides: Path | None) -> list[Path]:
    paths: list[Path] = []
    for place, folders, files in os.walk(folder):
        if any(name in files for name in KINDS) or Path(place).resolve() == besides:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths += [
            Path(place) / name
            for name in sorted(files)
            if not name.startswith(".") and _SOUGHT.fullmatch(name) and _may_hold(Path(place) / name)
        ]
    return paths


def _may_hold(file: Path) -> bool:
    """Whether a file may hold a density. One that cannot be read may: its error is reported later."""
    if not _MAYBE.fullmatch(file.name):
        return True
    try:
        return holds_density(read_blob(file))
    except BadInput:
        return True


def _label(file: Path) -> str:
    """Return the name of a sample: that of the file, or of its folder if the file has a generic name."""
    name = _ENDING.sub("", file.name)
    if name.upper() in _BARE:
        name = file.resolve().parent.name or name
    return re.sub(r"[^A-Za-z0-9_+.]+", "_", name).strip("_.")[:40] or "density"


def _number(content: str, seed: int) -> float:
    """Return a number in [0, 1), determined by the contents of a file and the seed."""
    return int(hashlib.sha256(f"{seed} {content}".encode()).hexdigest()[:13], 16) / 16**13
