"""One step of a run as a workload, so that its peak can be predicted before the run starts.

The environment variable PINCHPOINT_OPERATOR_STEP names the folder that describes the step: config.json with
the model and settings, offsets.npz with the row offsets of the largest body's graph. The step is the
trainer's own; only the values of its tensors are missing, which no peak depends on. P points, L tokens, E
edges.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pinchpoint.core.workload import Case, Variant, Workload
from pinchpoint.kit.edges.edges import Edges
from pinchpoint.systems.common.settings import apply_choices
from pinchpoint.systems.operator.data.sample import Sample
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.geometry import COLUMNS, TURNING
from pinchpoint.systems.operator.model.graph import Graph
from pinchpoint.systems.operator.model.inference import infer_one_chunk
from pinchpoint.systems.operator.settings import Settings
from pinchpoint.systems.operator.training.training_step import Stepper

WHERE = "PINCHPOINT_OPERATOR_STEP"
TRACED_CHUNKS = 3  # chunks of a transform that run: all have the same peak


def describe(folder: Path, config: OperatorConfig, settings: Settings, graph: Graph) -> None:
    """Write the description that `build` reads."""
    description = {"model": json.loads(config.to_json()), "settings": settings.to_dict()}
    (folder / "config.json").write_text(json.dumps(description), encoding="utf-8")
    rows: dict[str, Any] = {f"encoder{at}": edges.starts for at, edges in enumerate(graph.encoder)}
    rows |= {f"decoder{at}": edges.starts for at, edges in enumerate(graph.decoder)}
    np.savez(folder / "offsets.npz", **rows)


def build(size: int, *, device: str, mode: str, variant: str, seed: int, chunk: int | None = None) -> Case:
    """One case. `size` is the number of edges of the described body, which is fixed."""
    return load_case(Path(os.environ[WHERE]), device=device, mode=mode, memory=variant, chunk=chunk)


def load_case(folder: Path, *, device: str, mode: str, memory: str, chunk: int | None) -> Case:
    """The step that `describe` wrote to the folder."""
    description = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = OperatorConfig.from_json(json.dumps(description["model"]))
    settings = apply_choices(Settings.from_dict(description["settings"]), {"memory": memory, "chunk": chunk})
    with np.load(folder / "offsets.npz") as rows:
        points = len(rows["decoder0"]) - 1
        most = TRACED_CHUNKS * chunk if chunk is not None and memory != "eager" else None
        graph = _graph(config, dict(rows), points, device, most)
    sample = Sample(
        "largest",
        torch.zeros(points, 3, device=device),
        torch.zeros(points, config.in_features, device=device),
        torch.zeros(points, config.out_features, device=device),
        torch.ones(points, device=device),
    )
    stepper = Stepper(config, settings, device)
    # Two bodies one after the other need as much memory as any number of them.
    turns = min(settings.accumulate, 2)
    steps: dict[str, Callable[[], Tensor]] = {
        "train": lambda: stepper.step(_copies(sample, graph, turns), number=1),
        "infer": lambda: _answer(stepper, sample, graph, settings),
    }
    return Case(step=steps[mode], processed=graph.edges)


@torch.no_grad()
def _answer(stepper: Stepper, sample: Sample, graph: Graph, settings: Settings) -> Tensor:
    return infer_one_chunk(stepper.model.eval(), sample, graph, settings)


def _copies(sample: Sample, graph: Graph, turns: int) -> Any:
    return ((sample, graph) for _ in range(turns))


def _graph(config: OperatorConfig, rows: dict[str, Any], points: int, device: str, most: int | None) -> Graph:
    """The graph in its full size; with more than `most` edges, its rows are shortened evenly for the run."""
    tokens = config.lattice[0] * config.lattice[1] * config.lattice[2]

    def edges(starts: Any, sources: int) -> Edges:
        count = int(starts[-1])
        offsets = torch.zeros(len(starts), dtype=torch.int64, device=device)
        shortened = starts if most is None or count <= most else (starts * (most / count)).astype(np.int64)
        return Edges(
            offsets, torch.zeros(count, dtype=torch.int32, device=device), sources, known_starts=shortened
        )

    radii = range(len(config.radii))
    return Graph(
        tuple(edges(rows[f"encoder{at}"], points) for at in radii),
        tuple(edges(rows[f"decoder{at}"], tokens) for at in radii),
        tuple(torch.zeros(tokens, COLUMNS, device=device) for _ in radii)
        if config.geometry == "statistics"
        else (),
        tuple(
            torch.zeros(points, COLUMNS + TURNING * config.turning, device=device) for _ in config.local_radii
        ),
    )


STEP = Workload(
    name="operator-step",
    axis="edges",
    framework="torch",
    build=build,
    variants=(Variant("eager"), Variant("checkpoint"), Variant("flat", flat=True)),
    about="one step of a run on its largest body",
    chunked=True,
)
