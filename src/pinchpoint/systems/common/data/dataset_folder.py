"""Folders of data sets: sample files with an index, resumed where they stopped and verified when read.

`DIR/index.json` describes the set and holds a sha256 of every sample's file, `DIR/NAME.npz`. Files are
written whole or not at all, and each records what it was made from: a lost or damaged index is rebuilt from
them.
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
from pinchpoint.systems.common.data.workers import Named
from pinchpoint.systems.common.folders import refuse_others

INDEX = "index.json"
OURS = "pinchpoint "  # the start of every kind's format
Entries = dict[
    str, dict[str, Any]
]  # by name what the index holds for a sample: sha256, faults, and what its kind adds


@dataclass(frozen=True)
class SampleInfo:
    """What a sample's file records about itself."""

    name: str
    origin: dict[str, Any]  # what it was made from, including the values that identify its set
    entry: dict[str, Any]  # for the index, without its sha256


@dataclass(frozen=True)
class Kind:
    """A kind of data set: its names, its files and how to read one."""

    format: str  # as the index names it
    command: str  # that makes such sets: "operator data"
    one: str  # the name of a sample: "body"
    many: str  # its plural, and the key of the index
    files: str  # pattern of the file names
    keys: frozenset[str]  # of a complete entry
    look: Callable[[bytes, str], SampleInfo]  # from bytes and their path; BadInput if they are not a sample

    @property
    def again(self) -> str:
        """The hint where samples are missing."""
        return f"Run `pinchpoint {self.command}` again with the same settings: it makes only what is missing."

    def entry(self, data: bytes, info: SampleInfo) -> dict[str, Any]:
        return {"sha256": hashlib.sha256(data).hexdigest()} | info.entry

    def damaged(self, folder: Path, why: str) -> BadInput:
        """The error for an index that cannot be read."""
        return BadInput(
            f"{folder / INDEX} is damaged: {why}.",
            hint=f"Run `pinchpoint {self.command} -o {folder}` again with the same settings: "
            f"it keeps the complete {self.many}.",
        )


def existing_samples(folder: Path, kind: Kind, identity: dict[str, Any]) -> Entries:
    """Entries of the complete samples that an earlier run of the same set left in the folder, which is made
    if missing.
    """
    make_folder(folder)
    known: dict[str, Any] = {}
    if (folder / INDEX).exists():
        try:
            index = read_index(folder, kind)
        except BadInput:
            _refuse_other_format(folder, kind)
            index = {}  # damaged: the files themselves say what they are
        if identity.keys() <= index.keys():
            _require_same(folder, index, identity)
            known = index[kind.many] if isinstance(index.get(kind.many), dict) else {}
    entries = {}
    for file in sorted(folder.glob(kind.files)):
        data = file.read_bytes()
        entry = known.get(file.stem)
        if (
            isinstance(entry, dict)
            and entry.get("sha256") == hashlib.sha256(data).hexdigest()
            and entry.keys() >= kind.keys
        ):
            entries[file.stem] = entry
            continue
        try:
            info = kind.look(data, str(file))
        except BadInput:
            continue  # damaged: made again
        # A damaged index does not say whose folder it is, but the samples do: those of another set are not
        # overwritten.
        _require_same(folder, {"format": kind.format} | info.origin, identity)
        if info.name == file.stem:
            entries[file.stem] = kind.entry(data, info)
    return entries


