"""The programs of a run: blocks of steps by one optimizer, single steps where no block fits."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("jax", reason="wave functions are JAX's")

from pinchpoint.systems.vmc.optimization import programs
from pinchpoint.systems.vmc.optimization.programs import (
    Programs,
    ProgramStore,
    heaviest,
    program_at,
    programs_from,
)
from pinchpoint.systems.vmc.settings import Settings


def taken(settings: Settings, *, first: int = 0, block: int = 10) -> list[tuple[int, str]]:
    found, step = [], first
    while step < settings.steps:
        found.append(program_at(step, settings, block=block))
        step += found[-1][0]
    assert step == settings.steps
    return found


def test_steps_that_fill_no_block_are_taken_one_by_one() -> None:
    settings = Settings(steps=43, optimizer="spring")
    assert [count for count, _ in taken(settings, first=17)] == [1, 1, 1, 10, 10, 1, 1, 1]


def test_no_program_holds_steps_by_both_optimizers() -> None:
    settings = Settings(steps=40, optimizer="adam+spring", adam_steps=13)
    assert taken(settings) == [
        (10, "adam"),
        *[(1, "adam")] * 3,
        *[(1, "spring")] * 7,
        (10, "spring"),
        (10, "spring"),
    ]
    for cut in (0, 10, 40, 99):
        settings = Settings(steps=40, optimizer="adam+spring", adam_steps=cut)
        assert taken(settings) == [(10, "adam" if at < cut else "spring") for at in range(0, 40, 10)]


@pytest.mark.parametrize("first", range(0, 41, 7))
@pytest.mark.parametrize("cut", [0, 4, 10, 25])
def test_a_run_taken_up_between_two_programs_goes_on_with_those_that_were_left(first: int, cut: int) -> None:
    settings = Settings(steps=43, optimizer="adam+spring", adam_steps=cut)
    whole, at, starts = taken(settings), 0, {}
    for number, (count, _) in enumerate(whole):
        starts[at] = number
        at += count
    if first in starts:
        assert taken(settings, first=first) == whole[starts[first] :]


def test_all_programs_a_run_still_needs_are_named_once() -> None:
    settings = Settings(steps=40, optimizer="adam+spring", adam_steps=13)
    assert programs_from(0, settings, block=10) == [(10, "adam"), (1, "adam"), (1, "spring"), (10, "spring")]
    assert programs_from(20, settings, block=10) == [(10, "spring")]
    assert programs_from(40, settings, block=10) == []
    assert heaviest(programs_from(0, settings, block=10)) == (10, "spring")
    assert heaviest(programs_from(0, Settings(steps=43, optimizer="adam"), block=10)) == (10, "adam")


WAVE: Any = SimpleNamespace(signature="wave")


class Compiled:
    """A compiled program, of which only the life matters."""


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Compiled]]:
    """Compile nothing; return references to the programs in the order of their compilation."""
    references: list[weakref.ref[Compiled]] = []

    def compile_one() -> Compiled:
        references.append(weakref.ref(made := Compiled()))
        return made

    lowered = SimpleNamespace(lower=lambda like: SimpleNamespace(compile=compile_one))
    monkeypatch.setattr(programs, "make_steps", lambda *args, **options: lowered)
    monkeypatch.setattr(programs, "carry_like", lambda wave, settings: ())
    return references


@pytest.mark.parametrize("is_shared", [False, True])
def test_programs_only_tried_out_are_freed_unless_other_runs_share_them(
    compiled: list[weakref.ref[Compiled]], *, is_shared: bool
) -> None:
    tried, chosen = Settings(chunk=None), Settings(chunk=32)
    run = Programs(WAVE, None, lambda report: None, ProgramStore() if is_shared else None)
    with run:
        run.get(tried, (10, "adam"))
        run.get(chosen, (10, "adam"))
        run.keep(chosen)
    assert [reference() is not None for reference in compiled] == [is_shared, True]
    assert run.get(chosen, (10, "adam")) is compiled[1]() and len(compiled) == 2


def test_a_store_keeps_the_programs_of_two_devices_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ProgramStore()

    def on(device: str) -> str:
        monkeypatch.setattr(programs, "device_of", lambda mesh: device)
        return store.get(WAVE, Settings(), ("burn", None), lambda: f"compiled for {device}")

    assert on("cpu") == "compiled for cpu" and on("cuda") == "compiled for cuda"


def test_compilations_that_were_cancelled_or_failed_are_not_stored_any_longer() -> None:
    store, futures = ProgramStore(), {name: Future[str]() for name in ("done", "failed", "pending", "gone")}

    def get(name: str, make: Callable[[], Any]) -> Any:
        return store.get(WAVE, Settings(), name, make)

    for name, future in futures.items():
        get(name, lambda future=future: future)
    get("no future", lambda: "program")
    futures["done"].set_result("program")
    futures["failed"].set_exception(RuntimeError("out of memory"))
    futures["gone"].cancel()
    store.drop_cancelled()
    kept = [name for name in (*futures, "no future") if get(name, lambda: "made again") != "made again"]
    assert kept == ["done", "pending", "no future"]
