"""The point-cloud network in `pinchpoint demo`: an unseen room, labelled after a few seconds of training."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pinchpoint.core.demo import Picture, Show

SHOW = Show(
    "cloud",
    needs=("torch",),
    order=20,
    task="a draw from 3,000 points",
    picture="the labels of an unseen room",
    variant="exact",
    verify_size=3_000,
    verify_mode="infer",
    cost_s=40,
)
ROOMS, POINTS, STEPS = 12, 5_000, 70
# Few steps need a high rate, and large voxels make them fast.
SETTINGS: dict[str, Any] = {
    "validation": 0,
    "scenes": 1,
    "lr": 4e-3,
    "views": ["log-uniform:0.3:1"],
    "model": {"cell": 0.12},
}


def draw(output: Path, *, device: str, seed: int, steps: int = STEPS) -> Picture:
    """Train on a few rooms, and label another one from all of its points and from a quarter of them."""
    import numpy as np

    from pinchpoint.systems.cloud.data.dataset import make_dataset
    from pinchpoint.systems.cloud.model.model import predict_labels
    from pinchpoint.systems.cloud.plots import Labelled, plot_labels
    from pinchpoint.systems.cloud.train import train
    from pinchpoint.systems.cloud.training.runs import load_trained

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_dataset(folder / "rooms", train=ROOMS, test=1, points=POINTS, seed=seed, jobs=1)
        training = train(folder / "rooms", folder / "run", device=device, seed=seed, steps=steps, **SETTINGS)
        model = load_trained(folder / "run").model
        full = data.scene(data.names("test")[0])
    fewer = full.take(np.random.default_rng(seed).permutation(full.points)[: full.points // 4])
    assert full.labels is not None  # generated rooms are labelled
    panels = [Labelled("true labels", full, full.labels)]
    panels += [Labelled("predicted", scene, predict_labels(model, scene)) for scene in (full, fewer)]
    path = plot_labels(output / "cloud.png", panels, data.classes)
    return Picture(
        path,
        "cloud: the labels of an unseen room",
        f"Trained for {steps} steps in {training.seconds:.0f} s on {training.device}, on {ROOMS} generated "
        f"rooms of about {POINTS:,} points. {panels[1].correct:.0%} of the labels are correct with all points"
        f" of the room, and {panels[2].correct:.0%} with a quarter of them.",
    )
