"""Datasets on disk: bodies with their fields, created in parallel, resumed after a stop, checked when read.

`DIR/index.json` describes the dataset and holds a sha256 of every body's file, `DIR/body-NUMBER.npz`. Bodies
for training are numbered from 0, bodies for testing from 900,000, so that datasets of all sizes share their
test bodies. A body whose solution exceeds a limit stays on disk with its faults and is excluded from the
splits. Files are written atomically, and each records its origin: a lost or damaged index is rebuilt from
them.

Cases of a user's own files (`kind` own, made by `data.own.collection`) are in the same folder format, as
`DIR/case-NAME.npz`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import show_choices
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.operator.data import cars, harmonic
from pinchpoint.systems.operator.data.body import (
    FEATURES,
    GENERATOR,
    KINDS,
    TARGETS,
    Body,
    Kind,
    body_sample,
    making_bytes,
    unpack,
)
from pinchpoint.systems.operator.data.own.cases import Case, unpack_case
from pinchpoint.systems.operator.data.own.layout import Layout
from pinchpoint.systems.operator.data.sample import Sample, check_sample
from pinchpoint.systems.operator.data.triangulation import counts_for
from pinchpoint.systems.operator.data.workers import PROGRAM, Order

Split = Literal["train", "test"]
FORMAT = "pinchpoint operator data"
OWN = "own"
PREFIX = "case-"  # of the files of a user's cases
FIRST_TEST = 900_000
_MARGIN = 0.05  # of the box, on every side


@dataclass(frozen=True)
class Dataset:
    """Bodies on disk. A file is read, and its sha256 compared, when its body is requested."""

    path: Path
    kind: Kind | Literal["own"]
    seed: int
    panels: int
    # Corners of a box that contains every body of this kind, also those not drawn yet.
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    features: tuple[str, ...]
    targets: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]  # the good bodies
    bodies: dict[str, dict[str, Any]]  # per name: sha256, panels, quality, faults
    check: bool = True
    layout: Layout | None = None  # of a user's own files

    @property
    def vectors(self) -> list[int]:
        """The columns of the features at which unit vectors start."""
        if self.layout is not None:
            return [0] if self.layout.normals or self.layout.wall else []
        return [column for column, name in enumerate(self.features) if name.endswith("_x")]

    @property
    def fields(self) -> dict[str, tuple[int, ...]]:
        """The columns of the targets that belong to each field."""
        if self.layout is not None:
            return self.layout.fields
        return {name: (column,) for column, name in enumerate(self.targets)}

    def label(self, name: str) -> str:
        """The name of a body for people: of a case, the name that its owner gave it."""
        return name if self.layout is None else name.removeprefix(PREFIX)

    def names(self, split: Split) -> list[str]:
        return samples.split_names(self.splits, split)

    def body(self, name: str) -> Body:
        data = samples.read_sample(self.path, SET, self.bodies, name, check=self.check)
        return unpack(data, where=str(self.path / samples.file_of(name)))

    def case(self, name: str) -> Case:
        data = samples.read_sample(self.path, CASES, self.bodies, name, check=self.check)
        return unpack_case(data, where=str(self.path / samples.file_of(name)))

    def sample(self, name: str) -> Sample:
        if self.layout is not None:
            return self.case(name).sample
        return check_sample(body_sample(self.body(name)))

    def left_out(self) -> dict[str, list[str]]:
        """The bodies that exceed a limit, and their faults."""
        return samples.faults_of(self.bodies)

    def beyond(self) -> list[str]:
        """Good bodies of a larger dataset that was created here before; they are in neither split."""
        in_splits = {name for names in self.splits.values() for name in names}
        return [name for name, entry in self.bodies.items() if name not in in_splits and not entry["faults"]]


def make_dataset(
    output: str | Path,
    *,
    kind: Kind,
    train: int,
    test: int,
    panels: int,
    seed: int = 0,
    jobs: int | None = None,
    device: str = "cpu",
    progress: samples.Progress | None = None,
) -> Dataset:
    """Create the bodies that `output` lacks, and return the dataset.

    A folder with an earlier, interrupted or damaged dataset of the same kind, panels and seed is continued:
    complete bodies stay, with or without an index. `progress(finished, total)` is called before the first
    body and after each, and counts existing bodies.
    """
    folder = Path(output)
    _check(kind, train, test, panels, seed, jobs, device)
    identity = {"format": FORMAT, "generator": GENERATOR, "kind": kind, "seed": seed, "panels": panels}
    numbers = {_name(number): number for number in (*range(train), *range(FIRST_TEST, FIRST_TEST + test))}
    samples.make_missing(
        folder,
        SET,
        identity,
        PROGRAM,
        [Order(kind, name, seed, number, panels, device) for name, number in numbers.items()],
        processes=lambda: samples.count_processes(
            jobs,
            need_bytes=making_bytes(kind, panels),
            what=f"A body of {panels:,} panels takes",
            hint="Request fewer --panels, or use --device cuda.",
            device=device,
        ),
        save=lambda entries: _save(folder, identity, entries, numbers),
        progress=progress,
    )
    return open_dataset(folder)


def open_dataset(path: str | Path, *, check: bool = True) -> Dataset:
    """The dataset in a folder. check=False skips the comparison of sha256 when a body is read."""
    folder = Path(path)
    with samples.finished_index(folder, SET) as index:
        return samples.checked(
            Dataset(
                folder,
                index["kind"],
                index["seed"],
                index["panels"],
                tuple(index["low"]),
                tuple(index["high"]),
                tuple(index["features"]),
                tuple(index["targets"]),
                {split: tuple(names) for split, names in index["splits"].items()},
                index["bodies"],
                check,
                Layout.from_dict(index["layout"] | {"generator": index["generator"]})
                if index["kind"] == OWN
                else None,
            )
        )


def _check(kind: str, train: int, test: int, panels: int, seed: int, jobs: int | None, device: str) -> None:
    if kind not in KINDS:
        raise BadInput(f"The kind of data {kind!r} does not exist.", hint=f"Choose {show_choices(KINDS)}.")
    if train < 0 or test < 0 or train + test == 0 or train > FIRST_TEST:
        raise BadInput(
            f"A dataset of {train:,} training and {test:,} test bodies is not possible.",
            hint=f"Request at least one body in all, and at most {FIRST_TEST:,} for training.",
        )
    if seed < 0:
        raise BadInput(f"The seed is {seed}; it must not be negative.", hint="Give a seed of 0 or more.")
    samples.check_jobs(jobs)
    counts_for(panels, length=1.0, girth=1.0)  # refuses a too small count before any process starts
    samples.check_device(device)


def _save(folder: Path, identity: dict[str, Any], entries: samples.Entries, numbers: dict[str, int]) -> None:
    kind: Kind = identity["kind"]
    low, high = (cars if kind == "flow" else harmonic).largest_box()
    margin = [_MARGIN * (b - a) for a, b in zip(low, high, strict=True)]
    good = [name for name in numbers if name in entries and not entries[name]["faults"]]
    about = identity | {
        "low": [a - m for a, m in zip(low, margin, strict=True)],
        "high": [b + m for b, m in zip(high, margin, strict=True)],
        "features": FEATURES[kind],
        "targets": TARGETS[kind],
    }
    splits = {
        "train": [name for name in good if numbers[name] < FIRST_TEST],
        "test": [name for name in good if numbers[name] >= FIRST_TEST],
    }
    samples.write_index(folder, SET, about, entries, numbers, splits)


def _name(number: int) -> str:
    return f"body-{number:06d}"


def _look(data: bytes, where: str) -> samples.SampleInfo:
    body = unpack(data, where=where)
    entry = {"panels": len(body.mesh.faces), "quality": body.quality, "faults": list(body.faults)}
    return samples.SampleInfo(_name(body.origin.number), asdict(body.origin), entry)


SET = samples.Kind(
    FORMAT,
    "operator data",
    "body",
    "bodies",
    "body-*.npz",
    frozenset({"sha256", "panels", "quality", "faults"}),
    _look,
)


def _look_at_case(data: bytes, where: str) -> samples.SampleInfo:
    case = unpack_case(data, where=where)
    entry = {"points": len(case.sample.points), "source": case.origin["source"], "faults": []}
    return samples.SampleInfo(case.name, case.origin, entry)


CASES = samples.Kind(
    FORMAT,
    "operator data",
    "case",
    "bodies",
    f"{PREFIX}*.npz",
    frozenset({"sha256", "points", "source", "faults"}),
    _look_at_case,
)
