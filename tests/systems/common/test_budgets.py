"""Budgets: bytes or a card, and always above 0."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch

from pinchpoint.core.errors import BadInput, DoesNotFit
from pinchpoint.forecasting.cards import card
from pinchpoint.systems.common import budgets
from pinchpoint.systems.common.budgets import as_installed, begin_budget, budget_of, refuse_both


@pytest.mark.parametrize("budget", ["-1", "0", "0.0", "-1GiB", "-.5 GB", "-1e3MiB", " 0GiB ", "0b", 0, -3])
def test_a_budget_that_is_not_above_0_is_refused(budget: str | int) -> None:
    with pytest.raises(BadInput, match=r"a budget must be above 0.") as excinfo:
        budget_of(budget)
    assert str(budget) in excinfo.value.what and "8GiB" in excinfo.value.hint


@pytest.mark.parametrize(
    ("budget", "memory_bytes"), [("0.5GiB", 2**29), ("100b", 100), (7, 7), ("h200:", None), ("10", None)]
)
def test_only_valid_byte_counts_are_accepted(budget: str | int, memory_bytes: int | None) -> None:
    if memory_bytes is not None:
        assert budget_of(budget).memory_bytes == memory_bytes
        return
    with pytest.raises(BadInput, match=r"There is no card|not a number of bytes"):
        budget_of(budget)


@pytest.mark.parametrize(
    ("budget", "capability", "name"),
    [
        ("8GiB", (8, 9), f"{2**33}B like rtx6000ada"),
        ("h100", (8, 0), f"{card('h100').memory_bytes}B like a100-80"),
        ("8GiB", (9, 0), f"{2**33}B"),
        ("rtx4090", (8, 9), "rtx4090"),
        ("8GiB like rtx4090", (8, 9), "8GiB like rtx4090"),
        ("8GiB", (8, 7), f"{2**33}B like a6000"),
    ],
)
def test_kernels_are_those_of_the_installed_gpu(
    budget: str, capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    within = as_installed(budget_of(budget))
    assert within.name == name and within == card(name)
    assert within.memory_bytes == budget_of(budget).memory_bytes
    assert (within.capability == (9, 0)) is (capability == (9, 0))


def test_a_budget_or_a_chunk_alone_is_accepted() -> None:
    refuse_both("8GiB", None)
    refuse_both(None, 64)


@pytest.mark.parametrize("system", ["operator", "density", "radiance"])
def test_a_chunk_beside_a_budget_is_refused_before_the_data_are_read(system: str, tmp_path: Path) -> None:
    train = importlib.import_module(f"pinchpoint.systems.{system}.train").train
    with pytest.raises(BadInput, match="--budget 8GiB cannot be combined with a chunk of 64"):
        train(tmp_path / "no data", tmp_path / "run", budget="8GiB", chunk=64)


def test_a_chunk_beside_a_budget_is_refused_in_predictions_of_an_operator(tmp_path: Path) -> None:
    from pinchpoint.systems.operator.predict import predict

    with pytest.raises(BadInput, match="--budget 8GiB cannot be combined with a chunk of 64"):
        predict(tmp_path / "run", tmp_path / "car.stl", tmp_path / "out.vtp", budget="8GiB", chunk=64)


@pytest.mark.parametrize(
    ("device", "in_use", "enough", "too_little"),
    [
        ("cpu", "This process already uses 300.00 MiB before the first step", "300MiB", "299MiB"),
        ("cuda", "The CUDA context alone takes 751.00 MiB before the first step", "751MiB", "750MiB"),
    ],
)
def test_a_budget_below_what_is_in_use_before_the_first_step_is_refused(
    device: str, in_use: str, enough: str, too_little: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "resident_bytes", lambda: 300 * 2**20)
    begin_budget(None, device, resume=False)
    begin_budget(enough, device, resume=False)
    begin_budget(too_little, device, resume=True)  # it may have no steps left
    with pytest.raises(DoesNotFit, match=rf"{in_use}, but the budget is .* MiB\.") as excinfo:
        begin_budget(too_little, device, resume=False)
    assert f"Raise --budget well above {enough[:-3]}.00 MiB" in excinfo.value.hint
    assert excinfo.value.need_bytes == int(enough[:-3]) * 2**20


def test_more_threads_need_more_memory_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(budgets, "return_freed_memory", lambda: False)
    kept = budgets.cpu_bytes(10 * 2**20, resident_bytes=300 * 2**20)
    assert kept == (300 + 24 + 27) * 2**20  # 2.7 x 10, where malloc keeps what is freed
    monkeypatch.setattr(budgets, "return_freed_memory", lambda: True)
    alone = budgets.cpu_bytes(10 * 2**20, resident_bytes=300 * 2**20)
    assert alone == (300 + 24 + 11.5) * 2**20  # what is resident, what a first step loads, and 1.15 x 10
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert budgets.cpu_bytes(10 * 2**20, resident_bytes=300 * 2**20) == alone + 28 * 2**20
