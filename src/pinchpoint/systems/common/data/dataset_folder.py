"""Dataset folders: sample files with an index, made in parallel, resumed after a stop, verified when read.

`DIR/index.json` describes the dataset and holds the sha256 of every sample file, `DIR/NAME.npz`. Files are
written atomically, and each records what it was made from, so a lost or damaged index is rebuilt from them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.core.files import json_fault, make_folder, parse_json, write_bytes, write_text
from pinchpoint.core.host_memory import free_bytes
from pinchpoint.core.records.field_types import type_fault
from pinchpoint.core.units import show_bytes, show_choices
from pinchpoint.systems.common.data.workers import Named, Order, Program, run_workers
from pinchpoint.systems.common.folders import refuse_others

INDEX = "index.json"
OURS = "pinchpoint "  # the start of every kind's format
Progress = Callable[[int, int], None]  # (done, total), in samples
# What the index holds for each sample, by name: sha256, faults, and what the kind of dataset adds.
Entries = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SampleInfo:
    """What a sample file records about itself."""

    name: str
    origin: dict[str, Any]  # what it was made from, including the values that identify its dataset
    entry: dict[str, Any]  # its entry in the index, without the sha256


@dataclass(frozen=True)
class Kind:
    """A kind of dataset: its names, its files and how to read one."""

    format: str  # value of `format` in the index
    command: str  # the command that makes such datasets: "operator data"
    one: str  # what a sample is called: "body"
    many: str  # its plural, and the key of the entries in the index
    files: str  # pattern of the file names
    keys: frozenset[str]  # keys of a complete entry
    look: Callable[[bytes, str], SampleInfo]  # from bytes and their path; BadInput if they are not a sample

    @property
    def again(self) -> str:
        """Hint for missing samples."""
        return f"Run `pinchpoint {self.command}` again with the same settings: it makes only what is missing."

    def entry(self, data: bytes, info: SampleInfo) -> dict[str, Any]:
        return {"sha256": hashlib.sha256(data).hexdigest()} | info.entry

    def damaged(self, folder: Path, why: str) -> BadInput:
        """Return the error for an index that cannot be read."""
        return BadInput(
            f"{folder / INDEX} is damaged: {why}.",
            hint=f"Run `pinchpoint {self.command} -o {folder}` again with the same settings: "
            f"it keeps the complete {self.many}.",
        )


def make_missing(
    folder: Path,
    kind: Kind,
    identity: dict[str, Any],
    program: Program,
    orders: Sequence[Order],
    *,
    processes: Callable[[], int],
    save: Callable[[Entries], None],
    progress: Progress | None = None,
    resume: bool = True,
) -> None:
    """Make the samples of `orders` that the folder lacks; complete ones of the same dataset are kept.

    identity: what the index and all files of the dataset have in common. processes: returns the number of
    worker processes, called only if samples are missing. save(entries): writes the index. progress(done,
    total): called before the first sample and after each, counts existing ones. resume=False refuses a folder
    that already has samples.
    """
    refuse_others(folder, own=INDEX)
    entries = existing_samples(folder, kind, identity, resume=resume)
    missing = [order for order in orders if order.name not in entries]
    jobs = processes() if missing else 1
    add_samples(
        folder,
        kind,
        entries,
        lambda: run_workers(program, missing, jobs=jobs),
        missing=len(missing),
        total=len(orders),
        save=lambda: save(entries),
        progress=progress,
    )


def existing_samples(folder: Path, kind: Kind, identity: dict[str, Any], *, resume: bool = True) -> Entries:
    """Return the entries of the complete samples in the folder, which is created if it does not exist.

    Samples of another dataset are refused; with resume=False, those of the same dataset too.
    """
    make_folder(folder)
    known: dict[str, Any] = {}
    if (folder / INDEX).exists():
        try:
            index = read_index(folder, kind)
        except BadInput:
            _refuse_other_format(folder, kind, hint="Choose another -o.")
            index = {}  # damaged: the files record what they are
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
        # A damaged index does not say what the folder is for, but the samples do: those of another dataset
        # are not overwritten.
        _require_same(folder, {"format": kind.format} | info.origin, identity)
        if info.name == file.stem:
            entries[file.stem] = kind.entry(data, info)
    if entries and not resume:
        raise BadInput(
            f"{folder} holds {len(entries):,} {kind.many} of an earlier run.",
            hint="Choose another -o, or continue that run.",
        )
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
    progress: Progress | None,
) -> None:
    """Write the samples of `make` and add them to `entries`, saving the index now and then.

    progress(done, total): counts existing samples too.
    """
    save_every = max(1, missing // 50)
    done = total - missing
    if progress:
        progress(done, total)
    try:
        # The iterator is created here because its processes must end before the last save: only this loop
        # refers to it.
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
    """Write index.json.

    about: what identifies and describes the dataset; names: all its samples, including missing ones.
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
    """Return the contents of index.json; BadInput if it is damaged or of another format."""
    try:
        index = parse_json((folder / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise kind.damaged(folder, json_fault(error)) from error
    if not isinstance(index, dict) or index.get("format") != kind.format:
        raise kind.damaged(folder, "it is not the index of such a dataset")
    return index


DatasetT = TypeVar("DatasetT")


@contextmanager
def finished_index(
    folder: Path, kind: Kind, *, accept: Callable[[dict[str, Any]], bool] = lambda index: False
) -> Iterator[dict[str, Any]]:
    """Yield the index of a finished dataset; BadInput for any other folder or an unfinished dataset.

    accept(index): whether an unfinished dataset can be used as it is. Within the block, a missing key or a
    value of the wrong type is reported as a damaged index.
    """
    if not (folder / INDEX).exists():
        refuse_others(folder, own=INDEX, hint=f"Name a folder that `{kind.command}` made.")
        raise BadInput(
            f"{folder} holds no dataset: there is no {INDEX}.",
            hint=f"Make one: pinchpoint {kind.command} -o {folder}",
        )
    _refuse_other_format(folder, kind, hint=f"Name a folder that `{kind.command}` made.")
    index = read_index(folder, kind)
    try:
        if index["missing"] and not accept(index):
            raise BadInput(
                f"{folder} is not finished: {index['missing']:,} of {index['wanted']:,} {kind.many} "
                "are missing.",
                # What lacks may not be a matter of running the command again, such as a bad file.
                hint=str(index.get("hint") or kind.again),
            )
        yield index
    except (KeyError, TypeError, AttributeError) as error:
        raise kind.damaged(folder, f"it lacks {error}") from error
    except (ValueError, IndexError, OverflowError) as error:
        raise kind.damaged(folder, f"a value of it is wrong: {str(error)[:100]}") from error


def checked(dataset: DatasetT) -> DatasetT:
    """Return the dataset; ValueError, within `finished_index`, if a value of the index has the wrong type."""
    if fault := type_fault(type(dataset), dataset, "the index"):
        raise ValueError(fault)
    return dataset


def read_sample(folder: Path, kind: Kind, entries: Entries, name: str, *, check: bool) -> bytes:
    """Return the bytes of a sample file; BadInput if it is missing or differs from the index."""
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
    """Return the names in a split; BadInput if the dataset has no such split."""
    if split not in splits:
        raise BadInput(f"The dataset has no split {split!r}.", hint=f"Use {show_choices(splits)}.")
    return list(splits[split])


def faults_of(entries: Entries) -> dict[str, list[str]]:
    """Return the samples that exceed a limit, with their faults."""
    return {name: entry["faults"] for name, entry in entries.items() if entry["faults"]}


def file_of(name: str) -> str:
    return f"{name}.npz"


def check_jobs(jobs: int | None) -> None:
    """Refuse a number of processes below 1."""
    if jobs is not None and jobs < 1:
        raise BadInput(
            f"--jobs {jobs} is out of range; at least 1 process is needed.", hint="Give --jobs 1 or more."
        )


def check_device(device: str) -> None:
    """Refuse a device that cannot make samples."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise BadInput(f"The device {device!r} cannot create data.", hint="Give --device cpu or cuda.")
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            raise Missing("No CUDA device is available.", hint="Create the data with --device cpu.")


def count_processes(jobs: int | None, *, need_bytes: int, what: str, hint: str, device: str = "cpu") -> int:
    """Return how many samples to make at a time: `jobs`, or as many as there are cores and memory for.

    A GPU is used by one process only. need_bytes: memory for one sample; what: "a room of 20,000 points
    takes", for the error raised if there is not enough.
    """
    if device != "cpu":
        return 1
    free = free_bytes()
    if need_bytes > free:
        raise BadInput(
            f"{what} {show_bytes(need_bytes)} to make, but only {show_bytes(free)} of memory are free.",
            hint=hint,
        )
    return jobs or min(cores(), free // need_bytes)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _refuse_other_format(folder: Path, kind: Kind, *, hint: str) -> None:
    """Refuse the index of another kind of dataset, which must neither be overwritten nor called damaged.

    An index without a known format is damaged.
    """
    try:
        text = parse_json((folder / INDEX).read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if isinstance(text, str) and text.startswith(OURS) and text != kind.format:
        raise BadInput(f"{folder} holds another kind of dataset: {text!r:.60}.", hint=hint)


def _require_same(folder: Path, stored: dict[str, Any], identity: dict[str, Any]) -> None:
    for key, value in identity.items():
        if stored.get(key) != value:
            raise BadInput(
                f"{folder} holds a dataset made with {key}={stored.get(key)!r}, not {value!r}.",
                hint="Choose another -o, or use the same settings.",
            )
