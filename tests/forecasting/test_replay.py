"""What a peak is made of, from runs written by hand."""

from __future__ import annotations

import pytest

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
    made = Run()
    made.take(10, "data", role="weights", line=1, module="Net")
    made.take(4, "data", line=2)
    made.take(32, "forward", role="workspace", line=3)
    first = made.take(20, "forward", line=3, module="Net.a")
    second = made.take(30, "forward", line=4, module="Net.b")
    passing = made.take(16, "forward", line=4, module="Net.b")
    made.free(passing)
    grown = made.take(12, "backward", line=4, module="Net.b")
    gradient = made.take(10, "backward", role="gradients", line=3, module="Net.a")
    made.take(40, "backward", line=4, module="Net.b")  # the highest point
    made.free(grown, second, first, len(made.seen.blocks) - 1)
    made.take(20, "optimizer", role="optimizer", line=9)
    made.free(made.take(10, "optimizer", line=9), gradient)
    return made


def test_the_parts_are_what_the_blocks_lives_tell(step: Run) -> None:
    found = replay.replay(step.seen)
    parts = replay.breakdown(step.seen, found)
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
    assert sum(parts.values()) == found.peak_allocated_bytes == 158 * MIB


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


def test_the_parts_sum_to_the_peak_even_where_blocks_are_counted_whole() -> None:
    made = Run()
    made.take(19.3, "forward")  # counted as 20: the rest of its segment is too small to split off
    made.take(0.0001, "forward", role="weights")
    found = replay.replay(made.seen)
    assert sum(replay.breakdown(made.seen, found).values()) == found.peak_allocated_bytes == 20 * MIB + 512


def test_the_timeline_holds_the_peak_and_its_phase(step: Run) -> None:
    found = replay.replay(step.seen)
    assert (found.peak_event, found.peak_allocated_bytes, "backward") in found.timeline
    assert [index for index, _, _ in found.timeline] == sorted(index for index, _, _ in found.timeline)


def test_a_long_timeline_is_thinned_and_still_holds_the_peak() -> None:
    made = Run()
    for _ in range(5000):
        made.free(made.take(2, "forward"))
    spike = made.take(64, "backward")
    made.free(spike)
    for _ in range(5000):
        made.free(made.take(2, "forward"))
    found = replay.replay(made.seen)
    assert len(found.timeline) < 1000
    assert max(size for _, size, _ in found.timeline) == found.peak_allocated_bytes == 64 * MIB


def test_an_emptied_cache_lowers_what_is_reserved_afterwards() -> None:
    made = Run()
    made.free(made.take(40, "forward"))
    made.seen.events.append(FREE_CACHE)
    made.take(60, "forward")
    assert replay.replay(made.seen).peak_reserved_bytes == 60 * MIB
    made.seen.events.remove(FREE_CACHE)
    assert replay.replay(made.seen).peak_reserved_bytes == 100 * MIB


def test_fits_is_what_a_replay_with_that_limit_says(step: Run) -> None:
    found = replay.replay(step.seen)
    assert replay.fits(step.seen, found.peak_reserved_bytes)
    assert not replay.fits(step.seen, found.peak_allocated_bytes - 1)
    limits = range(found.peak_allocated_bytes, found.peak_reserved_bytes + MIB, MIB)
    answers = [replay.fits(step.seen, limit) for limit in limits]
    assert answers == sorted(answers)  # once it fits, more memory never hurts here


def test_memory_that_must_be_given_back_first_can_still_fit() -> None:
    made = Run()
    made.free(made.take(40, "forward"))
    made.take(60, "forward")
    assert replay.replay(made.seen).peak_reserved_bytes == 100 * MIB
    assert replay.fits(made.seen, 60 * MIB)
    assert not replay.fits(made.seen, 60 * MIB - 1)


def test_the_top_lines_are_the_largest_without_the_workspace(step: Run) -> None:
    lines = replay.top_lines(step.seen, replay.replay(step.seen))
    assert [(line.line, line.phase, line.bytes // MIB) for line in lines] == [
        (4, "backward", 52),
        (4, "forward", 30),
        (3, "forward", 20),
        (1, "data", 10),
        (3, "backward", 10),
        (2, "data", 4),
    ]


def test_modules_share_the_peak(step: Run) -> None:
    shares = {
        entry["name"]: entry["bytes"] for entry in replay.module_shares(step.seen, replay.replay(step.seen))
    }
    assert shares == {"Net.b": 82 * MIB, "Net.a": 30 * MIB, "Net": 10 * MIB}


def of(seen: Observation, named: str = "h200") -> Forecast:
    return assembly.of_observation(
        seen, card=card(named), expandable=False, target="t", mode="train", size=1, variant=None
    )


def test_a_forecast_adds_the_context_and_states_its_margin(step: Run) -> None:
    made = of(step.seen)
    assert made.total_bytes == made.peak_reserved_bytes + made.context_bytes  # type: ignore[operator]
    assert made.margin_bytes == int(assembly.MARGIN * made.total_bytes) and assembly.MARGIN >= 0.02
    assert made.fits["h200"] and made.low_bytes is None and made.high_bytes is None


def test_a_librarys_choice_makes_an_interval_and_only_its_high_end_may_fit() -> None:
    made = Run()
    made.take(1000, "forward")
    made.free(made.take(4000, "forward", role="temporaries", span=Span(4000 * MIB, 0, 5000 * MIB)))
    seen = made.seen
    found = of(seen)
    blur = int(0.002 * 5000 * MIB)
    assert (found.low_bytes, found.high_bytes) == (1000 * MIB + 512 - blur, 6000 * MIB + blur)
    assert found.peak_allocated_bytes == 5000 * MIB and found.breakdown["workspace"] == 4000 * MIB
    # 5 GiB and the context would go into 6 GiB; 6 GiB and the context would not.
    assert not of(seen, "6GiB").fits["6GiB"]
    assert of(seen, "8GiB").fits["8GiB"]


def test_a_workspace_that_does_not_matter_at_the_peak_makes_no_interval() -> None:
    made = Run()
    made.free(made.take(10, "forward", role="temporaries", span=Span(10 * MIB, 0, 20 * MIB)))
    made.take(1000, "forward")
    assert of(made.seen).low_bytes is None


def test_what_fits_fits_every_larger_card_of_the_same_kind(step: Run) -> None:
    made = Run()
    made.take(23_000, "forward")
    fits = [of(made.seen, f"{size}GiB").fits[f"{size}GiB"] for size in range(20, 30)]
    assert fits == sorted(fits) and not fits[0] and fits[-1]


def test_expandable_segments_are_asked_for_by_the_environment(
    step: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"target": "t", "mode": "train", "size": 1, "variant": None}
    before = assembly.of_observation(step.seen, card=card("h200"), **told)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    after = assembly.of_observation(step.seen, card=card("h200"), **told)
    assert after.peak_allocated_bytes == before.peak_allocated_bytes
    assert after.peak_reserved_bytes != before.peak_reserved_bytes
