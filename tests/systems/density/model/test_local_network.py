"""The second, local network: both forms of the model agree with it, and it reads nothing but scalars."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.predict import predict

CONFIG = DensityConfig.preset(
    "small",
    ("H", "C", "O"),
    mul=24,
    lmax=2,
    hidden=12,
    head=8,
    spin=True,
    prior=True,
    train_knots=0,
    local=10,
)


@pytest.fixture
def model() -> DensityModel:
    model = DensityModel(CONFIG, seed=3).double()
    assert model.local is not None
    for bias in (model.local.inner_bias, model.local.middle_bias):
        torch.nn.init.normal_(bias, generator=torch.Generator().manual_seed(0))
    r = torch.linspace(0, 1, 401, dtype=torch.float64)
    model.set_prior(torch.stack([(1 - r) ** (3 + n) for n in range(3)]))
    return model


def densities(form, structure: Structure, at: np.ndarray, inputs_of) -> torch.Tensor:
    graph, neighbours, vectors = inputs_of(structure, CONFIG, at, torch.float64)
    return form(form.fields(graph), graph.species, neighbours, vectors)[0]


def points(structure: Structure) -> np.ndarray:
    return np.random.default_rng(9).random((15, 3)) @ structure.lattice


def test_the_scalar_form_agrees_with_the_full_one_and_with_its_tables(crystal, inputs_of, model) -> None:
    pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")
    from pinchpoint.systems.density.model.full_form import FullForm

    reference = FullForm(model, seed=1)
    for seed in range(3):
        structure = crystal(seed)
        at = points(structure)
        with torch.no_grad():
            scalar, full, tabulated = (
                densities(form, structure, at, inputs_of) for form in (model, reference, model.tabulate(4096))
            )
            corrected = float((scalar - _first(model, structure, at, inputs_of)).norm() / scalar.norm())
        assert corrected > 0.05, "the correction is not negligible here"
        assert float((full - scalar).norm() / scalar.norm()) <= 1e-12
        assert float((tabulated - scalar).norm() / scalar.norm()) <= 1e-4


def _first(model: DensityModel, structure: Structure, at: np.ndarray, inputs_of) -> torch.Tensor:
    local, model.local = model.local, None
    out = densities(model, structure, at, inputs_of)
    model.local = local
    return out


def test_gradients_of_both_forms_agree_and_reach_every_weight(crystal, inputs_of, model) -> None:
    pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")
    from pinchpoint.systems.density.model.full_form import FullForm

    structure = crystal(8)
    gradients = []
    for form in (model, FullForm(model, seed=1)):
        out = densities(form, structure, points(structure), inputs_of)
        gradients.append(torch.autograd.grad(out.square().sum(), list(model.parameters())))
    for name, one, two in zip(dict(model.named_parameters()), *gradients, strict=True):
        assert one.any() and (one - two).norm() <= 1e-10 * one.norm(), name


@pytest.mark.parametrize("improper", [False, True])
def test_the_corrected_density_turns_with_the_structure(crystal, inputs_of, model, improper: bool) -> None:
    structure = crystal(1)
    turn, _ = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))
    turn *= np.sign(np.linalg.det(turn)) * (-1 if improper else 1)
    moved = Structure(structure.lattice @ turn.T, structure.species, structure.positions)
    at = points(structure)
    with torch.no_grad():
        one = densities(model, structure, at, inputs_of)
        two = densities(model, moved, at @ turn.T, inputs_of)
    assert torch.allclose(one, two, rtol=1e-9, atol=1e-11)


def test_empty_space_stays_exactly_empty(model) -> None:
    from pinchpoint.systems.density.model.atom_network import AtomGraph

    nothing = torch.zeros(0, dtype=torch.long)
    graph = AtomGraph(torch.tensor([1]), nothing, nothing, torch.zeros(0, 3, dtype=torch.float64))
    far = torch.full((2, 5, 3, 3), 4.0, dtype=torch.float64)
    out = model(model.fields(graph), graph.species, torch.zeros(2, 3, dtype=torch.long), far)
    assert out.shape == (2, 5, 2) and not out.any()


def test_predict_applies_the_correction_in_every_form_and_leaves_it_out_on_request(crystal, model) -> None:
    pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")
    structure, single = crystal(2), model.float()
    scalar = predict(structure, weights=single, grid=6, device="cpu")
    full = predict(structure, weights=single, grid=6, device="cpu", form="full")
    alone = predict(structure, weights=single, grid=6, device="cpu", correction=False)
    assert scalar.corrected and full.corrected and not alone.corrected
    scale = np.abs(scalar.volume.total).max()
    assert np.abs(scalar.volume.total - full.volume.total).max() <= 1e-4 * scale
    assert np.abs(scalar.volume.total - alone.volume.total).max() >= 1e-2 * scale
    assert single.local is not None, "the model of the caller is not modified"


def test_what_cannot_be_corrected_or_left_out_is_refused(crystal) -> None:
    plain = DensityModel(DensityConfig.preset("small", ("H", "C", "O"), mul=8, lmax=0))
    with pytest.raises(BadInput, match="no local network"):
        predict(crystal(0), weights=plain, grid=4, correction=False)
    with pytest.raises(BadInput, match="local = -1 is below 0"):
        DensityConfig.preset("small", ("H",), local=-1)
