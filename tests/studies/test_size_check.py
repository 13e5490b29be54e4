"""The size check refuses studies of a workload that ignores its axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinchpoint.core.growth_law import law
from pinchpoint.core.records import Point
from pinchpoint.studies import size_check

SIZES = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000]


def points(peak, *, variant="eager", processed=lambda size: size):
    return [
        Point(size, "train", variant, "ok", processed=processed(size), peak_allocated_bytes=round(peak(size)))
        for size in SIZES
    ]


def judge(ladder, *, flat=None, chunk=None):
    flat = {name: size_check.Claim(held, chunk) for name, held in (flat or {}).items()}
    laws = [
        law(
            [p.size for p in ladder],
            [p.peak_allocated_bytes for p in ladder],
            mode="train",
            variant=ladder[0].variant,
        )
    ]
    return size_check.judge(ladder, laws, flat=flat), size_check.gate_notes(ladder, laws, flat=flat)


def test_memory_that_grows_with_the_axis_passes():
    assert judge(points(lambda size: 5e6 + 1_000 * size))[0] == ()


def test_constant_memory_fails_with_the_slope_and_its_interval():
    (reason,), _ = judge(points(lambda size: 760e6))
    assert "eager train: memory does not grow" in reason
    assert "95 % interval of its slope, [" in reason


def test_a_count_other_than_the_requested_size_fails_even_if_memory_grows():
    (reason,), _ = judge(points(lambda size: 5e6 + 1_000 * size, processed=lambda size: min(size, 5_000)))
    assert "5,000 were processed where 8,000 were requested (at 5 of 8 sizes)" in reason


def test_an_unobserved_count_is_noted_and_judged_by_the_slope():
    reasons, notes = judge(points(lambda size: 5e6 + 1_000 * size, processed=lambda size: None))
    assert reasons == ()
    assert any("not observed" in note for note in notes)


def test_a_flat_variant_passes_and_is_noted_as_flat():
    reasons, notes = judge(points(lambda size: 5e6, variant="chunked"), flat={"chunked": 0})
    assert reasons == ()
    assert notes[0].startswith("chunked train is flat, as declared")


def test_a_flat_variant_may_grow_up_to_its_chunk():
    assert (
        judge(points(lambda size: 5e6 + 1_000 * min(size, 8_000), variant="chunked"), flat={"chunked": 0})[0]
        == ()
    )


def test_a_ladder_too_short_for_a_break_is_judged_by_its_last_two_sizes():
    ladder = points(lambda size: 5e6 + 1_000 * min(size, 8_000), variant="chunked")[2:6]
    assert judge(ladder, flat={"chunked": 0})[0] == ()
    ladder = points(lambda size: 5e6 + 1_000 * min(size, 32_000), variant="chunked")[2:6]
    assert "at 16k" in judge(ladder, flat={"chunked": 0})[0][0]


def test_a_variant_declared_flat_that_grows_fails():
    (reason,), notes = judge(points(lambda size: 5e6 + 16 * size, variant="chunked"), flat={"chunked": 0})
    assert "declared flat, but it grows by 16 B/point" in reason
    assert notes == ()


@pytest.mark.parametrize("status", ["oom", "failed", "timeout"])
def test_too_few_sizes_cannot_pass(status):
    ladder = points(lambda size: 5e6 + 1_000 * size)
    ladder = [p if p.size < 3_000 else replace(p, status=status) for p in ladder]
    (reason,) = size_check.judge(ladder, [], flat={})
    assert reason == "eager train: 2 of 8 sizes ran, but judging growth takes at least 3"


@pytest.mark.parametrize("grows", ["inputs", "activations"])
def test_inputs_that_are_never_read_are_not_growth_of_the_step(grows):
    ladder = [
        replace(
            p,
            breakdown={"weights": 100, "activations": 4_000, "temporaries": 4_000, "inputs": 9}
            | {grows: 12 * p.size},
        )
        for p in points(lambda size: 5e6 + 12 * size, processed=lambda size: None)
    ]
    reasons, _ = judge(ladder)
    if grows == "activations":
        assert reasons == ()
    else:
        assert "only the inputs grow with the size" in reasons[0] and "step.processed" in reasons[0]
    assert judge([replace(p, processed=p.size) for p in ladder])[0] == ()


def test_unknown_peaks_are_reported_as_unknown():
    ladder = [replace(p, peak_allocated_bytes=None) for p in points(lambda size: 5e6)]
    assert size_check.judge(ladder, [], flat={}) == (
        "eager train: the peaks are not known, so growth cannot be judged",
    )


def test_a_flat_variant_may_grow_only_by_the_bytes_per_point_that_it_declares():
    ladder = points(lambda size: 5e6 + 12 * size, variant="flat")
    reasons, notes = judge(ladder, flat={"flat": 16})
    assert reasons == ()
    assert notes[0].startswith("flat train grows by no more than 16 B/point, as declared")
    (reason,), _ = judge(points(lambda size: 5e6 + 20 * size, variant="flat"), flat={"flat": 16})
    assert "declared to grow by no more than 16 B/point, but it grows by 20 B/point" in reason


def test_a_flat_variant_is_not_confirmed_by_few_sizes_that_grow_by_more_than_it_declares():
    ladder = [
        Point(size, "train", "flat", "ok", processed=size, peak_allocated_bytes=peak)
        for size, peak in ((250_000, 374_204_928), (500_000, 408_296_448), (1_000_000, 539_715_072))
    ]
    reasons, notes = judge(ladder, flat={"flat": 48})
    # The interval of the slope is too wide for a verdict.
    assert reasons == ()
    assert notes[0].startswith("these sizes do not show whether flat train grows by no more than 48 B/point")
    # (539,715,072 - 408,296,448) / 500,000, which is why; the law of all sizes may be within the claim.
    assert "between the last two it grows by 262.8 B/point" in notes[0]
    assert "study more sizes" in notes[0]


def test_sizes_up_to_a_known_chunk_neither_prove_nor_refute_a_flat_variant():
    ladder = points(lambda size: 5e6 + 1_000 * min(size, 100_000), variant="chunked")
    reasons, (note,) = judge(ladder, flat={"chunked": 48}, chunk=100_000)
    assert reasons == ()
    assert note == (
        "these sizes do not show whether chunked train grows by no more than 48 B/point, because memory grows"
        " up to its chunk of 100k; study --sizes 200k:1.6M"
    )


def test_sizes_beyond_a_known_chunk_are_judged():
    ladder = points(lambda size: 5e6 + 1_000 * size, variant="chunked")
    (reason,), _ = judge(ladder, flat={"chunked": 48}, chunk=10_000)
    assert "declared to grow by no more than 48 B/point, but it grows by" in reason


def test_the_failure_of_a_flat_variant_names_the_sizes_to_study():
    (reason,), _ = judge(points(lambda size: 5e6 + 1_000 * size, variant="chunked"), flat={"chunked": 0})
    assert reason.endswith("it may grow up to its chunk, so also study --sizes 128k:2.048M")