def add_samples(
    folder: Path,
    kind: Kind,
    entries: Entries,
    make: Callable[[], Iterator[tuple[Named, bytes]]],
    *,
    missing: int,
    total: int,
    save: Callable[[], None],
    progress: Callable[[int, int], None] | None,
) -> None:
    """Write the samples of `make` and add them to `entries`, saving now and then. `progress(done, total)`
    counts existing ones.
    """
    save_every = max(1, missing // 50)
    done = total - missing
    if progress:
        progress(done, total)
    try:
        # Created here, not passed in: only the loop holds the iterator, so its processes end before the last
        # save.
        for order, data in make():
            write_bytes(folder / file_of(order.name), data)
            entries[order.name] = kind.entry(data, kind.look(data, order.name))
            done += 1
            if done % save_every == 0:
                save()
            if progress:
                progress(done, total)
    finally:
        # Also when stopped: complete samples are not made a second time.
        save()


def write_index(
    folder: Path,
    kind: Kind,
    about: dict[str, Any],
    entries: Entries,
    names: Iterable[str],
    splits: dict[str, list[str]],
) -> None:
    """Write index.json. about: what identifies and describes the set; names: all its samples, also those
    still missing.
    """
    names = list(names)
    index = about | {
        "wanted": len(names),
        "missing": sum(name not in entries for name in names),
        "splits": splits,
        kind.many: dict(sorted(entries.items())),
    }
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")


def read_index(folder: Path, kind: Kind) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise kind.damaged(folder, str(error)) from error
    if not isinstance(index, dict) or index.get("format") != kind.format:
        raise kind.damaged(folder, "it is not the index of such a data set")
    return index


@contextmanager
def finished_index(folder: Path, kind: Kind) -> Iterator[dict[str, Any]]:
    """The index of a finished data set; BadInput for any other folder or an unfinished set.

    Within the block, a missing key or a value of the wrong type is reported as a damaged index.
    """
    if not (folder / INDEX).exists():
        refuse_others(folder, own=INDEX, hint=f"Name a folder that `{kind.command}` made.")
        raise BadInput(
            f"{folder} holds no data set: there is no {INDEX}.",
            hint=f"Make one: pinchpoint {kind.command} -o {folder}",
        )
    index = read_index(folder, kind)
    try:
        if index["missing"]:
            raise BadInput(
                f"{folder} is not finished: {index['missing']:,} of {index['wanted']:,} {kind.many} "
                "are missing.",
                hint=kind.again,
            )
        yield index
    except (KeyError, TypeError, AttributeError) as error:
        raise kind.damaged(folder, f"it lacks {error}") from error


def read_sample(folder: Path, kind: Kind, entries: Entries, name: str, *, check: bool) -> bytes:
    """The bytes of a sample's file, refused if they differ from the index."""
    if name not in entries:
        raise BadInput(
            f"{folder} has no {kind.one} {name!r}.", hint=f"Use one of those listed in {folder / INDEX}."
        )
    file = folder / file_of(name)
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}.", hint=kind.again) from error
    if check and hashlib.sha256(data).hexdigest() != entries[name]["sha256"]:
        raise BadInput(f"{file} is damaged: its sha256 differs from that of the index.", hint=kind.again)
    return data


def split_names(splits: dict[str, tuple[str, ...]], split: str) -> list[str]:
    if split not in splits:
        raise BadInput(f"The data set has no split {split!r}.", hint=f"Use {' or '.join(splits)}.")
    return list(splits[split])


def faults_of(entries: Entries) -> dict[str, list[str]]:
    """The samples that exceed a limit, and their faults."""
    return {name: entry["faults"] for name, entry in entries.items() if entry["faults"]}


def file_of(name: str) -> str:
    return f"{name}.npz"


def check_jobs(jobs: int | None) -> None:
    if jobs is not None and jobs < 1:
        raise BadInput(
            f"--jobs {jobs} is out of range; at least 1 process is needed.", hint="Give --jobs 1 or more."
        )


def processes(jobs: int | None, *, need_bytes: int, what: str, hint: str) -> int:
    """How many samples to make at a time: `jobs`, or as many as there are cores and memory for.

    need_bytes: of one sample; what: "A room of 20,000 points takes", for the error where there is no memory
    for one.
    """
    free = free_bytes()
    if need_bytes > free:
        raise BadInput(
            f"{what} {show_bytes(need_bytes)} to make, but only {show_bytes(free)} of memory are free.",
            hint=hint,
        )
    return jobs or min(cores(), free // need_bytes)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse_other_format(folder: Path, kind: Kind) -> None:
    """Refuse the index of another kind of data set, which would be overwritten. An index that no kind wrote
    is damaged.
    """
    try:
        text = json.loads((folder / INDEX).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(text, str) and text.startswith(OURS) and text != kind.format:
        raise BadInput(f"{folder} holds another kind of data set: {text!r:.60}.", hint="Choose another -o.")


def _require_same(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> None:
    for key, value in identity.items():
        if stored.get(key) != value:
            raise BadInput(
                f"{folder} holds a data set whose {key} is {stored.get(key)!r}, not {value!r}.",
                hint="Choose another -o, or use the same settings.",
            )
