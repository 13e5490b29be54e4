"""Density files of a user: found, told apart by what they hold, and shared out between training and testing.

What a file holds decides its split, so it stays where it is when others are added, moved or renamed: a file is tested on where a
number made of its sha256 and the seed lies below the fraction. Of files with the same bytes one is taken.
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
from pinchpoint.systems.density.files.formats import kind_of

TEST = 0.1  # of the files, where nobody says otherwise
_SOUGHT = re.compile(r"CHGCAR.*|.+\.(vasp|chgcar|cube|cub|npz)(\.gz)?", re.IGNORECASE)
_ENDING = re.compile(r"(\.(vasp|chgcar|cube|cub|npz))?(\.gz)?$", re.IGNORECASE)
_BARE = ("CHGCAR", "CHG", "PARCHG", "AECCAR0", "AECCAR1", "AECCAR2")
_SHOWN = 3  # files named in one message


@dataclass(frozen=True)
class Source:
    """A file. content: sha256 of its bytes, unpacked; test: None where nobody said."""

    path: str
    name: str  # of its sample
    content: str
    test: bool | None = None


@dataclass(frozen=True)
class Sources:
    """Files to take, those that cannot be read, and what the user must know."""

    files: list[Source]
    refused: dict[str, PinchpointError]
    notes: list[str]


def find_files(given: Iterable[str | Path], *, besides: str | Path | None = None) -> list[Path]:
    """The files named, and those of the folders named: CHGCAR*, .vasp, .cube, .npz, packed or not, all the way down.

    Folders of data sets, runs and evaluations are passed by, the folder `besides`, and what begins with a dot. A file
    comes once.
    """
    found: dict[Path, Path] = {}
    for place in map(Path, given):
        if place.is_dir():
            inside = _inside(place, None if besides is None else Path(besides).resolve())
            if not inside:
                raise BadInput(
                    f"{place} holds no density files",
                    hint="name a folder with CHGCAR, .vasp, .cube or .npz files",
                )
        else:
            _check_named(place)
            inside = [place]
        for file in inside:
            found.setdefault(file.resolve(), file)
    return list(found.values())


def read_sources(
    given: Sequence[str | Path],
    tested: Sequence[str | Path],
    *,
    besides: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sources:
    """All files of both lists. A file of both, or with the bytes of a tested one, is tested. `progress(read, all)`."""
    marked = {file.resolve() for file in find_files(tested, besides=besides)}
    found = find_files([*tested, *given], besides=besides)
    files: dict[str, Source] = {}
    refused: dict[str, PinchpointError] = {}
    notes: list[str] = []
    # Those that are to be tested come first: a copy of one among the others must not be trained on.
    for number, file in enumerate(sorted(found, key=lambda file: (file.resolve() not in marked, str(file)))):
        if progress is not None:
            progress(number, len(found))
        try:
            content = hashlib.sha256(read_blob(file)).hexdigest()
        except PinchpointError as error:
            refused[str(file)] = error
            continue
        if (first := files.get(content)) is not None:
            notes.append(f"{file} holds the same as {first.path} and is left out")
            continue
        files[content] = Source(
            str(file), f"{_label(file)}-{content[:10]}", content, True if file.resolve() in marked else None
        )
    # By content: what is held back in training, the last of them, is then of all sorts.
    return Sources(sorted(files.values(), key=lambda source: source.content), refused, notes)


def shared_out(files: Sequence[Source], *, fraction: float, seed: int) -> list[Source]:
    """The files, each to test or to train. With a fraction above 0 there is one at least to test, and always one to train."""
    drawn = {source.content: _number(source.content, seed) for source in files}
    free = sorted(
        (source for source in files if source.test is None), key=lambda source: drawn[source.content]
    )
    tested = {source.content for source in files if source.test} | {
        s.content for s in free if drawn[s.content] < fraction
    }
    if not tested and fraction > 0:
        tested = {source.content for source in free[:1]}
    if free and len(tested) == len(files):
        tested.discard(free[-1].content)
    if len(tested) == len(files):
        raise BadInput(
            f"{len(files)} density file{'s' if len(files) != 1 else ''}, and none is left to train on",
            hint="give more files, fewer --test-files, or --test 0",
        )
    return [replace(source, test=source.content in tested) for source in files]


def refusal(
    refused: dict[str, PinchpointError], *, total: int, tell: Callable[[str], None] | None = None
) -> BadInput:
    """One error for all files that cannot be used, the first few by name; tell: called with each, where there are several."""
    first = next(iter(refused.values()))
    told = [error.what if path in error.what else f"{path}: {error.what}" for path, error in refused.items()]
    if len(told) == 1:
        return BadInput(
            told[0], hint=f"{first.hint}; or leave the file out. The others are kept: run the command again"
        )
    more = f"; and {len(told) - _SHOWN:,} more" if len(told) > _SHOWN else ""
    named = f": {'; '.join(told[:_SHOWN])}{more}"
    if tell is not None:
        for text in told:
            tell(text)
        named = ", each named above"
    return BadInput(
        f"{len(told):,} of {total:,} files cannot be used{named}",
        hint=f"{first.hint}; or leave them out. The others are kept: run the command again",
    )


def _check_named(place: Path) -> None:
    """Refuse a file whose name says no format; one that is missing is called so."""
    try:
        kind_of(place)
    except BadInput:
        if place.exists():
            raise
        raise BadInput(
            f"there is no file {place}", hint="name files, or folders of them, that exist"
        ) from None


def _inside(folder: Path, besides: Path | None) -> list[Path]:
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        if any(name in files for name in KINDS) or Path(place).resolve() == besides:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [
            Path(place) / name
            for name in sorted(files)
            if not name.startswith(".") and _SOUGHT.fullmatch(name)
        ]
    return found


def _label(file: Path) -> str:
    """What a sample is called: the file's name; its folder's where that says nothing."""
    name = _ENDING.sub("", file.name)
    if name.upper() in _BARE:
        name = file.resolve().parent.name or name
    return re.sub(r"[^A-Za-z0-9_+.]+", "_", name).strip("_.")[:40] or "density"


def _number(content: str, seed: int) -> float:
    """In [0, 1), decided by what a file holds and the seed."""
    return int(hashlib.sha256(f"{seed} {content}".encode()).hexdigest()[:13], 16) / 16**13
