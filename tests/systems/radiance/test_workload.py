"""radiance as a workload: every variant gives the same image and gradients, for the requested rays."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="the workload is a torch program")

from pinchpoint.core.discovery import load_workload
from pinchpoint.core.errors import BadInput
from pinchpoint.core.workload import Probe
from pinchpoint.forecasting.forecaster import Forecaster
from pinchpoint.systems.radiance import workload
from pinchpoint.systems.radiance.workload import Part

pytestmark = pytest.mark.usefixtures("quick_workers")
SMALL = {"batch": "2", "samples": "8", "field": "tiny"}
OTHERS = ("folded", "checkpoint", "deferred", "folded+checkpoint")


def probe(variant: str, mode: str = "train", size: int = 22, **settings: str) -> Probe:
    case = load_workload("radiance").case(
        size,
        device="cpu",
        mode=mode,
        variant=variant,
        seed=3,
        chunk=6,
        settings={**SMALL, **settings},  # type: ignore[arg-type]
    )
    assert case.probe is not None
    return case.probe()


def off(value: np.ndarray, true: np.ndarray) -> float:
    return float(np.linalg.norm(value - true) / np.linalg.norm(true))


@pytest.mark.parametrize("variant", OTHERS)
@pytest.mark.parametrize("settings", [{}, {"field": "graf"}], ids=["tiny", "graf"])
def test_every_variant_gives_the_image_and_gradients_of_the_baseline(
    variant: str, settings: dict[str, str]
) -> None:
    """Pixels are compared in fp32 and float64, gradients in float64, where rounding flips no activation."""
    true, value = probe("eager", **settings), probe(variant, **settings)
    assert {str(array.dtype) for array in true.outputs.values()} == {"float32", "float64"}
    for name, array in true.outputs.items():
        assert off(value.outputs[name], array) < (1e-5 if array.dtype == np.float32 else 1e-13), name
    assert len(true.gradients) == (
        18 if not settings else 26
    )  # weight and bias of every layer, and two codes
    for name, gradient in true.gradients.items():
        assert gradient is not None and gradient.dtype == np.float64 and np.any(gradient), name
        assert off(value.gradients[name], gradient) < 1e-12, name


@pytest.mark.parametrize("variant", OTHERS)
def test_gradients_in_fp32_match_the_baseline_to_1e_5(variant: str) -> None:
    """Uses a small field, where few units are close to zero."""
    true, value = (_in_fp32(name) for name in ("eager", variant))
    assert all(gradient.dtype == np.float32 for gradient in true.gradients.values())
    assert all(off(value.gradients[name], true.gradients[name]) < 1e-5 for name in true.gradients)


def _in_fp32(variant: str) -> Probe:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "Part", lambda *args, exact: Part(*args, exact=False))
        return probe(variant)


def test_the_probe_uses_the_precision_of_the_settings() -> None:
    value = probe("folded", precision="bf16")
    assert list(value.outputs) == ["rgb", "depth", "acc", "loss"]
    assert 1e-5 < off(value.outputs["rgb"], probe("folded").outputs["rgb"]) < 1e-1


@pytest.mark.parametrize(
    ("size", "chunk", "taken"), [(8, None, 4), (7, None, 4), (1, None, 1), (2048, None, 512), (8, 6, 6)]
)
def test_chunked_variants_use_at_least_two_chunks_by_default(
    size: int, chunk: int | None, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single chunk would be rendered twice without lowering the peak."""
    calls: list[int | None] = []
    monkeypatch.setattr(workload, "render", lambda *_, chunk, **__: calls.append(chunk))
    case = load_workload("radiance").case(
        size, device="cpu", mode="train", variant="checkpoint", chunk=chunk, settings=SMALL
    )
    with pytest.raises(AttributeError):  # nothing was rendered
        case.step()
    assert set(calls) == {taken}


@pytest.mark.parametrize("variant", ["eager", *OTHERS])
@pytest.mark.parametrize("size", [1, 7, 16])
def test_a_step_processes_the_requested_rays_in_both_modes(variant: str, size: int) -> None:
    for mode in ("train", "infer"):
        case = load_workload("radiance").case(size, device="cpu", mode=mode, variant=variant, settings=SMALL)  # type: ignore[arg-type]
        assert case.processed == size
        assert np.isfinite(case.step().detach().numpy()).all()


def test_steps_differ_and_another_seed_is_another_image() -> None:
    case = load_workload("radiance").case(8, device="cpu", mode="train", seed=1, settings=SMALL)
    assert float(case.step()) != float(case.step())
    assert (
        off(probe("eager", size=8).outputs["rgb"], probe("eager", size=8, samples="9").outputs["rgb"]) > 1e-4
    )


def test_zero_rays_and_zero_chunks_are_refused() -> None:
    with pytest.raises(BadInput, match="size is 0 rays"):
        load_workload("radiance").case(0, device="cpu", settings=SMALL)
    with pytest.raises(BadInput, match="chunk is 0 rays"):
        load_workload("radiance").case(8, device="cpu", chunk=0, settings=SMALL)


def test_predicted_peaks_grow_by_the_stored_activations_and_hardly_at_all_for_flat_variants() -> None:
    with Forecaster("radiance", settings={"field": "tiny"}) as forecaster:

        def slope(variant: str) -> float:
            low, high = (
                forecaster.predict(size=size, mode="train", variant=variant).peak_allocated_bytes
                for size in (1024, 2048)
            )
            return (high - low) / 1024

        declared = {variant.name: variant for variant in load_workload("radiance").variants}
        # Numbers per point stored by the layers, counted by hand: inputs (46), four hidden layers, skip,
        # remap and view.
        assert slope("eager") > 64 * 4 * (46 + 4 * 32 + 67 + 55)
        assert [name for name, variant in declared.items() if variant.flat] == [
            "checkpoint",
            "deferred",
            "folded+checkpoint",
        ]
        assert slope("deferred") <= declared["deferred"].held_bytes
