"""The parts of a peak, from runs written by hand."""

from __future__ import annotations

import pytest

from pinchpoint.backends.torch import versions
from pinchpoint.core.events import FREE_CACHE, BlockInfo, Observation, Phase, Span
from pinchpoint.core.records import BREAKDOWN, Forecast
from pinchpoint.forecasting import assembly, replay
from pinchpoint.forecasting.cards import card

MIB = 2**20


class Run:
    """Writes an Observation the way a fake run would."""

    def __init__(self) -> None:
        self.seen = Observation(steps=2, trained=True)
        self.phase: Phase | None = None

    def take(
        self,
        mib: float,
        phase: Phase,
        *,
        role: str = "",
        line: int = 1,
        module: str = "",
        span: Span | None = None,
    ) -> int:
        if phase != self.phase:
            self.seen.marks.append((len(self.seen.events), phase))
            self.phase = phase
        self.seen.blocks.append(
            BlockInfo(int(mib * MIB), phase, "/somewhere/train.py", line, module, "aten::mm", role, span)
        )
        self.seen.events.append(len(self.seen.blocks) - 1)
        return len(self.seen.blocks) - 1

    def free(self, *numbers: int) -> None:
        self.seen.events += numbers


@pytest.fixture
def step() -> Run:
    """One step: weights, data, two activations, a temporary per pass, gradients, state; peak in backward."""
    result = Run()
    result.take(10, "data", role="weights", line=1, module="Net")
    result.take(4, "data", line=2)
    result.take(32, "forward", role="workspace", line=3)
    first = result.take(20, "forward", line=3, module="Net.a")
    second = result.take(30, "forward", line=4, module="Net.b")
    passing = result.take(16, "forward", line=4, module="Net.b")
    result.free(passing)
    grown = result.take(12, "backward", line=4, module="Net.b")
    gradient = result.take(10, "backward", role="gradients", line=3, module="Net.a")
    result.take(40, "backward", line=4, module="Net.b")  # the highest point
    result.free(grown, second, first, len(result.seen.blocks) - 1)
    result.take(20, "optimizer", role="optimizer", line=9)
    result.free(result.take(10, "optimizer", line=9), gradient)
    return result


def test_the_parts_follow_from_the_lifetimes_of_the_blocks(step: Run) -> None:
    matches = replay.replay(step.seen)
    parts = replay.breakdown(step.seen, matches)
    assert {name: size // MIB for name, size in parts.items()} == {
        "weights": 10,
        "inputs": 4,
        "workspace": 32,
        "activations": 50,
        "temporaries": 12 + 40,
        "gradients": 10,
        "optimizer": 0,
    }
    assert tuple(parts) == BREAKDOWN
    assert sum(parts.values()) == matches.peak_allocated_bytes == 158 * MIB


def test_a_temporary_of_forward_and_one_of_the_optimizer_are_temporaries(step: Run) -> None:
    ended = {
        "forward": "temporaries",
        "backward": "activations",
        "optimizer": "activations",
        None: "activations",
    }
    for end, part in ended.items():
        assert replay.part_of(BlockInfo(1, "forward", "", 0), end) == part
    assert replay.part_of(BlockInfo(1, "optimizer", "", 0), "optimizer") == "temporaries"
    assert replay.part_of(BlockInfo(1, "optimizer", "", 0), None) == "optimizer"
    assert (
        replay.part_of(BlockInfo(1, "forward", "", 0, role="temporaries", span=Span(1, 0, 2)), "forward")
        == "workspace"
    )


def test_the_parts_sum_to_the_peak_even_if_blocks_are_not_split() -> None:
    result = Run()
    result.take(19.3, "forward")  # counted as 20, because the rest of its segment is too small to split off
    result.take(0.0001, "forward", role="weights")
    matches = replay.replay(result.seen)
    assert (
        sum(replay.breakdown(result.seen, matches).values()) == matches.peak_allocated_bytes == 20 * MIB + 512
    )


def test_the_timeline_contains_the_peak_and_its_phase(step: Run) -> None:
    matches = replay.replay(step.seen)
    assert (matches.peak_event, matches.peak_allocated_bytes, "backward") in matches.timeline
    assert [index for index, _, _ in matches.timeline] == sorted(index for index, _, _ in matches.timeline)


def test_a_long_timeline_is_thinned_and_still_contains_the_peak() -> None:
    result = Run()
    for _ in range(5000):
        result.free(result.take(2, "forward"))
    spike = result.take(64, "backward")
    result.free(spike)
    for _ in range(5000):
        result.free(result.take(2, "forward"))
    matches = replay.replay(result.seen)
    assert len(matches.timeline) < 1000
    assert max(size for _, size, _ in matches.timeline) == matches.peak_allocated_bytes == 64 * MIB


def test_emptying_the_cache_lowers_the_reserved_bytes() -> None:
    result = Run()
    result.free(result.take(40, "forward"))
    result.seen.events.append(FREE_CACHE)
    result.take(60, "forward")
    assert replay.replay(result.seen).peak_reserved_bytes == 60 * MIB
    result.seen.events.remove(FREE_CACHE)
    assert replay.replay(result.seen).peak_reserved_bytes == 100 * MIB


