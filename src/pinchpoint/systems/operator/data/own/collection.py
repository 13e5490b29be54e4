"""Datasets of a user's own files: every case is read and checked before the first is written.

The first case decides the layout: where the fields are, which are targets and parameters, and in how many
axes the data have an extent. Every other case must agree with it. The files of the dataset record the sha256
of the files they were made from: the same command converts only what is new or has changed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.data import dataset_folder as samples
from pinchpoint.systems.common.folders import refuse_others
from pinchpoint.systems.operator.data.dataset import CASES, FORMAT, OWN, PREFIX, Dataset, open_dataset
from pinchpoint.systems.operator.data.own.cases import Case, case_sample, pack_case, picture_of
from pinchpoint.systems.operator.data.own.cells import Array
from pinchpoint.systems.operator.data.own.layout import (
    AXES,
    GENERATOR,
    MEASURES,
    Layout,
    Location,
    Places,
    field_at,
    in_axes,
    places_of,
    plane_axes,
    wall_of,
)
from pinchpoint.systems.operator.data.own.sources import Source, find_sources, read_source
from pinchpoint.systems.operator.files.grid import Grid

MARGIN = 0.05  # of the box, on every side
# Fields that programs write about the mesh itself: never targets unless they are named.
_ABOUT_MESH = (
    *("normal", "vtkvalid", "vtkghost", "vtkoriginal", "cellid", "pointid", "nodenumber", "cellnumber"),
    *("node number", "cell number", "point id", "cell id", "obj:", "nx", "ny", "nz"),
)
_LISTED = 3  # names of cases in an error


@dataclass(frozen=True)
class Choices:
    """What the user named; None: whatever the first case has."""

    inputs: tuple[str, ...] = ()
    targets: tuple[str, ...] | None = None
    parameters: tuple[str, ...] | None = None


@dataclass
class Survey:
    """What was found in the cases so far."""

    layout: Layout
    low: Array
    high: Array
    # By field: the lowest and highest value of each component in all cases.
    ranges: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Order:
    """One case to convert."""

    name: str
    source: Source


def make_own_dataset(
    source: str | Path,
    output: str | Path,
    *,
    choices: Choices = Choices(),  # noqa: B008
    files: str | None = None,
    test: int | None = None,
    seed: int = 0,
    progress: samples.Progress | None = None,
    reading: samples.Progress | None = None,
) -> tuple[Dataset, tuple[str, ...]]:
    """Convert the cases of a folder, and return the dataset and notes about it.

    files: a pattern of the files that are cases. test: the number of test cases, a fifth by default; the
    folders `train` and `test` decide if they exist. reading(done, total): counts cases that are
    checked, progress(done, total) those that are converted.
    """
    folder = Path(output)
    refuse_others(folder, own=samples.INDEX)
    sources = find_sources(Path(source), files)
    splits = _splits(sources, test=test, seed=seed)
    survey = survey_cases(sources, choices, progress=reading)
    identity = {
        "format": FORMAT,
        "generator": GENERATOR,
        "kind": OWN,
        "layout": _json(survey.layout),
    }
    entries = samples.existing_samples(folder, CASES, identity)
    orders = [_Order(_file_name(source), source) for source in sources]
    digests = {order.name: _digest(order.source) for order in orders}
    # A case whose files have changed is converted again.
    entries = {
        name: entry
        for name, entry in entries.items()
        if name not in digests or entry["source"].get("sha256") == digests[name]
    }
    missing = [order for order in orders if order.name not in entries]
    margin = MARGIN * (survey.high - survey.low)
    about = identity | {
        "seed": seed,
        "panels": 0,
        "low": (survey.low - margin).tolist(),
        "high": (survey.high + margin).tolist(),
        "features": survey.layout.features,
        "targets": survey.layout.columns(survey.layout.targets),
    }

    def save() -> None:
        names = {split: [name for name in names if name in entries] for split, names in splits.items()}
        samples.write_index(folder, CASES, about, entries, [order.name for order in orders], names)

    def convert() -> Iterator[tuple[_Order, bytes]]:
        for order in missing:
            yield order, pack_case(_case(order, survey.layout, identity, digests[order.name]))

    samples.add_samples(
        folder,
        CASES,
        entries,
        convert,
        missing=len(missing),
        total=len(orders),
        save=save,
        progress=progress,
    )
    return open_dataset(folder), tuple(survey.notes)


def survey_cases(
    sources: Sequence[Source], choices: Choices, *, progress: samples.Progress | None = None
) -> Survey:
    """Read every case, and raise `BadInput` unless all of them form one dataset."""
    survey: Survey | None = None
    first = ""
    normals, inner, boundary = True, True, True
    for number, source in enumerate(sources):
        if progress is not None:
            progress(number, len(sources))
        grid, parameters, named = read_source(source)
        where = f"case {source.name} ({source.file.name})"
        _check_points(grid, where)
        axes = plane_axes(grid, where)
        if survey is None:
            layout = _first_layout(grid, axes, set(parameters), named, choices, sources, where)
            survey, first = Survey(layout, np.full(3, np.inf), np.full(3, -np.inf)), source.name
        layout = survey.layout
        _check_axes(axes, layout.axes, source.name, first)
        _check_fields(grid, layout, sources, where)
        _check_parameters(parameters, layout, where)
        places = places_of(grid, axes, layout.location, where)
        if source.name == first:
            survey.layout = layout = replace(layout, measure=places.measure)
        elif places.measure != layout.measure:
            raise BadInput(
                f"{where} is {MEASURES[places.measure]}, but case {first} is {MEASURES[layout.measure]}.",
                hint="Put surfaces and volumes into separate datasets.",
            )
        _check_values(grid, places, survey, where)
        survey.low = np.minimum(survey.low, places.points.min(axis=0))
        survey.high = np.maximum(survey.high, places.points.max(axis=0))
        normals = normals and places.normals is not None
        boundary = boundary and layout.measure == layout.dimension and bool(places.blocks)
        inner = inner and boundary and bool(wall_of(places, "inner"))
    assert survey is not None
    survey.layout = replace(
        survey.layout,
        normals=normals,
        wall="inner" if inner else "all" if boundary else "",
        moments=boundary,
    )
    _check_variation(survey)
    return survey


def _first_layout(
    grid: Grid,
    axes: tuple[int, ...],
    parameters: set[str],
    named: set[str],
    choices: Choices,
    sources: Sequence[Source],
    where: str,
) -> Layout:
    """The layout that the first case and the user's choices suggest."""
    targets = choices.targets or tuple(
        name for name in {**grid.cell_fields, **grid.point_fields} if _is_target(grid, name, choices)
    )
    others = sorted({*grid.cell_fields, *grid.point_fields} - set(choices.inputs))
    if not targets and others:
        raise BadInput(
            f"{where} has no fields of real numbers to predict, only {', '.join(others)}.",
            hint="Name the fields to learn with --targets.",
        )
    if not targets:
        raise BadInput(
            f"{where} has no fields to predict.",
            hint="Write the fields into the mesh file, or into an .npz or .csv file of the same name.",
        )
    clash = sorted(set(targets) & set(choices.inputs))
    if clash:
        raise BadInput(
            f"{clash[0]!r} is both an input and a target.", hint="Name it in --inputs or in --targets."
        )
    fields = (*targets, *choices.inputs)
    missing = [name for name in fields if name not in grid.cell_fields and name not in grid.point_fields]
    if missing:
        _raise_missing(missing[0], grid, sources, where)
    location: Location = (
        "points"
        if all(name in grid.point_fields for name in fields)
        and not all(name in grid.cell_fields for name in fields)
        else "cells"
    )
    order = (
        (grid.cell_fields, grid.point_fields)
        if location == "cells"
        else (grid.point_fields, grid.cell_fields)
    )

    def components(name: str) -> int:
        values = next(fields[name] for fields in order if name in fields)
        return in_axes(np.zeros((1, int(np.prod(values.shape[1:])))), axes).shape[1]

    chosen = choices.parameters if choices.parameters is not None else tuple(sorted(named))
    unknown = [name for name in chosen if name not in parameters]
    if unknown:
        raise BadInput(
            f"{where} has no parameter {unknown[0]!r}; it has {', '.join(sorted(parameters)) or 'none'}.",
            hint="Write it into parameters.json of the case, or into parameters.csv with a row per case.",
        )
    return Layout(
        location,
        axes,
        0,
        False,
        "",
        tuple((name, components(name)) for name in choices.inputs),
        tuple((name, components(name)) for name in targets),
        chosen,
    )


