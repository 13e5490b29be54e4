from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput, DoesNotFit, TargetFailed, TimedOut
from pinchpoint.core.records import BREAKDOWN, Forecast, Plan
from pinchpoint.core.settings import Setting
from pinchpoint.core.units import GIB, MIB
from pinchpoint.core.workload import Variant, Workload
from pinchpoint.forecasting.cards import cards
from pinchpoint.planning.plan import plan

CONTEXT = 512 * MIB
MARGIN = 100 * MIB


def forecast(total_bytes: int, **changes: Any) -> Forecast:
    """A forecast with that total: context and reserved add up to it, and live bytes equal reserved bytes."""
    live = total_bytes - CONTEXT
    values: dict[str, Any] = {
        "target": "fake",
        "framework": "torch",
        "method": "fake tensors",
        "mode": "train",
        "size": None,
        "variant": None,
        "peak_allocated_bytes": live,
        "peak_reserved_bytes": live,
        "workspace_bytes": 0,
        "context_bytes": CONTEXT,
        "total_bytes": total_bytes,
        "breakdown": {**dict.fromkeys(BREAKDOWN, 0), "activations": live},
        "lines": (),
        "modules": (),
        "timeline": (),
        "fits": {},
        "margin_bytes": MARGIN,
        "card": "h200",
        "steps": 2,
    }
    return Forecast(**{**values, **changes})


@dataclass
class Law:
    """A forecaster whose total is `total(size, variant, chunk)`; it records its requests."""

    total: Callable[[int, str | None, int | None], int]
    asked: list[tuple[int, str | None, int | None]] = field(default_factory=list)

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
    ) -> Forecast:
        assert size is not None
        self.asked.append((size, variant, chunk))
        return forecast(self.total(size, variant, chunk), size=size, mode=mode or "train", variant=variant)


def affine(fixed_bytes: float = GIB, bytes_per_point: float = 100_000) -> Law:
    return Law(lambda size, variant, chunk: int(fixed_bytes + bytes_per_point * size))


def workload(*variants: str | Variant, chunked: bool = False, **options: Any) -> Workload:
    result = tuple(v if isinstance(v, Variant) else Variant(v) for v in variants or ("eager",))
    return Workload(
        name="fake",
        axis="points",
        framework="torch",
        build="nowhere:build",
        variants=result,
        chunked=chunked,
        **options,
    )


def factory(size: int, device: str) -> None: ...


def within_one_percent(answer: int, exact: float) -> bool:
    return answer <= exact < answer * 1.01 + 1


def test_the_largest_size_was_run_and_is_within_one_percent_of_the_exact_boundary() -> None:
    law = affine(2 * GIB, 50_000)
    result = plan(workload(), budget="24GiB", forecaster=law)
    exact = (22 * GIB - MARGIN) / 50_000
    assert result.size is not None
    assert within_one_percent(result.size, exact)
    assert result.peak_bytes == 2 * GIB + 50_000 * result.size
    assert result.peak_bytes + result.margin_bytes <= result.budget_bytes == 24 * GIB
    assert (result.size, "eager", None) in law.asked
    assert len(law.asked) <= 8


def test_a_budget_in_bytes_and_one_with_a_unit_agree() -> None:
    assert (
        plan(workload(), budget=8 * GIB, forecaster=affine()).size
        == plan(workload(), budget="8GiB", forecaster=affine()).size
    )


def test_the_name_of_a_card_is_a_budget() -> None:
    result = plan(workload(), budget="rtx4090", forecaster=affine())
    assert result.budget_bytes == cards()["rtx4090"].memory_bytes


def test_the_margin_is_kept_free() -> None:
    without = plan(workload(), budget="8GiB", forecaster=affine(GIB, 1e6))
    law = affine(GIB, 1e6)
    tight = 2 * GIB

    class Wide:
        def predict(self, **options: Any) -> Forecast:
            result = law.predict(**options)
            return forecast(result.total_bytes, margin_bytes=tight)

    with_margin = plan(workload(), budget="8GiB", forecaster=Wide())
    assert without.size is not None
    assert with_margin.size is not None
    assert within_one_percent(without.size, (7 * GIB - MARGIN) / 1e6)
    assert within_one_percent(with_margin.size, 5 * GIB / 1e6)
    assert with_margin.margin_bytes == tight


