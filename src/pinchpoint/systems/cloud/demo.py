"""The point-cloud network in `pinchpoint demo`: an unseen room, labelled by the packaged weights."""

from __future__ import annotations

import tempfile
from pathlib import Path

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
    cost_s=8,
)
POINTS = 20_000
FEWER = 10  # the second prediction uses one in so many points


def draw(output: Path, *, device: str, seed: int) -> Picture:
    """Label a generated room with the packaged weights, from all of its points and from a tenth of them."""
    import numpy as np

    from pinchpoint.backends.base import backend, resolve_device
    from pinchpoint.systems.cloud.data.dataset import make_dataset
    from pinchpoint.systems.cloud.model.model import predict_labels
    from pinchpoint.systems.cloud.plots import Labelled, plot_labels
    from pinchpoint.systems.cloud.training.weights import load_weights

    trained = load_weights("packaged", device=resolve_device(device, backend("torch")))
    with tempfile.TemporaryDirectory() as name:
        data = make_dataset(name, train=0, test=1, points=POINTS, seed=seed, jobs=1)
        full = data.scene(data.names("test")[0])
    fewer = full.take(np.random.default_rng(seed).permutation(full.points)[: full.points // FEWER])
    assert full.labels is not None  # generated rooms are labelled
    panels = [Labelled("true labels", full, full.labels)]
    panels += [Labelled("predicted", scene, predict_labels(trained.model, scene)) for scene in (full, fewer)]
    path = plot_labels(output / "cloud.png", panels, data.classes)
    return Picture(
        path,
        "cloud: the labels of an unseen room",
        f"Predicted by the packaged network, which was trained on other rooms. {panels[1].correct:.0%} of the"
        f" labels are correct with all {full.points:,} points of the room, and {panels[2].correct:.0%} with"
        f" {fewer.points:,} of them.",
    )
