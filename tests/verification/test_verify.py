"""Verdicts on variants with one known fault each, timed by a fake clock that the steps advance."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput, CannotFake, Missing, TargetFailed
from pinchpoint.core.records import Verdict
from pinchpoint.core.settings import Setting
from pinchpoint.core.workload import Case, Probe, Variant, Workload
from pinchpoint.verification.evidence import find_inputs
from pinchpoint.verification.verify import verify, verify_all

torch = pytest.importorskip("torch", reason="the workload under test is torch's")

SIZE = 96
CHUNK = 32
PEAKS = {"whole": 1000, "chunked": 400}


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def ticking() -> Callable[[], float]:
    """A clock that advances by one second per step."""
    return itertools.count(0.0, 1.0).__next__


@dataclass
class Peaks:
    """Predicted peaks by variant; unknown variants need as much as the baseline."""

    by_variant: dict[str, int] = field(default_factory=lambda: dict(PEAKS))

    def predict(self, *, variant: str | None = None, **_: Any) -> Any:
        @dataclass(frozen=True)
        class Forecast:
            peak_allocated_bytes: int

        return Forecast(self.by_variant.get(str(variant), self.by_variant["whole"]))


def chunks(size: int, chunk: int) -> list[tuple[int, int]]:
    return [(start, min(start + chunk, size)) for start in range(0, size, chunk)]


def evaluate(size: int, variant: str, seed: int, chunk: int | None) -> Probe:
    """Evaluate two layers, in chunks except for the variant `whole`; a variant is named by its fault."""
    torch.manual_seed(seed)
    inner, outer = torch.nn.Linear(3, 5), torch.nn.Linear(5, 5)
    x = torch.randn(size, 3, requires_grad=True)
    parts = chunks(size, size if variant == "whole" else chunk or CHUNK)
    if variant == "drops the last ragged chunk":
        parts = [part for part in parts if part[1] - part[0] == (chunk or CHUNK)]
    out = []
    for start, stop in parts:
        hidden = torch.tanh(inner(x[start:stop]))
        if variant == "detaches":
            hidden = hidden.detach()
        out.append(outer(hidden))
    y = torch.cat(out)
    if variant == "leaves the last chunk at zero":
        rest = size - size % (chunk or CHUNK)
        y = torch.cat([y[:rest], torch.zeros_like(y[rest:])])
    loss = (y**2).sum() / size
    loss.backward()
    square = y.detach().T @ y.detach() @ torch.triu(torch.ones(5, 5))
    outputs = {"y": y.detach(), "square": square.T if variant == "transposes" else square}
    if variant == "divides by zero":
        outputs["y"] = outputs["y"] * torch.where(torch.arange(size) == 5, float("nan"), 1.0)[:, None]
    named = {f"inner.{n}": p.grad for n, p in inner.named_parameters()} | {
        f"outer.{n}": p.grad for n, p in outer.named_parameters()
    }
    if variant == "zeroes a gradient":
        named["inner.bias"] = torch.zeros(5)
    return Probe(outputs, {**named, "x": x.grad})


def workload(
    *variants: str,
    clock: Clock | None = None,
    seconds: dict[str, Callable[[int], float]] | None = None,
    **options: Any,
) -> Workload:
    """`seconds`: how long call i of a variant's step takes on the fake clock; 1 s by default."""

    def build(
        size: int, *, device: str, mode: str, variant: str, seed: int, chunk: int | None = None
    ) -> Case:
        calls = itertools.count()
        takes = (seconds or {}).get(variant, lambda i: 1.0)

        def step() -> None:
            if clock is not None:
                clock.now += takes(next(calls))

        return Case(step, processed=size, probe=lambda: evaluate(size, variant, seed, chunk))

    all_variants = (Variant("whole"), *(Variant(name) for name in variants))
    return Workload(
        "layers", "points", "torch", build=build, variants=all_variants, default_size=SIZE, **options
    )


def judge(
    variant: str,
    *,
    baseline_s: float = 1.0,
    variant_s: float = 1.0,
    peaks: Peaks | None = None,
    **options: Any,
) -> Verdict:
    clock = Clock()
    seconds = {"whole": lambda i: baseline_s, variant: lambda i: variant_s}
    return verify(
        workload(variant, clock=clock, seconds=seconds, **options),
        device="cpu",
        clock=clock,
        forecaster=peaks or Peaks(),
    )


