"""The neural operator in `pinchpoint demo`: the pressure on an unseen car after a few seconds of training.

The operator is trained on coarse cars; the car of the picture has many times their panels.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pinchpoint.core.demo import Picture, Show

SHOW = Show(
    "operator",
    needs=("torch",),
    order=50,
    task="a training step on 8,192 edges",
    picture="the pressure on a car",
    variant="flat",
    verify_size=8_192,
    cost_s=45,
    sizes=(50_000, 150_000, 500_000),
)
CARS, PANELS, FINE_PANELS, STEPS = 12, 240, 1_500, 60
SETTINGS: dict[str, Any] = {"lr": 3e-3, "validation": 0}


def draw(output: Path, *, device: str, seed: int, steps: int = STEPS) -> Picture:
    """Train on a few cars, and draw the predicted and the true pressure on another one."""
    from pinchpoint.systems.operator.data.dataset import make_dataset
    from pinchpoint.systems.operator.evaluate import LABELS, evaluate_body
    from pinchpoint.systems.operator.plots import picture
    from pinchpoint.systems.operator.train import train
    from pinchpoint.systems.operator.training.runs import load_trained

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kind: dict[str, Any] = {"kind": "flow", "seed": seed, "jobs": 1}
        make_dataset(folder / "cars", train=CARS, test=0, panels=PANELS, **kind)
        fine = make_dataset(folder / "car", train=0, test=1, panels=FINE_PANELS, **kind)
        training = train(folder / "cars", folder / "run", device=device, seed=seed, steps=steps, **SETTINGS)
        trained_run = load_trained(folder / "run", device=training.device)
        (body,) = fine.names("test")
        row, prediction = evaluate_body(trained_run, fine, body, training.device)
        true = fine.body(body)
    error, mean_error, target = row["l1"], row["mean_l1"], fine.targets[0]
    path = picture(
        output / "operator.png",
        true.mesh,
        prediction[:, 0],
        true.fields[target].numpy(),
        title=f"pressure on an unseen car: relative error {error:.0%} (mean field {mean_error:.0%})",
        label=LABELS.get(target, target),
    )
    return Picture(
        path,
        "operator: the pressure on an unseen car",
        f"Trained for {steps} steps in {training.seconds:.0f} s on {training.device}, on {training.bodies} "
        f"cars of about {PANELS} panels; the car shown has {row['points']:,}. The relative error is "
        f"{error:.0%}; after the 600 steps of the documentation it is 6 %.",
    )