def test_the_high_end_is_used_if_the_peak_depends_on_the_data() -> None:
    class Masked:
        def predict(self, *, size: int, **_: Any) -> Forecast:
            result = forecast(GIB + 100_000 * size)
            live = result.peak_allocated_bytes
            return forecast(
                result.total_bytes, low_bytes=live - 50_000 * size, high_bytes=live + 100_000 * size
            )

    result = plan(workload(), budget="8GiB", forecaster=Masked())
    assert result.size is not None
    assert within_one_percent(result.size, (7 * GIB - MARGIN) / 200_000)


def test_the_variant_with_the_largest_size_is_chosen_in_at_most_eight_runs_each() -> None:
    slopes = {"eager": 400_000, "checkpoint": 90_000, "both": 150_000}
    law = Law(lambda size, variant, chunk: GIB + slopes[str(variant)] * size)
    result = plan(workload(*slopes), budget="24GiB", forecaster=law)
    assert result.variant == "checkpoint"
    sizes = {choice["variant"]: choice["size"] for choice in result.choices}
    for name, slope in slopes.items():
        assert within_one_percent(sizes[name], (23 * GIB - MARGIN) / slope)
        assert sum(variant == name for _, variant, _ in law.asked) <= 8
    assert result.size == sizes["checkpoint"]


def test_a_flat_variant_wins_with_a_size_that_was_run_and_notes_that_it_is_not_a_limit() -> None:
    law = Law(lambda size, variant, chunk: 2 * GIB if variant == "stream" else GIB + 400_000 * size)
    result = plan(workload("eager", Variant("stream", flat=True)), budget="24GiB", forecaster=law)
    eager = next(choice["size"] for choice in result.choices if choice["variant"] == "eager")
    assert result.variant == "stream"
    assert result.size == eager
    assert (result.size, "stream", None) in law.asked
    assert any("stream" in note and "not a limit" in note for note in result.notes)


def test_a_flat_variant_that_takes_chunks_is_given_a_larger_size_and_its_largest_chunk() -> None:
    def total(size: int, variant: str | None, chunk: int | None) -> int:
        return GIB + 400_000 * (size if variant == "eager" else chunk or 1000)

    law = Law(total)
    result = plan(
        workload("eager", Variant("stream", flat=True), chunked=True), budget="24GiB", forecaster=law
    )
    eager = next(choice["size"] for choice in result.choices if choice["variant"] == "eager")
    assert (result.variant, result.size) == ("stream", 4 * eager)
    assert result.chunk is not None
    assert within_one_percent(result.chunk, (23 * GIB - MARGIN) / 400_000)
    assert (result.size, "stream", result.chunk) in law.asked
    assert sum(variant == "stream" for _, variant, _ in law.asked) <= 8
    assert max(size / (chunk or size) for size, variant, chunk in law.asked) < 64, (
        "no fake run walks through many chunks"
    )
    assert any(note.startswith("stream: the peak does not grow") for note in result.notes)


def test_a_variant_that_only_claims_to_be_flat_is_distinguished_from_a_flat_one() -> None:
    law = Law(lambda size, variant, chunk: GIB + 20_000 * size + 400_000 * (chunk or size))
    result = plan(
        workload("eager", Variant("stream", flat=True), chunked=True), budget="24GiB", forecaster=law
    )
    assert (
        any(note.startswith("stream: declared flat, but its peak grows") for note in result.notes)
        or result.variant == "eager"
    )


def test_the_chunk_is_found_for_every_card() -> None:
    law = Law(lambda size, variant, chunk: GIB + 2_000_000 * (chunk or size))
    result = plan(workload(chunked=True), cards="t4,rtx4090,h200", size="1M", forecaster=law)
    known = cards()
    for row in result.cards:
        card = known[row["card"]]
        exact = (card.usable_bytes + CONTEXT - GIB - MARGIN) / 2_000_000
        assert row["size"] == 10**6
        assert 0.975 * exact <= row["chunk"] <= exact
        assert ((10**6, "eager", row["chunk"]) in law.asked) == (row["how"] == "predicted")


