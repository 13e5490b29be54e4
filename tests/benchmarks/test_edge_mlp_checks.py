"""The check of edge MLPs on a GPU: the networks, what becomes of a failed one, and the table it writes."""

from __future__ import annotations

import importlib
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

FOLDER = Path(__file__).parents[2] / "benchmarks" / "kit"


def row(widths: list[int], activation: str = "GELU", dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    return {"widths": widths, "activation": activation, "dtype": dtype, "bias": True, "ok": True, **more}


def test_every_width_has_every_number_of_layers_and_every_activation() -> None:
    jobs = importlib.import_module("edge_mlp_checks").networks()
    for dtype, width, layers in product(("bfloat16", "float32", "float16"), (16, 32, 64, 128), (1, 2, 3, 4)):
        any_such = any(job["dtype"] == dtype and job["widths"][1:-1] == [width] * layers for job in jobs)
        assert any_such is (
            (dtype, width, layers) != ("float32", 128, 4)
        )  # which has the kernels of wide MLPs
    for dtype, width in product(("bfloat16", "float32"), (16, 32, 64, 128)):
        own = [job for job in jobs if job["dtype"] == dtype and job["widths"][1] == width]
        assert len({job["activation"] for job in own}) == 5
        assert {(job["widths"][0], job["widths"][-1]) for job in own} >= {(6, 16), (22, 16), (63, 64)}
    assert len({json.dumps(job) for job in jobs}) == len(jobs)
    large = [63, 128, 128, 128, 128, 64]
    assert [job["dtype"] for job in jobs if job["widths"] == large] == ["bfloat16"]  # wide in float32


def test_the_table_has_the_networks_that_passed() -> None:
    script = importlib.import_module("edge_mlp_checks")
    rows = [
        row([6, 64, 64, 16]),
        row([22, 50, 64, 16], "SiLU"),
        row([6, 64, 64, 64, 16], "Tanh", ok=False),  # wrong values
        row([6, 64, 16], "Tanh"),
        row([6, 128, 128, 16], "SiLU", ok=False, problem="out of shared memory"),
        row([6, 128, 128, 16], "GELU"),  # the same shape
        row([3, 16, 1], "ReLU", "float32", bias=False),
    ]
    slow = {
        "hidden": "64,64",
        "transform": "linear",
        "precision": "bf16",
        "weights": "mean",
        "eager_over_flat": 0.8,
        "ratio_high": 0.95,
        "way": "tiles",
    }
    sweep = [
        slow,
        {**slow, "eager_over_flat": 0.5, "way": "layers"},  # not by the kernels
        {**slow, "hidden": "64", "eager_over_flat": 0.98, "ratio_high": 1.01},  # or not slower
        {**slow, "hidden": "16", "precision": "fp32", "eager_over_flat": 1.4, "ratio_high": 1.5},
        {
            **slow,
            "hidden": "64",
            "transform": "nonlinear",
            "channels": 32,
            "precision": "fp32",
            "eager_over_flat": 0.9,
        },
    ]
    names: dict[str, Any] = {}
    exec(script.table(rows, sweep), names)
    assert names["NETWORKS"] == {
        "bfloat16": {(64, 1, 16, 16): ("Tanh",), (64, 2, 16, 16): ("GELU",), (64, 2, 32, 16): ("SiLU",)},
        "float32": {(16, 1, 16, 16): ("ReLU without bias",)},
    }
    assert names["SLOWER"] == {"bfloat16": {(64, 2, 16, 16): 1.25}, "float32": {(64, 1, 64, 32): 1.11}}


def test_other_gpus_have_what_fits_and_is_right_as_compiled_for_them() -> None:
    script = importlib.import_module("edge_mlp_checks")
    ends = ([6, 16], [22, 16], [63, 64])

    def compiled(hidden: list[int], capability: str, fits: tuple[bool, ...]) -> list[dict[str, Any]]:
        widths = [[below, *hidden, above] for below, above in ends]
        return [row(own, capability=capability, fits=fit) for own, fit in zip(widths, fits, strict=False)]

    record = [
        *compiled([64, 64], "8.0", (True, True, True)),
        *compiled([64, 64], "8.9", (True, True, False)),
        *compiled([64, 64], "8.6", (True, True, True)),  # uses those of 8.9
        *compiled([128], "8.0", (True, False, True)),  # what is between does not fit
        *compiled([128], "8.9", (False, False, False)),
        *compiled([256, 256], "8.0", (True, True)),
        *compiled([32], "9.0", (True, True, True)),
    ]
    rows = [
        row([22, 256, 256, 16], compiled_for="8.0", ok=False),
        row([6, 256, 256, 16], compiled_for="8.0"),
        row([6, 32, 16], "SiLU"),
    ]
    names: dict[str, Any] = {}
    exec(script.table(rows, [], record=record), names)
    assert names["COMPILED"] == {
        (8, 0): {"bfloat16": {(64, 2): (64, 64), (128, 1): (16, 16), (256, 2): (16, 16)}},
        (8, 9): {"bfloat16": {(64, 2): (32, 16)}},
    }
    assert names["NETWORKS"] == {"bfloat16": {(32, 1, 16, 16): ("SiLU",)}}
    exec(script.table(rows, []), names)
    assert names["COMPILED"] == script.tested.COMPILED


def test_the_docs_have_what_fits_other_gpus() -> None:
    compiled = importlib.import_module("edge_mlp_checks").tested.COMPILED
    docs = (FOLDER.parents[1] / "docs" / "toolkit" / "kit.md").read_text()
    groups = [("1 to 4, widest up to 64", list(product((16, 32, 64), (1, 2, 3, 4))))]
    groups += [(f"{layers}, widest 65 to 128", [(128, layers)]) for layers in (1, 2, 3, 4)]
    groups += [("1, widest 129 to 256", [(256, 1)])]
    groups += [("2 to 4, widest 129 to 256", [(256, layers) for layers in (2, 3, 4)])]
    for name, shapes in groups:
        cells = []
        for capability, dtype in product(((8, 0), (8, 9)), ("bfloat16", "float32")):
            (most,) = {compiled[capability][dtype].get(shape) for shape in shapes}
            cells.append("none" if most is None else f"{most[0] - 1}, {most[1]}")
        assert f"| {name} | {' | '.join(cells)} |\n" in docs


def test_networks_for_other_gpus_have_one_activation_for_each_shape() -> None:
    script = importlib.import_module("edge_mlp_checks")
    jobs = script.compiled_networks((8, 0))
    shapes = [(job["dtype"], script._shape(job)) for job in jobs]
    assert len(set(shapes)) == len(shapes)
    assert {job["compiled_for"] for job in jobs} == {"8.0"}
    assert ("bfloat16", (256, 3, 32, 16)) in shapes and ("bfloat16", (256, 3, 64, 64)) not in shapes
    assert set(script.ACTIVATIONS) == {job["activation"] for job in jobs}
    assert len(script.compiled_networks((8, 9))) < len(jobs)


def test_networks_that_were_not_checked_again_stay_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("edge_mlp_checks")
    own = {(64, 2, 16, 16): ("GELU",), (64, 3, 16, 16): ("SiLU",), (128, 2, 16, 16): ("GELU",)}
    monkeypatch.setattr(script.tested, "NETWORKS", {"bfloat16": own})
    rows = [
        row([6, 64, 64, 16], "Tanh"),
        row([6, 64, 64, 64, 16], "SiLU", ok=False),
        row([6, 32, 16], dtype="float32"),
    ]
    names: dict[str, Any] = {}
    exec(script.table(rows, [], add=True), names)
    assert names["NETWORKS"] == {
        "bfloat16": {(64, 2, 16, 16): ("GELU", "Tanh"), (128, 2, 16, 16): ("GELU",)},
        "float32": {(32, 1, 16, 16): ("GELU",)},
    }


def test_wide_networks_that_are_slower_than_eager_are_named() -> None:
    script = importlib.import_module("edge_mlp_checks")
    wide = {
        "hidden": "256,200",
        "transform": "linear",
        "precision": "fp32",
        "weights": "mean",
        "eager_over_flat": 0.8,
        "ratio_high": 0.95,
        "way": "wide",
    }
    sweep = [
        wide,
        {**wide, "eager_over_flat": 0.9},
        {**wide, "eager_over_flat": 0.5, "way": "layers"},  # not by the kernels
        {**wide, "eager_over_flat": 0.5, "weights": "max"},
        {**wide, "hidden": "256", "way": "tiles", "eager_over_flat": 0.5, "channels": 64},
    ]
    names: dict[str, Any] = {}
    exec(script.table([], sweep), names)
    assert names["SLOWER"] == {"float32": {(256, 2, 16, 16): 1.25, (256, 1, 16, 64): 2.0}}


def test_the_docs_have_the_times_of_the_record() -> None:
    script = importlib.import_module("edge_mlp")
    times = script.show(FOLDER.parents[1] / "benchmarks" / "results" / "edge_mlp_h200.json")
    assert times in (FOLDER.parents[1] / "docs" / "toolkit" / "kit.md").read_text()


def test_forecasts_stand_beside_the_same_steps_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("edge_mlp")
    rows = [{**script.Case(hidden)._asdict(), "precision": "bf16"} for hidden in ("64,64", "32")]
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"runs": [{"rows": []}, {"rows": rows}]}))
    script.add_peaks(record, "train_peak_bytes", lambda case, precision: 1000 * len(case.hidden), 2)
    script.add_peaks(record, "train_forecast_bytes", lambda case, precision: 1010 * len(case.hidden), 1)
    assert json.loads(record.read_text())["runs"][-1]["rows"] == [
        {**row, "train_peak_bytes": 1000 * count, "train_forecast_bytes": 1010 * count}
        for row, count in zip(rows, (5, 2), strict=True)
    ]
    assert capsys.readouterr().out.splitlines() == [
        "64,64 GELU linear mean 16 bf16: 5,000 B",
        "32 GELU linear mean 16 bf16: 2,000 B",
        "64,64 GELU linear mean 16 bf16: 5,050 B (+1.00%)",
        "32 GELU linear mean 16 bf16: 2,020 B (+1.00%)",
    ]


