"""Folders of samples: whole files and an index of them, continued where they stopped, checked when read.

`DIR/index.json` says what the set is and holds a sha256 of every sample's file, `DIR/NAME.npz`. Files appear whole or not at
all, and each says by itself what it was made from: an index that is lost or damaged is made again from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import make_folder, write_bytes, write_text
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.common.workers import Named

INDEX = "index.json"
OURS = "pinchpoint "  # how the format of every kind begins
Entries = dict[
    str, dict[str, Any]
]  # per name what the index says of a sample: sha256, faults and what its kind adds


@dataclass(frozen=True)
class Found:
    """What a sample's file tells of itself."""

    name: str
    origin: dict[str, Any]  # what it was made from: the values that identify its set are among them
    entry: dict[str, Any]  # for the index, but for its sha256


@dataclass(frozen=True)
class Kind:
    """A kind of data set: its words, its files and how one is read."""

    format: str  # as the index says it
    command: str  # that makes it: "operator data"
    one: str  # what a sample is called: "body"
    many: str  # of them, also the key of the index
    files: str  # pattern of their names
    keys: frozenset[str]  # of a whole entry
    look: Callable[[bytes, str], Found]  # bytes and where they are from; BadInput where they are not a sample

    @property
    def again(self) -> str:
        """The hint for what is missing."""
        return f"run `pinchpoint {self.command}` again with the same settings: it makes only what is missing"

    def entry(self, data: bytes, found: Found) -> dict[str, Any]:
        return {"sha256": hashlib.sha256(data).hexdigest()} | found.entry

    def damaged(self, folder: Path, why: str) -> BadInput:
        """The error for an index that cannot be read."""
        return BadInput(
            f"{folder / INDEX} is damaged: {why}",
            hint=f"run `pinchpoint {self.command} -o {folder}` again with the same settings: "
            f"it keeps the {self.many} that are whole",
        )


def held_samples(folder: Path, kind: Kind, identity: dict[str, Any]) -> Entries:
    """Entries of the whole samples an earlier run of the same set left in the folder, which is made where there is none."""
    make_folder(folder)
    known: dict[str, Any] = {}
    if (folder / INDEX).exists():
        try:
            index = read_index(folder, kind)
        except BadInput:
            _refuse_other_format(folder, kind)
            index = {}  # damaged: the files themselves tell what they are
        if identity.keys() <= index.keys():
            _require_same(folder, index, identity)
            known = index[kind.many] if isinstance(index.get(kind.many), dict) else {}
    held = {}
    for file in sorted(folder.glob(kind.files)):
        data = file.read_bytes()
        entry = known.get(file.stem)
        if (
            isinstance(entry, dict)
            and entry.get("sha256") == hashlib.sha256(data).hexdigest()
            and entry.keys() >= kind.keys
        ):
            held[file.stem] = entry
            continue
        try:
            found = kind.look(data, str(file))
        except BadInput:
            continue  # damaged: made again
        # An index that is damaged cannot tell whose folder it is; its samples can, and none of another set is written over.
        _require_same(folder, {"format": kind.format} | found.origin, identity)
        if found.name == file.stem:
            held[file.stem] = kind.entry(data, found)
    return held