def test_one_variant_can_be_requested() -> None:
    law = affine()
    result = plan(workload("eager", "checkpoint"), budget="8GiB", variant="checkpoint", forecaster=law)
    assert result.variant == "checkpoint"
    assert {variant for _, variant, _ in law.asked} == {"checkpoint"}


def test_a_variant_that_cannot_be_run_is_skipped_with_a_note() -> None:
    def total(size: int, variant: str | None, chunk: int | None) -> int:
        if variant == "broken":
            raise TargetFailed("it raised", hint="fix it")
        return GIB + 100_000 * size

    result = plan(workload("broken", "eager"), budget="8GiB", forecaster=Law(total))
    assert result.variant == "eager"
    assert any(note.startswith("broken: skipped") and "it raised" in note for note in result.notes)
    with pytest.raises(TargetFailed, match=r"Predicting broken size 4\.096k failed: it raised"):
        plan(workload("broken", "eager"), budget="8GiB", variant="broken", forecaster=Law(total))


def test_the_chunk_for_a_size_is_the_largest_that_fits() -> None:
    law = Law(lambda size, variant, chunk: GIB + 1000 * size + 2_000_000 * (chunk or size))
    result = plan(workload(chunked=True), budget="24GiB", size="1M", forecaster=law)
    exact = (23 * GIB - MARGIN - 1000 * 10**6) / 2_000_000
    assert result.size == 10**6
    assert result.chunk is not None
    assert within_one_percent(result.chunk, exact)
    assert (10**6, "eager", result.chunk) in law.asked
    assert len(law.asked) <= 8


def test_the_whole_size_is_one_chunk_when_it_fits() -> None:
    law = Law(lambda size, variant, chunk: GIB + 1000 * (chunk or size))
    result = plan(workload(chunked=True), budget="24GiB", size=5000, forecaster=law)
    assert result.chunk == 5000
    assert len(law.asked) == 1


def test_no_chunk_helps_when_the_rest_is_too_large() -> None:
    law = Law(lambda size, variant, chunk: 30 * GIB + 1000 * (chunk or size))
    with pytest.raises(DoesNotFit, match=r"needs 30.* in chunks of"):
        plan(workload(chunked=True), budget="24GiB", size=100_000, forecaster=law)


def test_a_requested_size_uses_the_first_variant_that_fits() -> None:
    slopes = {"eager": 400_000, "checkpoint": 90_000, "tight": 10_000}
    law = Law(lambda size, variant, chunk: GIB + slopes[str(variant)] * size)
    result = plan(workload(*slopes), budget="8GiB", size=50_000, forecaster=law)
    assert (result.variant, result.size, result.chunk) == ("checkpoint", 50_000, None)
    assert len(law.asked) == 3


def test_a_budget_below_the_model_says_what_the_model_needs() -> None:
    with pytest.raises(DoesNotFit) as raised:
        plan(workload(), budget="4GiB", forecaster=affine(5 * GIB, 1000))
    assert raised.value.exit_code == 1
    assert "needs 5.00 GiB at size 1" in raised.value.what
    assert "the budget is 4.00 GiB" in raised.value.what
    assert "Raise --budget by 1.10 GiB or more" in raised.value.hint


def test_weights_beyond_the_budget_are_refused_after_two_runs() -> None:
    class Heavy:
        requests = 0

        def predict(self, *, size: int, **_: Any) -> Forecast:
            self.requests += 1
            parts = {**dict.fromkeys(BREAKDOWN, 0), "weights": 5 * GIB - CONTEXT, "activations": 1000 * size}
            return forecast(5 * GIB + 1000 * size, breakdown=parts)

    heavy = Heavy()
    with pytest.raises(DoesNotFit, match="at size 1"):
        plan(workload(), budget="4GiB", forecaster=heavy)
    assert heavy.requests == 2