def test_forecasts_in_the_records_are_right() -> None:
    """To 4 KiB, but for one graph whose chunks end elsewhere, as its random numbers are those of the CPU."""
    folder = FOLDER.parents[1] / "benchmarks" / "results"
    for name in ("edge_mlp_h200.json", "edge_mlp_more_h200.json"):
        rows = json.loads((folder / name).read_text())["runs"][-1]["rows"]
        differences = sorted(abs(row["train_forecast_bytes"] - row["train_peak_bytes"]) for row in rows)
        assert differences[-2] <= 4096 and differences[-1] < 600_000 and len(differences) > 40


def test_a_record_is_shown_as_a_table(tmp_path: Path) -> None:
    def timed(ms: float, mib: int, **more: str) -> dict[str, Any]:
        names = {"hidden": "64,64", "activation": "GELU", "transform": "linear", "weights": "mean"}
        peaks = {"eager_peak_bytes": 2000 * 2**20, "flat_peak_bytes": mib * 2**20}
        times = {"eager_s": 4e-3, "flat_s": ms * 1e-3, "eager_over_flat": 4 / ms}
        return {**names, "precision": "bf16", **times, **peaks, **more}

    script = importlib.import_module("edge_mlp")
    attention = {"weights": "attention", "precision": "fp32"}
    runs = [
        {"label": "before", "rows": [timed(8, 90)]},
        {"label": "after", "rows": [timed(2, 100, way="tiles"), timed(5, 120, way="layers", **attention)]},
    ]
    record = tmp_path / "record.json"
    for count, columns in ((2, ("before", "before MiB")), (1, ("", ""))):
        record.write_text(json.dumps({"runs": runs[-count:]}))
        head, _, first, second = script.show(record).splitlines()
        assert head == (
            f"| hidden layers | precision | eager |{columns[0] and ' before |'} flat | eager / flat "
            f"| eager MiB |{columns[1] and ' before MiB |'} flat MiB |"
        )
        before = (" 8.0 ms |", " 90 |") if count == 2 else ("", "")
        assert first == (
            f"| 64, 64 GELU | bf16 | 4.0 ms |{before[0]} 2.0 ms | 2.00 | 2,000 |{before[1]} 100 |"
        )
        missing = " - |" if count == 2 else ""
        assert second == (
            f"| 64, 64 GELU attention | fp32 | 4.0 ms |{missing} 5.0 ms\\* | 0.80 | 2,000 |{missing} 120 |"
        )


