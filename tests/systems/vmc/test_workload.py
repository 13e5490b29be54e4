"""The wave function as a workload: listed without JAX, one answer from all variants, walkers counted, both
axes predicted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pinchpoint.core.discovery import load_workload
from pinchpoint.core.errors import BadInput

jax = pytest.importorskip("jax", reason="the workload is JAX's")
pytest.importorskip("folx", reason="the forward Laplacian is folx's")

from pinchpoint import plan  # noqa: E402
from pinchpoint.forecasting.forecaster import Forecaster  # noqa: E402
from pinchpoint.systems.vmc import BYTES_PER_WALKER  # noqa: E402
from pinchpoint.systems.vmc import workload as scaling  # noqa: E402

TINY = {"system": "He", "net": "report-cpu"}


@pytest.fixture(scope="module")
def loop_case() -> Any:
    return case("loop", "train", 64)


def case(
    variant: str, mode: str, size: int, *, device: str = "cpu", chunk: int | None = None, **settings: str
):
    return load_workload("vmc").case(
        size,
        device=device,
        mode=mode,
        variant=variant,
        seed=4,
        chunk=chunk,
        settings=TINY | settings,  # type: ignore[arg-type]
    )


def test_it_grows_along_its_walkers_and_the_hessian_comes_first() -> None:
    workload = load_workload("vmc")
    assert (workload.axis, workload.framework) == ("walkers", "jax")
    assert [variant.name for variant in workload.variants] == ["hessian", "loop", "forward", "chunked"]


def test_all_variants_give_the_same_energies_and_chunks_the_same_gradients() -> None:
    truth = case("hessian", "train", 23).probe()
    for variant, mode in (("loop", "infer"), ("forward", "infer"), ("chunked", "train")):
        other = case(variant, mode, 23, chunk=8).probe()
        assert other.outputs["energy"].shape == (23,)
        np.testing.assert_allclose(other.outputs["energy"], truth.outputs["energy"], rtol=1e-4, atol=1e-4)
    assert set(other.gradients) == set(truth.gradients) and len(truth.gradients) > 8
    for name, wanted in truth.gradients.items():
        assert np.linalg.norm(other.gradients[name] - wanted) <= 1e-3 * np.linalg.norm(wanted) + 1e-7, name


def test_the_gradient_is_that_of_the_reweighted_energy(loop_case: Any) -> None:
    # The slope of sum(E |psi'|^2 / |psi|^2) / sum(|psi'|^2 / |psi|^2) along one weight, energies held, by
    # central differences.
    probe = loop_case.probe()
    params, _, x = loop_case.args
    job = scaling.Job(
        scaling.wave_function(scaling.system_of("He"), scaling.NetConfig.preset("report-cpu")), "loop", None
    )
    logs = jax.jit(jax.vmap(job.wave.log, (None, 0)))

    def energy(step: float) -> float:
        moved = params | {"cusp": params["cusp"] + step}
        share = np.exp(2 * (np.asarray(logs(moved, x), np.float64) - np.asarray(logs(params, x), np.float64)))
        return float((share * probe.outputs["energy"]).sum() / share.sum())

    assert probe.gradients["params['cusp']"][0] == pytest.approx(
        (energy(1e-2) - energy(-1e-2)) / 2e-2, rel=2e-2
    )


def test_a_step_is_repeatable_and_counts_its_walkers() -> None:
    made = case("chunked", "infer", 40, chunk=16, system="H")
    assert made.processed == 40
    first, second = (np.asarray(made.step(*made.args)) for _ in range(2))
    assert first.shape == (40,) and np.array_equal(first, second)


def test_a_training_step_moves_every_weight(loop_case: Any) -> None:
    params, _, energy = loop_case.step(*loop_case.args)
    assert np.isfinite(float(energy))
    for old, new in zip(
        jax.tree_util.tree_leaves(loop_case.args[0]), jax.tree_util.tree_leaves(params), strict=True
    ):
        assert not np.array_equal(old, new)


def test_prediction_knows_both_axes_and_that_chunks_stay_flat() -> None:
    with Forecaster("vmc", card="h200") as forecaster:

        def held(variant: str, size: int, system: str) -> int:
            """What grows: the workspace of matrix products is the card's."""
            asked = {"system": system, "net": "report-cpu"}
            made = forecaster.predict(size=size, variant=variant, mode="infer", settings=asked)
            return made.peak_allocated_bytes - made.workspace_bytes

        forward, longer = held("forward", 1024, "LiH"), held("forward", 1024, "H6")
        assert held("forward", 4096, "LiH") == pytest.approx(4 * forward, rel=0.02)
        assert longer > 2 * forward
        assert held("loop", 1024, "H6") < longer / 2
        assert held("chunked", 65_536, "LiH") < held("chunked", 4096, "LiH") + BYTES_PER_WALKER * 61_440


def test_a_plan_for_a_small_card_finds_a_size_that_fits() -> None:
    made = plan(
        "vmc", budget="2GiB", variant="loop", mode="infer", settings={"system": "H", "net": "report-cpu"}
    )
    assert made.size > 1024 and made.peak_bytes is not None and made.peak_bytes <= 2 * 2**30


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
        case("loop", "infer", 4, **change)
    assert caught.value.hint


def test_a_chunk_of_no_walkers_is_refused() -> None:
    with pytest.raises(BadInput, match="--chunk 0 is not a number of walkers"):
        case("chunked", "infer", 4, chunk=0)
