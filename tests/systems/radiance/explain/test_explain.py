"""explain_memory: verdicts follow from the numbers of real iterations and predicted peaks."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="the iteration is a torch program")

import torch

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.radiance.explain import explain
from pinchpoint.systems.radiance.explain.explain import (
    MemoryReport,
    allowed_error,
    explain_memory,
    gradient_error,
    judge,
)
from pinchpoint.systems.radiance.explain.figure import draw
from pinchpoint.systems.radiance.explain.tricks import CHANGES, EVERY, NAMES, SMALL, TRICKS, Iteration

pytestmark = pytest.mark.usefixtures("quick_workers")
ROOT = Path(__file__).parents[4]
CPU, H200 = (ROOT / "benchmarks" / "results" / f"radiance_explain_{where}.json" for where in ("cpu", "h200"))
CONTRACT = {
    "baseline",
    "amp",
    "checkpoint",
    "deferred",
    "folded",
    "no-grad-sr",
    "no-grad-eval",
    "del-locals",
    "empty-cache",
    "set-to-none",
    "loader",
    "non-blocking",
}
IDLE = ("no-grad-eval", "del-locals", "empty-cache", "set-to-none", "loader", "non-blocking")
HELPING = ("amp", "checkpoint", "deferred", "folded")


def gradients(name: str):  # type: ignore[no-untyped-def]
    ways = next(trick.ways for trick in TRICKS if trick.name == name)
    torch.manual_seed(5)  # draws must not depend on this seed
    # Few points per ray: half precision is slow on many CPUs.
    return Iteration(replace(SMALL, samples=2), ways, device="cpu", seed=1).gradients()


def test_every_parameter_gets_a_gradient_unless_super_resolution_runs_under_no_grad() -> None:
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients("baseline").values())
    without_grad = gradients("no-grad-sr")
    assert all(
        (gradient is None) == (not name.startswith("critic.")) for name, gradient in without_grad.items()
    )


def test_gradients_equal_those_of_the_baseline_up_to_rounding() -> None:
    true = gradients("baseline")
    for name in IDLE:
        assert gradient_error(gradients(name), true) == 0.0, name
    for trick in TRICKS:
        if trick.name in HELPING:
            assert gradient_error(gradients(trick.name), true) <= allowed_error(trick), trick.name
    assert gradient_error(gradients("no-grad-sr"), true) == 1.0
    assert gradient_error(gradients("together"), true) == 1.0


def test_the_gradient_error_is_that_of_the_worst_network() -> None:
    true = {
        "field.a": torch.tensor([3.0, 4.0]),
        "superres.a": torch.tensor([1.0]),
        "critic.a": torch.tensor([2.0]),
    }
    value = {
        "field.a": torch.tensor([3.0, 3.0]),
        "superres.a": torch.tensor([1.0]),
        "critic.a": torch.tensor([2.0]),
    }
    assert gradient_error(value, true) == pytest.approx(0.2)
    assert gradient_error({**value, "superres.a": None}, true) == 1.0
    assert gradient_error({**value, "critic.a": torch.tensor([torch.nan])}, true) != gradient_error(
        value, true
    )


def test_verdicts_follow_fixed_rules() -> None:
    def verdict(peak: int | None, error: float | None = 0.0, *, crashed: bool = False) -> str:
        return judge(peak=peak, baseline=1000, error=error, tolerance=1e-5, crashed=crashed)[0]

    assert [verdict(1000), verdict(971), verdict(1100)] == ["no effect"] * 3
    assert verdict(969) == "helps"
    assert [verdict(500, 1.0), verdict(500, 2e-5), verdict(500, float("nan")), verdict(500, None)] == [
        "wrong"
    ] * 4
    assert [verdict(None), verdict(500, crashed=True)] == ["crashes"] * 2
    other = judge(peak=500, baseline=1000, error=0.7, tolerance=1e-5, crashed=False, changes=True)
    assert other == ("changes training", "the peak changes by -50%, and so does the step")


def test_a_slow_trick_is_timed_once_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(Iteration, "step", lambda self: steps.append(self.ways.form))
    chosen = [trick for trick in TRICKS if trick.name in ("baseline", "folded")]
    now = [0.0]

    def clock() -> float:
        now[0] += 3.0 if steps and steps[-1] == "folded" else 0.5
        return now[0]

    times, _ = explain._time_tricks(chosen, SMALL, "cpu", 0, 3, lambda *text: None, clock)
    assert steps.count("folded") == 1 and len(times["folded"]) == 1
    assert steps.count("eager") == 4 and len(times["baseline"]) == 3, "one more to warm up"


def test_half_precision_that_a_cpu_emulates_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    casts: list[Any] = []

    def of_one(self: Iteration) -> dict[str, Any]:
        casts.append(self.ways.cast)
        return {f"{part}.a": torch.ones(1) for part in explain.PARTS}

    now = [0.0]

    def clock() -> float:
        now[0] += 3.0 if casts and casts[-1] is not None else 0.5
        return now[0]

    monkeypatch.setattr(Iteration, "gradients", of_one)
    chosen = [trick for trick in TRICKS if trick.name in ("baseline", "amp", "folded")]
    errors, crashes, slow = explain._gradient_errors(
        chosen, replace(SMALL, samples=2), "cpu", 0, lambda *text: None, clock
    )
    assert slow == {"amp"} and not crashes and set(errors.values()) == {0.0}


def test_half_of_the_batch_is_half_of_the_images_and_sizes_are_checked() -> None:
    iteration = Iteration(replace(SMALL, batch=5), CHANGES[0].ways, device="cpu")
    assert iteration.scale.batch == 2 and len(next(iteration.real)[0]) == 2
    settings = {"scale": "small", "batch": "3", "patch": "", "samples": "4"}
    case = explain.build(0, device="cpu", mode="train", variant="baseline", seed=0, settings=settings)
    assert case.processed == 3 * 32**2
    assert explain.checked_sizes(batch=4, patch=None, samples=2) == {"batch": 4, "samples": 2}
    for sizes, what in (({"batch": 0}, "--batch is 0"), ({"patch": 48}, "--patch is 48; .* 32, 64, 128")):
        with pytest.raises(BadInput, match=what):
            explain.checked_sizes(**sizes)


def test_the_duration_grows_with_tricks_and_falls_with_cores() -> None:
    every, few = explain.select_tricks(None), explain.select_tricks(["folded"])
    assert [trick.name for trick in few] == ["baseline", "folded"]
    assert explain.expected_s(few, "cpu", cores=2) < explain.expected_s(every, "cpu", cores=2) < 180
    assert explain.expected_s(every, "cpu", cores=16) < explain.expected_s(every, "cpu", cores=2)


def test_a_run_over_some_tricks_writes_its_record_and_figure(tmp_path: Path) -> None:
    result = explain_memory(
        device="cpu",
        output=tmp_path / "e.json",
        figure=tmp_path / "e.png",
        repeats=1,
        only=["no-grad-sr", "del-locals", "folded", "fewer-rays"],
        peaks_at="small",
    )
    assert MemoryReport.from_json((tmp_path / "e.json").read_text()) == result
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    assert {row.trick: row.verdict for row in result.rows} == {
        "baseline": "no effect",
        "no-grad-sr": "wrong",
        "del-locals": "no effect",
        "folded": "helps",
        "fewer-rays": "crashes",
    }
    crashed = result.row("fewer-rays")
    assert crashed.peak_allocated_bytes is None
    assert "16 x 16" in crashed.reason
    # 2 images of 1,024 rays of 8 points; the layers of the field alone store 296 numbers per point (see
    # test_workload).
    assert (result.row("baseline").peak_allocated_bytes or 0) > 16_384 * 4 * 296


def test_the_figure_says_which_trick_is_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = pytest.importorskip("matplotlib.axes", reason="the figure is matplotlib's").Axes
    shipped = MemoryReport.from_json(CPU.read_text(encoding="utf-8"))
    untimed = [
        replace(row, time_s=None, time_ratio=None, time_low=None, time_high=None)
        if row.trick == "amp"
        else row
        for row in shipped.rows
    ]
    words: list[tuple[float, str]] = []
    write = axes.text

    def text(self: Any, x: float, y: float, said: str, **options: Any) -> Any:
        words.append((y, said.strip()))
        return write(self, x, y, said, **options)

    monkeypatch.setattr(axes, "text", text)
    draw(tmp_path / "e.png", replace(shipped, rows=tuple(untimed)))
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    place = [row.trick for row in shipped.rows].index("amp")
    assert [said for y, said in words if y == place] == [f"{untimed[place].peak_ratio:.0%}", "not timed"]
    assert sum(said == "not timed" for _, said in words) == 1


@pytest.mark.parametrize("record", [CPU, H200], ids=["cpu", "h200"])
def test_shipped_records_have_every_trick_with_the_verdict_that_follows_from_its_numbers(
    record: Path,
) -> None:
    result = MemoryReport.from_json(record.read_text(encoding="utf-8"))
    assert tuple(row.trick for row in result.rows)[: len(NAMES)] == NAMES
    assert set(NAMES) >= CONTRACT
    base = result.row("baseline").peak_allocated_bytes
    assert base is not None
    for row, trick in zip(result.rows, EVERY, strict=False):
        has_crashed = row.time_s is None
        verdict, _ = judge(
            peak=row.peak_allocated_bytes,
            baseline=base,
            error=row.gradient_error,
            tolerance=allowed_error(trick),
            crashed=has_crashed,
            changes=trick in CHANGES,
        )
        assert row.verdict == verdict
    assert {name: result.row(name).verdict for name in IDLE} == dict.fromkeys(IDLE, "no effect")
    assert {name: result.row(name).verdict for name in HELPING} == dict.fromkeys(HELPING, "helps")
    assert result.row("no-grad-sr").verdict == "wrong"


def test_in_80_columns_the_table_keeps_every_name_and_verdict() -> None:
    result = MemoryReport.from_json(H200.read_text(encoding="utf-8"))
    columns, rows = result.table(narrow=True)
    assert columns == ["trick", "peak", "of baseline", "times", "gradients off by", "verdict"]
    wide = [max(len(row[at]) for row in (columns, *rows)) for at in range(len(columns))]
    assert sum(wide) + 2 * (len(columns) - 1) <= 80
    whole = result.table()[1]
    assert [(row[0], row[1], row[-1]) for row in rows] == [(row[0], row[1], row[-2]) for row in whole]


def test_the_docs_page_agrees_with_the_record() -> None:
    text = (ROOT / "docs" / "reports" / "radiance.md").read_text(encoding="utf-8")
    result = MemoryReport.from_json(H200.read_text(encoding="utf-8"))
    for row in result.rows:
        line = text.partition(f"| `{row.trick}` | ")[2].partition("\n")[0]
        assert f"| {row.verdict} | {row.said} |" in line
        if row.peak_allocated_bytes is None or row.predicted_bytes is None or row.measured_bytes is None:
            assert row.verdict == "crashes" and line.startswith("- | ")
            continue
        assert row.peak_ratio is not None
        peak = f"{row.peak_allocated_bytes / 2**30:.2f} GiB | {100 * row.peak_ratio:.0f} %"
        off = f"{100 * (row.predicted_bytes / row.measured_bytes - 1):+.1f} %"
        times = f"{row.time_ratio:.2f} [{row.time_low:.2f}, {row.time_high:.2f}]"
        assert line.startswith(f"{peak} | {off} | {times} | {row.gradient_error:.1e} |"), row.trick
    assert f"relative to the {1e3 * (result.row('baseline').time_s or 0):.0f} ms of the baseline" in text
    half, larger = (
        MemoryReport.from_json(
            H200.with_name(f"radiance_explain_{name}_h200.json").read_text(encoding="utf-8")
        )
        for name in ("half_batch", "batch_16")
    )
    row = half.row("half-batch")
    peaks = [(one.peak_allocated_bytes or 0) / 2**30 for one in (row, larger.row("amp"))]
    cells = f"{peaks[0]:.2f} GiB | {100 * (row.peak_ratio or 0):.0f} % | +0.0 % | not timed"
    assert row.predicted_bytes == row.measured_bytes
    line = f"| `{row.trick}` | {cells} | {row.gradient_error:.1e} | {row.verdict} | {row.said} |"
    assert line in text and f"and {peaks[1]:.2f} GiB for 16" in text


def test_peaks_predicted_without_a_gpu_match_those_of_an_h200() -> None:
    """Fifteen of eighteen agree to the byte, as the README says, and all agree within 5 %."""
    alone, card = (MemoryReport.from_json(record.read_text(encoding="utf-8")) for record in (CPU, H200))
    assert alone.device == "cpu" and card.device == "cuda"
    off = [
        row.predicted_bytes / measured - 1
        for row in alone.rows
        if row.predicted_bytes is not None and (measured := card.row(row.trick).measured_bytes)
    ]
    assert (len(off), off.count(0.0)) == (18, 15)
    assert max(abs(one) for one in off) < 0.05


def test_peaks_are_measured_in_parallel_as_far_as_the_card_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, progress = 0, 0, []
    lock, barrier = threading.Lock(), threading.Barrier(2, timeout=600)

    def measure(target: Any, forecast: Any, **_: Any) -> dict[str, int]:
        nonlocal running, most
        with lock:
            running, most = running + 1, max(most, running + 1)
        barrier.wait()  # each call waits for another one, so this times out unless two run in parallel
        with lock:
            running -= 1
        return {"allocated_bytes": forecast.total_bytes - 1}

    monkeypatch.setattr(explain.gpu_measurement, "measure", measure)
    monkeypatch.setattr(explain.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    # room for two of 100 with a fifth to spare, but not for three
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (260, 1000))
    ran = list(TRICKS[:4])
    forecasts = {trick.name: (SimpleNamespace(total_bytes=100 - at), 0) for at, trick in enumerate(ran)}
    value = explain._measure_peaks(ran, forecasts, 0, lambda *text: progress.append(text))
    assert value == {trick.name: 99 - at for at, trick in enumerate(ran)} and most == 2
    assert progress == [("measured peaks", count, 4) for count in (1, 2, 3, 4)]


def test_a_trick_that_runs_out_of_memory_crashes_and_the_others_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def step(self: Iteration) -> Any:
        if self.ways.form == "folded":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nmore")
        return torch.zeros(())

    monkeypatch.setattr(Iteration, "step", step)
    ran = [trick for trick in TRICKS if trick.name in ("baseline", "folded", "bf16")]
    seconds = iter(range(100))
    times, crashes = explain._time_tricks(
        ran, SMALL, "cpu", 0, 2, lambda *text: None, lambda: float(next(seconds))
    )
    assert times == {"baseline": [1.0, 1.0], "bf16": [1.0, 1.0]}
    assert crashes == {"folded": "CUDA out of memory. Tried to allocate 9 GiB"}
    folded = next(trick for trick in TRICKS if trick.name == "folded")
    with pytest.raises(RuntimeError, match="out of memory"):
        explain._time_tricks(
            [replace(folded, name="baseline")], SMALL, "cpu", 0, 1, lambda *text: None, lambda: 0.0
        )


def test_unknown_tricks_no_repeats_and_outputs_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="trick 'magic' is unknown"):
        explain_memory(device="cpu", only=["magic"])
    with pytest.raises(BadInput, match="--repeats is 0"):
        explain_memory(device="cpu", repeats=0)
    with pytest.raises(BadInput, match="folder"):
        explain_memory(device="cpu", output=tmp_path)


@pytest.mark.parametrize(
    ("how", "what", "hint"),
    [
        ({"output": "m.png", "figure": "m.png"}, "both be written to .*m.png", "FILE.json"),
        ({"output": "m.json", "figure": "./folder/../m.json"}, "both be written to .*m.json", "--figure"),
        ({"card": "foo"}, "no card 'foo'", "list cards"),
    ],
)
def test_one_path_for_two_files_and_unknown_cards_are_refused_before_any_work(
    how: dict[str, str], what: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: Any) -> Any:
        raise AssertionError("gradients were computed")

    monkeypatch.setattr(explain, "_gradient_errors", work)
    (tmp_path / "folder").mkdir()
    request: dict[str, Any] = {
        name: value if name == "card" else tmp_path / value for name, value in how.items()
    }
    with pytest.raises(BadInput, match=what) as excinfo:
        explain_memory(device="cpu", **request)
    assert hint in excinfo.value.hint
