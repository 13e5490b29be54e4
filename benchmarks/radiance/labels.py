"""Whether a run with labels generates what its labels say: a classifier of real images judges generated ones.

    python benchmarks/radiance/labels.py RUN DATA UNSEEN -o benchmarks/results/radiance_labels_h200.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`, with its extra `radiance`. DATA and UNSEEN are
two sets of `radiance data --bodies` with different seeds, RUN was trained with `--set label_weight`. Two
linear classifiers of EfficientNet-Lite0's features, one of body types and one of the sectors of the view, are
fitted to DATA. The record has their accuracy on UNSEEN, which is the most that generated images can be
expected to reach, and on images that RUN generates from random poses, equally many of each class, against the
class and pose they were generated for. --picture writes a sheet: one row per class, the same objects in every
row.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.core.errors import BadInput, PinchpointError
from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.systems.radiance.data.images import Images, open_images
from pinchpoint.systems.radiance.metrics.features import Extractor, open_extractor
from pinchpoint.systems.radiance.model.labels import sector_rows
from pinchpoint.systems.radiance.model.objective import draw_codes, whole_images
from pinchpoint.systems.radiance.orbit import codes_of, save_sheet, tile_images, views
from pinchpoint.systems.radiance.rendering.rays import draw_poses
from pinchpoint.systems.radiance.rendering.render import Codes, generator_for
from pinchpoint.systems.radiance.training.runs import TrainedRun
from pinchpoint.systems.radiance.training.weights import load_weights

DECAY = 1e-3  # of the classifiers' weights
SECTORS = 8
VIEW = 0.1, 0.36  # u and v of the sheet


class Classifier:
    """A linear classifier of standardised features."""

    def __init__(self, features: Tensor, labels: Tensor, classes: int) -> None:
        """Fit by maximum likelihood. features: (N, D); labels: (N,)."""
        self.mean, self.spread = features.mean(dim=0), features.std(dim=0) + 1e-6
        self.weight = torch.zeros(features.shape[1], classes, requires_grad=True)
        self.bias = torch.zeros(classes, requires_grad=True)
        parameters = [self.weight, self.bias]
        optimizer = torch.optim.LBFGS(parameters, max_iter=60, line_search_fn="strong_wolfe")

        def loss() -> float:
            optimizer.zero_grad()
            value = functional.cross_entropy(self.scores(features), labels)
            value = value + DECAY * self.weight.square().sum()
            value.backward()
            return float(value.detach())

        optimizer.step(loss)

    def scores(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.spread @ self.weight + self.bias

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """The most likely class of each, (N,)."""
        return self.scores(features).argmax(dim=1)


def confusion(true: Tensor, predicted: Tensor, classes: int) -> list[list[int]]:
    """How many of each class, by row, are taken for each class, by column."""
    return torch.bincount(true * classes + predicted, minlength=classes**2).view(classes, classes).tolist()


def generate(trained: TrainedRun, per_class: int, *, seed: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Images (N, 3, W, W) on the CPU with their classes (N,) and azimuths (N,), in turns."""
    images, labels, turns = [], [], []
    limits = trained.settings.v_low, trained.settings.v_high
    for at, name in enumerate(trained.config.classes):
        source = generator_for(seed, at, "images to classify")
        codes = draw_codes(trained.config, per_class, generator=source, only=name)
        u, v = draw_poses(per_class, v_range=limits, generator=source)
        own = Codes(codes.shape.to(device), codes.app.to(device))
        images.append(whole_images(trained.model, own, u.to(device), v.to(device)).best.cpu())
        labels.append(torch.full((per_class,), at))
        turns.append(u)
    return torch.cat(images), torch.cat(labels), torch.cat(turns)


def sectors_of(turns: Tensor) -> Tensor:
    return sector_rows(turns, SECTORS).argmax(dim=1)


def read_labelled(path: Path, size: int, classes: tuple[str, ...]) -> tuple[Images, Tensor, Tensor]:
    images = open_images(path, size=size)
    if images.labels is None or images.turns is None or images.classes != classes:
        raise BadInput(
            f"{path} does not have the classes {', '.join(classes)} and known poses.",
            hint="Give a set of: pinchpoint radiance data --bodies",
        )
    return images, images.labels, images.turns


def measure(args: argparse.Namespace) -> dict[str, Any]:
    device = resolve_device(args.device, backend("torch"))
    trained = load_weights(args.run, which=args.checkpoint, device=device)
    classes = trained.config.classes
    if not classes:
        raise BadInput(f"{args.run} was trained without classes.", hint="Train with --set label_weight=1.")
    side = trained.settings.size * trained.settings.superres
    extract: Extractor = open_extractor(device=device)
    sets = []
    for path in (args.data, args.unseen):
        images, labels, turns = read_labelled(path, side, classes)
        some = torch.arange(min(len(images), args.images))
        sets.append((extract(images.batch(some)), labels[some], turns[some]))
    generated_images, generated_labels, generated_turns = generate(
        trained, args.per_class, seed=args.seed, device=device
    )
    sets.append((extract(generated_images), generated_labels, generated_turns))
    (features, labels, turns), *test_sets = [(part.float().cpu(), *rest) for part, *rest in sets]
    bodies = Classifier(features, labels, len(classes))
    sectors = Classifier(features, sectors_of(turns), SECTORS)
    rows: dict[str, Any] = {}
    for name, (part, true, angles) in zip(("unseen", "generated"), test_sets, strict=True):
        predicted, views_predicted = bodies.predict(part), sectors.predict(part)
        rows[name] = {
            "images": len(part),
            "class_accuracy": float((predicted == true).float().mean()),
            "view_accuracy": float((views_predicted == sectors_of(angles)).float().mean()),
            "confusion": confusion(true, predicted, len(classes)),
        }
    if args.picture:
        sheet = [
            views(
                trained.model,
                codes_of(trained.config, args.columns, seed=args.seed, device=device, only=name),
                *VIEW,
            ).best.cpu()
            for name in classes
        ]
        save_sheet(args.picture, tile_images(torch.cat(sheet), columns=args.columns))
    return {
        "classes": list(classes),
        "fitted_images": len(features),
        "chance": {"class_accuracy": 1 / len(classes), "view_accuracy": 1 / SECTORS},
        **rows,
        "step": trained.step,
        "settings": trained.settings.to_dict() | {"data_path": "", "data_given": ""},
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("unseen", type=Path, metavar="UNSEEN")
    parser.add_argument("--images", type=int, default=2000, help="Most images of each set.")
    parser.add_argument("--per-class", type=int, default=64, help="Generated images of each class.")
    parser.add_argument("--checkpoint", default="last", choices=("last", "best"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    parser.add_argument("--columns", type=int, default=6, help="Objects in a row of the picture.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    try:
        check_output(args.output)
        results = measure(args)
    except PinchpointError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    record = {
        "what": "labels of generated cars",
        "commands": ["python " + " ".join(sys.argv)],
        "created": now(),
        "machine": describe(),
        **results,
    }
    write_text(args.output, json.dumps(record, indent=1) + "\n")
    for name in ("unseen", "generated"):
        row = results[name]
        print(
            f"{name}: class {row['class_accuracy']:.1%}, view {row['view_accuracy']:.1%}, {row['confusion']}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