def add_samples(
    folder: Path,
    kind: Kind,
    held: Entries,
    make: Callable[[], Iterator[tuple[Named, bytes]]],
    *,
    missing: int,
    wanted: int,
    save: Callable[[], None],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write what `make` gives and add it to `held`; save now and then. `progress(made, wanted)` counts those already there."""
    save_every = max(1, missing // 50)
    made = wanted - missing
    if progress:
        progress(made, wanted)
    try:
        # Made here, not handed over: the loop alone holds the iterator, so its processes end before the last save.
        for order, data in make():
            write_bytes(folder / file_of(order.name), data)
            held[order.name] = kind.entry(data, kind.look(data, order.name))
            made += 1
            if made % save_every == 0:
                save()
            if progress:
                progress(made, wanted)
    finally:
        # Also when it was stopped: what is whole is not made a second time.
        save()


def write_index(
    folder: Path,
    kind: Kind,
    about: dict[str, Any],
    held: Entries,
    wanted: Iterable[str],
    splits: dict[str, list[str]],
) -> None:
    """about: what identifies the set, and what else is told of it; wanted: the names of all its samples."""
    names = list(wanted)
    index = about | {
        "wanted": len(names),
        "missing": sum(name not in held for name in names),
        "splits": splits,
        kind.many: dict(sorted(held.items())),
    }
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")


def read_index(folder: Path, kind: Kind) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise kind.damaged(folder, str(error)) from error
    if not isinstance(index, dict) or index.get("format") != kind.format:
        raise kind.damaged(folder, "it is not the index of a data set")
    return index


@contextmanager
def finished_index(folder: Path, kind: Kind) -> Iterator[dict[str, Any]]:
    """The index of a data set that is whole: of another folder, or of one not finished, BadInput.

    Within, what is read from it and is not there, or is of another kind, says that the index is damaged.
    """
    if not (folder / INDEX).exists():
        refuse_others(folder, own=INDEX, hint=f"name the folder that `{kind.command}` made")
        raise BadInput(
            f"{folder} holds no data set: there is no {INDEX}",
            hint=f"make one: pinchpoint {kind.command} -o {folder}",
        )
    index = read_index(folder, kind)
    try:
        if index["missing"]:
            raise BadInput(
                f"{folder} is not finished: {index['missing']:,} of {index['wanted']:,} {kind.many} are missing",
                hint=kind.again,
            )
        yield index
    except (KeyError, TypeError, AttributeError) as error:
        raise kind.damaged(folder, f"it lacks {error}") from error


def read_sample(folder: Path, kind: Kind, entries: Entries, name: str, *, check: bool) -> bytes:
    """The bytes of a sample's file, refused where they are not those of the index."""
    if name not in entries:
        raise BadInput(
            f"{folder} has no {kind.one} {name!r}", hint=f"its {kind.many} are listed in {folder / INDEX}"
        )
    file = folder / file_of(name)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}", hint=kind.again) from error
    if check and hashlib.sha256(data).hexdigest() != entries[name]["sha256"]:
        raise BadInput(f"{file} is damaged: its sha256 is not that of the index", hint=kind.again)
    return data


def split_names(splits: dict[str, tuple[str, ...]], split: str) -> list[str]:
    if split not in splits:
        raise BadInput(f"the data set has no split {split!r}", hint=f"choose {' or '.join(splits)}")
    return list(splits[split])


def faults_of(entries: Entries) -> dict[str, list[str]]:
    """The samples that broke a limit, and which."""
    return {name: entry["faults"] for name, entry in entries.items() if entry["faults"]}


def file_of(name: str) -> str:
    return f"{name}.npz"


def check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise BadInput(f"{jobs} jobs make nothing", hint="ask for one or more")


def processes(jobs: int | None, *, need_bytes: int, what: str, hint: str) -> int:
    """How many samples are made at one time: as asked, else as many as there are cores and memory for.

    need_bytes: of one; what: "a room of 20,000 points takes", for the message where there is no memory for one.
    """
    free = free_bytes()
    if need_bytes > free:
        raise BadInput(
            f"{what} {show_bytes(need_bytes)} to make; {show_bytes(free)} of memory are free", hint=hint
        )
    return jobs or min(cores(), free // need_bytes)


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse_other_format(folder: Path, kind: Kind) -> None:
    """Refuse the index of another kind of data set, which would be written over. What no kind wrote is damaged."""
    try:
        found = json.loads((folder / INDEX).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(found, str) and found.startswith(OURS) and found != kind.format:
        raise BadInput(f"{folder} holds another kind of data set: {found!r:.60}", hint="choose another -o")


def _require_same(folder: Path, found: dict[str, Any], identity: dict[str, Any]) -> None:
    for key, wanted in identity.items():
        if found.get(key) != wanted:
            raise BadInput(
                f"{folder} holds a data set whose {key} is {found.get(key)!r}, not {wanted!r}",
                hint="choose another -o, or the same settings",
            )