def test_a_network_that_was_checked_again_has_its_last_result() -> None:
    script = importlib.import_module("edge_mlp_checks")
    other = row([6, 32, 16])
    lines = [json.dumps(one) for one in (row([6, 64, 16], ok=False), other, row([6, 64, 16]))]
    assert script.latest(lines) == [row([6, 64, 16]), other]


def test_networks_in_use_that_did_not_pass_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("edge_mlp_checks")
    both = {(128, 3, 16, 16): ("GELU", "SiLU"), (64, 2, 16, 16): ("GELU", "SiLU")}
    monkeypatch.setattr(script.tested, "NETWORKS", {"bfloat16": both, "float32": both})
    jobs = script.networks()  # all networks in use are among them
    relu = {"widths": [6, 128, 128, 128, 16], "activation": "ReLU", "dtype": "float32", "bias": True}
    assert relu in jobs
    assert script.missing([{**job, "ok": True} for job in jobs]) == []
    first, *others = ({**job, "ok": job["widths"] != [6, 64, 64, 16]} for job in jobs)
    assert first["widths"] == [6, 128, 128, 128, 16] and first["dtype"] == "bfloat16"
    lines = script.missing(others)
    shape = "columns, up to 15 inputs and 16 outputs"
    assert f"bfloat16, 3 x 128 {shape}, GELU: not checked." in lines
    assert f"float32, 2 x 64 {shape}, SiLU: failed." in lines and len(lines) == 5
    # A wrong activation takes the others of its shape with it.
    rows = [{**job, "ok": job != relu} for job in jobs]
    assert script.missing(rows) == [
        f"float32, 3 x 128 {shape}, {name}: such a network failed." for name in ("GELU", "SiLU")
    ]


