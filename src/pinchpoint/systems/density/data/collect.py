"""A data set of a user's own densities: CHGCAR, cube and npz files, one sample each, in the form every other set has.

Cells, grids and species may differ from file to file. Nothing is interpolated: probes are points of each file's own grid. Files
that cannot be used are refused by name once the others are taken; the same command then goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.core.files import check_folder
from pinchpoint.systems.common import dataset_folder as samples
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.density.data.data_settings import (
    FILE_DECIDING,
    FileSettings,
    check_file_settings,
    check_seed,
)
from pinchpoint.systems.density.data.dataset import FORMAT, SET, Dataset, open_dataset, refuse_other_source
from pinchpoint.systems.density.data.file_samples import GENERATOR, FileOrder
from pinchpoint.systems.density.data.sources import TEST, Source, read_sources, refusal, shared_out
from pinchpoint.systems.density.data.workers import imported_samples

_SHOWN = 3  # names in a note


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
) -> Dataset:
    """Make what `output` lacks of a data set of these files, and folders of files, and give it back.

    test: fraction of the files to test with, a tenth without it, or none where `test_files` names them. Which they are
    follows from what each holds. A folder that holds an earlier run with the same probes, grid points and seed is continued,
    and more files may be named; resume=False refuses such a folder. `reading(read, all)` counts files whose sha256 is
    taken first, `progress(made, wanted)` samples, with those already there. `refusing(text)` is told of each file that cannot be
    used, where there are several: the error names a few.
    """
    fraction = (0.0 if test_files else TEST) if test is None else test
    given = {"probes": probes, "grid_points": grid_points, "test": fraction}
    settings = check_file_settings(
        replace(FileSettings(), **{key: value for key, value in given.items() if value is not None})
    )
    check_seed(seed)
    samples.check_jobs(jobs)
    if not files:
        raise BadInput("no density files", hint="name some, or folders of them: --from CHGCAR1 CHGCAR2 DIR")
    folder = Path(output)
    check_folder(folder)
    refuse_others(folder, own=samples.INDEX)
    found = read_sources(files, test_files, besides=folder, progress=reading)
    total = len(found.files) + len(found.refused)
    if not found.files:
        raise refusal(found.refused, total=total, tell=refusing)
    sources = shared_out(found.files, fraction=fraction, seed=seed)
    deciding = {key: getattr(settings, key) for key in FILE_DECIDING}
    orders = {
        source.name: FileOrder(
            source.name, source.path, source.content, "grid" if source.test else "probes", seed, **deciding
        )
        for source in sources
    }
    identity = {"format": FORMAT, "generator": GENERATOR, "seed": seed, **deciding}
    refuse_other_source(folder, GENERATOR)
    there = samples.held_samples(folder, SET, identity)
    if there and not resume:
        raise BadInput(
            f"{folder} holds {len(there):,} samples of an earlier run",
            hint="choose another -o, or continue it",
        )
    # A file that has changed sides since is taken anew: one to train on holds other points than one to test on.
    held = {
        name: entry
        for name, entry in there.items()
        if name not in orders or entry["kind"] == orders[name].kind
    }
    todo = [order for name, order in orders.items() if name not in held]
    refused = dict(found.refused)

    def save() -> None:
        _save(
            folder,
            identity,
            settings,
            held,
            sources,
            [*found.notes, *_notes(sources, held)],
            refused=len(found.refused),
        )

    samples.add_samples(
        folder,
        SET,
        held,
        lambda: imported_samples(todo, jobs=jobs or samples.cores(), refused=refused),
        missing=len(todo),
        wanted=len(orders),
        save=save,
        progress=progress,
    )
    if refused:
        raise refusal(refused, total=total, tell=refusing)
    return open_dataset(folder)


def _save(
    folder: Path,
    identity: dict[str, Any],
    settings: FileSettings,
    held: samples.Entries,
    sources: list[Source],
    notes: list[str],
    *,
    refused: int,
) -> None:
    splits: dict[str, list[str]] = {"train": [], "test": [], "heldout": []}
    for source in sources:
        if source.name in held and not held[source.name]["faults"]:
            splits["test" if source.test else "train"].append(source.name)
    about = identity | {
        "settings": asdict(settings),
        "notes": notes,
        "sources": {source.name: source.path for source in sources},
    }
    # A file that could not even be unpacked is wanted, too: the set is not finished without it.
    wanted = [*(source.name for source in sources), *(f"refused {number}" for number in range(refused))]
    samples.write_index(folder, SET, about, held, wanted, splits)


def _notes(sources: list[Source], held: samples.Entries) -> list[str]:
    """What the user must know of the samples as a whole."""
    notes: list[str] = []
    known = [source for source in sources if source.name in held]
    first: dict[str, Source] = {}
    for source in known:
        other = first.setdefault(held[source.name]["alike"], source)
        if other is not source:
            apart = (
                "; one is trained on and one tested: name both with --test-files"
                if other.test != source.test
                else ""
            )
            notes.append(f"{source.path} has the structure and grid of {other.path}: both are kept{apart}")
    without = [source.path for source in known if not held[source.name]["spin"]]
    if without and len(without) < len(known):
        notes.append(
            f"{_named(without)} without a spin density among files with one: a model learns the total alone"
        )
    trained = {symbol for source in known if not source.test for symbol in held[source.name]["species"]}
    for source in known:
        unseen = sorted(set(held[source.name]["species"]) - trained)
        if source.test and unseen:
            notes.append(f"{source.path} is to be tested, and no file to train on has {', '.join(unseen)}")
    for source in known:
        entry = held[source.name]
        if entry["stride"] is not None and entry["stride"] != [1, 1, 1]:
            grid, stride = (" x ".join(map(str, entry[key])) for key in ("grid", "stride"))
            quality = entry["quality"]
            off = quality["integral"] / quality["electrons"] - 1
            notes.append(
                f"{source.path}: of {grid} points one in {stride} is kept to test; its integral is off by {off:+.2%}"
            )
    return notes


def _named(paths: list[str]) -> str:
    more = (
        f" and {len(paths) - _SHOWN:,} more are"
        if len(paths) > _SHOWN
        else " is"
        if len(paths) == 1
        else " are"
    )
    return ", ".join(paths[:_SHOWN]) + more
