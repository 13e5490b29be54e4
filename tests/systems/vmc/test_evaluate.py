"""Evaluating a wave function: energies that are known, an honest error bar, a density that holds all
electrons.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.backends.jax import xla
from pinchpoint.core.errors import BadInput, Diverged, DoesNotFit
from pinchpoint.systems.density.files.cube import BOHR_A, read_cube
from pinchpoint.systems.vmc import evaluate as evaluation
from pinchpoint.systems.vmc.analysis.density_cube import Spread
from pinchpoint.systems.vmc.data.system import system_of
from pinchpoint.systems.vmc.evaluate import evaluate, extrapolate
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.runs import Log, Row, begin, read_run


def set_params(run: Path, **values: float) -> None:
    """Set every parameter of a name in the last checkpoint."""
    checkpoints = read_run(run).checkpoints
    last = checkpoints.last()
    assert last is not None
    state = checkpoints.load(last)
    changed = {
        name: np.full_like(
            array, next((v for key, v in values.items() if name.startswith(f"params['{key}']")), array)
        )
        for name, array in state["arrays"].items()
    }
    checkpoints.save({**state, "arrays": changed}, step=last.step)


@pytest.fixture
def hydrogen(tiny: dict[str, Any], tmp_path: Path) -> Path:
    """A run whose wave function is e^-r, the exact one."""
    train("H", tmp_path / "run", **{**tiny, "steps": 10})
    set_params(tmp_path / "run", a=1.0, b=0.0)
    return tmp_path / "run"


def test_observables_of_hydrogen_are_its_closed_forms(hydrogen: Path, tmp_path: Path) -> None:
    output = tmp_path / "eval.json"
    made = evaluate(hydrogen, output, samples=400, walkers=64, device="cpu", observables=True)
    assert json.loads(output.read_text())["observables"] == made.observables and made.observables
    observables = made.observables
    assert observables["spin_squared"] == {"value": 0.75, "error": 0.0}
    # An electron follows the only nucleus: moving it changes nothing.
    assert np.allclose(observables["forces"]["value"], 0, atol=1e-4)
    for name in ("dipole", "quadrupole"):
        value, error = (np.array(observables[name][key]) for key in ("value", "error"))
        assert (np.abs(value) < 4 * error + 1e-6).all() and 0 < error.max() < 0.3, name
    density = observables["density"]
    edges = np.linspace(0, 6, 31)
    inside = 1 - np.exp(-2 * edges) * (1 + 2 * edges + 2 * edges**2)  # electrons within a radius
    truth = np.diff(inside) / (4 / 3 * np.pi * np.diff(edges**3))
    value, error = np.array(density["value"][0]), np.array(density["error"][0])
    assert (np.abs(value - truth)[:15] < 5 * error[:15]).all() and error[1] < 0.1 * truth[1]
    summary = dict(made.summary())
    assert (
        summary["spin"] == "S^2 = 0.7500 +- 0.0000"
        and "e bohr" in summary["dipole"]
        and "force on 1" not in summary  # which is 0 by symmetry
    )


class Sampled(Exception):
    """The programs were accepted and one of them is run."""


class PretendedProgram:
    """A jitted and compiled program of so many bytes."""

    def __init__(self, needed_bytes: int) -> None:
        self.needed_bytes = needed_bytes

    def lower(self, *args: Any) -> PretendedProgram:
        return self

    def compile(self) -> PretendedProgram:
        return self

    def __call__(self, *args: Any) -> Any:
        raise Sampled


@pytest.mark.parametrize(
    ("energy_bytes", "observable_bytes", "observables", "raised"),
    [(10, 10**14, True, DoesNotFit), (10**14, 10, True, DoesNotFit), (10, 10**14, False, Sampled)],
)
def test_a_budget_is_for_the_larger_of_the_programs_of_energies_and_of_observables(
    energy_bytes: int,
    observable_bytes: int,
    observables: bool,
    raised: Any,
    hydrogen: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, needed_bytes in (("make_observe", energy_bytes), ("make_measure", observable_bytes)):
        program = PretendedProgram(needed_bytes)
        monkeypatch.setattr(evaluation, name, lambda *args, program=program, **options: program)
    monkeypatch.setattr(xla, "compiled_bytes", lambda program: program.needed_bytes)
    with pytest.raises(raised):
        evaluate(hydrogen, samples=20, device="cpu", budget="64GiB", observables=observables)


def test_the_exact_wave_function_of_hydrogen_has_its_energy_and_no_variance(
    hydrogen: Path, tmp_path: Path
) -> None:
    made = evaluate(hydrogen, tmp_path / "eval.json", samples=20, device="cpu")
    assert made.energy_ha == pytest.approx(-0.5, abs=1e-5) and made.variance < 1e-8
    assert (made.step, made.walkers, made.samples, made.moves) == (10, 8, 20, 2)
    record = json.loads((tmp_path / "eval.json").read_text())
    assert {"energy_ha", "error_ha", "variance", "acceptance", "rhat"} <= set(record)
    assert record["reference_ha"] == -0.5 and record["difference_ha"] == pytest.approx(
        record["energy_ha"] + 0.5
    )


def test_the_energy_of_another_exponent_is_the_closed_form_s(hydrogen: Path, tmp_path: Path) -> None:
    set_params(hydrogen, a=1.3)
    made = evaluate(
        hydrogen, samples=600, walkers=64, moves=4, device="cpu", cube=tmp_path / "h.cube", spacing=0.4
    )
    exact = 1.3**2 / 2 - 1.3  # E = a² / 2 - a
    assert abs(made.energy_ha - exact) < 4 * made.error_ha < 0.02
    # The local energy is -a²/2 + (a - 1) / r, whose variance is (a - 1)² (<1/r²> - <1/r>²) = (a - 1)² a². Its
    # estimate scatters widely, since <1/r^4> is infinite: a walker near the nucleus counts for a thousand
    # others.
    assert made.variance == pytest.approx((0.3 * 1.3) ** 2, rel=0.5)
    assert made.walkers == 64 and made.autocorrelation > 1 and 0.2 < made.acceptance < 0.9
    volume = read_cube(tmp_path / "h.cube")
    assert volume.electrons == pytest.approx(1 - (made.outside or 0.0), abs=1e-6) and made.outside == 0.0
    # <r> of the density is 1.5 / a, but for the grid.
    axes = [
        np.arange(n) * length / n
        for n, length in zip(volume.grid, np.diag(volume.lattice) / BOHR_A, strict=True)
    ]
    places = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1) - volume.structure.cartesian[0] / BOHR_A
    mean = float((np.linalg.norm(places, axis=-1) * volume.total).sum() / volume.total.sum())
    assert mean == pytest.approx(1.5 / 1.3, rel=0.05)


def test_the_same_seed_gives_the_same_energy(hydrogen: Path) -> None:
    set_params(hydrogen, a=1.3)
    one, two = (evaluate(hydrogen, samples=20, device="cpu") for _ in range(2))
    assert (one.energy_ha, one.error_ha, one.rhat) == (
        two.energy_ha,
        two.error_ha,
        two.rhat,
    ) and one.error_ha > 0


def test_what_cannot_be_evaluated_is_refused(hydrogen: Path, tiny: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="3 samples per walker"):
        evaluate(hydrogen, samples=3, device="cpu")
    with pytest.raises(BadInput, match="Cannot write") as caught:
        evaluate(hydrogen, tmp_path / "no" / "eval.json", device="cpu")
    assert caught.value.hint == "Choose a folder that exists and is writable."
    with pytest.raises(BadInput, match="A grid spacing of 0 bohr"):
        evaluate(hydrogen, cube=tmp_path / "h.cube", spacing=0.0, device="cpu")
    with pytest.raises(BadInput, match="no run in"):
        evaluate(tmp_path / "nowhere", device="cpu")
    begin(tmp_path / "begun", "H", resume=False).write()
    with pytest.raises(BadInput, match="has no checkpoint"):
        evaluate(tmp_path / "begun", device="cpu")
    begin(tmp_path / "two", "He", resume=False, net_changes={"states": 2}).write()
    with pytest.raises(BadInput, match="of 2 states, of which only energies are measured"):
        evaluate(tmp_path / "two", device="cpu", observables=True)
    set_params(hydrogen, a=np.nan)
    with pytest.raises(Diverged, match="160 of 160 local energies are not finite at step 10"):
        evaluate(hydrogen, samples=20, device="cpu")


def rows(count: int, *, slope: float, noise: float, seed: int = 0) -> list[Row]:
    """A training whose energy is -1 + slope times its variance, which falls."""
    rng = np.random.default_rng(seed)
    made = []
    for step in range(1, count + 1):
        variance = 0.02 + 0.08 * np.exp(-step / (count / 3))
        made.append(
            Row(step, -1 + slope * variance + rng.normal() * noise, variance, 0.5, 0.3, 0.01, 0.0, 1.0)
        )
    return made


def test_a_log_whose_energy_follows_its_variance_is_extrapolated_to_zero(tmp_path: Path) -> None:
    log = Log(tmp_path / "log.csv", keep_to=0)
    log.add(rows(1000, slope=0.3, noise=1e-3))
    last = rows(1000, slope=0.3, noise=0.0)[-1]
    found = extrapolate(log.path, energy=last.energy_ha, error=1e-5, variance=last.variance, step=1000)
    assert found is not None and abs(found.energy + 1) < 4 * found.error < 0.004
    assert found.slope == pytest.approx(0.3, rel=0.2)


def test_a_log_that_tells_no_line_is_not_extrapolated(tmp_path: Path) -> None:
    def found(path: Path, energy: float, variance: float) -> Any:
        return extrapolate(path, energy=energy, error=1e-4, variance=variance, step=1000)

    assert found(tmp_path / "none.csv", -1.0, 0.02) is None
    short = Log(tmp_path / "short.csv", keep_to=0)
    short.add(rows(50, slope=0.3, noise=0.001))
    assert found(short.path, -1.0, 0.02) is None
    upward = Log(tmp_path / "up.csv", keep_to=0)
    upward.add(rows(1000, slope=-0.3, noise=1e-3))
    assert found(upward.path, -1.01, 0.02) is None


def test_a_density_shares_each_electron_out_and_counts_those_outside() -> None:
    spread = Spread(system_of("H2"), spacing=0.5, room=2.0)
    at_point = spread.corner + 3 * spread.step
    between = at_point + np.array([0.25, 0.0, 0.0]) * spread.step
    spread.add(np.array([[at_point, between], [at_point, [50.0, 0.0, 0.0]]]))
    held = spread.electrons.reshape(tuple(spread.counts))
    assert (
        held[3, 3, 3] == pytest.approx(2.75)
        and held[4, 3, 3] == pytest.approx(0.25)
        and held.sum() == pytest.approx(3)
    )
    assert spread.outside_part == 0.25
    assert spread.volume().electrons == pytest.approx(1.5)
    with pytest.raises(BadInput, match="grid of the density would have"):
        Spread(system_of("H2"), spacing=0.01)
