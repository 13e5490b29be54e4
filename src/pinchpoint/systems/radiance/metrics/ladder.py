"""A ladder to read distances by: sets of cars that are worse in one known way each, measured against good ones.

Every rung is made of cars the reference does not hold, so the lowest rung, cars of the same kind, says what chance alone
gives. A generator's distance lies between two rungs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.data.cars import Car, Pose, draw_car
from pinchpoint.systems.radiance.data.sphere_tracing import picture
from pinchpoint.systems.radiance.metrics.features import Extractor
from pinchpoint.systems.radiance.metrics.metrics import distances

COLLAPSED = 8  # images that a collapsed generator still makes


@dataclass(frozen=True)
class Rung:
    """A way to be worse and the distances it has."""

    rung: str
    distances: dict[str, float]


def rungs(*, images: int, size: int, seed: int, device: str | torch.device = "cpu") -> dict[str, Tensor]:
    """The reference, under "reference", and the images (N, 3, W, W) in [-1, 1] of every rung."""
    if images < COLLAPSED:
        raise BadInput(f"a ladder of {images} images", hint=f"give {COLLAPSED} or more")
    pairs = [draw_car(seed, number) for number in range(2 * images)]
    reference, good = _pictures(pairs[:images], size, device), _pictures(pairs[images:], size, device)
    bare = _pictures([(replace(car, wheels=False), pose) for car, pose in pairs[images:]], size, device)
    grey = good @ good.new_tensor([0.299, 0.587, 0.114])
    draw = torch.Generator().manual_seed(seed)
    noise = torch.randn(good.shape, generator=draw).to(good)
    made = {
        "reference": reference,
        "same": good,
        "collapse": good[torch.arange(images) % COLLAPSED],
        "no wheels": bare,
        "grey": grey[..., None].expand_as(good),
        "blur 1 px": _blurred(good, 1.0),
        "blur 2 px": _blurred(good, 2.0),
        "noise 0.05": good + 0.05 * noise,
        "noise 0.1": good + 0.1 * noise,
    }
    return {name: values.clamp(0, 1).permute(0, 3, 1, 2) * 2 - 1 for name, values in made.items()}


def ladder(
    extract: Extractor,
    *,
    images: int = 128,
    size: int = 64,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Rung]:
    """Every rung's distances to the reference, with these features."""
    made = rungs(images=images, size=size, seed=seed, device=extract.device)
    reference = extract(made.pop("reference"))
    found = []
    for name, pictures in made.items():
        if progress:
            progress(len(found), len(made))
        found.append(Rung(name, distances(reference, extract(pictures), features=extract.name)))
    return found


def _pictures(pairs: list[tuple[Car, Pose]], size: int, device: str | torch.device) -> Tensor:
    """(N, W, W, 3) in [0, 1]."""
    return picture([car for car, _ in pairs], [pose for _, pose in pairs], size=size, device=device).rgb


def _blurred(images: Tensor, sigma: float) -> Tensor:
    """By a Gaussian of this many pixels; the edge goes on outside as it is."""
    reach = int(4 * sigma + 0.5)
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, device=images.device) / sigma) ** 2)
    weights = (weights / weights.sum()).view(1, 1, 1, -1).expand(3, 1, 1, -1)
    planes = F.pad(images.permute(0, 3, 1, 2), (reach,) * 4, mode="replicate")
    planes = F.conv2d(F.conv2d(planes, weights, groups=3), weights.transpose(2, 3), groups=3)
    return planes.permute(0, 2, 3, 1)
