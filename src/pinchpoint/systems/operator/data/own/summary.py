"""What a dataset of a user's own files contains, in words, before anything is trained on it."""

from __future__ import annotations

from pinchpoint.systems.operator.data.dataset import Dataset
from pinchpoint.systems.operator.data.own.layout import AXES, Layout
from pinchpoint.systems.operator.metrics import statistics_of
from pinchpoint.systems.operator.model.config import OperatorConfig, lattice_for
from pinchpoint.systems.operator.settings import Settings

_SAMPLES = {1: "a curve", 2: "a surface", 3: "a volume"}


def summary_of(dataset: Dataset) -> list[tuple[str, str]]:
    """Rows for a screen: cases, fields, parameters, the box, normalisation, and what the model derives."""
    layout = dataset.layout
    assert layout is not None
    train, test = dataset.names("train"), dataset.names("test")
    points = [dataset.bodies[name]["points"] for name in (*train, *test)]
    what = "a plane" if layout.measure == layout.dimension == 2 else _SAMPLES[layout.measure]
    axes = ", ".join(AXES[axis] for axis in layout.axes)
    rows = [
        ("cases", f"{len(train):,} for training, {len(test):,} for testing"),
        (
            "points",
            f"{min(points):,} to {max(points):,} per case, one per "
            f"{'cell' if layout.location == 'cells' else 'point'} of {what}, {layout.dimension}-D ({axes})",
        ),
        ("inputs", ", ".join(_inputs(layout))),
    ]
    low, high = dataset.low[: layout.dimension], dataset.high[: layout.dimension]
    rows.append(("box", f"{_show(low)} to {_show(high)}, with a margin of 5 %"))
    if not train:
        return rows
    statistics = statistics_of((dataset.sample(name) for name in train), measure=layout.measure)
    for name, mean, std in zip(dataset.targets, statistics.target_mean, statistics.target_std, strict=True):
        rows.append((f"target {name}", f"mean {mean:.4g}, deviation {std:.4g} over the training cases"))
    preset = Settings.preset
    config = OperatorConfig.preset(
        preset,
        low=dataset.low,
        high=dataset.high,
        in_features=len(dataset.features),
        panel_side=statistics.panel_side,
        measure=layout.measure,
        lattice=lattice_for(preset, dataset.low, dataset.high, panel_side=statistics.panel_side),
    )
    rows += [
        ("lattice", f"{' x '.join(map(str, config.lattice[: layout.dimension]))} tokens ({preset})"),
        (
            "radii",
            f"{_list(config.radii)} to tokens, {_list(config.local_radii)} for the surroundings of a point",
        ),
    ]
    return rows


def _inputs(layout: Layout) -> list[str]:
    """The inputs, with those that describe the bodies as a whole in one word."""
    names = [name for name in layout.features if name not in layout.shape]
    return [*names, *(["place, size and shape of the bodies"] if layout.shape else [])]


def _show(values: tuple[float, ...]) -> str:
    return f"({_list(values)})"


def _list(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)
