"""CloudModel: results follow permutations, scenes are independent, and every weight is trained."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.cloud.data.scene import Scene
from pinchpoint.systems.cloud.model.config import CloudConfig
from pinchpoint.systems.cloud.model.model import CloudModel, predict_labels

SMALL = {
    "widths": (8, 12, 16),
    "blocks": (1, 1, 1),
    "attention": (0, 1, 2),
    "heads": 4,
    "window": 8,
    "point_width": 6,
    "features": 10,
}


def _model(**changes: object) -> CloudModel:
    torch.manual_seed(0)
    return CloudModel(
        CloudConfig(**{"in_features": 3, "classes": 4, "cell": 0.15, **SMALL, **changes})
    ).double()  # pyright: ignore[reportArgumentType]


def _cloud(points: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    xyz = torch.rand(points, 3, dtype=torch.float64, generator=generator) * torch.tensor([2.0, 1.5, 0.3])
    return xyz, torch.rand(points, 3, dtype=torch.float64, generator=generator)


def _joined(*clouds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    offsets = torch.tensor([0, *(len(xyz) for xyz, _ in clouds)]).cumsum(0)
    return torch.cat([xyz for xyz, _ in clouds]), torch.cat([features for _, features in clouds]), offsets


def test_permuting_the_points_permutes_the_results() -> None:
    model, (xyz, features) = _model(), _cloud(200, 1)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(2))
    offsets = torch.tensor([0, 200])
    for a, b in zip(model(xyz, features, offsets), model(xyz[order], features[order], offsets), strict=True):
        assert torch.allclose(a[order], b, atol=1e-10)


def test_shifting_a_scene_by_multiples_of_the_coarsest_cell_changes_nothing() -> None:
    model, (xyz, features) = _model(cell=0.125), _cloud(200, 1)
    offsets = torch.tensor([0, 200])
    a, b = (
        model(where, features, offsets)[0]
        for where in (xyz, xyz + torch.tensor([0.5 * 256, -0.5 * 512, 64.0]))
    )
    assert torch.allclose(a, b, atol=1e-9)


def test_a_scene_has_the_same_result_alone_and_in_a_batch() -> None:
    model = _model()
    clouds = [_cloud(150, 1), _cloud(3, 2), _cloud(220, 3)]
    together = model(*_joined(*clouds))[0].split([150, 3, 220])
    for cloud, result in zip(clouds, together, strict=True):
        assert torch.allclose(model(*_joined(cloud))[0], result, atol=1e-10)


def test_the_result_of_a_scene_has_no_gradient_in_other_scenes() -> None:
    model = _model()
    xyz, features, offsets = _joined(_cloud(100, 1), _cloud(100, 2))
    features.requires_grad_(True)
    (grad,) = torch.autograd.grad(model(xyz, features, offsets)[0][:100].square().sum(), features)
    assert grad[:100].abs().sum(1).min() > 0
    assert not grad[100:].any()


@pytest.mark.parametrize("norm", ["layer", "batch", "per-view"])
def test_every_parameter_receives_a_gradient(norm: str) -> None:
    model = _model(norm=norm, views=2 if norm == "per-view" else 1)
    xyz, features, offsets = _joined(_cloud(150, 1), _cloud(80, 2))
    logits, point_features = model(xyz, features, offsets, torch.tensor([0, 1]))
    (functional.cross_entropy(logits, torch.arange(230) % 4) + point_features.square().mean()).backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None and weight.grad.abs().max() > 0, name


def test_gradients_equal_finite_differences() -> None:
    model = _model(widths=(4, 8), blocks=(1, 1), attention=(0, 1))
    xyz, features, offsets = _joined(_cloud(40, 1), _cloud(20, 2))
    direction_of_logits = torch.randn(60, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def value() -> Tensor:
        return (model(xyz, features, offsets)[0] * direction_of_logits).sum()

    value().backward()
    for weight in model.parameters():
        grad = weight.grad
        assert grad is not None
        direction = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        ends = []
        for step in (1e-6, -1e-6):
            with torch.no_grad():
                weight += step * direction
                ends.append(value().item())
                weight -= step * direction
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(
            (grad * direction).sum().item(), rel=1e-5, abs=1e-6
        )


def test_views_can_be_given_per_group_or_per_point() -> None:
    model = _model(norm="per-view", views=2)
    xyz, features, offsets = _joined(_cloud(150, 1), _cloud(80, 2))
    by_group = model(xyz, features, offsets, torch.tensor([1, 0]))[0]
    by_point = model(xyz, features, offsets, torch.tensor([1] * 150 + [0] * 80))[0]
    assert torch.equal(by_group, by_point)
    with pytest.raises(BadInput, match="view numbers have shape"):
        model(xyz, features, offsets, torch.tensor([1, 0, 0]))


def test_autocast_gives_nearly_the_same_logits() -> None:
    model = _model().float()
    xyz, features, offsets = _joined(_cloud(150, 1), _cloud(80, 2))
    plain = model(xyz.float(), features.float(), offsets)[0]
    with torch.autocast("cpu", torch.bfloat16):
        half = model(xyz.float(), features.float(), offsets)[0]
    half.float().sum().backward()
    assert (plain - half).norm() < 0.05 * plain.norm()


def test_the_network_learns_labels_that_only_neighbours_determine() -> None:
    torch.manual_seed(0)
    xyz, _ = _cloud(400, 1)
    labels = (xyz[:, 0] > 1).long() + 2 * (xyz[:, 1] > 0.75).long()
    marks = torch.stack([(labels == k).double() for k in (1, 2, 3)], 1) * (torch.rand(400, 1) < 0.15)
    model, offsets = _model(), torch.tensor([0, 400])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(30):
        loss = functional.cross_entropy(model(xyz, marks, offsets)[0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    # Only 15 % of the points have marks: without neighbours, only about 4 in 10 points can be classified.
    assert (model(xyz, marks, offsets)[0].argmax(1) == labels).double().mean() > 0.8


def test_a_single_point_and_a_single_cell_are_supported() -> None:
    model = _model()
    for count in (1, 50):
        logits, _ = model(
            torch.zeros(count, 3).double() + 0.01, torch.zeros(count, 3).double(), torch.tensor([0, count])
        )
        assert logits.isfinite().all() and torch.allclose(logits, logits[:1].expand(count, -1))


def test_features_of_another_width_are_rejected() -> None:
    with pytest.raises(BadInput, match=r"features have shape \(9, 2\)"):
        _model()(torch.zeros(9, 3).double(), torch.zeros(9, 2).double(), torch.tensor([0, 9]))


def test_predicted_labels_are_the_largest_logits_whatever_the_budget() -> None:
    model: nn.Module = _model().float()
    xyz, features = (part.float() for part in _cloud(5000, 1))
    model.train()
    scene = Scene("one", xyz.numpy(), features.numpy(), None, ("red", "green", "blue"))
    expected = model(xyz, features, torch.tensor([0, 5000]))[0].argmax(1).numpy()
    for budget in (None, "64MiB"):
        result = predict_labels(model, scene, budget=budget)  # pyright: ignore[reportArgumentType]
        assert result.dtype == np.int32
        assert (result == expected).mean() > 0.999
    assert model.training