def test_the_leanest_variant_is_named_when_none_fits() -> None:
    law = Law(lambda size, variant, chunk: (9 if variant == "eager" else 6) * GIB + size)
    with pytest.raises(DoesNotFit, match=r"needs 6\.00 GiB at size 1 with lean, its leanest variant"):
        plan(workload("eager", "lean"), budget="4GiB", forecaster=law)


def test_a_need_that_falls_with_the_size_is_refused() -> None:
    law = Law(lambda size, variant, chunk: 20 * GIB if size < 5000 else 2 * GIB)
    with pytest.raises(BadInput, match="falls from"):
        plan(workload(), budget="30GiB", forecaster=law)


def _refuse(size: int) -> int:
    raise TargetFailed(f"{size} is no multiple of 7", hint="fix the target")


def test_a_size_that_the_target_refuses_is_named_with_a_hint() -> None:
    def total(size: int, variant: str | None, chunk: int | None) -> int:
        if size % 8:
            raise TargetFailed(f"{size} is no multiple of 8", hint="fix the target")
        return GIB + 100_000 * size

    stopped = plan(workload(), budget="8GiB", variant="eager", forecaster=Law(total))
    assert stopped.size is not None and any(
        "no multiple of 8" in note and "--multiple" in note for note in stopped.notes
    )
    with pytest.raises(TargetFailed, match=r"Predicting eager size .* no multiple of 7") as raised:
        plan(workload(), budget="8GiB", variant="eager", forecaster=Law(lambda size, *_: _refuse(size)))
    assert "--multiple" in raised.value.hint
    result = plan(workload(), budget="8GiB", multiple=8, forecaster=Law(total))
    assert result.size is not None
    assert result.size % 8 == 0
    assert within_one_percent(result.size, (7 * GIB - MARGIN) / 100_000)


def test_a_size_too_slow_to_predict_ends_the_search_with_a_note() -> None:
    def total(size: int, variant: str | None, chunk: int | None) -> int:
        if size > 10**5:
            raise TimedOut("longer than 300 s", hint="raise --timeout")
        return GIB + 100 * size

    result = plan(workload(), budget="24GiB", forecaster=Law(total))
    assert result.size is not None
    assert result.size <= 10**5
    assert any("took too long" in note for note in result.notes)


def test_no_size_above_up_to_is_tried() -> None:
    law = affine(GIB, 100)
    result = plan(workload(), budget="24GiB", up_to="20k", forecaster=law)
    assert result.size == 20_000
    assert max(size for size, _, _ in law.asked) == 20_000


