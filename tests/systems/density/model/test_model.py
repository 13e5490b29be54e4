"""The density model: its size, its gradients, its limits, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pinchpoint.backends.torch.measurement import account
from pinchpoint.core.errors import BadInput
from pinchpoint.core.units import MIB
from pinchpoint.systems.density.grid.hafnia import hafnia
from pinchpoint.systems.density.model import model as model_module
from pinchpoint.systems.density.model.atom_network import AtomGraph, by_destination, sum_by_destination
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.model.probe_network import sums_over_neighbours

SPECIES = ("H", "C", "O")


def config(**changes) -> DensityConfig:
    return DensityConfig.preset(
        "small", SPECIES, **{"mul": 24, "lmax": 2, "hidden": 16, "head": 8, "train_knots": 0, **changes}
    )


def points(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).random((count, 3)) * 5


def test_the_probes_of_the_original_have_the_parameters_that_get_a_gradient_there() -> None:
    model = DensityModel(DensityConfig.preset("original", ("Hf", "O")))
    # 165,852 in the original; ours has an angle for each interaction and a head of two layers more.
    head = 300 * 100 + 100 + 100
    assert sum(p.numel() for p in model.probes.parameters()) == 165_852 + 3 + head
    assert (model.config.aggregates, model.config.field_width) == (178, 1488)


@pytest.mark.parametrize(
    "changes", [{}, {"train_knots": 256}, {"spin": True, "interactions": 2}, {"lmax": 0}, {"interactions": 1}]
)
def test_every_parameter_gets_a_gradient(crystal, inputs_of, changes) -> None:
    model = DensityModel(config(**changes))
    graph, neighbours, vectors = inputs_of(crystal(0, atoms=6), model.config, points(12), torch.float32)
    out = model(model.fields(graph), graph.species, neighbours, vectors)
    (out * torch.arange(1, out.shape[-1] + 1)).sum().backward()
    empty = [
        name for name, p in model.named_parameters() if p.numel() and (p.grad is None or not p.grad.any())
    ]
    assert empty == []


def test_spin_is_a_second_output(crystal, inputs_of) -> None:
    model = DensityModel(config(spin=True))
    graph, neighbours, vectors = inputs_of(crystal(0), model.config, points(4), torch.float32)
    out = model(model.fields(graph), graph.species, neighbours, vectors)
    assert out.shape == (1, 4, 2)
    assert not torch.allclose(out[..., 0], out[..., 1])


def test_a_slot_beyond_the_cutoff_adds_exactly_nothing(crystal, inputs_of) -> None:
    model = DensityModel(config()).double()
    graph, neighbours, vectors = inputs_of(crystal(1), model.config, points(6), torch.float64)
    fields = model.fields(graph)
    used = (vectors.norm(dim=-1) < 4.0).any(dim=1)[0]
    assert 0 < used.sum() < len(used)
    with torch.no_grad():
        whole = model(fields, graph.species, neighbours, vectors)
        part = model(fields, graph.species, neighbours[:, used], vectors[:, :, used])
        moved = torch.where((vectors.norm(dim=-1) < 4.0)[..., None], vectors, torch.full_like(vectors, 1e6))
        far = model(fields, graph.species, neighbours, moved)
    assert torch.allclose(whole, part, rtol=1e-13, atol=0)
    assert torch.equal(whole, far)


@pytest.mark.parametrize("slots", [0, 3])
def test_where_no_atom_is_near_the_density_is_exactly_zero(slots: int) -> None:
    model = DensityModel(config(spin=True))
    torch.nn.init.normal_(model.probes.head_bias)
    nothing = torch.zeros(0, dtype=torch.long)
    graph = AtomGraph(torch.zeros(2, dtype=torch.long), nothing, nothing, torch.zeros(0, 3))
    for form in (model, model.tabulate(64)):
        out = form(
            model.fields(graph),
            graph.species,
            torch.zeros(2, slots, dtype=torch.long),
            torch.full((2, 5, slots, 3), 4.0),
        )
        assert out.shape == (2, 5, 2)
        assert not out.any()


def test_a_tile_is_its_probes_and_slots_one_by_one(crystal, inputs_of) -> None:
    model = DensityModel(config()).double()
    graph, neighbours, vectors = inputs_of(crystal(2), model.config, points(6), torch.float64)
    fields = model.fields(graph)
    whole = model(fields, graph.species, neighbours, vectors)
    # Three tiles of two probes, their slots in another order.
    order = torch.randperm(neighbours.shape[1], generator=torch.Generator().manual_seed(0))
    tiles = model(
        fields, graph.species, neighbours[:, order].expand(3, -1), vectors[0][:, order].view(3, 2, -1, 3)
    )
    assert torch.allclose(tiles.flatten(), whole.flatten(), rtol=1e-12, atol=1e-15)


def along(model: DensityModel, offsets: list[float]) -> torch.Tensor:
    """Densities on a line through one of two atoms, 1.1 angstrom apart."""
    apart = torch.tensor([[0.9, 0.5, 0.39]], dtype=torch.float64)
    graph = AtomGraph(
        torch.tensor([0, 2]), torch.tensor([1, 0]), torch.tensor([0, 1]), torch.cat([apart, -apart])
    )
    line = torch.tensor(offsets, dtype=torch.float64)[:, None] * torch.tensor(
        [0.48, 0.6, 0.64], dtype=torch.float64
    )
    vectors = torch.stack([line, line - apart], dim=1)[None]
    with torch.no_grad():
        return model(model.fields(graph), graph.species, torch.tensor([[0, 1]]), vectors)[0, :, 0]


def test_the_density_has_no_kink_at_a_nucleus() -> None:
    model = DensityModel(config(lmax=3)).double()
    step = 1e-4
    before, low, at, high, after = along(model, [-2 * step, -step, 0.0, step, 2 * step]).tolist()
    # A kink would make the second difference at the nucleus 1 / step times that beside it.
    beside = along(model, [0.3 - step, 0.3, 0.3 + step]).tolist()
    bend = (low - 2 * at + high) / step**2
    assert abs(bend) < 50 * abs((beside[0] - 2 * beside[1] + beside[2]) / step**2) + 1
    assert (before - 2 * at + after) / (2 * step) ** 2 == pytest.approx(bend, rel=1e-2)


def test_the_density_of_an_atom_falls_to_zero_by_the_third_power_at_the_cutoff() -> None:
    model = DensityModel(config()).double()
    nothing = torch.zeros(0, dtype=torch.long)
    graph = AtomGraph(torch.tensor([1]), nothing, nothing, torch.zeros(0, 3, dtype=torch.float64))
    away = torch.tensor([2e-3, 1e-3, 0.0, -1e-3], dtype=torch.float64)  # within the cutoff, at it and beyond
    vectors = (4.0 - away)[None, :, None, None] * torch.tensor([0.48, 0.6, 0.64], dtype=torch.float64)
    with torch.no_grad():
        far, near, edge, beyond = model(model.fields(graph), graph.species, torch.tensor([[0]]), vectors)[
            0, :, 0
        ].tolist()
    # So the density and its first two derivatives have no jump there.
    assert far / near == pytest.approx(8.0, rel=1e-2)
    assert (edge, beyond) == (pytest.approx(0.0, abs=1e-14), 0.0)


def test_the_prior_is_the_superposed_tables(crystal, inputs_of) -> None:
    model = DensityModel(config(prior=True, spin=True)).double()
    knots = model.prior.shape[1]
    r = np.linspace(0, 4, knots)
    tables = np.stack([np.exp(-(n + 1) * r) * (1 - r / 4) ** 3 for n in range(3)])
    graph, neighbours, vectors = inputs_of(crystal(3), model.config, points(7), torch.float64)
    arguments = model.fields(graph), graph.species, neighbours, vectors
    without = model(*arguments)
    model.set_prior(torch.from_numpy(tables))
    distance = vectors[0].norm(dim=-1).numpy()
    kind = graph.species.numpy()[neighbours[0].numpy()]
    wanted = [
        sum(np.interp(d, r, tables[k], right=0.0) for d, k in zip(row, kind, strict=True)) for row in distance
    ]
    added = (model(*arguments) - without)[0]
    assert np.allclose(added[:, 0].detach().numpy(), wanted, rtol=1e-10)
    assert not added[:, 1].any()


@pytest.mark.parametrize(
    ("prior", "tables", "said"),
    [
        (False, torch.zeros(3, 401), "no prior"),
        (True, torch.zeros(3, 400), "shape"),
        (True, torch.full((3, 401), torch.nan), "finite"),
        (True, torch.ones(3, 401), "zero at the cutoff"),
    ],
)
def test_a_prior_that_does_not_suit_the_model_is_refused(
    prior: bool, tables: torch.Tensor, said: str
) -> None:
    with pytest.raises(BadInput, match=said):
        DensityModel(config(prior=prior)).set_prior(tables)


def test_the_table_of_a_model_is_within_1e_5_of_its_networks(crystal, inputs_of) -> None:
    model = DensityModel(config(gaussians=20))
    graph, neighbours, vectors = inputs_of(crystal(4), model.config, points(40), torch.float32)
    with torch.no_grad():
        fields = model.fields(graph)
        exact = model(fields, graph.species, neighbours, vectors)
        read = model.tabulate(4096)(fields, graph.species, neighbours, vectors)
    assert (read - exact).norm() < 1e-5 * exact.norm()


@pytest.mark.parametrize("train_knots", [0, 128])
def test_half_precision_leaves_geometry_and_sums_whole(
    crystal, inputs_of, monkeypatch, train_knots: int
) -> None:
    model = DensityModel(config(lmax=3, train_knots=train_knots))
    graph, neighbours, vectors = inputs_of(crystal(4), model.config, points(20), torch.float32)
    seen = []
    monkeypatch.setattr(
        model_module,
        "sums_over_neighbours",
        lambda *given: seen.append(given) or sums_over_neighbours(*given),
    )
    exact = model(model.fields(graph), graph.species, neighbours, vectors)
    with torch.autocast("cpu", torch.bfloat16):
        half = model(model.fields(graph), graph.species, neighbours, vectors)
    (_, _, _, whole, _, _), (_, fields, _, rough, radial, _) = seen
    assert all(torch.equal(one, two) for one, two in zip(whole, rough, strict=True))
    assert fields.dtype == radial[0].dtype == torch.float32
    assert 0 < (half.float() - exact).norm() < 0.05 * exact.norm()


def test_a_seed_makes_the_same_weights_whatever_was_drawn_before() -> None:
    torch.manual_seed(1)
    first = DensityModel(config(), seed=7).state_dict()
    torch.manual_seed(2)
    again, other = DensityModel(config(), seed=7).state_dict(), DensityModel(config(), seed=8).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_2048_probes_of_32_slots_at_full_width_take_far_less_than_a_gigabyte() -> None:
    model = DensityModel(DensityConfig.preset("original", ("Hf", "O"))).tabulate(4096)
    fields = torch.randn(12, 1488)
    species, neighbours = torch.zeros(12, dtype=torch.long), torch.zeros(32, 32, dtype=torch.long)
    vectors = torch.randn(32, 64, 32, 3)
    peak = account(lambda: model(fields, species, neighbours, vectors))
    # One tensor of all channels of all pairs is 134 MiB: less than two of them.
    assert peak is not None and 134 * MIB < peak < 256 * MIB


def test_a_configuration_survives_json() -> None:
    made = config(spin=True, prior=True, cutoff_a=3.5)
    assert DensityConfig.from_json(made.to_json()) == made


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mul": 0}, "mul = 0"),
        ({"lmax": 9}, "lmax = 9"),
        ({"cutoff_a": math.nan}, "cutoff_a"),
        ({"softening_a": 5.0}, "softening"),
        ({"train_knots": 1}, "train_knots"),
        ({"species": ()}, "species"),
        ({"species": ("H", "H")}, "species"),
        ({"species": ("Xx",)}, "species"),
        ({"species": "HO"}, "species 'HO'"),
        ({"mul": 2.5}, "mul = 2.5"),
        ({"hidden": "8"}, "hidden = '8'"),
        ({"lmax": True}, "lmax = True"),
        ({"cutoff_a": None}, "cutoff_a = None"),
    ],
)
def test_a_wrong_configuration_is_refused_where_it_is_made(changes, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        DensityConfig(**{"species": SPECIES, "mul": 8, "lmax": 1, "gaussians": 4, "hidden": 4, **changes})


def test_json_of_another_version_and_unknown_presets_are_refused() -> None:
    for text in ("{", "[]", '{"strange": 1}', '{"mul": 3}'):
        with pytest.raises(BadInput, match=r"[Cc]onfiguration"):
            DensityConfig.from_json(text)
    with pytest.raises(BadInput, match="There is no preset"):
        DensityConfig.preset("huge", SPECIES)


def test_species_the_model_never_saw_are_named() -> None:
    with pytest.raises(BadInput, match=r"not trained on Fe, U; it knows H, C, O"):
        config().index_of(["H", "U", "Fe"])


def test_edges_sorted_by_destination_give_the_sums_of_edges_in_any_order() -> None:
    generator = torch.Generator().manual_seed(0)
    source, destination = (torch.randint(6, (40,), generator=generator) for _ in range(2))
    destination[destination == 4] = 0  # an atom without edges
    vectors = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    graph, offsets = by_destination(
        AtomGraph(torch.zeros(7, dtype=torch.int64), source, destination, vectors)
    )
    assert offsets.tolist() == [int((destination < atom).sum()) for atom in range(8)]
    messages = [x[:, :, None] * x[:, None] for x in (vectors, graph.vectors)]
    wanted = sum_by_destination(messages[0], destination, 7, None)
    assert torch.allclose(sum_by_destination(messages[1], graph.destination, 7, offsets), wanted, rtol=1e-12)
    assert not wanted[4].any() and not wanted[6].any()
    assert sorted(zip(source.tolist(), destination.tolist(), strict=True)) == sorted(
        zip(graph.source.tolist(), graph.destination.tolist(), strict=True)
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_densities_of_a_cpu_within_a_gigabyte(inputs_of) -> None:
    model = DensityModel(DensityConfig.preset("original", ("Hf", "O"))).eval()
    structure = hafnia()
    graph, neighbours, vectors = inputs_of(structure, model.config, points(64), torch.float32)
    with torch.no_grad():
        wanted = model(model.fields(graph), graph.species, neighbours, vectors)
        on_gpu = model.cuda()
        graph = AtomGraph(
            graph.species.cuda(), graph.source.cuda(), graph.destination.cuda(), graph.vectors.cuda()
        )
        for form in (on_gpu, on_gpu.tabulate(8192)):
            found = form(form.fields(graph), graph.species, neighbours.cuda(), vectors.cuda()).cpu()
            assert (found - wanted).norm() <= 1e-5 * wanted.norm()
        table, fields = on_gpu.tabulate(4096), on_gpu.fields(graph)
        slots = torch.zeros(64, 32, dtype=torch.long, device="cuda")
        many = torch.randn(64, 64, 32, 3, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        table(fields, graph.species, slots, many)
        assert torch.cuda.max_memory_allocated() < 1024 * MIB
