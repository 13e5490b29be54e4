"""The worker runs the cases that its record lacks, and one failing case does not lose the others."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.bench.cases import BenchCase, Contender, Contest, Setup
from pinchpoint.systems.common.bench.records import Bench
from pinchpoint.systems.common.bench.worker import Request, bench_system, main

pytest.importorskip("torch", reason="the system is torch's")
CALLS: list[str] = []


def contest(setup: Setup) -> Contest:
    CALLS.append("built")
    return Contest(
        [Contender("base", lambda: lambda: None, "baseline"), Contender("other", lambda: lambda: None)]
    )


def failing(setup: Setup) -> Contest:
    CALLS.append("failed")
    raise ValueError("a wrong\n  shape")


@pytest.fixture(autouse=True)
def small_system(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    module: Any = ModuleType("bench")
    module.cases = lambda: (
        BenchCase("bad", "fails", "", "points", {"tiny": 3}, failing),
        BenchCase("good", "works", "", "points", {"tiny": 3, "small": 5}, contest),
        BenchCase("large", "has no tiny size", "", "points", {"report": 9}, failing),
    )
    monkeypatch.setitem(sys.modules, "pinchpoint.systems.operator.bench", module)


def request(folder: Path, **options: Any) -> Request:
    return Request("operator", str(folder), device="cpu", sizes="tiny", repeats=3, **options)


def test_a_failing_case_is_recorded_and_run_again_and_a_finished_one_is_not(tmp_path: Path) -> None:
    lines: list[str] = []
    bench = bench_system(request(tmp_path, command="pinchpoint bench"), tell=lines.append)
    assert [one.case for one in bench.comparisons] == ["bad", "good"] and CALLS == ["failed", "built"]
    bad, good = bench.comparisons
    assert bad.failure == "ValueError: a wrong shape" and not bad.rows
    assert [row.name for row in good.rows] == ["base", "other"] and good.command == "pinchpoint bench"
    assert good.machine["versions"] and good.size == 3
    again = bench_system(request(tmp_path), tell=lines.append)
    assert CALLS == ["failed", "built", "failed"] and again.case("good") == good
    assert any("good: already in" in line for line in lines)
    assert Bench.from_json((tmp_path / "operator.json").read_text()) == again


def test_cases_are_chosen_by_name(tmp_path: Path) -> None:
    bench = bench_system(request(tmp_path, cases=("good",)))
    assert [one.case for one in bench.comparisons] == ["good"]
    with pytest.raises(BadInput, match="operator has no case 'god'") as caught:
        bench_system(request(tmp_path, cases=("god",)))
    assert caught.value.hint == "Use one of: bad, good, large."


def test_other_sizes_need_another_folder(tmp_path: Path) -> None:
    bench_system(request(tmp_path, cases=("good",)))
    with pytest.raises(BadInput, match="holds tiny sizes on cpu, not small sizes on cpu"):
        bench_system(Request("operator", str(tmp_path), device="cpu", sizes="small"))
    (tmp_path / "operator.json").write_text("{}")
    with pytest.raises(BadInput, match="is not a record"):
        bench_system(request(tmp_path))


def test_the_process_exits_with_1_if_a_case_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(request(tmp_path).to_json()) == 1
    assert main(request(tmp_path, cases=("good",)).to_json()) == 1, "the record still holds the failure"
    (tmp_path / "new").mkdir()
    assert main(request(tmp_path / "new", cases=("good",)).to_json()) == 0
    assert "operator: bad: failed: ValueError" in capsys.readouterr().err