LAWS: dict[str, Callable[[int], float]] = {
    "affine": lambda size: 2 * GIB + 70_000 * size,
    "allocator steps": lambda size: -(-(2 * GIB + 70_000 * size) // (20 * MIB)) * 20 * MIB,
    "a slope that doubles": lambda size: 2 * GIB + 70_000 * (size + max(0, size - 400_000)),
    "a need that jumps": lambda size: 2 * GIB + 70_000 * size * (1 if size < 300_000 else 1.33),
    "quadratic": lambda size: 2 * GIB + 0.2 * size**2,
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("budget", [None, "24GiB"])
def test_the_size_of_every_card_fits_and_is_nearly_exact_with_at_most_eight_more_runs(
    name: str, budget: str | None
) -> None:
    law = Law(lambda size, variant, chunk: int(LAWS[name](size)))
    alone = len(plan(workload(), budget=budget or "b200", forecaster=law).tried)
    law.asked.clear()
    result = plan(workload(), budget=budget, cards="all", forecaster=law)
    known = cards()
    assert [row["card"] for row in result.cards] == list(known)
    assert len(law.asked) - alone <= 8
    for row in result.cards:
        card = known[row["card"]]
        room = card.usable_bytes + CONTEXT - MARGIN
        exact = bisect_right(range(10**8), room, key=lambda size: int(LAWS[name](size))) - 1
        assert row["size"] <= exact, "an interpolated size must fit as well"
        assert row["size"] >= (0.97 if name in ("affine", "allocator steps") else 0.9) * exact
        assert (row["size"] in {size for size, _, _ in law.asked}) == (row["how"] == "predicted")


def test_a_card_too_small_for_the_smallest_size_is_predicted_not_to_fit() -> None:
    result = plan(workload(), cards="all", forecaster=affine(6 * GIB, 1000))
    small = next(row for row in result.cards if row["card"] == "gtx1660")
    assert (small["size"], small["how"]) == (None, "predicted")
    assert any(size == 1 for size in (t["size"] for t in result.tried)), (
        "that the smallest size does not fit was predicted"
    )


def test_a_failed_prediction_for_a_card_is_noted_and_keeps_the_headline() -> None:
    def total(size: int, variant: str | None, chunk: int | None) -> int:
        if size > 500_000:
            raise TargetFailed("only 500k points in the file", hint="use fewer")
        return GIB + 70_000 * size

    result = plan(workload(), budget="24GiB", cards="t4,h200", forecaster=Law(total))
    sizes = {row["card"]: row["size"] for row in result.cards}
    assert result.size is not None
    assert sizes["t4"] < result.size <= sizes["h200"] <= 500_000
    assert any("only 500k points" in note and "Larger cards show" in note for note in result.notes)


def test_named_cards_with_a_budget_keep_the_budget_as_the_headline() -> None:
    result = plan(workload(), budget="24GiB", cards="t4,h200", forecaster=affine(20 * GIB, 1e6))
    assert result.budget_bytes == 24 * GIB
    sizes = {row["card"]: row["size"] for row in result.cards}
    assert sizes["t4"] is None
    assert result.size is not None
    assert sizes["h200"] > result.size


def test_a_plain_factory_is_planned_in_the_mode_its_step_has() -> None:
    modes: list[str | None] = []

    class Factory:
        def predict(self, *, size: int, mode: str | None, **_: Any) -> Forecast:
            modes.append(mode)
            return forecast(GIB + 100_000 * size, mode="infer")

    result = plan(factory, budget="8GiB", forecaster=Factory())
    assert result.mode == "infer"
    assert set(modes) == {None}
    assert result.variant is None
    assert result.target == "factory"


@dataclass
class ScriptLaw:
    """A forecaster of a script: the total is a function of its arguments."""

    total: Callable[[tuple[str, ...]], int]
    asked: list[tuple[str, ...]] = field(default_factory=list)

    def predict(self, *, args: tuple[str, ...], **others: Any) -> Forecast:
        assert others.get("size") is None
        self.asked.append(args)
        return forecast(self.total(args))


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_one_argument_of_a_script_is_varied_and_the_others_are_kept(script: str) -> None:
    law = ScriptLaw(lambda args: GIB + 30 * MIB * int(args[-1].removeprefix("--batch=")))
    made = plan(script, budget="24GiB", vary="--batch={}", args=["--lr", "1e-3"], forecaster=law)
    assert made.size is not None
    assert within_one_percent(made.size, (23 * GIB - MARGIN) / (30 * MIB))
    assert ("--lr", "1e-3", f"--batch={made.size}") in law.asked
    assert len(law.asked) <= 8


def test_a_scripts_separate_argument_is_split_as_a_shell_would(script: str) -> None:
    law = ScriptLaw(lambda args: GIB + GIB * int(args[3]))
    result = plan(script, budget="6GiB", vary="--name 'two words' --batch-size {}", forecaster=law)
    assert result.size == 4
    assert {args[:3] for args in law.asked} == {("--name", "two words", "--batch-size")}


def test_a_script_that_does_not_fit_names_its_arguments(script: str) -> None:
    with pytest.raises(DoesNotFit, match="at --batch-size 1,"):
        plan(script, budget="1GiB", vary="--batch-size {}", forecaster=ScriptLaw(lambda args: 2 * GIB))


def test_a_script_that_runs_out_of_data_is_reported_as_one_that_does_not_grow(script: str) -> None:
    law = ScriptLaw(lambda args: GIB + MIB * min(100, int(args[-1])))
    result = plan(script, budget="24GiB", vary="--batch-size {}", forecaster=law)
    assert any("does not grow" in note and "not a limit" in note for note in result.notes)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "A plan needs a budget or cards"),
        ({"budget": "24"}, "not a number of bytes"),
        ({"budget": "rtx9999"}, "There is no card"),
        ({"budget": 0}, "not a positive number of bytes"),
        ({"budget": "8GiB", "size": "0"}, "not a whole number above 0"),
        ({"budget": "8GiB", "size": "many"}, "not a number of points"),
        ({"budget": "8GiB", "variant": "nope"}, "has no variant 'nope'"),
        ({"budget": "8GiB", "mode": "fly"}, "has no mode 'fly'"),
        ({"budget": "8GiB", "vary": "--batch {}"}, "is not a script"),
        ({"budget": "8GiB", "multiple": 0}, "not a whole number above 0"),
        ({"cards": "rtx9999"}, "There is no card"),
    ],
)
def test_bad_input_is_refused_before_any_run(options: dict[str, Any], what: str) -> None:
    law = affine()
    with pytest.raises(BadInput, match=what) as raised:
        plan(workload(), forecaster=law, **options)
    assert raised.value.hint
    assert law.asked == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "has no size of its own"),
        ({"vary": "--batch-size"}, "no placeholder for the number"),
        ({"vary": "--name 'open {}"}, "cannot be split"),
        ({"vary": "--batch-size {}", "variant": "eager"}, "has no variants"),
    ],
)
def test_bad_input_for_a_script_is_refused(script: str, options: dict[str, Any], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        plan(script, budget="8GiB", forecaster=ScriptLaw(lambda args: GIB), **options)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(BadInput, match="does not exist"):
        plan("absent.py:WORKLOAD", budget="8GiB")


def test_the_record_survives_json_and_has_the_keys_of_the_contract() -> None:
    result = plan(workload("eager", "lean"), budget="24GiB", cards="t4,h200", forecaster=affine())
    assert Plan.from_json(result.to_json()) == result
    assert {
        "kind",
        "schema",
        "target",
        "machine",
        "created",
        "budget_bytes",
        "size",
        "chunk",
        "variant",
        "margin_bytes",
    } <= set(result.to_dict())
    assert result.to_dict()["kind"] == "plan"


WIDTH = Setting("width", "8", pattern=r"\d+")


def test_settings_are_checked_first_and_stored_in_the_plan() -> None:
    law = affine()
    result = plan(workload(settings=(WIDTH,)), budget="8GiB", forecaster=law, settings={"width": "16"})
    assert result.settings == {"width": "16"}
    assert ("settings", "width=16") in result.summary()
    requests = len(law.asked)
    for settings in ({"width": "x"}, {"height": "3"}):
        with pytest.raises(BadInput, match="setting"):
            plan(workload(settings=(WIDTH,)), budget="8GiB", forecaster=law, settings=settings)
    assert len(law.asked) == requests


def test_a_script_has_no_settings(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    with pytest.raises(BadInput, match="is a script and has no settings"):
        plan(str(script), budget="8GiB", vary="--batch {}", settings={"width": "16"}, forecaster=affine())


@pytest.mark.parametrize(
    ("bytes_per_point", "said"),
    [(10, "only by what the variant stores per point"), (40, "declared flat, but its peak grows")],
)
def test_a_flat_variant_may_store_the_bytes_per_point_that_it_declares(
    bytes_per_point: int, said: str
) -> None:
    law = Law(
        lambda size, variant, chunk: int(
            GIB + bytes_per_point * size + 200 * (size if chunk is None else chunk)
        )
    )
    result = plan(
        workload("eager", Variant("flat", flat=True, held_bytes=16), chunked=True),
        budget="8GiB",
        forecaster=law,
    )
    assert any(said in note for note in result.notes if note.startswith("flat:"))


def suited(**options: Any) -> Workload:
    """A flat variant that stores 8 bytes per point and prefers chunks of 100,000."""
    return workload(
        "eager", Variant("flat", flat=True, held_bytes=16, chunk=100_000), chunked=True, **options
    )


SUITED = Law(
    lambda size, variant, chunk: (
        GIB + (4000 * size if variant == "eager" else 8 * size + 200 * (chunk or size))
    )
)


def test_a_preferred_chunk_is_kept_and_the_size_is_the_largest() -> None:
    result = plan(suited(), budget="4GiB", forecaster=SUITED)
    assert (result.variant, result.chunk) == ("flat", 100_000)
    assert within_one_percent(result.size, (3 * GIB - MARGIN - 200 * 100_000) / 8)


def test_for_a_size_smaller_chunks_are_tried_only_if_the_preferred_one_does_not_fit() -> None:
    law = Law(SUITED.total)
    assert plan(suited(), budget="24GiB", size="500M", variant="flat", forecaster=law).chunk == 100_000
    assert law.asked == [(500_000_000, "flat", 100_000)]
    heavy = Law(lambda size, variant, chunk: GIB + 40_000 * (chunk or size))
    result = plan(suited(), budget="4GiB", size="1M", variant="flat", forecaster=heavy)
    assert result.chunk is not None
    assert within_one_percent(result.chunk, (3 * GIB - MARGIN) / 40_000)
    assert all(chunk <= 100_000 for _, _, chunk in heavy.asked)


def test_a_preferred_chunk_that_does_not_fit_is_made_smaller() -> None:
    heavy = Law(lambda size, variant, chunk: GIB + 400_000 * (chunk or size))
    result = plan(suited(), budget="4GiB", variant="flat", forecaster=heavy)
    assert result.chunk is not None
    assert within_one_percent(result.chunk, (3 * GIB - MARGIN) / 400_000)
    assert result.size is not None and result.size > 100_000


def test_every_card_has_its_largest_size_in_preferred_chunks() -> None:
    result = plan(suited(), cards="t4,h200", variant="flat", up_to="100000M", forecaster=SUITED)
    known = cards()
    for row in result.cards:
        card = known[row["card"]]
        exact = (card.usable_bytes + CONTEXT - GIB - MARGIN - 200 * 100_000) / 8
        assert row["chunk"] == 100_000
        assert 0.975 * exact <= row["size"] <= exact


# --- what a forecast cannot know


@dataclass
class Doubtful:
    """A forecaster that cannot say whether sizes above `known_to` fit a budget of 24 GiB."""

    known_to: int
    bytes_per_point: int = 1_000_000

    def predict(self, *, size: int | None = None, variant: str | None = None, **_: Any) -> Forecast:
        assert size is not None
        total = GIB + self.bytes_per_point * size
        within = total + MARGIN <= 24 * GIB
        unknown = size > self.known_to
        return forecast(
            total,
            size=size,
            variant=variant,
            fits={"h200": True if not unknown else None, "b": within and (None if unknown else True)},
            card="b",
            reasons=("an LSTM cell at train.py:3 is not modelled",) if unknown else (),
        )


def test_a_size_whose_forecast_is_unknown_does_not_count_as_fitting() -> None:
    result = plan(workload(), budget="24GiB", forecaster=Doubtful(known_to=0))
    exact = (23 * GIB - MARGIN) / 1_000_000
    assert result.size is None and result.chunk is None
    assert result.possible_size is not None and within_one_percent(result.possible_size, exact)
    assert result.reasons == ("an LSTM cell at train.py:3 is not modelled",)
    assert {row["fits"] for row in result.tried} <= {None, False} and None in {
        row["fits"] for row in result.tried
    }
    assert result.choices[0]["size"] is None and result.choices[0]["why"] == "unknown whether it fits"
    assert Plan.from_json(result.to_json()) == result


def test_the_largest_size_known_to_fit_is_the_answer_beside_the_largest_possible_one() -> None:
    result = plan(workload(), budget="24GiB", forecaster=Doubtful(known_to=5_000))
    assert result.size is not None and 4_700 <= result.size <= 5_000  # 8 runs, each halves the doubt
    assert result.possible_size is not None and result.possible_size > 5_000
    assert result.reasons and any("known to fit" in note for note in result.notes)


def test_a_requested_size_that_is_unknown_is_not_the_answer() -> None:
    result = plan(workload(), budget="24GiB", size=100, forecaster=Doubtful(known_to=0))
    assert (result.size, result.possible_size) == (None, 100)
    assert plan(workload(), budget="24GiB", size=100, forecaster=Doubtful(known_to=100)).size == 100


def test_cards_have_the_largest_size_known_to_fit_and_the_largest_possible_one() -> None:
    result = plan(workload(), budget="24GiB", cards="h200", forecaster=Doubtful(known_to=0))
    (row,) = result.cards
    assert row["size"] is None and row["how"] == "unknown" and row["possible_size"] > 20_000


@dataclass
class Answers:
    """A forecaster that answers for the budget itself, whatever its total is."""

    limit: int
    needs_bytes: int | None = None

    def predict(self, *, size: int | None = None, **_: Any) -> Forecast:
        assert size is not None
        total = GIB + 1_000_000 * size
        return forecast(
            total, size=size, card="b", fits={"b": size <= self.limit}, needs_bytes=total - CONTEXT + GIB
        )


@pytest.mark.parametrize("limit", [20_000, 23_500])
def test_plan_and_predict_agree_on_what_fits(limit: int) -> None:
    """By its total and margin about 22,500 fit; the forecast knows better, in both directions."""
    result = plan(workload(), budget="24GiB", forecaster=Answers(limit))
    assert result.size is not None and 0.985 * limit <= result.size <= limit
    for row in result.tried:
        assert row["fits"] == (row["size"] <= limit)


def test_a_slow_size_leaves_the_answers_of_the_other_cards() -> None:
    def total(size: int, variant: str | None, chunk: int | None) -> int:
        if size > 300_000:
            raise TimedOut("It took longer than 300 s.", hint="Raise --timeout.")
        return GIB + 70_000 * size

    result = plan(workload(), cards="all", forecaster=Law(total))
    sizes = {row["card"]: row["size"] for row in result.cards}
    assert all(sizes.values()) and max(sizes.values()) <= 300_000
    exact = (cards()["t4"].usable_bytes + CONTEXT - GIB - MARGIN) / 70_000
    assert 0.97 * exact <= sizes["t4"] <= exact


def test_every_preliminary_answer_is_reported() -> None:
    preliminary: list[Plan] = []
    law = Law(lambda size, variant, chunk: int(GIB + 70 * size**1.5))
    result = plan(workload(), cards="all", forecaster=law, on_result=preliminary.append)
    assert len(preliminary) >= 3 and not any(one.complete for one in preliminary) and result.complete
    assert all(one.size == result.size for one in preliminary)
    assert len(preliminary[-1].cards) == len(result.cards) > 30


def test_a_script_is_described_by_its_own_argument(script: str) -> None:
    law = ScriptLaw(lambda args: GIB + GIB * int(args[-1].rpartition("=")[2]))
    result = plan(script, budget="6GiB", vary="--name 'a b' --batch-size {}", forecaster=law)
    assert result.axis == "batch size" and ("batch size", "4") in result.summary()
    assert plan(script, budget="6GiB", vary="data.n={}", forecaster=law).axis == "data n"
    assert plan(workload(), budget="8GiB", forecaster=affine()).axis == "points"


def test_what_fits_after_freeing_the_cache_is_found_in_few_runs_and_noted() -> None:
    """The reserved bytes grow with the square of the size, the least ones with the size."""
    asked: list[int] = []

    class Cache:
        def predict(self, *, size: int | None = None, **options: Any) -> Forecast:
            assert size is not None
            asked.append(size)
            reserved, least = size**2, 100_000 * size
            completes = int(least * 1.04) if reserved > 4 * GIB else None
            return forecast(CONTEXT + reserved, needs_bytes=reserved, completes_bytes=completes)

    result = plan(factory, budget="24GiB", forecaster=Cache())
    assert result.size is not None
    assert within_one_percent(result.size, (24 * GIB - CONTEXT) / 1.04 / 100_000)
    assert len(asked) <= 5
    assert result.peak_bytes <= 24 * GIB
    assert any("frees cached blocks" in note for note in result.notes)
