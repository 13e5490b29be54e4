"""The configuration of an operator: it survives JSON, has covering radii, and refuses invalid values."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.model.config import PRESETS, OperatorConfig, lattice_for

BOX: dict[str, Any] = {"low": (-2.0, -1.0, 0.0), "high": (2.0, 1.0, 1.5)}


def config(**changes: Any) -> OperatorConfig:
    return OperatorConfig.preset("small", **{**BOX, "in_features": 7, **changes})


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json(name: str) -> None:
    preset = OperatorConfig.preset(name, **BOX, in_features=7)
    assert OperatorConfig.from_json(preset.to_json()) == preset


def test_the_covering_radius_is_half_the_diagonal_of_a_cell() -> None:
    preset = config(lattice=(5, 3, 4), patch=1)
    assert preset.spacing == (1.0, 1.0, 0.5)
    assert preset.covering_radius == pytest.approx(math.sqrt(1 + 1 + 0.25) / 2)


def test_a_preset_has_radii_that_cover_every_point() -> None:
    for name in PRESETS:
        preset = OperatorConfig.preset(name, **BOX, in_features=7)
        assert min(preset.radii) > preset.covering_radius


def test_local_radii_contain_several_training_panels_even_for_coarse_meshes() -> None:
    plain = config()
    assert config(panel_side=min(plain.local_radii) / 10).local_radii == plain.local_radii
    side = 0.2
    coarse = config(panel_side=side)
    assert coarse.local_radii == pytest.approx((3.5 * side, max(7 * side, plain.local_radii[1])))
    assert coarse.radii == plain.radii
    assert max(config(panel_side=9.0).local_radii) == pytest.approx(math.dist(*BOX.values()))
    assert config(panel_side=side, local_radii=(0.1,)).local_radii == (0.1,), "given radii are unchanged"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"lattice": (15, 8, 8)}, "cannot be divided into patches"),
        ({"width": 66}, "cannot be divided by 4 heads"),
        ({"width": 16}, "rotary"),
        ({"width": 20, "heads": 4}, "rotary"),
        ({"lattice": (16, 8, 1)}, "lattice"),
        ({"radii": ()}, "list of radii is empty"),
        ({"radii": (0.0,)}, "radius is 0"),
        ({"radii": (9.0,)}, "diagonal"),
        ({"radii": (float("nan"),)}, "radius is nan"),
        ({"low": (3.0, -1.0, 0.0)}, "box"),
        ({"high": (2.0, 1.0, float("inf"))}, "box"),
        ({"high": (2.0, 1.0)}, "corner"),
        ({"in_features": 0}, "in_features"),
        ({"depth": 0}, "depth"),
        ({"mlp": ()}, "hidden widths"),
        ({"geometry": "shape"}, "geometry"),
        ({"weights": "sum"}, "weights"),
        ({"transform": "linear_kernelonly"}, "transform"),
        ({"vectors": (5,)}, "Vectors cannot begin"),
        ({"vectors": (0,), "mirror": 4}, "not the y component of a vector"),
        ({"vectors": (3,), "mirror": 4, "low": (-2.0, -0.5, 0.0)}, "mirror at y = 0 needs a symmetric box"),
        ({"feature_shift": (0.0,), "feature_scale": (1.0,)}, "feature_shift"),
        ({"target_shift": (0.0,), "target_scale": (0.0,)}, "target_shift"),
        ({"neighbour_cap": 32}, "neighbour_cap"),
        ({"turning": True}, "turning=True needs vectors"),
        ({"turning": True, "vectors": (0,), "local_radii": ()}, "turning=True needs vectors"),
        ({"compat": True}, "quadrature"),
        ({"compat": True, "weights": "mean", "vectors": (0,)}, "vectors"),
    ],
)
def test_invalid_configurations_are_refused_with_a_hint(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as excinfo:
        config(**changes)
    assert excinfo.value.hint


def test_the_hint_of_a_wrong_lattice_works() -> None:
    with pytest.raises(BadInput, match="lattice") as excinfo:
        config(lattice=(15, 9, 7))
    assert "(16, 8, 8)" in excinfo.value.hint
    assert config(lattice=(16, 8, 8)).patches == (8, 4, 4)


def test_turning_uses_more_radii_than_the_surroundings() -> None:
    plain, turning = config(), config(vectors=(0,), turning=True)
    assert turning.local_radii[:2] == plain.local_radii and len(turning.local_radii) == 4
    assert 0.5 < max(turning.local_radii) / math.dist(*BOX.values()) <= 1


def test_a_configuration_without_turning_is_read_with_turning_off() -> None:
    preset = config(vectors=(0, 3))
    old = {name: value for name, value in json.loads(preset.to_json()).items() if name != "turning"}
    assert OperatorConfig.from_json(json.dumps(old)) == preset and not preset.turning


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(BadInput, match="preset"):
        OperatorConfig.preset("huge", **BOX, in_features=7)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not JSON"), ("[]", "unknown fields"), ('{"colour": 1}', "colour"), ("{}", "lacks fields")],
)
def test_a_damaged_configuration_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        OperatorConfig.from_json(text)


def test_json_contains_only_plain_values() -> None:
    assert all(
        isinstance(v, int | float | str | list | bool | None) for v in json.loads(config().to_json()).values()
    )


@pytest.mark.parametrize(
    ("lattice", "what", "hint"),
    [
        ((2, 2, 2), r"A lattice of \(2, 2, 2\) is too coarse", "a finer lattice"),
        ((4, 4), r"lattice is \(4, 4\)", "three counts"),
        ((8, 8, 1), r"lattice is \(8, 8, 1\)", "three counts"),
    ],
)
def test_an_invalid_lattice_is_named_in_the_error(lattice: Any, what: str, hint: str) -> None:
    with pytest.raises(BadInput, match=what) as excinfo:
        OperatorConfig.preset("small", low=(0, 0, 0), high=(5, 2, 2), in_features=7, lattice=lattice)
    assert hint in excinfo.value.hint


def test_a_lattice_for_data_is_not_finer_than_their_points() -> None:
    low, high = (0.0, 0.0, 0.0), (4.0, 2.0, 0.0)
    assert lattice_for("base", low, high) == (128, 64, 1)
    # Points that are 0.1 apart: tokens are 0.125 apart, in both presets where that of `small` is finer.
    assert lattice_for("base", low, high, panel_side=0.1) == (32, 16, 1)
    assert lattice_for("small", low, high, panel_side=0.01) == lattice_for("small", low, high) == (46, 22, 1)
