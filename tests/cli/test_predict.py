"""pinchpoint predict on the command line: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.cli.main import run
from pinchpoint.core.errors import TimedOut
from pinchpoint.core.records import Forecast, Inside, Lever, Line, load
from pinchpoint.forecasting.cards import card

FACTORIES = str(Path(__file__).parents[1] / "forecasting" / "factories.py")
KEYS = {
    "kind",
    "schema",
    "target",
    "machine",
    "created",
    "mode",
    "size",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "workspace_bytes",
    "context_bytes",
    "total_bytes",
    "breakdown",
    "lines",
    "fits",
    "low_bytes",
    "high_bytes",
}


@pytest.fixture
def makes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the verb return this Forecast, or raise; returns the recorded arguments."""
    requests: dict[str, object] = {}

    def use(result: Forecast | BaseException) -> dict[str, object]:
        def predict(target: str, **options: object) -> Forecast:
            requests.update(options, target=target)
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr("pinchpoint.forecasting.predict.predict", predict)
        return requests

    return use


@pytest.fixture
def forecast(samples: dict[str, Any]) -> Forecast:
    return replace(samples["forecast"], fits={"rtx4090": False, "h200": True})


def test_without_a_card_the_smallest_that_fits_is_named(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    requests = makes(forecast)
    assert run(["predict", "mine.py:step_of", "--size", "1k"]) == 0
    output = capsys.readouterr().out
    assert requests["size"] == "1k" and requests["card"] is None and requests["steps"] == 2
    assert "smallest card that fits" in output and "h200" in output and "does not fit: rtx4090" in output
    assert "mine.py:12" in output and "y = f(x)" in output
    for part in ("weights", "activations", "workspace"):
        assert part in output


def test_modules_are_printed_under_a_line_that_holds_much_of_the_peak_in_80_columns(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = (
        Inside("Bert.encoder.layer.*.intermediate", 12, 480, True, "zoo/modeling_bert.py", 335, "h = f(h)"),
        Inside("Bert.encoder.layer.*.attention.output.dense.adapter", 2, 20, False, "zoo/bert.py", None),
    )
    line = Line("a/long/path/of/folders/to/train.py", 12, 500, "forward", "y = model(x) + " * 9, inside)
    modules = (
        {"name": "Bert.encoder.layer.*.intermediate", "count": 12, "bytes_each": 40, "bytes": 480},
        {"name": "Bert.head", "count": 1, "bytes_each": 20, "bytes": 20},
    )
    makes(replace(forecast, lines=(line,), modules=modules))
    assert run(["predict", "mine.py"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert "  encoder.layer.*.intermediate  480 B  12 x 40 B  modeling_bert.py:335" in rows
    assert any("  ...output.dense.adapter" in row and "2 x ~10 B" in row for row in rows)
    assert "encoder.layer.*.intermediate 480 B 48% 12 x 40 B" in [" ".join(row.split()) for row in rows]
    assert max(map(len, rows)) <= 80


def test_modules_that_hold_next_to_nothing_have_no_table(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    modules = tuple({"name": name, "count": 1, "bytes_each": 1, "bytes": 1} for name in ("A.b", "A.c"))
    makes(replace(forecast, modules=modules))
    assert run(["predict", "mine.py"]) == 0
    assert "module" not in capsys.readouterr().out


def test_a_card_that_is_too_small_exits_1_with_levers(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    tight = replace(forecast, card="rtx4090", levers=(Lever("bf16", 300, "run in bf16; predicted"),))
    makes(tight)
    assert run(["predict", "mine.py:step_of", "--size", "1k", "--card", "rtx4090"]) == 1
    output = capsys.readouterr().out
    assert "300 B" in output
    # What to change comes before every other number.
    assert output.startswith("does not fit rtx4090") and output.index("bf16") < output.index("peak allocated")
    makes(replace(tight, fits={"rtx4090": True}, levers=()))
    assert run(["predict", "mine.py:step_of", "--size", "1k", "--card", "rtx4090"]) == 0


def test_a_card_that_fits_only_without_cached_blocks_is_said_to(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    usable = card("rtx4090").usable_bytes
    for over, says in (
        (0, "it needs at most 23.50 GiB of 23.50 GiB, margin included"),
        (1, "if the allocator frees cached blocks"),
    ):
        needs = usable + over
        makes(replace(forecast, card="rtx4090", fits={"rtx4090": True}, needs_bytes=needs))
        assert run(["predict", "x.py", "--card", "rtx4090"]) == 0
        assert says in " ".join(capsys.readouterr().out.split())


def test_measured_bytes_are_printed_beside_the_predicted_ones(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    makes(replace(forecast, measured={"allocated_bytes": 990, "reserved_bytes": 2048, "total_bytes": 2600}))
    assert run(["predict", "mine.py:step_of", "--size", "1k", "--measure"]) == 0
    output = capsys.readouterr().out
    assert "+1.01%" in output and "+0.00%" in output and "-2.00%" in output


def test_a_time_limit_exits_2_with_a_hint(makes: Any, capsys: pytest.CaptureFixture) -> None:
    makes(TimedOut("it took longer than 1 s", hint="give more with --timeout"))
    assert run(["predict", "field", "--size", "1k", "--timeout", "1"]) == 2
    assert "give more with --timeout" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    requests = makes(forecast)
    for output in (tmp_path / "nowhere" / "f.json", tmp_path, Path("/proc/f.json")):
        assert run(["predict", "field", "--size", "1k", "-o", str(output)]) == 2
        assert "Cannot write" in capsys.readouterr().err
    assert requests == {} and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["no-such-workload", "--size", "1k"], "There is no target"),
        (["field"], "needs a size"),
        (["field", "--size", "0"], "size"),
        (["field", "--size", "-4"], "size"),
        (["field", "--size", "many"], "size"),
        (["field", "--size", "1k", "--mode", "dream"], "There is no mode"),
        (["field", "--size", "1k", "--card", "gpu9"], "There is no card"),
        (["field", "--size", "1k", "--chunk", "few"], "size"),
        (["no_such_script.py"], "does not exist"),
    ],
)
def test_bad_input_exits_2_with_an_error_and_a_hint(
    args: list[str], what: str, capsys: pytest.CaptureFixture
) -> None:
    assert run(["predict", *args]) == 2
    output = capsys.readouterr()
    assert what in output.err and output.out == ""


def test_a_real_prediction_writes_its_record_and_says_whether_the_card_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("torch", reason="the fake run needs torch")
    output = tmp_path / "f.json"
    target = f"{FACTORIES}:WORKLOAD"
    assert run(["predict", target, "--size", "1M", "--card", "6GiB", "-o", str(output), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(output.read_text(encoding="utf-8"))
    assert set(printed) >= KEYS and printed["kind"] == "forecast" and printed["fits"]["6GiB"] is False
    assert {lever["name"] for lever in printed["levers"]} >= {"bf16", "chunk", "accumulation"}
    assert sum(printed["breakdown"].values()) == printed["peak_allocated_bytes"]
    result = load(output)
    assert isinstance(result, Forecast) and result.size == 1_000_000
    assert [path.name for path in tmp_path.iterdir()] == ["f.json"]


@pytest.mark.slow
def test_measuring_without_a_gpu_exits_3_before_anything_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def predicting(*_: Any, **__: Any) -> None:
        raise AssertionError("a forecast was started")

    monkeypatch.setattr("pinchpoint.forecasting.predict.Forecaster", predicting)
    monkeypatch.setattr("pinchpoint.forecasting.gpu_measurement._DEVICE_FILES", (str(tmp_path / "none"),))
    assert run(["predict", f"{FACTORIES}:infer", "--size", "100", "--measure"]) == 3
    assert "No CUDA device" in capsys.readouterr().err
    script = tmp_path / "train.py"
    script.write_text("import torch\n", encoding="utf-8")
    assert run(["predict", str(script), "--measure"]) == 2
    assert "would train for real" in capsys.readouterr().err


def test_settings_are_passed_on_and_shown(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    requests = makes(replace(forecast, settings={"mlp": "64,64", "part": "full"}))
    assert run(["predict", "operator", "--size", "1k", "--set", "mlp=64,64", "--set", "part=full"]) == 0
    assert requests["settings"] == {"mlp": ("64,64",), "part": ("full",)}
    assert "mlp=64,64 part=full" in capsys.readouterr().out


def test_a_setting_without_an_equals_sign_is_bad_input(
    makes: Any, forecast: Forecast, capsys: pytest.CaptureFixture
) -> None:
    makes(forecast)
    assert run(["predict", "operator", "--size", "1k", "--set", "mlp"]) == 2
    assert capsys.readouterr().err.splitlines()[-2] == "error: --set 'mlp' does not have the form KEY=VALUE."


@pytest.mark.usefixtures("quick_workers")
def test_a_chunk_changes_the_forecast_of_a_variant_that_supports_chunks(capsys) -> None:
    pytest.importorskip("torch", reason="the field is a torch workload")
    peaks = []
    for chunk in ("500", "1k"):
        arguments = ["field", "--size", "2k", "--variant", "chunked", "--chunk", chunk, "--json"]
        assert run(["predict", *arguments]) == 0
        peaks.append(json.loads(capsys.readouterr().out)["peak_allocated_bytes"])
    assert peaks[0] < peaks[1]


@pytest.mark.usefixtures("quick_workers")
def test_a_chunk_is_refused_by_a_variant_that_would_ignore_it(capsys) -> None:
    pytest.importorskip("torch", reason="the field is a torch workload")
    assert run(["predict", "field", "--size", "1k", "--chunk", "10"]) == 2
    error = capsys.readouterr().err
    assert "The variant 'eager' of field does not support chunking." in error
    assert "--variant (chunked)" in error


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    path.write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4, **sizes}))
    return path


def test_the_script_of_a_model_is_printed_or_its_path(
    makes: Any, forecast: Forecast, config: Path, capsys: pytest.CaptureFixture
) -> None:
    makes(forecast)
    assert run(["predict", "--model", str(config), "--task", "generate", "--batch", "3"]) == 0
    out = capsys.readouterr().out
    assert 'parser.add_argument("--batch", type=int, default=3)' in out and "model.generate(" in out
    assert run(["predict", "--model", str(config), "--script", "serve.py"]) == 0
    out = capsys.readouterr()
    assert "loss.backward()" not in out.out and "the script is in serve.py" in out.out + out.err
    assert run(["predict"]) == run(["predict", "script.py", "--batch", "3"]) == 2


@pytest.mark.usefixtures("quick_workers")
def test_a_model_without_a_script_has_a_forecast(config: Path, capsys: pytest.CaptureFixture) -> None:
    pytest.importorskip("transformers")
    options = ["--task", "pretrain", "--batch", "2", "--sequence", "32", "--precision", "fp32", "--json"]
    assert run(["predict", "--model", str(config), *options]) == 0
    forecast = json.loads(capsys.readouterr().out)
    # Two embeddings of 512 x 64, two layers of 4 x 64 x 64 + 3 x 64 x 128 + 2 x 64, and a norm, in fp32;
    # the allocator rounds each of them to 512 B.
    weights = 4 * (2 * 512 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 128 + 2 * 64) + 64)
    assert weights <= forecast["breakdown"]["weights"] <= 1.02 * weights
    assert 2 * weights <= forecast["breakdown"]["optimizer"] <= 2.04 * weights
    assert forecast["target"].endswith("config.json (pretrain)") and forecast["mode"] == "train"