def test_a_correct_and_faster_variant_passes_with_its_speed_up_and_peaks() -> None:
    verdict = judge("chunked", baseline_s=3.0, variant_s=2.0)
    assert verdict.status == "pass"
    assert verdict.speedup == verdict.speedup_low == verdict.speedup_high == pytest.approx(1.5)
    assert (verdict.baseline_s, verdict.variant_s) == (pytest.approx(3.0), pytest.approx(2.0))
    assert (verdict.peak_before_bytes, verdict.peak_after_bytes, verdict.peaks_are) == (
        1000,
        400,
        "predicted",
    )
    assert verdict.reason == (
        "the results are the same, 1.50x as fast; the predicted peak falls by 60%, from 1,000 B to 400 B"
    )
    assert verdict.worst_error is not None
    assert verdict.worst_error < 1e-5
    assert {c["name"] for c in verdict.comparisons} == {
        "processed",
        "y",
        "square",
        "inner.weight",
        "inner.bias",
        "outer.weight",
        "outer.bias",
        "x",
    }


@pytest.mark.parametrize("chunked", [False, True])
def test_a_stream_that_drops_the_last_ragged_chunk_is_refused(chunked: bool) -> None:
    # The default size is a whole number of chunks: only the ragged size shows the fault.
    assert SIZE % CHUNK == 0
    verdict = judge("drops the last ragged chunk", variant_s=0.1, chunked=chunked)
    assert verdict.status == "fail"
    assert "shape" in verdict.reason
    assert verdict.speedup is None, "nothing is claimed of a wrong variant"


def test_a_last_chunk_left_at_zero_is_refused_with_its_rows() -> None:
    verdict = judge("leaves the last chunk at zero")
    assert verdict.status == "fail"
    assert any("all before agree" in c["reason"] for c in verdict.comparisons)


def with_faint_gradients(*, follows_size: bool) -> Workload:
    """A gradient `faint`, no larger than the rounding of `weight`, whose sign the variant flips.

    It has one element per point, or eight.
    """

    def build(size: int, *, device: str, mode: str, variant: str, seed: int) -> Case:
        rng = np.random.default_rng(seed)
        weight = rng.normal(size=(64, 64)).astype(np.float32)
        faint = (1e-7 * rng.normal(size=size if follows_size else 8)).astype(np.float32)
        gradients = {"weight": weight, "faint": -faint if variant == "flipped" else faint}
        return Case(lambda: None, processed=size, probe=lambda: Probe({"y": np.ones(3)}, gradients))

    return Workload(
        "faint",
        "points",
        "torch",
        build=build,
        variants=(Variant("whole"), Variant("flipped")),
        default_size=SIZE,
    )


def test_the_gradient_of_an_input_is_compared_with_its_tolerance_however_small_it_is() -> None:
    verdict = verify(
        with_faint_gradients(follows_size=True), device="cpu", clock=ticking(), forecaster=Peaks()
    )
    assert verdict.status == "fail"
    assert verdict.worst_error == pytest.approx(2.0)
    assert [c["name"] for c in verdict.comparisons if not c["ok"]] == ["faint", "faint"], "at both sizes"
    assert not any("rounding" in note for note in verdict.notes)


def test_the_gradient_of_a_parameter_that_is_only_rounding_passes_with_a_note() -> None:
    verdict = verify(
        with_faint_gradients(follows_size=False), device="cpu", clock=ticking(), forecaster=Peaks()
    )
    assert verdict.status != "fail"
    rows = [c for c in verdict.comparisons if c["name"] == "faint"]
    assert [(c["ok"], c["noise"]) for c in rows] == [(True, True)] * 2
    assert all(c["error"] == pytest.approx(2.0) and "rounding" in c["reason"] for c in rows)
    assert verdict.worst_error == 0, "noise is not the worst error"
    assert any("faint" in note and "rounding" in note for note in verdict.notes)


def test_an_input_is_recognised_by_a_shape_that_changes_with_the_points() -> None:
    two = [
        (8, {"x": (8, 3), "edges": (21,), "bias": (8,)}),
        (11, {"x": (11, 3), "edges": (30,), "bias": (8,)}),
    ]
    assert find_inputs(two) == {"x", "edges"}
    assert find_inputs(two[:1]) == {"x", "bias"}, (
        "with one size an axis as long as the points is all there is to go by"
    )
    assert find_inputs([]) == set()