def _is_target(grid: Grid, name: str, choices: Choices) -> bool:
    """Whether a field is a target if none is named: real numbers that do not describe the mesh."""
    values = grid.cell_fields[name] if name in grid.cell_fields else grid.point_fields[name]
    about_mesh = name.lower().startswith(_ABOUT_MESH)
    return values.dtype.kind == "f" and values.ndim <= 2 and not about_mesh and name not in choices.inputs


def _check_points(grid: Grid, where: str) -> None:
    if not len(grid.points):
        raise BadInput(f"{where} has no points.", hint="Export it again.")
    bad = int((~np.isfinite(grid.points)).any(axis=1).sum())
    if bad:
        raise BadInput(
            f"{bad:,} of {len(grid.points):,} points of {where} are NaN or infinite.",
            hint="Export it again without them.",
        )


def _check_axes(axes: tuple[int, ...], expected: tuple[int, ...], name: str, first: str) -> None:
    if axes == expected:
        return
    show = ["".join(AXES[axis] for axis in part) for part in (axes, expected)]
    if len(axes) == len(expected):
        raise BadInput(
            f"Case {name} is in the plane {show[0]}, but case {first} in the plane {show[1]}.",
            hint="Rotate the cases into one plane.",
        )
    raise BadInput(
        f"Case {name} is {len(axes)}-D ({show[0]}), but case {first} is {len(expected)}-D ({show[1]}).",
        hint="Put 2-D and 3-D cases into separate datasets.",
    )


