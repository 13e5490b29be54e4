"""The scalar form against the full one: the same density, whatever weights the rest of the full one has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.model.atom_network import SCALAR, paths_between, reachable_irreps
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.full_form import FullForm
from pinchpoint.systems.density.model.model import DensityModel

pytest.importorskip("e3nn", reason="the full form's couplings are e3nn's")

CONFIG = DensityConfig.preset(
    "small", ("H", "C", "O"), mul=24, lmax=2, hidden=12, head=8, spin=True, prior=True, train_knots=0
)


def forms_of(config: DensityConfig, dtype: torch.dtype, *seeds: int) -> tuple[DensityModel, list[FullForm]]:
    model = DensityModel(config, seed=3).to(dtype)
    if config.prior:
        r = torch.linspace(0, 1, 401, dtype=torch.float64)
        model.set_prior(torch.stack([(1 - r) ** (3 + n) for n in range(len(config.species))]).to(dtype))
    return model, [FullForm(model, seed=seed) for seed in seeds]


@pytest.fixture(scope="module")
def double() -> tuple[DensityModel, list[FullForm]]:
    return forms_of(CONFIG, torch.float64, 1, 2)


@pytest.fixture(scope="module")
def single() -> tuple[DensityModel, list[FullForm]]:
    return forms_of(CONFIG, torch.float32, 1)


def points(structure, count: int = 12) -> np.ndarray:
    return np.random.default_rng(count).random((count, 3)) @ structure.lattice


def errors(forms, inputs_of, structures, dtype) -> list[float]:
    model, fulls = forms
    found = []
    for structure in structures:
        graph, neighbours, vectors = inputs_of(structure, model.config, points(structure), dtype)
        with torch.no_grad():
            scalar = model(model.fields(graph), graph.species, neighbours, vectors)
            for full in fulls:
                other = full(full.fields(graph), graph.species, neighbours, vectors)
                found.append(float((other - scalar).norm() / scalar.norm()))
    return found


def test_both_forms_agree_to_1e_12_in_float64_over_20_structures(crystal, inputs_of, double) -> None:
    structures = [crystal(seed, atoms=2 + seed % 5) for seed in range(20)]
    assert max(errors(double, inputs_of, structures, torch.float64)) <= 1e-12


def test_both_forms_agree_to_1e_5_in_float32_over_8_structures(crystal, inputs_of, single) -> None:
    structures = [crystal(seed, atoms=2 + seed % 5) for seed in range(8)]
    assert max(errors(single, inputs_of, structures, torch.float32)) <= 1e-5


def test_the_dead_weights_are_used_and_change_everything_but_the_density(crystal, inputs_of, double) -> None:
    model, (one, two) = double
    structure = crystal(1)
    graph, neighbours, vectors = inputs_of(structure, model.config, points(structure), torch.float64)
    near = torch.nonzero(vectors[0].norm(dim=-1) < 4.0)
    pairs = neighbours[0, near[:, 1]], near[:, 0], vectors[0, near[:, 0], near[:, 1]], 12
    with torch.no_grad():
        states = [form.states(form.fields(graph), *pairs) for form in (one, two)]
    last = reachable_irreps(model.config)[-1]
    assert set(states[0][-1]) == set(last) and len(last) == 6  # 0e 0o 1o 1e 2e 2o
    for layer_one, layer_two in zip(*states, strict=True):
        for irrep, values in layer_one.items():
            if irrep == SCALAR:
                assert torch.allclose(values, layer_two[irrep], rtol=1e-12, atol=1e-14)
            else:
                assert values.norm() > 1e-3
                assert (values - layer_two[irrep]).norm() > 0.1 * values.norm()


def test_a_changed_live_weight_changes_both_forms_alike(crystal, inputs_of) -> None:
    forms = forms_of(CONFIG, torch.float64, 5)
    model = forms[0]
    structure = crystal(2)
    graph, neighbours, vectors = inputs_of(structure, model.config, points(structure), torch.float64)
    before = model(model.fields(graph), graph.species, neighbours, vectors)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    assert not torch.allclose(
        before, model(model.fields(graph), graph.species, neighbours, vectors), rtol=1e-2
    )
    assert max(errors(forms, inputs_of, [structure], torch.float64)) <= 1e-12


def test_gradients_of_both_forms_agree(crystal, inputs_of, double) -> None:
    model, (full, _) = double
    structure = crystal(8)
    graph, neighbours, vectors = inputs_of(structure, model.config, points(structure), torch.float64)
    found = []
    for form in (model, full):
        out = form(form.fields(graph), graph.species, neighbours, vectors)
        found.append(torch.autograd.grad(out.square().sum(), list(model.parameters())))
    for name, one, two in zip(dict(model.named_parameters()), *found, strict=True):
        assert (one - two).norm() <= 1e-10 * one.norm(), name


def test_the_original_width_has_the_published_paths_and_weights() -> None:
    config = DensityConfig.preset("original", ("Hf", "O"))
    paths = [paths_between(made, made, 4) for made in reachable_irreps(config)]
    assert [len(found) for found in paths] == [42, 121, 130]
    assert [sum(config.channels(path[0][0]) for path in found) for found in paths] == [1203, 2660, 3238]
    middle = [sum((2 * path[2][0] + 1) * config.channels(path[0][0]) for path in found) for found in paths]
    assert sum(middle) == 39_195
    assert (
        sum((2 * degree + 1) * config.channels(degree) for degree, _ in reachable_irreps(config)[-1]) == 992
    )


@pytest.mark.slow
def test_both_forms_agree_at_the_original_width_on_hfo2(inputs_of) -> None:
    forms = forms_of(DensityConfig.preset("original", ("Hf", "O")), torch.float64, 1)
    assert max(errors(forms, inputs_of, [hafnia()], torch.float64)) <= 1e-12