def test_a_detached_gradient_is_refused() -> None:
    verdict = judge("detaches", variant_s=0.1)
    assert verdict.status == "fail"
    reasons = {c["name"]: c["reason"] for c in verdict.comparisons if not c["ok"]}
    assert reasons["inner.weight"] == "there is no gradient, but the baseline has one"
    assert "x" in reasons
    assert "outer.weight" not in reasons
    assert "but the baseline has one" in verdict.reason


def test_a_zeroed_gradient_is_refused() -> None:
    verdict = judge("zeroes a gradient")
    assert verdict.status == "fail"
    assert verdict.reason.startswith("gradient inner.bias: the gradient is zero, but the baseline's is not")


def test_a_transposed_square_result_is_refused() -> None:
    verdict = judge("transposes")
    assert verdict.status == "fail"
    assert "transposed" in verdict.reason
    assert verdict.where.startswith("output square [")


def test_a_nan_is_refused_with_its_index() -> None:
    verdict = judge("divides by zero")
    assert verdict.status == "fail"
    assert "NaN" in verdict.reason
    assert verdict.where.startswith("output y [5, 0]")
    assert verdict.worst_error is None


def noisy(seed: int) -> Verdict:
    """Both variants take 1 s and up to 0.3 s of noise, so that an apparent speed-up is only noise."""
    rng = np.random.default_rng(seed)
    clock = Clock()
    seconds = {name: (1 + 0.3 * rng.random(64)).tolist().__getitem__ for name in ("whole", "chunked")}
    target = workload("chunked", clock=clock, seconds=seconds)
    return verify(target, device="cpu", clock=clock, forecaster=Peaks({"whole": 1000}))


def test_a_speed_up_that_is_noise_is_inconclusive() -> None:
    verdict = max((noisy(seed) for seed in range(12)), key=lambda each: each.speedup or 0)
    assert verdict.speedup is not None
    assert verdict.speedup > 1.02, "the best looking of twelve"
    assert verdict.speedup_low is not None
    assert verdict.speedup_high is not None
    assert verdict.speedup_low <= 1 <= verdict.speedup_high
    assert verdict.status == "inconclusive"
    assert verdict.reason == "the speed does not change measurably"


def test_a_step_too_short_for_the_clock_is_inconclusive() -> None:
    verdict = verify(workload("chunked"), device="cpu", clock=Clock(), forecaster=Peaks({"whole": 1000}))
    assert verdict.status == "inconclusive"
    assert "too short for the clock" in verdict.reason
    assert verdict.speedup is None


def test_equal_speed_with_a_lower_peak_is_inconclusive_and_names_the_peak() -> None:
    verdict = judge("chunked")
    assert verdict.status == "inconclusive"
    assert (
        verdict.reason
        == "the speed does not change measurably, but the predicted peak falls by 60%, from 1,000 B to 400 B"
    )


def test_a_slow_down_that_saves_memory_passes_and_is_called_a_slow_down() -> None:
    verdict = judge("chunked", baseline_s=1.0, variant_s=1.25)
    assert verdict.status == "pass"
    assert verdict.speedup == pytest.approx(0.8)
    assert "a slow-down to 1.25x the time" in verdict.reason


def test_a_slow_down_that_saves_nothing_fails() -> None:
    verdict = judge("chunked", variant_s=1.25, peaks=Peaks({"whole": 1000, "chunked": 995}))
    assert verdict.status == "fail"
    assert "the peak is not lower" in verdict.reason


def test_peaks_that_cannot_be_predicted_are_unknown_with_the_reason() -> None:
    class Refuses(Peaks):
        def predict(self, **_: Any) -> Any:
            raise CannotFake("op foo cannot be faked", hint="register it")

    verdict = judge("chunked", variant_s=1.25, peaks=Refuses())
    assert verdict.status == "inconclusive"
    assert "unknown whether the peak falls" in verdict.reason
    assert (verdict.peak_before_bytes, verdict.peak_after_bytes) == (None, None)
    assert any("op foo cannot be faked" in note for note in verdict.notes)
    assert judge("chunked", variant_s=0.5, peaks=Refuses()).status == "pass"


def test_slow_steps_are_timed_in_fewer_pairs_with_a_note() -> None:
    verdict = judge("chunked", baseline_s=2.0, variant_s=1.0)
    assert verdict.repeats == 20  # 60 s of 3 s pairs
    assert any("20 pairs instead of 30" in note for note in verdict.notes)
    assert judge("chunked", baseline_s=200.0, variant_s=100.0).repeats == 8