def _check_fields(grid: Grid, layout: Layout, sources: Sequence[Source], where: str) -> None:
    for name, _ in (*layout.targets, *layout.inputs):
        at_place = name in grid.cell_fields if layout.location == "cells" else name in grid.point_fields
        if not at_place and not (layout.location == "cells" and name in grid.point_fields):
            _raise_missing(name, grid, sources, where)


def _raise_missing(name: str, grid: Grid, sources: Sequence[Source], where: str) -> None:
    """Raise the error for a field that a case lacks, with the number of cases that lack it."""
    lacking = []
    for source in sources:
        other = read_source(source)[0]
        if name not in other.cell_fields and name not in other.point_fields:
            lacking.append(source.name)
    if not lacking:
        raise BadInput(
            f"{name!r} is on the points of some cases and on the cells of others, such as {where}.",
            hint="Export it in the same place from every case.",
        )
    available = sorted({*grid.cell_fields, *grid.point_fields})
    some = ", ".join(lacking[:_LISTED]) + (", ..." if len(lacking) > _LISTED else "")
    raise BadInput(
        f"{len(lacking):,} of {len(sources):,} cases have no field {name!r}: {some}. "
        f"{where} has {', '.join(available) or 'no fields'}.",
        hint="Export the field from every case, or name other fields with --targets and --inputs.",
    )


def _check_parameters(parameters: dict[str, float], layout: Layout, where: str) -> None:
    for name in layout.parameters:
        if name not in parameters:
            raise BadInput(
                f"{where} has no parameter {name!r}, which other cases have.",
                hint="Add it to the parameters of the case, or leave it out with --parameters.",
            )
        if not np.isfinite(parameters[name]):
            raise BadInput(
                f"The parameter {name!r} of {where} is {parameters[name]}.", hint="Give a finite number."
            )


def _check_values(grid: Grid, places: Places, survey: Survey, where: str) -> None:
    """Raise `BadInput` for values that are not finite; note the range of every target."""
    layout = survey.layout
    for chosen in (*layout.targets, *layout.inputs):
        values = field_at(grid, places, layout, chosen, where).astype(np.float32)
        bad = int((~np.isfinite(values)).any(axis=1).sum())
        if bad:
            raise BadInput(
                f"{bad:,} of {len(values):,} values of {chosen[0]!r} in {where} are NaN or infinite.",
                hint="Repair or remove the case, or name other fields with --targets and --inputs.",
            )
        low, high = survey.ranges.get(chosen[0], (np.inf, -np.inf))
        survey.ranges[chosen[0]] = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))


def _check_variation(survey: Survey) -> None:
    for name, _ in survey.layout.targets:
        low, high = survey.ranges[name]
        # A vector is constant only if each of its components is.
        if not (high - low > 1e-6 * np.maximum(abs(low), abs(high))).any():
            value = ", ".join(f"{part:.4g}" for part in low)
            raise BadInput(
                f"The target {name!r} is constant: it is {value} everywhere in every case.",
                hint="Name the fields to learn with --targets.",
            )


def _splits(sources: Sequence[Source], *, test: int | None, seed: int) -> dict[str, list[str]]:
    """Names by split. Which cases test follows from their names and the seed: more cases keep the others."""
    if sources[0].split:
        if test is not None:
            raise BadInput(
                "--test cannot be given: the folders `train` and `test` decide the split.",
                hint="Leave --test out.",
            )
        return {split: [_file_name(s) for s in sources if s.split == split] for split in ("train", "test")}
    count = (max(1, len(sources) // 5) if len(sources) > 1 else 0) if test is None else test
    if not 0 <= count < len(sources):
        raise BadInput(
            f"--test {count} of {len(sources):,} cases leaves none to train with.",
            hint="Give a smaller --test, or add cases.",
        )
    names = [_file_name(source) for source in sources]
    order = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).hexdigest())
    chosen = set(order[:count])
    return {
        "train": [name for name in names if name not in chosen],
        "test": [name for name in names if name in chosen],
    }


def _case(order: _Order, layout: Layout, identity: dict[str, Any], digest: str) -> Case:
    grid, parameters, _ = read_source(order.source)
    where = f"case {order.source.name} ({order.source.file.name})"
    sample, places = case_sample(order.name, grid, layout, parameters, where=where)
    wall = wall_of(places, "inner") if layout.measure == layout.dimension else []
    origin = identity | {"source": {"file": order.source.file.name, "sha256": digest}}
    return Case(order.name, origin, sample, picture_of(places, wall))


def _digest(source: Source) -> str:
    digest = hashlib.sha256()
    for file in source.files():
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def _file_name(source: Source) -> str:
    return f"{PREFIX}{source.name}"


def _json(layout: Layout) -> dict[str, Any]:
    """The layout as index.json holds it, to compare with it. The generator is beside it there."""
    return json.loads(json.dumps({k: v for k, v in layout.to_dict().items() if k != "generator"}))
