"""The benchmark of a field's step: counts of operations, whole steps, and verdicts on the bars."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from pinchpoint.core.units import GIB  # noqa: E402
from pinchpoint.systems.radiance.model.config import FieldConfig  # noqa: E402
from pinchpoint.systems.radiance.training.budget import build  # noqa: E402

FOLDER = Path(__file__).parents[2] / "benchmarks" / "radiance"
aten = torch.ops.aten
# Products of the folded field that torch's counter does not include.
MORE = {
    aten._addmm_activation: lambda bias, a, b, *_, **__: 2 * a[0] * a[1] * b[1],
    aten.baddbmm_: lambda out, a, b, *_, **__: 2 * a[0] * a[1] * a[2] * b[2],
}


def load_script() -> ModuleType:
    return importlib.import_module("field")


def arguments() -> argparse.Namespace:
    inputs = {
        "preset": "tiny",
        "batch": 2,
        "side": 4,
        "samples": 8,
        "budget": "1GiB",
        "card": "h200",
        "repeats": 1,
    }
    return argparse.Namespace(**inputs, device="cpu", output=Path("unused"))


@pytest.mark.parametrize(("form", "largest_ratio"), [("eager", 1.0), ("folded", 1.06)])
def test_the_operations_equal_those_counted_by_torch_without_the_padding_of_folding(
    form: str, largest_ratio: float
) -> None:
    config = FieldConfig.preset("graf")
    settings = {
        "config": config.to_json(),
        "batch": "2",
        "samples": "32",
        "form": form,
        "precision": "fp32",
        "features": "no",
    }
    case = build(32, device="cpu", mode="train", variant="none", seed=0, settings=settings)
    with FlopCounterMode(display=False, custom_mapping=MORE) as counter:
        case.step()
    ratio = counter.get_total_flops() / load_script().operations(config, 32 * 32, form)
    # Layers of directions and codes, which folding applies to rays and images, do not count per point.
    assert 1.0 <= ratio <= largest_ratio + 1e-12 if form == "folded" else ratio == pytest.approx(1.0)


def test_a_step_of_the_published_size_has_the_stated_number_of_operations() -> None:
    value = {
        form: load_script().operations(FieldConfig.preset("graf"), 2**19, form) / 1e12
        for form in ("eager", "folded")
    }
    assert value == pytest.approx({"eager": 2.83, "folded": 2.20}, rel=0.02)


def test_every_chunk_of_a_timed_step_is_rendered_and_the_loss_equals_that_without_chunks() -> None:
    field = load_script()
    bench = field.Bench(arguments(), "cpu")
    losses = {}
    for memory, chunk in (("none", None), ("checkpoint", 2), ("deferred", 2)):
        torch.manual_seed(0)  # determines the codes
        losses[memory] = float(bench.step(field.Strategy("folded", "fp32", memory, chunk))())
    assert losses["checkpoint"] == pytest.approx(losses["none"], rel=1e-6)
    assert losses["deferred"] == pytest.approx(losses["none"], rel=1e-6)
    settings = bench.build_settings(field.Strategy("folded", "fp32"), walked="some")
    torch.manual_seed(0)
    partial_loss = build(
        bench.rays, device="cpu", mode="train", variant="none", seed=0, settings=settings, chunk=2
    ).step()
    assert float(partial_loss) != pytest.approx(losses["none"], rel=1e-6), (
        "three of sixteen chunks give a different image"
    )


def row(name: str, seconds: float, *, over: Any, peak: int, off: float) -> dict[str, Any]:
    return {
        "row": name,
        "seconds": seconds,
        "low_s": 0.99 * seconds,
        "high_s": 1.01 * seconds,
        "over_folded_bf16": over,
        "replayed": {"over_folded_bf16": over},
        "measured_bytes": peak,
        "predicted_off": off,
    }


def test_a_bar_is_held_or_missed_by_the_whole_interval_and_open_otherwise() -> None:
    field = load_script()

    def value(seconds: float, over: Any, peak: int, off: float) -> list[str]:
        rows = [
            row("folded bf16", seconds, over=(1, 1, 1), peak=3 * GIB, off=-0.06),
            row("folded bf16 checkpoint", 1.0, over=over, peak=peak, off=off),
        ]
        return [bar["verdict"] for bar in field.verdicts(rows)]

    assert value(0.010, (1.3, 1.2, 1.35), GIB, -0.05) == ["held"] * 5 + ["missed"]
    assert value(0.015, (1.3, 1.2, 1.36), GIB + 1, 0.051) == ["open"] * 3 + ["missed"] * 3
    assert value(0.016, (1.4, 1.36, 1.5), 1, 0.0)[:3] == ["missed"] * 3


def test_a_small_run_on_a_cpu_writes_every_row_and_judges_no_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    field, path = load_script(), tmp_path / "field.json"
    peak = {"predicted_bytes": 1, "measured_bytes": None, "predicted_off": None}
    monkeypatch.setattr(field.Bench, "peaks", lambda self, strategy: (strategy, peak))
    timed = {"seconds": 1e-3, "over_folded_bf16": (1.0, 0.9, 1.1)}
    monkeypatch.setattr(
        field.Bench,
        "row",
        lambda self, strategy, peak, _: {"row": strategy.name, "chunk": None, **timed, **peak},
    )
    iteration = {"seconds": 1.0, "steps_per_s": 1.0, "discriminators_s": 0.5, "generator_s": 0.4}
    monkeypatch.setattr(field.Bench, "iteration", lambda self: iteration)
    settings = {
        "device": "cpu",
        "preset": "tiny",
        "batch": 2,
        "side": 4,
        "samples": 4,
        "repeats": 1,
        "output": path,
    }
    monkeypatch.setattr(
        field.sys, "argv", ["field.py", *(f"--{name}={value}" for name, value in settings.items())]
    )
    assert field.main() == 0
    record = json.loads(path.read_text())
    assert [row_record["row"] for row_record in record["rows"]] == [
        strategy.name for strategy in field.STRATEGIES if strategy.precision != "tf32"
    ]
    assert all(
        row_record["seconds"] == 1e-3 and row_record["predicted_bytes"] == 1 for row_record in record["rows"]
    )
    assert record["iteration"] == iteration
    assert record["verdicts"] == [] and record["floor_s"] > 0 and record["machine"]["python"]
    monkeypatch.setattr(
        field.sys, "argv", ["field.py", "--device", "cpu", "-o", str(tmp_path / "no" / "such" / "f.json")]
    )
    assert field.main() == 2


def test_a_budget_in_gibibytes_chooses_the_chunk_that_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    field = load_script()
    options_used: dict[str, Any] = {}

    def chunk_for(config: Any, **options: Any) -> Any:
        options_used.update(options)
        return argparse.Namespace(chunk=6)

    monkeypatch.setattr(field, "chunk_for", chunk_for)
    bench = field.Bench(arguments(), "cpu")
    strategy, peak = bench.peaks(field.Strategy("folded", "bf16", "checkpoint"))
    assert strategy.chunk == 6 and peak["predicted_bytes"] > 0 and peak["measured_bytes"] is None
    assert (
        options_used["counted"] == "allocated"
        and options_used["budget"] == "1GiB"
        and options_used["rays"] == 16
    )
