"""The operator: the same result for every `memory` and order of the points, and able to learn."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.model.config import OperatorConfig
from pinchpoint.systems.operator.model.graph import graph_of
from pinchpoint.systems.operator.model.kernels import Cosine
from pinchpoint.systems.operator.model.model import Operator, on_body_of, spread_of

# The eigenvalues of a covariance of few points are computed with acos near 1, which turns a rounding of
# 1e-16, such as from another order of a sum, into 1e-8. A real fault changes the field by far more than a
# millionth.
ROUNDING: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8}
OURS: dict[str, Any] = {"vectors": (0, 3)}
KINDS: dict[str, dict[str, Any]] = {
    "quadrature, statistics": OURS,
    "turning, mirror": {**OURS, "turning": True, "mirror": 4},
    "attention, pointnet, mirror": {**OURS, "mirror": 4, "weights": "attention", "geometry": "pointnet"},
    "mean, nonlinear": {"weights": "mean", "geometry": "none", "transform": "nonlinear", "local_radii": ()},
    "nonlinear_kernelonly, one radius": {"transform": "nonlinear_kernelonly", "radii": (0.9,)},
    "two coordinates, attention": {**OURS, "dimension": 2, "weights": "attention"},
    "compat": {"preset": "compat"},
    "compat, capped": {"preset": "compat", "weights": "mean", "neighbour_cap": 8},
}


def config(**changes: Any) -> OperatorConfig:
    settings: dict[str, Any] = {
        "low": (-2, -1, -1),
        "high": (2, 1, 1),
        "in_features": 7,
        "out_features": 2,
        "lattice": (8, 4, 4),
        "channels": 8,
        "mlp": (12, 12),
        "width": 24,
        "heads": 2,
        "depth": 3,
        **changes,
    }
    return OperatorConfig.preset(settings.pop("preset", "small"), **settings)


def body(
    count: int = 150, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Points of an ellipsoid, its normals with four more features, and areas."""
    torch.manual_seed(1)
    ball, half = (
        functional.normalize(torch.randn(count, 3, dtype=dtype), dim=1),
        torch.tensor([1.8, 0.7, 0.6], dtype=dtype),
    )
    normals = functional.normalize(ball / half, dim=1)
    return (
        ball * half,
        torch.cat([normals, torch.randn(count, 4, dtype=dtype)], dim=1),
        torch.rand(count, dtype=dtype) / 10,
    )


def model_of(operator_config: OperatorConfig) -> Operator:
    torch.manual_seed(2)
    return Operator(operator_config).double()


@pytest.mark.parametrize("kind", KINDS)
def test_all_memory_modes_give_the_values_and_gradients_of_eager(kind: str) -> None:
    operator_config = config(**KINDS[kind])
    points, features, areas = body()
    model, graph = (
        model_of(operator_config),
        graph_of(points, operator_config, areas=areas, features=features),
    )

    def run(**options: Any) -> dict[str, Any]:
        model.zero_grad()
        leaf = features.clone().requires_grad_()
        out = model(points, leaf, areas, graph, **options)
        out.sin().sum().backward()
        return {
            "out": out.detach(),
            "features": leaf.grad,
            **{name: p.grad for name, p in model.named_parameters()},
        }

    eager, flat, checkpointed = (
        run(memory="eager"),
        run(memory="flat", chunk=157),
        run(memory="checkpoint", chunk=157),
    )
    # Shifting all scores of a row equally changes nothing, so the gradient of the last bias is zero up to
    # rounding.
    nothing = {name for name in eager if ".scores." in name and name.endswith("2.bias")}
    for name, truth in eager.items():
        assert truth is not None and (name in nothing or bool(truth.any())), f"{name} has no gradient"
        for gradient in (flat[name], checkpointed[name]):
            assert float((gradient - truth).abs().max()) <= 1e-10 * max(float(truth.abs().max()), 1e-3), name


