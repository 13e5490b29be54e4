"""The axis gate refuses studies of a workload that ignores its axis."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinchpoint.core.growth_law import law
from pinchpoint.core.records import Point
from pinchpoint.studies import axis_gate

SIZES = [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000]


def points(peak, *, variant="eager", processed=lambda size: size):
    return [
        Point(size, "train", variant, "ok", processed=processed(size), peak_allocated_bytes=round(peak(size)))
        for size in SIZES
    ]


def judged(made, *, flat=None, chunk=None):
    flat = {name: axis_gate.Claim(held, chunk) for name, held in (flat or {}).items()}
    laws = [
        law(
            [p.size for p in made],
            [p.peak_allocated_bytes for p in made],
            mode="train",
            variant=made[0].variant,
        )
    ]
    return axis_gate.judge(made, laws, flat=flat), axis_gate.notes(made, laws, flat=flat)


def test_memory_that_grows_with_the_axis_passes():
    assert judged(points(lambda size: 5e6 + 1_000 * size))[0] == ()


def test_constant_memory_fails_with_the_slope_and_its_interval():
    (reason,), _ = judged(points(lambda size: 760e6))
    assert "eager train: memory does not grow" in reason
    assert "95 % [" in reason


def test_a_count_that_is_not_the_one_asked_for_fails_even_if_memory_grows():
    (reason,), _ = judged(points(lambda size: 5e6 + 1_000 * size, processed=lambda size: min(size, 5_000)))
    assert "processed 5,000 points where 8,000 were asked for (at 5 of 8 sizes)" in reason


def test_an_unobserved_count_is_said_and_judged_by_the_slope():
    reasons, notes = judged(points(lambda size: 5e6 + 1_000 * size, processed=lambda size: None))
    assert reasons == ()
    assert any("not observed" in note for note in notes)


def test_a_flat_variant_passes_flat_and_says_so():
    reasons, notes = judged(points(lambda size: 5e6, variant="chunked"), flat={"chunked": 0})
    assert reasons == ()
    assert notes[0].startswith("chunked train is flat, as declared")


def test_a_flat_variant_may_grow_up_to_its_chunk():
    assert (
        judged(points(lambda size: 5e6 + 1_000 * min(size, 8_000), variant="chunked"), flat={"chunked": 0})[0]
        == ()
    )


def test_a_ladder_too_short_for_a_break_is_judged_by_its_last_two_sizes():
    made = points(lambda size: 5e6 + 1_000 * min(size, 8_000), variant="chunked")[2:6]
    assert judged(made, flat={"chunked": 0})[0] == ()
    made = points(lambda size: 5e6 + 1_000 * min(size, 32_000), variant="chunked")[2:6]
    assert "at 16k" in judged(made, flat={"chunked": 0})[0][0]


def test_a_variant_declared_flat_that_grows_fails():
    (reason,), notes = judged(points(lambda size: 5e6 + 16 * size, variant="chunked"), flat={"chunked": 0})
    assert "declared flat, but grows by 16 B/point" in reason
    assert notes == ()


@pytest.mark.parametrize("status", ["oom", "failed", "timeout"])
def test_too_few_sizes_cannot_pass(status):
    made = points(lambda size: 5e6 + 1_000 * size)
    made = [p if p.size < 3_000 else replace(p, status=status) for p in made]
    (reason,) = axis_gate.judge(made, [], flat={})
    assert reason == "eager train: 2 of 8 sizes ran; growth needs at least 3"


@pytest.mark.parametrize("grows", ["inputs", "activations"])
def test_data_that_nobody_reads_is_not_growth_of_the_step(grows):
    made = [
        replace(
            p,
            breakdown={"weights": 100, "activations": 4_000, "temporaries": 4_000, "inputs": 9}
            | {grows: 12 * p.size},
        )
        for p in points(lambda size: 5e6 + 12 * size, processed=lambda size: None)
    ]
    reasons, _ = judged(made)
    if grows == "activations":
        assert reasons == ()
    else:
        assert "only its inputs grow with the size" in reasons[0] and "step.processed" in reasons[0]
    assert judged([replace(p, processed=p.size) for p in made])[0] == ()


def test_peaks_that_are_not_known_are_said_to_be_so():
    made = [replace(p, peak_allocated_bytes=None) for p in points(lambda size: 5e6)]
    assert axis_gate.judge(made, [], flat={}) == (
        "eager train: the peaks are not known, so growth cannot be judged",
    )


def test_a_flat_variant_may_grow_by_what_it_says_it_holds_and_no_more():
    made = points(lambda size: 5e6 + 12 * size, variant="flat")
    reasons, notes = judged(made, flat={"flat": 16})
    assert reasons == ()
    assert notes[0].startswith("flat train grows by no more than 16 B/point, as declared")
    (reason,), _ = judged(points(lambda size: 5e6 + 20 * size, variant="flat"), flat={"flat": 16})
    assert "declared to grow by no more than 16 B/point, but grows by 20 B/point" in reason


def test_sizes_up_to_a_known_chunk_neither_prove_nor_refute_a_flat_variant():
    made = points(lambda size: 5e6 + 1_000 * min(size, 100_000), variant="chunked")
    reasons, (note,) = judged(made, flat={"chunked": 48}, chunk=100_000)
    assert reasons == ()
    assert note == (
        "whether chunked train grows by no more than 48 B/point is not shown: it grows up to its chunk, 100k;"
        " study --sizes 200k:1.6M"
    )


def test_sizes_beyond_a_known_chunk_are_judged():
    made = points(lambda size: 5e6 + 1_000 * size, variant="chunked")
    (reason,), _ = judged(made, flat={"chunked": 48}, chunk=10_000)
    assert "declared to grow by no more than 48 B/point, but grows by" in reason


def test_a_flat_variant_that_grows_is_told_which_sizes_to_study():
    (reason,), _ = judged(points(lambda size: 5e6 + 1_000 * size, variant="chunked"), flat={"chunked": 0})
    assert reason.endswith("up to a chunk it may: study --sizes 128k:2.048M too")
