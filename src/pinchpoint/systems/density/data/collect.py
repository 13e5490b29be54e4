"""Datasets of a user's own density files (CHGCAR, cube, npz, JSON, scattered probes), one sample per file.

They have the same format as all other datasets. Cells, grids and species may differ between files. Nothing
is interpolated: probes are points of each file's own grid, or its scattered probes. Files that cannot be used
are listed in an error after the others have been imported; the same command then continues where it stopped.
With `skip_bad` they are left out, and the notes of the dataset name them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_folder
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.density.data.data_settings import (
    FILE_DECIDING,
    FileSettings,
    check_file_settings,
    check_seed,
)
from pinchpoint.systems.density.data.dataset import FORMAT, SET, Dataset, open_dataset, refuse_other_source
from pinchpoint.systems.density.data.file_samples import GENERATOR, FileOrder
from pinchpoint.systems.density.data.sources import TEST, Source, read_sources, refusal, split_files
from pinchpoint.systems.density.data.workers import import_samples

_MOST_NAMED = 3  # files named in a note


def import_data(
    output: str | Path,
    files: Sequence[str | Path],
    *,
    test: float | None = None,
    test_files: Sequence[str | Path] = (),
    probes: int | None = None,
    grid_points: int | None = None,
    seed: int = 0,
    jobs: int | None = None,
    reading: Callable[[int, int], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    refusing: Callable[[str], None] | None = None,
    resume: bool = True,
    skip_bad: bool = False,
) -> Dataset:
    """Add the missing samples of these files, and of folders of files, to the dataset `output`; return it.

    test: fraction of the files to test with; by default a tenth, or none if `test_files` names them. The
    contents of a file determine its split. An earlier import with the same probes, grid points and seed is
    continued, and more files may be added; resume=False refuses such a folder. reading(done, total) counts
    the files that are hashed first, progress(done, total) the samples, including existing ones. If several
    files cannot be used, refusing(text) is called for each, because the error names only a few. skip_bad:
    make the dataset without such files; at least one training file must remain.
    """
    fraction = (0.0 if test_files else TEST) if test is None else test
    overrides = {"probes": probes, "grid_points": grid_points, "test": fraction}
    settings = check_file_settings(
        replace(FileSettings(), **{key: value for key, value in overrides.items() if value is not None})
    )
    check_seed(seed)
    samples.check_jobs(jobs)
    if not files:
        raise BadInput(
            "No density files were given.", hint="Give files or folders: --from CHGCAR1 CHGCAR2 DIR."
        )
    folder = Path(output)
    check_folder(folder)
    refuse_others(folder, own=samples.INDEX)
    files_read = read_sources(files, test_files, besides=folder, progress=reading)
    total = len(files_read.files) + len(files_read.refusals)
    if not files_read.files:
        raise refusal(files_read.refusals, total=total, tell=refusing)
    deciding = {key: getattr(settings, key) for key in FILE_DECIDING}
    identity = {"format": FORMAT, "generator": GENERATOR, "seed": seed, **deciding}
    refuse_other_source(folder, GENERATOR)
    existing = samples.existing_samples(folder, SET, identity, resume=resume)
    refusals = dict(files_read.refusals)
    good = files_read.files
    while True:
        sources = split_files(good, fraction=fraction, seed=seed)
        orders = {
            source.name: FileOrder(
                source.name,
                source.path,
                source.content,
                "grid" if source.test else "probes",
                seed,
                **deciding,
            )
            for source in sources
        }
        # A file whose split has changed is imported again, because training and test samples have different
        # points.
        existing = {
            name: entry
            for name, entry in existing.items()
            if name not in orders or entry["kind"] == orders[name].kind
        }
        index = _IndexWriter(
            folder, identity, settings, existing, sources, files_read.notes, refusals, skip_bad
        )
        todo = [order for name, order in orders.items() if name not in existing]
        before = len(refusals)
        samples.add_samples(
            folder,
            SET,
            existing,
            lambda todo=todo: import_samples(todo, jobs=jobs or samples.cores(), refused=refusals),
            missing=len(todo),
            total=len(orders),
            save=index.save,
            progress=progress,
        )
        if not skip_bad or len(refusals) == before:
            break
        # The files that remain are split again: without the bad ones, a split might be empty.
        good = [source for source in good if source.path not in refusals]
        if not good:
            raise refusal(refusals, total=total, tell=refusing)
    if refusals and not skip_bad:
        raise refusal(refusals, total=total, tell=refusing)
    return open_dataset(folder)


@dataclass(frozen=True)
class _IndexWriter:
    """What the index of a dataset is written from while its files are imported."""

    folder: Path
    identity: dict[str, Any]
    settings: FileSettings
    entries: samples.Entries
    sources: list[Source]
    notes: list[str]
    refusals: dict[str, PinchpointError]
    skip_bad: bool

    def save(self) -> None:
        left_out = [
            f"{path} is left out: {error.what}" for path, error in self.refusals.items() if self.skip_bad
        ]
        # A file that could not be decompressed counts too: the dataset is not complete without it.
        unread = [path for path in self.refusals if path not in {source.path for source in self.sources}]
        _save(
            self.folder,
            self.identity,
            self.settings,
            self.entries,
            [source for source in self.sources if not self.skip_bad or source.path not in self.refusals],
            [*self.notes, *_notes(self.sources, self.entries), *left_out],
            refused_count=0 if self.skip_bad else len(unread),
            hint=_unfinished_hint(self.refusals),
        )


def _unfinished_hint(refusals: dict[str, PinchpointError]) -> str:
    """Return what to do about a dataset that lacks files; empty if none was refused."""
    if not refusals:
        return ""
    path, error = next(iter(refusals.items()))
    what = error.what if path in error.what else f"{path}: {error.what}"
    more = f" and {len(refusals) - 1:,} more" if len(refusals) > 1 else ""
    return (
        f"Repair or remove the files that cannot be used ({what.rstrip('.')}{more}), and run the same "
        "`pinchpoint density data` again; or run it with --skip-bad, which makes the dataset without them."
    )


def _save(
    folder: Path,
    identity: dict[str, Any],
    settings: FileSettings,
    entries: samples.Entries,
    sources: list[Source],
    notes: list[str],
    *,
    refused_count: int,
    hint: str,
) -> None:
    splits: dict[str, list[str]] = {"train": [], "test": [], "heldout": []}
    for source in sources:
        if source.name in entries and not entries[source.name]["faults"]:
            splits["test" if source.test else "train"].append(source.name)
    about = identity | {
        "settings": asdict(settings),
        "notes": notes,
        "sources": {source.name: source.path for source in sources},
        "hint": hint,
    }
    names = [*(source.name for source in sources), *(f"refused {number}" for number in range(refused_count))]
    samples.write_index(folder, SET, about, entries, names, splits)


def _notes(sources: list[Source], entries: samples.Entries) -> list[str]:
    """Return notes for the user about the dataset as a whole."""
    notes: list[str] = []
    imported = [source for source in sources if source.name in entries]
    first: dict[str, Source] = {}
    for source in imported:
        other = first.setdefault(entries[source.name]["alike"], source)
        if other is not source:
            apart = (
                "; one is a training file and the other a test file: name both with --test-files"
                if other.test != source.test
                else ""
            )
            notes.append(
                f"{source.path} has the same structure and grid as {other.path}; both are used{apart}"
            )
    without = [source.path for source in imported if not entries[source.name]["spin"]]
    if without and len(without) < len(imported):
        notes.append(
            f"{_list_files(without)} without a spin density, while other files have one: a model can learn "
            "only the total"
        )
    training_species = {
        symbol for source in imported if not source.test for symbol in entries[source.name]["species"]
    }
    for source in imported:
        unseen = sorted(set(entries[source.name]["species"]) - training_species)
        if source.test and unseen:
            notes.append(f"{source.path} is a test file, and no training file has {', '.join(unseen)}")
    for source in imported:
        entry = entries[source.name]
        if entry["stride"] is not None and entry["stride"] != [1, 1, 1]:
            grid, stride = (" x ".join(map(str, entry[key])) for key in ("grid", "stride"))
            quality = entry["quality"]
            off = quality["integral"] / quality["electrons"] - 1
            notes.append(
                f"{source.path}: its grid of {grid} points is thinned by {stride} for testing, which changes "
                f"the integral by {off:+.2%}"
            )
    return notes


def _list_files(paths: list[str]) -> str:
    more = (
        f" and {len(paths) - _MOST_NAMED:,} more are"
        if len(paths) > _MOST_NAMED
        else " is"
        if len(paths) == 1
        else " are"
    )
    return ", ".join(paths[:_MOST_NAMED]) + more