@pytest.mark.parametrize(
    "kind", ["quadrature, statistics", "turning, mirror", "attention, pointnet, mirror", "compat"]
)
def test_permuted_points_give_the_permuted_field(kind: str) -> None:
    operator_config = config(**KINDS[kind])
    points, features, areas = body()
    model, order = model_of(operator_config), torch.randperm(len(points))
    first = model(points, features, areas, graph_of(points, operator_config, areas=areas, features=features))
    moved = model(
        points[order],
        features[order],
        areas[order],
        graph_of(points[order], operator_config, areas=areas[order], features=features[order]),
    )
    assert torch.allclose(moved, first[order], **ROUNDING)


def test_dividing_points_into_halves_of_their_area_changes_nothing() -> None:
    operator_config = config(**OURS, turning=True)
    points, features, areas = body()
    model = model_of(operator_config)
    first = model(points, features, areas, graph_of(points, operator_config, areas=areas, features=features))
    twice = [torch.cat([part, part]) for part in (points, features, areas / 2)]
    second = model(*twice, graph_of(twice[0], operator_config, areas=twice[2], features=twice[1]))
    assert torch.allclose(second, torch.cat([first, first]), **ROUNDING)
    unweighted = model(
        *twice[:2], 2 * twice[2], graph_of(twice[0], operator_config, areas=2 * twice[2], features=twice[1])
    )
    assert not torch.allclose(unweighted, torch.cat([first, first]), rtol=1e-3, atol=1e-3)


