"""A predicted density is that of every probe with every image of every atom, however it was cut up, scaled
or written.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.systems.density.files.formats import read_volume
from pinchpoint.systems.density.files.volume import grid_points
from pinchpoint.systems.density.grid import sweep as sweeping
from pinchpoint.systems.density.grid.bricks import bricks_of, surroundings_of
from pinchpoint.systems.density.grid.periodic_images import atom_graph, images_of
from pinchpoint.systems.density.grid.structure import Structure
from pinchpoint.systems.density.model.config import DensityConfig
from pinchpoint.systems.density.model.error_estimate import LARGEST, ErrorEstimate
from pinchpoint.systems.density.model.model import DensityModel
from pinchpoint.systems.density.predict import Prediction, predict

CUTOFF = 3.0
CRYSTAL = Structure(
    np.array([[4.0, 0.0, 0.0], [1.4, 2.4, 0.0], [-0.7, 0.9, 3.3]]),  # skewed, and smaller than the cutoff
    ("H", "O", "C"),
    np.array([[0.1, 0.2, 0.3], [0.6, 0.5, 0.9], [0.85, -0.1, 0.55]]),
)
WATER = "3\nwater\nO 0.0 0.0 0.1173\nH 0.0 0.7572 -0.4692\nH 0.0 -0.7572 -0.4692\n"


def model_of(**changes) -> DensityModel:
    settings = {
        "mul": 12,
        "lmax": 2,
        "gaussians": 6,
        "hidden": 8,
        "head": 8,
        "cutoff_a": CUTOFF,
        "mean_neighbours": 8.0,
        **changes,
    }
    return DensityModel(DensityConfig(("H", "C", "O"), **settings), seed=3)


def directly(model: DensityModel, structure: Structure, grid: tuple[int, int, int]) -> np.ndarray:
    """(nx, ny, nz, outputs): each probe alone with all images there are."""
    dtype = next(model.parameters()).dtype
    graph = atom_graph(structure, model.config, dtype=dtype)
    images = images_of(structure, CUTOFF)
    made = []
    with torch.no_grad():
        fields = model.fields(graph)
        for part in np.array_split(grid_points(grid) @ structure.lattice, 20):
            vectors = torch.from_numpy(part[:, None] - images.positions)[:, None].to(dtype)  # (P, 1, I, 3)
            whose = torch.from_numpy(images.atom).expand(len(part), -1)
            made.append(model(fields, graph.species, whose, vectors)[:, 0])
    return torch.cat(made).numpy().reshape(*grid, -1)


@pytest.mark.parametrize(("double", "bar"), [(True, 1e-12), (False, 1e-5)])
def test_a_density_is_that_of_every_probe_with_all_images(double: bool, bar: float) -> None:
    model, grid = model_of(spin=True), (9, 10, 7)
    model = model.double() if double else model
    made = predict(CRYSTAL, weights=model, grid=grid, device="cpu", knots=None)
    wanted = directly(model, CRYSTAL, grid)
    scale = np.abs(wanted).max()
    assert made.volume.spin is not None and np.abs(wanted[..., 1]).max() > 0
    assert np.abs(made.volume.total - wanted[..., 0]).max() <= bar * scale
    assert np.abs(made.volume.spin - wanted[..., 1]).max() <= bar * scale


@pytest.mark.parametrize(("double", "bar"), [(True, 1e-12), (False, 1e-6)])
def test_any_chunk_gives_the_same_density_and_one_of_whole_tiles_the_same_bits(
    double: bool, bar: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "TILE_BYTES", {"cpu": 2**21})
    model = model_of().double() if double else model_of()
    whole = predict(CRYSTAL, weights=model, grid=(18, 14, 13), device="cpu")
    assert 4 * whole.tile < whole.computed
    for chunk in (whole.tile, 3 * whole.tile, 10**9):
        made = predict(CRYSTAL, weights=model, grid=(18, 14, 13), device="cpu", chunk=chunk)
        assert np.array_equal(made.volume.total, whole.volume.total)
    again = predict(CRYSTAL, weights=model, grid=(18, 14, 13), device="cpu", chunk=100)
    twice = predict(CRYSTAL, weights=model, grid=(18, 14, 13), device="cpu", chunk=100)
    assert np.array_equal(again.volume.total, twice.volume.total)
    for chunk in (1, 100, 999):
        made = predict(CRYSTAL, weights=model, grid=(18, 14, 13), device="cpu", chunk=chunk)
        assert (
            np.abs(made.volume.total - whole.volume.total).max() <= bar * np.abs(whole.volume.total).max()
        ), chunk


def test_tables_stand_for_the_radial_networks() -> None:
    exact, tables = (
        predict(CRYSTAL, weights=model_of(), grid=(8, 8, 8), device="cpu", knots=k) for k in (None, 4096)
    )
    np.testing.assert_allclose(
        tables.volume.total, exact.volume.total, rtol=0, atol=1e-5 * np.abs(exact.volume.total).max()
    )


@pytest.mark.parametrize("form", ["full", "original"])
def test_the_slow_forms_give_the_same_density(form: str) -> None:
    model = model_of(mul=6).double()
    fast = predict(CRYSTAL, weights=model, grid=(5, 4, 4), device="cpu", knots=None)
    slow = predict(CRYSTAL, weights=model, grid=(5, 4, 4), device="cpu", form=form, seed=5)
    assert slow.form == form
    np.testing.assert_allclose(
        slow.volume.total, fast.volume.total, rtol=0, atol=1e-11 * np.abs(fast.volume.total).max()
    )


def test_a_slow_form_runs_the_scalar_network_for_an_estimate_only_and_after_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    fields = DensityModel.fields
    monkeypatch.setattr(
        DensityModel, "fields", lambda self, atoms: (events.append("fields"), fields(self, atoms))[1]
    )
    model = model_of(mul=4, lmax=1).eval()

    def run() -> Prediction:
        return predict(
            CRYSTAL,
            weights=model,
            grid=4,
            device="cpu",
            form="full",
            progress=lambda stage, done, total: events.append(stage),
        )

    plain = run()
    assert plain.estimate is None and "probes" in events and "fields" not in events
    model.estimate = ErrorEstimate({}, 0.01, 1.0, (0.0, 1.0))
    result = run()
    assert result.estimate is not None and result.estimate.nmae == LARGEST  # no species is known
    assert events.count("fields") == 1 and events[-1] == "fields"


def test_a_supercell_has_the_density_of_its_cell_over_again() -> None:
    double = Structure(
        CRYSTAL.lattice * [[2], [1], [1]],
        CRYSTAL.species * 2,
        np.concatenate([CRYSTAL.positions / [2, 1, 1], CRYSTAL.positions / [2, 1, 1] + [0.5, 0, 0]]),
    )
    once = predict(CRYSTAL, weights=model_of(), grid=(9, 8, 7), device="cpu")
    twice = predict(double, weights=model_of(), grid=(18, 8, 7), device="cpu")
    over = np.concatenate([once.volume.total] * 2)
    assert np.abs(twice.volume.total - over).max() <= 1e-5 * np.abs(over).max()
    assert twice.electrons_raw == pytest.approx(2 * once.electrons_raw, rel=1e-5)


def test_moving_turning_and_reordering_change_nothing() -> None:
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    once = predict(CRYSTAL, weights=model_of(), grid=(8, 8, 8), device="cpu").volume.total
    order = [2, 0, 1]
    moved = Structure(
        CRYSTAL.lattice @ turn,
        tuple(CRYSTAL.species[i] for i in order),
        CRYSTAL.positions[order] + [0.25, 0.5, -0.75],
    )
    other = predict(moved, weights=model_of(), grid=(8, 8, 8), device="cpu").volume.total
    assert np.abs(np.roll(once, (2, 4, -6), axis=(0, 1, 2)) - other).max() <= 1e-5 * np.abs(once).max()


def test_electrons_scale_all_points_by_one_factor_and_the_raw_count_is_told() -> None:
    model = model_of(prior=True)
    knots = model.prior.shape[1]
    model.set_prior(torch.linspace(1, 0, knots)[None].expand(3, -1) ** 2 * 3)
    raw = predict(CRYSTAL, weights=model, grid=(8, 8, 8), device="cpu")
    made = predict(CRYSTAL, weights=model, grid=(8, 8, 8), device="cpu", electrons=15.0)
    assert raw.scale == 1.0 and raw.electrons_raw == raw.volume.electrons == made.electrons_raw
    assert made.volume.electrons == pytest.approx(15.0, rel=1e-12)
    np.testing.assert_allclose(made.volume.total, raw.volume.total * made.scale)
    # 11 electrons are in the neutral atoms, so that 15 mean a charge.
    assert made.electrons_neutral == 11 and any(
        "15 electrons were requested, but the neutral atoms have 11" in note for note in made.notes
    )
    less = model_of(prior=True)
    less.set_prior(-model.prior * 10)
    with pytest.raises(BadInput, match="no factor can scale to 15"):
        predict(CRYSTAL, weights=less, grid=(8, 8, 8), device="cpu", electrons=15.0)


@pytest.mark.parametrize("name", ["CHGCAR", "rho.cube", "rho.npz", "CHGCAR.gz"])
def test_the_file_holds_the_density_and_its_user_is_told_what_it_lacks(name: str, tmp_path: Path) -> None:
    made = predict(CRYSTAL, output=tmp_path / name, weights=model_of(spin=True), grid=(6, 6, 8), device="cpu")
    back = read_volume(tmp_path / name)
    np.testing.assert_allclose(back.total, made.volume.total, rtol=1e-9, atol=1e-9)
    assert back.species == CRYSTAL.species and made.path == tmp_path / name
    assert (back.spin is None) == name.endswith("cube")
    said = {"CHGCAR": "augmentation", "CHGCAR.gz": "augmentation", "rho.cube": "only the total density"}.get(
        name
    )
    assert said is None or any(said in note for note in made.notes)
    assert made.file_s > 0 and made.atoms_s + made.probes_s + made.file_s <= made.seconds


def test_a_molecule_gets_a_box_and_its_empty_corners_hold_nothing(tmp_path: Path) -> None:
    pytest.importorskip("ase", reason="xyz files are read by ASE")
    from ase.io import read

    (tmp_path / "water.xyz").write_text(WATER)
    made = predict(tmp_path / "water.xyz", weights=model_of(), spacing_a=0.4, padding_a=5.0, device="cpu")
    np.testing.assert_allclose(np.diag(made.volume.lattice), [10.0, 2 * 0.7572 + 10, 0.5865 + 10], atol=1e-9)
    assert made.volume.total[0, 0, 0] == 0 and np.abs(made.volume.total).max() > 0
    again = predict(
        read(tmp_path / "water.xyz"), weights=model_of(), spacing_a=0.4, padding_a=5.0, device="cpu"
    )
    assert np.array_equal(made.volume.total, again.volume.total)


def test_a_structure_without_any_pair_within_the_cutoff_is_predicted() -> None:
    lone = Structure(np.eye(3) * 9.0, ("O",), np.zeros((1, 3)))
    made = predict(lone, weights=model_of(), grid=(12, 12, 12), device="cpu")
    wanted = directly(model_of(), lone, (12, 12, 12))[..., 0]
    np.testing.assert_allclose(made.volume.total, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_budget_is_kept_and_one_too_small_is_refused() -> None:
    made = predict(CRYSTAL, weights=model_of(), grid=(24, 20, 18), device="cpu", budget="2MiB")
    free = predict(CRYSTAL, weights=model_of(), grid=(24, 20, 18), device="cpu")
    assert (
        made.peak_bytes is not None
        and made.peak_bytes <= 2 * 2**20
        and made.halvings > 0
        and made.tile < free.tile
    )
    np.testing.assert_allclose(
        made.volume.total, free.volume.total, rtol=0, atol=1e-6 * np.abs(free.volume.total).max()
    )
    with pytest.raises(
        DoesNotFit,
        match=r"3 atoms and the radial functions take 1\.\d+ MiB, but the budget is 64\.00 KiB",
    ) as caught:
        predict(CRYSTAL, weights=model_of(), grid=(24, 20, 18), device="cpu", budget="64KiB")
    assert "--device cpu" not in caught.value.hint, "it is the cpu"
    assert made.peak_bytes >= (caught.value.need_bytes or 0), "the atoms are part of the whole"


def test_the_budget_that_an_error_tells_is_enough() -> None:
    options: dict = {"weights": model_of(head=20_000), "grid": (6, 5, 4), "device": "cpu"}
    need, refused = 64 * 2**10, []
    for _ in range(2):  # the atoms first, then the least tile
        with pytest.raises(DoesNotFit) as caught:
            predict(CRYSTAL, **options, budget=need)
        refused.append(caught.value.what)
        need = caught.value.need_bytes
        assert need is not None and caught.value.hint == f"Set --budget to at least {-(-need // 2**20)}MiB."
    assert "features of 3 atoms" in refused[0] and "Even a chunk of 8 probes does not fit" in refused[1]
    made = predict(CRYSTAL, **options, budget=need)
    assert made.peak_bytes is not None and made.peak_bytes <= need
    with pytest.raises(DoesNotFit, match="does not fit"):
        predict(CRYSTAL, **options, budget=need * 8 // 10)


def test_one_number_is_a_grid_of_three() -> None:
    made = predict(CRYSTAL, weights=model_of(), grid=6, device="cpu")
    assert made.volume.grid == (6, 6, 6)


def test_the_file_of_the_structure_is_never_written_over(tmp_path: Path) -> None:
    made = predict(CRYSTAL, output=tmp_path / "CHGCAR", weights=model_of(), grid=(6, 6, 6), device="cpu")
    assert made.path is not None
    before = made.path.read_bytes()
    (tmp_path / "other.vasp").symlink_to(made.path)
    for output in (made.path, tmp_path / "other.vasp"):
        with pytest.raises(BadInput, match="would be overwritten") as caught:
            predict(made.path, output=output, weights=model_of(), grid=(6, 6, 6), device="cpu")
        assert "-o" in caught.value.hint
    assert made.path.read_bytes() == before


def test_a_model_that_was_never_trained_has_no_notes_on_what_it_saw() -> None:
    made = predict(CRYSTAL, weights=model_of(), grid=(6, 6, 6), device="cpu")
    assert made.electrons_neutral is None and not any("training data" in note for note in made.notes)


def test_progress_names_the_stages_and_counts_the_probes() -> None:
    seen = []
    made = predict(
        CRYSTAL, weights=model_of(), grid=(8, 8, 8), device="cpu", progress=lambda *args: seen.append(args)
    )
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == ["reading", "atoms", "neighbours", "probes"]
    assert seen[-1] == ("probes", made.computed, made.computed)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"form": "fast"}, "no form 'fast'"),
        ({"padding_a": 0.0}, "padding of 0"),
        ({"electrons": -1.0}, "-1 electrons"),
        ({"chunk": 0}, "A chunk cannot have 0 probes"),
        ({"chunk": 2.5}, "A chunk cannot have 2.5 probes"),
        ({"chunk": 64, "budget": "1GiB"}, "A chunk and a budget were both given"),
        ({"grid": (8, 8, 8), "spacing_a": 0.1}, "A grid and a spacing were both given"),
        ({"spacing_a": 0.0}, "spacing of 0"),
        ({"spacing_a": 1e-9}, "more than a million points"),
        ({"grid": (10**5, 10**5, 10**5)}, "points takes"),
        ({"grid": (1, 8, 8)}, "grid of 1 x 8 x 8"),
        ({"grid": (8, 8)}, r"\(8, 8\) is not a grid"),
        ({"grid": (8.5, 8, 8)}, "is not a grid"),
        ({"grid": 1}, "grid of 1 x 1 x 1"),
        ({"grid": 8.5}, "8.5 is not a grid"),
        ({"budget": "-3GiB"}, "'-3GiB' is not a number of bytes"),
        ({"budget": -3}, "-3 is not a positive number of bytes"),
        ({"output": "rho.npz.gz"}, "numpy cannot read a compressed .npz"),
        ({"output": "."}, "it is a folder"),
        ({"weights": 42}, "of type int"),
        ({"weights": model_of().half()}, "torch.float16, which is too coarse"),
        ({"device": "tpu"}, "device 'tpu' is unknown"),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_a_hint(options: dict, said: str) -> None:
    with pytest.raises(BadInput, match=said) as caught:
        predict(CRYSTAL, **{"weights": model_of(), "device": "cpu", **options})
    assert caught.value.hint


def test_a_model_that_is_still_in_training_stays_so_and_predicts_as_it_will_afterwards() -> None:
    model = model_of(train_knots=16)
    assert model.training
    during = predict(CRYSTAL, weights=model, grid=(8, 8, 8), device="cpu", knots=None).volume.total
    assert model.training
    assert np.array_equal(
        during, predict(CRYSTAL, weights=model.eval(), grid=(8, 8, 8), device="cpu", knots=None).volume.total
    )


@pytest.mark.gpu
def test_on_a_gpu_the_density_is_the_same_and_the_peak_does_not_grow_with_the_grid() -> None:
    model = model_of(mul=100, lmax=4)
    host = predict(CRYSTAL, weights=model, grid=(20, 18, 22), device="cpu")
    peaks = []
    for n in (1, 4):
        torch.cuda.reset_peak_memory_stats()
        made = predict(CRYSTAL, weights=model, grid=(20 * n, 18 * n, 22 * n), device="cuda")
        peaks.append(made.peak_bytes)
    assert (
        np.abs(made.volume.total[::4, ::4, ::4] - host.volume.total).max()
        <= 1e-5 * np.abs(host.volume.total).max()
    )
    assert peaks[1] <= max(2 * peaks[0], 2**30)


@pytest.mark.gpu
def test_on_a_gpu_any_chunk_of_whole_tiles_gives_the_same_bits() -> None:
    model = model_of(mul=100, lmax=4).cuda()
    bricks = bricks_of((40, 36, 44), CRYSTAL.lattice, CUTOFF)
    near = surroundings_of(CRYSTAL, bricks, CUTOFF, device="cuda")
    graph = atom_graph(CRYSTAL, model.config, device="cuda")
    with torch.no_grad():
        fields = model.fields(graph)
        assert all(torch.equal(model.fields(graph), fields) for _ in range(10))

    def by(**options) -> sweeping.SweepResult:
        return sweeping.sweep(model.tabulate(), lambda: fields, graph.species, near, outputs=1, **options)

    whole = by()
    for chunk in (whole.tile * bricks.probes, 3 * whole.tile * bricks.probes, 10**8):
        assert np.array_equal(by(chunk=chunk).values, whole.values)
    assert np.array_equal(by(budget="8GiB").values, whole.values)
    assert np.abs(by(chunk=1_000).values - whole.values).max() <= 1e-6 * np.abs(whole.values).max()