def test_a_wrong_count_of_points_is_refused() -> None:
    def build(size: int, *, variant: str, seed: int, **_: Any) -> Case:
        processed = size if variant == "whole" else size - size % CHUNK
        return Case(lambda: None, processed=processed, probe=lambda: Probe({"y": torch.ones(3)}))

    target = Workload(
        "short",
        "points",
        "torch",
        build=build,
        variants=(Variant("whole"), Variant("cut")),
        default_size=SIZE,
    )
    verdict = verify(target, device="cpu", forecaster=Peaks())
    assert verdict.status == "fail"
    assert "points were processed, but the baseline processed" in verdict.reason


def test_a_variant_that_raises_at_a_ragged_size_where_the_baseline_runs_is_refused() -> None:
    def build(size: int, *, variant: str, **_: Any) -> Case:
        if variant == "even" and size % 2:
            raise ValueError("only even sizes")
        return Case(lambda: None, processed=size, probe=lambda: Probe({"y": torch.ones(3)}))

    target = Workload(
        "picky", "points", "torch", build=build, variants=(Variant("any"), Variant("even")), default_size=SIZE
    )
    verdict = verify(target, device="cpu", forecaster=Peaks({"whole": 1}))
    assert verdict.status == "fail"
    assert "only even sizes" in verdict.reason


def test_a_ragged_size_that_the_baseline_does_not_support_is_skipped_with_a_note() -> None:
    def build(size: int, **_: Any) -> Case:
        if size % 2:
            raise ValueError("only even sizes")
        return Case(lambda: None, processed=size, probe=lambda: Probe({"y": torch.ones(3)}))

    target = Workload(
        "even", "points", "torch", build=build, variants=(Variant("a"), Variant("b")), default_size=SIZE
    )
    verdict = verify(target, device="cpu", clock=ticking(), forecaster=Peaks({"whole": 1}))
    assert verdict.status != "fail"
    assert any(
        "where the baseline itself fails" in note and "only even sizes" in note for note in verdict.notes
    )
    with pytest.raises(TargetFailed, match="only even sizes"):
        verify(target, device="cpu", size=97, forecaster=Peaks())


def test_a_baseline_that_does_not_repeat_itself_is_named() -> None:
    rng = np.random.default_rng(0)

    def build(size: int, **_: Any) -> Case:
        return Case(lambda: None, processed=size, probe=lambda: Probe({"y": rng.normal(size=size)}))

    target = Workload(
        "loose", "points", "torch", build=build, variants=(Variant("a"), Variant("b")), default_size=SIZE
    )
    verdict = verify(target, device="cpu", forecaster=Peaks())
    assert verdict.status == "fail"
    assert any(
        "the baseline does not repeat itself" in note and "declare the workload random" in note
        for note in verdict.notes
    )


def sampler(fault: str = "") -> Workload:
    """Ends of random walks from noise drawn in chunks of 100; `fault` uses the same noise for every chunk."""

    def build(size: int, *, variant: str, seed: int, **_: Any) -> Case:
        def draw() -> Probe:
            # The variant draws different numbers from the baseline: only the distribution can be the same.
            rng = np.random.default_rng([seed, variant == "tuned"])
            parts = [stop - start for start, stop in chunks(size, 100)]
            if variant == "tuned" and fault == "same noise":
                noise = rng.normal(size=(100, 2))
                ends = [noise[:count] for count in parts]
            else:
                ends = [rng.normal(size=(count, 2)) for count in parts]
            return Probe({"ends": np.concatenate(ends)})

        return Case(lambda: None, processed=size, probe=draw)

    variants = (Variant("plain"), Variant("tuned"))
    return Workload("walk", "walkers", "torch", build=build, variants=variants, random=True, default_size=300)


def test_a_sampler_with_another_generator_is_not_refused() -> None:
    verdict = verify(sampler(), device="cpu", clock=ticking(), forecaster=Peaks({"whole": 1}))
    assert verdict.status == "inconclusive"
    assert verdict.reason == "the speed does not change measurably"
    assert any("7 two-sample tests over 16 seeds were run" in note and "1%" in note for note in verdict.notes)


def test_correlated_sampling_is_refused() -> None:
    verdict = verify(sampler("same noise"), device="cpu", forecaster=Peaks())
    assert verdict.status == "fail"
    assert "the points of one draw are correlated" in verdict.reason
    assert verdict.worst_error is not None
    assert 0.99 < verdict.worst_error <= 1