def reflect(points: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    sign = torch.ones(10, dtype=points.dtype)
    sign[[1, 4, 7]] = -1  # y of the place, of the normal and of the second vector
    return points * sign[:3], features * sign[3:]


@pytest.mark.parametrize("turning", [True, False])
def test_with_a_mirror_a_mirrored_body_has_the_mirrored_field(turning: bool) -> None:
    points, features, areas = body()
    features[:, 4] = 0.3
    image, mirrored_features = reflect(points, features)
    gaps = {}
    for mirror in (4, None):
        operator_config = config(**OURS, mirror=mirror, turning=turning)
        model = model_of(operator_config)
        from_right = model(
            points, features, areas, graph_of(points, operator_config, areas=areas, features=features)
        )
        from_left = model(
            image,
            mirrored_features,
            areas,
            graph_of(image, operator_config, areas=areas, features=mirrored_features),
        )
        gaps[mirror] = float((from_left - from_right).detach().abs().max() / from_right.detach().abs().max())
        if mirror is not None:
            plain = model_of(config(**OURS, turning=turning))(
                points, features, areas, graph_of(points, operator_config, areas=areas, features=features)
            )
            assert torch.equal(plain, from_right), "a body that needs no mirror is unchanged"
    assert gaps[4] < 1e-6 < 1e-3 < gaps[None]


def test_features_and_targets_pass_through_their_scales() -> None:
    points, features, areas = body()
    plain = config(**OURS)
    shift, scale = tuple(float(v) for v in range(7)), tuple(float(v + 1) for v in range(7))
    scaled = config(
        feature_shift=shift, feature_scale=scale, target_shift=(1.0, -1.0), target_scale=(2.0, 3.0)
    )
    unscaled = config()
    graph = graph_of(points, unscaled, areas=areas, features=features)
    stretched = (features - features.new_tensor(shift)) / features.new_tensor(scale)
    truth = model_of(unscaled)(points, stretched, areas, graph) * features.new_tensor(
        [2.0, 3.0]
    ) + features.new_tensor([1.0, -1.0])
    assert torch.allclose(model_of(scaled)(points, features, areas, graph), truth, rtol=1e-12)
    assert plain.vectors == (0, 3)


def test_the_place_on_a_body_does_not_depend_on_its_position_and_size() -> None:
    points, _, areas = body()
    place, middle, spread = on_body_of(points, *spread_of(points, areas))
    stretch, shift = (
        torch.tensor([1.5, 0.7, 1.2], dtype=torch.float64),
        torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64),
    )
    moved = on_body_of(points * stretch + shift, *spread_of(points * stretch + shift, areas))
    assert torch.allclose(moved[0], place, atol=1e-5)
    assert torch.allclose(moved[1], middle * stretch + shift, rtol=1e-9)
    assert torch.allclose(moved[2], spread + stretch.log(), atol=1e-5)
    shares = areas / areas.sum()
    assert torch.allclose((shares[:, None] * place).sum(0), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(
        (shares[:, None] * place.square()).sum(0), torch.ones(3, dtype=torch.float64), atol=1e-4
    )


def test_compat_scores_edges_by_the_cosine_of_absolute_places() -> None:
    operator_config = config(**KINDS["compat"])
    points, features, areas = body()
    model = model_of(operator_config)
    assert isinstance(model.encoder.scores[0], Cosine)
    y, x = torch.randn(2, 9, 3, dtype=torch.float64)
    truth = (y * x).sum(1, keepdim=True) / (y.norm(dim=1) * x.norm(dim=1))[:, None]
    assert torch.allclose(Cosine()(torch.cat([y, x], dim=1)), truth)
    # Through the transform: constant kernel, f = one place's number. The weights of a row are the softmax of
    # the cosines.
    for layer in model.encoder.kernels[0].parameters():
        layer.data.zero_()
    model.encoder.kernels[0][-1].bias.data.fill_(1.0)  # type: ignore[index]
    with torch.no_grad():
        model.encoder.mix.data[1] = -1e9  # type: ignore[union-attr]
        places, tokens = model.scaling.places(points), model.scaling.tokens
        f = torch.randn(len(points), operator_config.channels, dtype=torch.float64)
        graph = graph_of(points, operator_config, areas=areas, features=features)
        values = model.encoder(tokens, places, f, graph.encoder, memory="flat", chunk=50)
        row = int(graph.encoder[0].degrees().argmax())
        begin, end = graph.encoder[0].offsets[row : row + 2].tolist()
        sources = graph.encoder[0].sources[begin:end].long()
        weights = torch.softmax(functional.cosine_similarity(places[sources], tokens[row][None], dim=1), 0)
        assert torch.allclose(values[row], (weights[:, None] * f[sources]).sum(0), rtol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"features": torch.zeros(150, 6)}, "`features` has shape"),
        ({"areas": torch.zeros(149)}, "`areas` has shape"),
        ({"graph": "another"}, "another configuration"),
        ({"graph": "fewer"}, "other points"),
    ],
)
def test_inputs_of_another_operator_are_refused(wrong: dict[str, Any], says: str) -> None:
    operator_config = config(**OURS)
    points, features, areas = body()
    graphs = {
        "another": lambda: graph_of(points, config(radii=(0.9,)), areas=areas, features=features),
        "fewer": lambda: graph_of(points[1:], operator_config, areas=areas[1:]),
    }
    inputs = {
        "points": points,
        "features": features,
        "areas": areas,
        "graph": graph_of(points, operator_config, areas=areas, features=features),
        **wrong,
    }
    inputs["graph"] = graphs[inputs["graph"]]() if isinstance(inputs["graph"], str) else inputs["graph"]
    with pytest.raises(BadInput, match=says):
        model_of(operator_config)(**inputs)


def test_it_learns_a_smooth_field_that_depends_on_place_and_normal() -> None:
    points, features, areas = body(200, torch.float32)
    operator_config = config(**OURS, out_features=1, channels=16)
    truth = (features[:, 0] ** 2 - 0.5 * torch.sin(2 * points[:, 0]) * features[:, 2])[:, None]
    torch.manual_seed(0)
    model, graph = (
        Operator(operator_config),
        graph_of(points, operator_config, areas=areas, features=features),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        loss = functional.mse_loss(model(points, features, areas, graph), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
    assert losses[-1] < float(truth.var()) / 10