def test_a_network_whose_kernel_fails_is_noted_and_the_others_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = importlib.import_module("edge_mlp_checks")

    def compare(job: dict[str, Any], device: str, edges: int) -> dict[str, Any]:
        if job["activation"] == "SiLU":
            raise RuntimeError("an illegal memory access")
        return {**job, "ok": True}

    monkeypatch.setattr(script, "compare", compare)
    jobs = [row([6, 16, 16], name) for name in ("GELU", "SiLU", "ReLU", "Tanh")]
    jobs.append(row([6, 32, 16], "SiLU"))
    for job in jobs:
        del job["ok"]
    file = tmp_path / "checks.jsonl"
    script.check(file, jobs[:2], 60.0, 2, "cpu", 10)
    script.check(file, jobs, 60.0, 2, "cpu", 10)  # the first two are known
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((one["activation"], one["ok"]) for one in rows) == [
        ("GELU", True),
        ("ReLU", True),
        ("SiLU", False),
        ("SiLU", False),
        ("Tanh", True),
    ]
    assert all("illegal" in one["problem"] for one in rows if not one["ok"])


def test_a_row_names_the_way_that_an_mlp_ran() -> None:
    script = importlib.import_module("edge_mlp")
    for precision in script.PRECISIONS:
        assert script.way_of(script.Case("64,64", transform="nonlinear"), precision, "cpu") == "layers"
    rows = json.loads((FOLDER.parent / "results" / "edge_mlp_h200.json").read_text())["runs"][-1]["rows"]
    # The peak of kernels, whose buffers have a fixed size, tells them from torch's layers.
    assert all((row["way"] == "layers") == (row["flat_peak_bytes"] > 200 * 2**20) for row in rows)