def test_too_few_draws_are_inconclusive_not_a_pass() -> None:
    verdict = verify(
        sampler("same noise"), device="cpu", draws=8, clock=ticking(), forecaster=Peaks({"whole": 1})
    )
    assert verdict.status == "inconclusive"
    assert "8 seeds are too few" in verdict.reason


def test_every_variant_except_the_baseline_gets_a_verdict() -> None:
    clock = Clock()
    verdicts = verify_all(
        workload("chunked", "transposes", clock=clock), device="cpu", clock=clock, forecaster=Peaks()
    )
    assert [(v.variant, v.status) for v in verdicts] == [("chunked", "inconclusive"), ("transposes", "fail")]


def test_the_record_survives_json_even_with_a_nan_and_has_the_keys_of_the_contract() -> None:
    for verdict in (judge("chunked"), judge("divides by zero")):
        assert Verdict.from_json(verdict.to_json()) == verdict
        assert {
            "kind",
            "schema",
            "target",
            "machine",
            "created",
            "baseline",
            "variant",
            "status",
            "worst_error",
            "where",
            "speedup",
            "speedup_low",
            "speedup_high",
            "peak_before_bytes",
            "peak_after_bytes",
            "reason",
        } <= set(verdict.to_dict())


def step_of(size: int, device: str) -> Callable[[], None]:
    return lambda: None


@pytest.mark.parametrize(
    ("target", "options", "what"),
    [
        (step_of, {}, "is a plain factory"),
        (workload(), {}, "has only one variant"),
        (workload("chunked"), {"variant": "nope"}, "has no variant 'nope'"),
        (workload("chunked"), {"variant": "whole"}, "is the baseline itself"),
        (workload("chunked", "detaches"), {}, "has 2 variants besides its baseline"),
        (workload("chunked"), {"mode": "fly"}, "has no mode 'fly'"),
        (workload("chunked"), {"size": "-5"}, "size '-5'"),
        (workload("chunked"), {"repeats": 3}, "3 repeats"),
        (workload("chunked"), {"draws": 99}, "draws is 99"),
        (workload("chunked"), {"device": "tpu"}, "device 'tpu' is unknown"),
        ("absent.py:WORKLOAD", {}, "does not exist"),
    ],
)
def test_bad_input_is_refused_with_a_hint(target: Any, options: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what) as raised:
        verify(target, forecaster=Peaks(), **options)
    assert raised.value.hint


def test_a_case_without_a_probe_is_refused_with_a_hint() -> None:
    target = Workload(
        "blind",
        "points",
        "torch",
        build=lambda size, **_: Case(lambda: None, size),
        variants=(Variant("a"), Variant("b")),
    )
    with pytest.raises(BadInput, match="has no probe"):
        verify(target, device="cpu", forecaster=Peaks())


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_requested_gpu_that_is_not_available_raises_missing() -> None:
    with pytest.raises(Missing):
        verify(workload("chunked"), device="cuda", forecaster=Peaks())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: peaks are measured there")
def test_peaks_are_measured_on_a_gpu() -> None:
    verdict = verify("field", variant="chunked", size=200_000, device="cuda")
    assert verdict.peaks_are == "measured"
    assert verdict.peak_before_bytes is not None
    assert verdict.peak_after_bytes is not None
    assert verdict.peak_after_bytes < verdict.peak_before_bytes / 2


def test_settings_reach_both_sides_and_the_verdict() -> None:
    built: list[tuple[str, dict[str, str]]] = []

    def build(size: int, *, variant: str, seed: int, settings: dict[str, str], **_: Any) -> Case:
        built.append((variant, settings))
        return Case(lambda: None, processed=size, probe=lambda: evaluate(size, "chunked", seed, None))

    target = Workload(
        "layers",
        "points",
        "torch",
        build,
        (Variant("whole"), Variant("chunked")),
        default_size=SIZE,
        settings=(Setting("depth", "2", choices=("2", "3")),),
    )
    verdict = verify(target, device="cpu", clock=ticking(), forecaster=Peaks(), settings={"depth": "3"})
    assert verdict.settings == {"depth": "3"}
    assert {variant for variant, _ in built} == {"whole", "chunked"}
    assert all(settings == {"depth": "3"} for _, settings in built)
    with pytest.raises(BadInput, match="setting depth cannot be '4'"):
        verify(target, device="cpu", settings={"depth": "4"})
