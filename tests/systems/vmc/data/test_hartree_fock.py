"""Hartree-Fock orbitals without PySCF, and pretraining to them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pinchpoint.core.errors import BadInput, Missing
from pinchpoint.systems.vmc.data.gto import HartreeFock, evaluate, log_determinant, orbital_blocks
from pinchpoint.systems.vmc.data.hartree_fock import BASIS, included, orbitals_for, solve
from pinchpoint.systems.vmc.data.molecules import SYMBOLS, known_molecules
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.determinants import sum_of_determinants
from pinchpoint.systems.vmc.model.wavefunction import WaveFunction, wave_function
from pinchpoint.systems.vmc.optimization.pretrain import PretrainResult, orbital_loss, pretrain
from pinchpoint.systems.vmc.training.runs import default_pretrain

NAMED = ["B", "C", "N", "O", "F", "Ne", "N2", "CO", "H2O", "NH3", "CH4"]


@pytest.mark.parametrize("name", ["H2O", "N"])
def test_the_energy_rebuilt_from_evaluated_orbitals_is_that_of_pyscf(name: str) -> None:
    pyscf = pytest.importorskip("pyscf")
    system = system_of(name)
    atoms = list(zip(system.symbols, system.positions, strict=True))
    molecule = pyscf.gto.M(atom=atoms, unit="Bohr", basis=BASIS, spin=system.spin, verbose=0)
    points = np.random.default_rng(0).normal(size=(400, 3)) * 1.5
    functions = molecule.eval_gto("GTOval_sph", points)
    field = orbitals_for(system)
    densities = []
    with jax.enable_x64(True):
        for side in (field.up, field.down):
            values = np.asarray(
                jax.jit(lambda x, side=side: evaluate(field, system, x, coefficients=side))(points)
            )
            # What PySCF's functions make of our values: its own coefficients, if each of ours is right at
            # every point.
            coefficients = np.linalg.lstsq(functions, values, rcond=None)[0]
            assert np.allclose(functions @ coefficients, values, atol=1e-12)
            assert np.allclose(
                coefficients.T @ molecule.intor("int1e_ovlp") @ coefficients, np.eye(side.shape[1]), atol=1e-9
            )
            densities.append(coefficients @ coefficients.T)
    energy = pyscf.scf.UHF(molecule).energy_tot(np.asarray(densities))
    assert energy == pytest.approx(field.energy_ha, abs=1e-8)


def test_shipped_orbitals_are_those_solved_again() -> None:
    pytest.importorskip("pyscf")
    system = system_of("LiH")
    again, stored = solve(system), orbitals_for(system)
    assert again.energy_ha == pytest.approx(stored.energy_ha, abs=1e-8) and again.basis == stored.basis
    assert np.allclose(np.abs(again.up), np.abs(stored.up), atol=1e-5)


@pytest.mark.parametrize("name", NAMED)
def test_named_molecules_that_need_pretraining_need_no_pyscf(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyscf", None)
    system = system_of(name)
    assert default_pretrain(system)
    field = orbitals_for(system)
    assert field.fits(system) and system.exact_ha is not None
    assert 0 < field.energy_ha - system.exact_ha < 0.01 * abs(system.exact_ha)


def test_the_page_of_vmc_lists_the_orbitals_that_are_packaged() -> None:
    from pinchpoint.systems.vmc.data import hartree_fock

    folder = Path(hartree_fock.__file__).with_name("orbitals")
    files = {path.stem for path in folder.glob("*.npz")}
    with_cores = {name.removeprefix("ccecp-") for name in files if name.startswith("ccecp-")}
    page = Path(__file__).parents[4] / "docs" / "systems" / "vmc.md"
    lists = re.search(
        r"packaged for the atoms `(\w+)` to `(\w+)`, for (.*?); `vmc orbitals (\w+)", page.read_text()
    )
    assert lists is not None
    first, last, molecules, example = lists.groups()
    atoms = set(SYMBOLS[SYMBOLS.index(first) : SYMBOLS.index(last) + 1])
    assert with_cores == atoms | set(re.findall(r"`(\w+)`", molecules))
    assert example in set(known_molecules()) - with_cores
    oxides = {"ScO", "TiO", "VO", "CrO", "MnO", "FeO"}
    assert {name for name in files if "-" not in name} == {*SYMBOLS[1:18], *known_molecules()} - oxides


def test_without_pyscf_another_molecule_is_asked_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyscf", None)
    with pytest.raises(Missing, match="PySCF is not installed") as caught:
        orbitals_for(system_of("N2", charge=1))
    assert "pinchpoint[pyscf]" in caught.value.hint


def test_few_electrons_need_no_pretraining() -> None:
    assert not any(default_pretrain(system_of(name)) for name in ("H", "He", "H2", "LiH", "Be"))


def test_shipped_orbitals_follow_a_stretched_bond_but_not_a_turned_molecule() -> None:
    stretched = included(system_of("N2", bond=3.0))
    assert stretched is not None
    water = system_of("H2O")
    turned = System(
        "turned", water.symbols, water.charges, tuple((z, x, y) for x, y, z in water.positions), 5, 5
    )
    moved = System(
        "moved", water.symbols, water.charges, tuple((x + 1, y, z) for x, y, z in water.positions), 5, 5
    )
    assert included(turned) is None and included(moved) is not None


def test_orbitals_survive_a_file_and_other_files_are_refused(tmp_path: Path) -> None:
    field = orbitals_for(system_of("Ne"))
    again = HartreeFock.load(field.save(tmp_path / "ne.npz"))
    assert (
        np.array_equal(again.up, field.up)
        and again.energy_ha == field.energy_ha
        and again.basis == field.basis
    )
    np.savez(tmp_path / "other.npz", a=1)
    (tmp_path / "cut.npz").write_bytes((tmp_path / "ne.npz").read_bytes()[:-200])
    (tmp_path / "empty.npz").touch()
    (tmp_path / "text.npz").write_text("{}")
    for name in ("other.npz", "cut.npz", "empty.npz", "text.npz", "none.npz"):
        with pytest.raises(
            BadInput,
            match="none.npz cannot be read"
            if name == "none.npz"
            else "does not contain Hartree-Fock orbitals",
        ):
            HartreeFock.load(tmp_path / name)


def test_the_determinant_is_that_of_numpy_and_keeps_its_size_under_a_swap() -> None:
    system = system_of("Li")
    field = orbitals_for(system)
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=(3, 3))
        found = jax.jit(lambda y: (orbital_blocks(field, system, y), log_determinant(field, system, y)))
        (up, down), log = found(x)
        assert float(log) == pytest.approx(np.log(abs(np.linalg.det(up) * np.linalg.det(down))), rel=1e-12)
        assert float(found(x[[1, 0, 2]])[1]) == pytest.approx(float(log), rel=1e-12)


def exponentials(system: System) -> WaveFunction:
    """Orbitals h e^(-a r) and (k - b r) e^(-c r) for each spin, which compile in a second, where a network
    takes many.
    """
    config = NetConfig("ferminet", one=4, two=2, layers=1, determinants=1, full=False)

    def orbitals(params: Any, x: Any) -> tuple[Any, ...]:
        r = jnp.sqrt(jnp.sum(x**2, axis=1))
        columns = jnp.stack(
            [
                params["h"] * jnp.exp(-params["a"] * r),
                (params["k"] - params["b"] * r) * jnp.exp(-params["c"] * r),
            ],
            axis=1,
        )
        return tuple(
            block[None] for block in (columns[: system.up, : system.up], columns[system.up :, : system.down])
        )

    def sign_and_log(params: Any, x: Any) -> tuple[Any, Any]:
        return sum_of_determinants(orbitals(params, x))

    return WaveFunction(
        system, config, lambda key: {name: jnp.asarray(1.0) for name in "abchk"}, sign_and_log, orbitals
    )


def pretrained(wave: WaveFunction, steps: int, **options: Any) -> PretrainResult:
    x = jax.random.normal(jax.random.key(1), (24, 3, 3))
    return pretrain(
        wave,
        orbitals_for(wave.system),
        wave.init(jax.random.key(0)),
        x,
        jax.random.key(2),
        steps=steps,
        rate=0.1,
        **options,
    )


@pytest.fixture(scope="module")
def long_pretraining() -> tuple[PretrainResult, list[int]]:
    """300 steps at once, and the steps at which progress was reported."""
    steps: list[int] = []
    done = pretrained(exponentials(system_of("Li")), 300, progress=lambda step, loss: steps.append(step))
    return done, steps


def test_pretraining_finds_the_exponent_of_the_core(
    long_pretraining: tuple[PretrainResult, list[int]],
) -> None:
    done, steps = long_pretraining
    assert np.mean(done.losses[-10:]) < 0.1 * np.mean(done.losses[:10])
    # Slater's rules say 2.7 for the core of lithium, its best single exponent is 2.69.
    assert float(done.params["a"]) == pytest.approx(2.69, abs=0.15)
    assert steps == [100, 200, 300] and done.x.shape == (24, 3, 3) and np.all(np.isfinite(done.x))


def test_pretraining_in_chunks_is_that_of_all_walkers_at_once(
    long_pretraining: tuple[PretrainResult, list[int]],
) -> None:
    # Each loss depends on the parameters and the walkers after the steps before it. Of each 12 walkers the
    # largest chunk up to 5 is 4.
    parts = pretrained(exponentials(system_of("Li")), 5, chunk=5)
    assert np.allclose(parts.losses, long_pretraining[0].losses[:5], rtol=1e-4)
    assert len(set(np.asarray(parts.losses).tolist())) == 5


ON_TWO_DEVICES = """
import importlib.util, json, sys
import jax
found = importlib.util.spec_from_file_location("here", sys.argv[1])
here = importlib.util.module_from_spec(found)
found.loader.exec_module(here)
from pinchpoint.systems.vmc.optimization.devices import mesh_of
wave = here.exponentials(here.system_of("Li"))
end = here.pretrained(wave, 3, mesh=mesh_of(24, jax.devices()), chunk=4)
print(json.dumps([[float(loss) for loss in end.losses], len(end.params["a"].sharding.device_set)]))
"""


def test_pretraining_on_two_devices_in_chunks_is_that_on_one(
    long_pretraining: tuple[PretrainResult, list[int]],
) -> None:
    told = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    flags = {**os.environ, "XLA_FLAGS": told, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", ON_TWO_DEVICES, __file__],
        env=flags,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses, devices = json.loads(done.stdout.splitlines()[-1])
    assert devices == 2 and np.allclose(losses, long_pretraining[0].losses[:3], rtol=1e-4)


@pytest.mark.parametrize("full", [True, False])
def test_the_loss_is_the_mean_square_difference_of_the_matrices(full: bool) -> None:
    system, field = system_of("Li"), orbitals_for(system_of("Li"))
    config = NetConfig("ferminet", one=4, two=2, layers=1, determinants=2, full=full)
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    blocks = jax.jit(lambda y: orbital_blocks(field, system, y))(x)
    # Lithium by Slater's rules: 2.7 for 1s and 1.3 / 2 for 2s.
    heights = np.sqrt(np.array([2.7, 0.65]) ** 3 / np.pi)
    up, down = (np.asarray(block) / heights[: len(block)] for block in blocks)
    ours = (
        (np.random.default_rng(1).normal(size=(2, 3, 3)),)
        if full
        else tuple(np.zeros((2, k, k)) for k in (2, 1))
    )
    wave = dataclasses.replace(wave_function(system, config), orbitals=lambda params, y: params)
    whole = np.zeros((3, 3))
    whole[:2, :2], whole[2:, 2:] = up, down
    wanted = ((ours[0] - whole) ** 2).sum() / 2 / 3 if full else ((up**2).sum() + (down**2).sum()) / 3
    assert float(orbital_loss(wave, field, ours, jnp.asarray(x)[None])) == pytest.approx(wanted, rel=1e-5)


def test_pretraining_refuses_the_orbitals_of_another_system() -> None:
    wave = wave_function(system_of("Li"), NetConfig.preset("small"))
    x = jnp.zeros((2, 3, 3))
    with pytest.raises(BadInput, match="are not for the electrons and nuclei"):
        pretrain(wave, orbitals_for(system_of("Be")), {}, x, jax.random.key(0), steps=1)
    with pytest.raises(BadInput, match="0 steps"):
        pretrain(wave, orbitals_for(system_of("Li")), {}, x, jax.random.key(0), steps=0)
