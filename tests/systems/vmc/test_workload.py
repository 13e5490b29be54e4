"""The wave function as a workload: listed without JAX, one answer from all variants, walkers counted, both
axes predicted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.discovery import load_workload
from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Mode

jax = pytest.importorskip("jax", reason="the workload is JAX's")
pytest.importorskip("folx", reason="the forward Laplacian is folx's")

from pinchpoint import plan  # noqa: E402
from pinchpoint.forecasting.forecaster import Forecaster  # noqa: E402
from pinchpoint.systems.vmc import BYTES_PER_WALKER  # noqa: E402
from pinchpoint.systems.vmc import workload as scaling  # noqa: E402

TINY = {"system": "He", "net": "report-cpu"}


@dataclass(frozen=True)
class Probed:
    """A case with its energies and gradients, which take long to compile."""

    case: Any
    probe: Any


@pytest.fixture(scope="module")
def loop() -> Probed:
    built = case("loop", "train", 23)
    return Probed(built, built.probe())


@pytest.fixture(scope="module")
def chunked() -> Probed:
    """23 walkers in chunks of 8: the last chunk is not full."""
    built = case("chunked", "train", 23, chunk=8)
    return Probed(built, built.probe())


def case(
    variant: str, mode: Mode, size: int, *, device: str = "cpu", chunk: int | None = None, **settings: str
) -> Any:
    return load_workload("vmc").case(
        size,
        device=device,
        mode=mode,
        variant=variant,
        seed=4,
        chunk=chunk,
        settings=TINY | settings,
    )


def test_it_grows_along_its_walkers_and_the_hessian_comes_first() -> None:
    workload = load_workload("vmc")
    assert (workload.axis, workload.framework) == ("walkers", "jax")
    assert [variant.name for variant in workload.variants] == ["hessian", "loop", "forward", "chunked"]


def test_all_variants_give_the_same_energies_and_chunks_the_same_gradients(
    loop: Probed, chunked: Probed
) -> None:
    truth = loop.probe
    others = [case(variant, "infer", 23).probe() for variant in ("hessian", "forward")]
    for other in (*others, chunked.probe):
        assert other.outputs["energy"].shape == (23,)
        np.testing.assert_allclose(other.outputs["energy"], truth.outputs["energy"], rtol=1e-4, atol=1e-4)
    gradients = chunked.probe.gradients
    assert set(gradients) == set(truth.gradients) and len(truth.gradients) > 8
    for name, wanted in truth.gradients.items():
        assert np.linalg.norm(gradients[name] - wanted) <= 1e-3 * np.linalg.norm(wanted) + 1e-7, name


def test_the_gradient_is_that_of_the_reweighted_energy(loop: Probed) -> None:
    # The slope of sum(E |psi'|^2 / |psi|^2) / sum(|psi'|^2 / |psi|^2) along one weight, energies held, by
    # central differences.
    params, _, x = loop.case.args
    wave = scaling.wave_function(scaling.system_of("He"), scaling.NetConfig.preset("report-cpu"))
    logs = jax.jit(jax.vmap(wave.log, (None, 0)))

    def energy(step: float) -> float:
        moved = params | {"cusp": params["cusp"] + step}
        share = np.exp(2 * (np.asarray(logs(moved, x), np.float64) - np.asarray(logs(params, x), np.float64)))
        return float((share * loop.probe.outputs["energy"]).sum() / share.sum())

    assert loop.probe.gradients["params['cusp']"][0] == pytest.approx(
        (energy(1e-2) - energy(-1e-2)) / 2e-2, rel=2e-2
    )


def test_a_training_step_is_repeatable_moves_every_weight_and_counts_its_walkers(chunked: Probed) -> None:
    first, second = (chunked.case.step(*chunked.case.args) for _ in range(2))
    assert chunked.case.processed == 23
    assert float(first[2]) == pytest.approx(chunked.probe.outputs["energy"].mean(), rel=1e-5)
    leaves = (jax.tree_util.tree_leaves(tree) for tree in (chunked.case.args[0], first[0], second[0]))
    for old, new, again in zip(*leaves, strict=True):
        assert not np.array_equal(old, new)
        assert np.array_equal(new, again)


def test_prediction_knows_both_axes_and_that_chunks_stay_flat() -> None:
    with Forecaster("vmc", card="h200") as forecaster:

        def held(variant: str, size: int, system: str) -> int:
            """What grows: the workspace of matrix products is the card's."""
            asked = {"system": system, "net": "report-cpu"}
            made = forecaster.predict(size=size, variant=variant, mode="infer", settings=asked)
            return made.peak_allocated_bytes - made.workspace_bytes

        forward, longer = held("forward", 4096, "H2"), held("forward", 4096, "H4")
        assert held("forward", 16_384, "H2") == pytest.approx(4 * forward, rel=0.02)
        assert longer > 2 * forward
        assert held("loop", 4096, "H4") < 0.75 * longer
        assert held("chunked", 65_536, "H2") < held("chunked", 4096, "H2") + BYTES_PER_WALKER * 61_440


def test_a_plan_for_a_small_card_finds_a_size_that_fits() -> None:
    made = plan(
        "vmc", budget="2GiB", variant="loop", mode="infer", settings={"system": "H", "net": "report-cpu"}
    )
    assert made.size is not None and made.size > 1024
    assert made.peak_bytes is not None and made.peak_bytes <= 2 * 2**30


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"system": "Xx"}, "Xx"),
        ({"system": "n2"}, "n2"),
        ({"net": "large"}, "large"),
        ({"charge": "1"}, "charge"),
    ],
)
def test_what_it_does_not_know_is_refused(change: dict[str, str], what: str) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        case("loop", "infer", 4, chunk=None, **change)
    assert caught.value.hint


def test_a_chunk_of_no_walkers_is_refused() -> None:
    with pytest.raises(BadInput, match="--chunk 0 is not a number of walkers"):
        case("chunked", "infer", 4, chunk=0)
