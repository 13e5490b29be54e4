"""Method and chunk within a budget: the fastest that fits, by the memory analysis of the compiled step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.core.errors import DoesNotFit
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.systems.common.training.training_loop import Report
from pinchpoint.systems.vmc.evaluate import evaluate
from pinchpoint.systems.vmc.optimization.devices import on
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.budget import device_bytes, fastest_fit, fit
from pinchpoint.systems.vmc.training.runs import read_run

EACH = {"forward": 10, "loop": 2}  # bytes of a walker, on 1,000 that do not depend on them
WALKERS = 96


def need(method: str, chunk: int | None) -> int:
    return 1000 + EACH[method] * (chunk or WALKERS)


def by_hand(budget: int) -> tuple[str, int | None] | None:
    """Every choice, fastest first; the faster method with at least 32 walkers."""
    parts = [part for part in range(WALKERS - 1, 0, -1) if WALKERS % part == 0]
    tried: list[tuple[str, int | None]] = [
        ("forward", None),
        *(("forward", part) for part in parts if part >= 32),
    ]
    tried += [("loop", part) for part in parts]
    return next((choice for choice in tried if need(*choice) <= budget), None)


def test_the_quickest_method_in_the_largest_chunk_that_fits_is_taken_for_every_budget() -> None:
    seen = set()
    for budget in range(1002, 1970, 3):
        found = fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=budget)
        assert (found.method, found.chunk) == by_hand(budget)
        assert found.predicted_bytes == need(found.method, found.chunk) <= budget == found.budget_bytes
        seen.add((found.method, found.chunk))
    assert {("forward", None), ("forward", 48), ("forward", 32), ("loop", 48), ("loop", 1)} <= seen


def test_a_method_or_a_chunk_that_is_asked_for_is_kept() -> None:
    assert fastest_fit(need, methods=("forward",), walkers=WALKERS, budget_bytes=1030).chunk == 3
    found = fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, chunk=48, budget_bytes=1200)
    assert (found.method, found.chunk) == ("loop", 48)
    with pytest.raises(
        DoesNotFit, match=r"A step needs 1\.07 KiB with 48 walkers at a time, but the budget is 1\.03 KiB"
    ) as caught:
        fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, chunk=48, budget_bytes=1050)
    assert caught.value.hint == "Raise --budget by at least 46 B, or give a smaller --chunk."


def test_every_device_has_the_same_share_of_a_chunk() -> None:
    for budget in range(1008, 1200, 7):
        found = fastest_fit(need, methods=("loop",), walkers=WALKERS, devices=4, budget_bytes=budget)
        assert found.chunk is None or found.chunk % 4 == 0


def test_no_more_walkers_go_at_one_time_than_are_quickest() -> None:
    def found(budget: int, **options: Any) -> tuple[str, int | None]:
        made = fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=budget, **options)
        return made.method, made.chunk

    assert found(9999, at_most=40) == ("forward", 32) and found(9999, at_most=96) == ("forward", None)
    assert found(9999, at_most=20) == ("forward", 16)  # where fewer are quicker, fewer than 32 are no loss
    assert found(1319, at_most=40) == ("loop", 32) and found(1003, at_most=40) == ("loop", 1)
    assert found(9999, at_most=40, chunk=48) == ("forward", 48)


def test_why_it_was_chosen_is_told_with_the_numbers() -> None:
    ample = fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=2000)
    assert ample.text() == "forward, all walkers at one time (1.91 KiB of 1.95 KiB)"
    tight = fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=1400)
    assert tight.text() == (
        "forward, 32 walkers at one time "
        "(forward with all walkers at one time needs 1.91 KiB; 1.29 KiB of 1.37 KiB)"
    )
    least = fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=1100)
    assert least.why.startswith("forward needs 1.29 KiB with 32 walkers at one time; ")


def test_a_budget_below_one_walker_is_refused_with_the_numbers(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        DoesNotFit, match=r"A step needs 1,002 B with one walker at a time, but the budget is 500 B"
    ) as caught:
        fastest_fit(need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=500)
    assert (
        caught.value.hint == "Raise --budget by at least 502 B, or give fewer --walkers or a smaller --net."
    )
    monkeypatch.setattr("pinchpoint.systems.common.budgets.resident_bytes", lambda: 0)  # else refused at once
    with pytest.raises(
        DoesNotFit,
        match=r"one walker at a time, including what this process already holds, but the budget is 1\.00 KiB",
    ):
        train("H", tmp_path / "run", budget="1KiB", **{**tiny, "optimizer": "adam"})
    assert not (tmp_path / "run").exists()


def test_where_only_springs_arrays_do_not_fit_adam_is_named() -> None:
    for own, named in ((0, False), (400, False), (502, True), (900, True)):
        with pytest.raises(DoesNotFit) as caught:
            fastest_fit(
                need, methods=("forward", "loop"), walkers=WALKERS, budget_bytes=500, spring_bytes=own
            )
        words = f", or --optimizer adam: SPRING's own arrays take about {own} B."
        assert caught.value.hint.endswith(words) if named else "adam" not in caught.value.hint


class Compiled:
    """The memory analysis of a program with these settings."""

    def __init__(self, settings: Settings) -> None:
        size = need(settings.method, settings.chunk) * 2**20
        self.argument_size_in_bytes, self.output_size_in_bytes, self.alias_size_in_bytes = 0, 0, 0
        self.temp_size_in_bytes = size

    def memory_analysis(self) -> Compiled:
        return self


def test_without_a_budget_the_memory_of_the_device_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from pinchpoint.systems.vmc.training import budget as budgets

    with on("cpu", precision="float32") as host:
        assert (device_bytes(host) or 0) > resident_bytes()
        monkeypatch.setattr(budgets, "fastest_method", lambda coordinates: "forward")
        monkeypatch.setattr(budgets, "resident_bytes", lambda: 0)
        for memory, wanted in ((4000, ("forward", None)), (1490, ("forward", 48)), (1050, ("loop", 24))):
            monkeypatch.setattr(budgets, "device_bytes", lambda host, memory=memory: memory * 2**20)
            found = fit(Settings(walkers=WALKERS), electrons=4, budget=None, host=host, compile_with=Compiled)
            assert (found.method, found.chunk, found.budget_bytes) == (*wanted, memory * 2**20)
        found = fit(Settings(walkers=WALKERS), electrons=10, budget="4GiB", host=host, compile_with=Compiled)
        assert (found.method, found.chunk) == ("forward", 48)  # on a CPU the largest up to 64
        monkeypatch.setattr(budgets, "device_bytes", lambda host: None)
        found = fit(Settings(walkers=WALKERS), electrons=10, budget=None, host=host, compile_with=Compiled)
        assert (found.method, found.chunk, found.predicted_bytes) == ("forward", None, None)


def test_a_run_keeps_what_was_chosen_and_its_record_says_why(
    tiny: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pinchpoint.systems.vmc.training import budget as budgets

    monkeypatch.setattr(
        budgets, "fastest_method", lambda coordinates: "hessian"
    )  # compiled for other tests already
    run, told = tmp_path / "run", {**tiny, "steps": 10, "optimizer": "adam", "method": "auto"}
    said: list[str] = []

    def watch(report: Report) -> None:
        if report.stage == "budget" and report.total:
            said.append(report.note)

    made = train("H", run, budget="100GiB", progress=watch, **told)
    assert (
        made.chunk is None
        and made.budget_bytes == 100 * 2**30
        and 0 < (made.predicted_bytes or 0) < made.budget_bytes
    )
    assert said == [f"laplacian: {made.method}, all walkers at one time ({made.why})"] and made.why.endswith(
        "of 100.00 GiB"
    )
    stored = json.loads((run / "record.json").read_text())
    assert (stored["method"], stored["why"]) == (made.method, made.why)
    assert read_run(run).config.settings.method == made.method != "auto"
    again = train(None, run, device="cpu", resume=True, steps=20)
    assert (again.method, again.chunk, again.why) == (made.method, None, "as the run was started") and len(
        said
    ) == 1
    found = evaluate(run, samples=20, device="cpu")
    assert (found.method, found.chunk, found.why) == (made.method, None, "as in training")
    found = evaluate(run, samples=20, device="cpu", budget="100GiB")
    assert found.budget_bytes == 100 * 2**30 and found.why.endswith("of 100.00 GiB")