def test_fits_agrees_with_a_replay_at_that_limit(step: Run) -> None:
    matches = replay.replay(step.seen)
    assert replay.fits(step.seen, matches.peak_reserved_bytes)
    assert not replay.fits(step.seen, matches.peak_allocated_bytes - 1)
    limits = range(matches.peak_allocated_bytes, matches.peak_reserved_bytes + MIB, MIB)
    answers = [replay.fits(step.seen, limit) for limit in limits]
    assert answers == sorted(answers)  # once it fits, more memory never hurts here


def test_a_step_that_must_first_release_cached_memory_can_still_fit() -> None:
    result = Run()
    result.free(result.take(40, "forward"))
    result.take(60, "forward")
    assert replay.replay(result.seen).peak_reserved_bytes == 100 * MIB
    assert replay.fits(result.seen, 60 * MIB)
    assert not replay.fits(result.seen, 60 * MIB - 1)


def test_a_plan_finds_with_how_few_bytes_a_run_completes() -> None:
    run = Run()
    run.free(run.take(9_000, "forward"))
    run.take(12_000, "forward")
    fields = {"target": "t", "mode": "train", "size": 1, "variant": None, "expandable": False}
    for memory, fits in (("10GiB", False), ("16GiB", True)):
        forecast = assembly.of_observation(
            run.seen, card=card(memory), only_card=True, find_least=True, **fields
        )
        assert forecast.fits == {memory: fits}
        assert forecast.needs_bytes == int(21_000 * MIB * (1 + assembly.MARGIN))
        assert forecast.completes_bytes is not None
        least = forecast.completes_bytes / (1 + assembly.MARGIN)
        assert 11_999 * MIB <= least <= 12_000 * MIB * 1.006
    large = assembly.of_observation(run.seen, card=card("h200"), find_least=True, **fields)
    assert large.completes_bytes is None and len(large.fits) > 20


def of(seen: Observation, named: str = "h200") -> Forecast:
    return assembly.of_observation(
        seen, card=card(named), expandable=False, target="t", mode="train", size=1, variant=None
    )


def test_a_forecast_adds_the_context_and_states_its_margin(step: Run) -> None:
    result = of(step.seen)
    assert result.total_bytes == result.peak_reserved_bytes + result.context_bytes  # type: ignore[operator]
    assert result.margin_bytes == int(assembly.MARGIN * result.total_bytes) and assembly.MARGIN >= 0.02
    assert result.fits["h200"] and result.low_bytes is None and result.high_bytes is None


def test_a_forecast_with_an_unknown_version_of_torch_says_so(
    step: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert of(step.seen).notes == ()
    monkeypatch.setattr(versions, "installed", lambda: "2.99.0")
    assert [note.split(" is newer")[0] for note in of(step.seen).notes] == ["torch 2.99.0"]


def test_a_choice_of_a_library_gives_an_interval_whose_high_end_must_fit() -> None:
    result = Run()
    result.take(1000, "forward")
    result.free(result.take(4000, "forward", role="temporaries", span=Span(4000 * MIB, 0, 5000 * MIB)))
    records_seen = result.seen
    matches = of(records_seen)
    blur = int(0.002 * 5000 * MIB)
    assert (matches.low_bytes, matches.high_bytes) == (1000 * MIB - blur, 6000 * MIB + blur)
    assert matches.peak_allocated_bytes == 5000 * MIB and matches.breakdown["workspace"] == 4000 * MIB
    # 5 GiB and the context fit into 6 GiB; 6 GiB and the context do not.
    assert not of(records_seen, "6GiB").fits["6GiB"]
    assert of(records_seen, "8GiB").fits["8GiB"]


def test_a_workspace_that_does_not_matter_at_the_peak_makes_no_interval() -> None:
    result = Run()
    result.free(result.take(10, "forward", role="temporaries", span=Span(10 * MIB, 0, 20 * MIB)))
    result.take(1000, "forward")
    assert of(result.seen).low_bytes is None


def test_a_step_that_fits_a_card_fits_every_larger_card_of_the_same_kind(step: Run) -> None:
    result = Run()
    result.take(23_000, "forward")
    fits = [of(result.seen, f"{size}GiB").fits[f"{size}GiB"] for size in range(20, 30)]
    assert fits == sorted(fits) and not fits[0] and fits[-1]


def test_the_environment_enables_expandable_segments(step: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = {"target": "t", "mode": "train", "size": 1, "variant": None}
    before = assembly.of_observation(step.seen, card=card("h200"), **messages)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    after = assembly.of_observation(step.seen, card=card("h200"), **messages)
    assert after.peak_allocated_bytes == before.peak_allocated_bytes
    assert after.peak_reserved_bytes != before.peak_reserved_bytes


def test_a_search_for_kernels_takes_what_is_left_for_a_moment_and_empties_the_cache() -> None:
    run = Run()
    run.take(100, "data", role="weights")
    run.free(run.take(60, "forward"))  # cached when the search begins, which reserves more beside it
    run.seen.searches.append((len(run.seen.events), 500 * MIB))
    run.take(200, "forward")
    assert replay.peaks_with_searches(run.seen, 1000 * MIB) == (600 * MIB, 660 * MIB)
    assert replay.peaks_with_searches(run.seen, 400 * MIB) == (400 * MIB, 460 * MIB)  # then 200 + 100
    fields = {"target": "t", "mode": "train", "size": None, "variant": None}
    forecast = assembly.of_observation(run.seen, card=card("h200"), **fields)
    assert forecast.search_bytes == 600 * MIB and forecast.peak_allocated_bytes == 300 * MIB
    assert forecast.needs_bytes is not None and forecast.needs_bytes < 400 * MIB
