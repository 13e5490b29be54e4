"""The table of limits reads each time from its own record, counts floors, and says what is not measured."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pinchpoint.systems.common.bench.records import Bench, Comparison, Floor, Row

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"


def row(name: str, seconds: float, role: Any = "variant") -> Row:
    return Row(name, role, seconds=seconds, seconds_low=seconds, seconds_high=seconds, runs=9)


def case(name: str, rows: list[Row], floor: Floor | None = None, **settings: str) -> Comparison:
    head = (name, name, "", "points", 128, settings)
    return Comparison(*head, tuple(rows), floor, (), "", 1.0, "command", {}, "2026-11-17T00:00:00")


def mlp(hidden: str, precision: str, eager_s: float, flat_s: float, **changes: Any) -> dict[str, Any]:
    named = {"hidden": hidden, "activation": "GELU", "transform": "linear", "weights": "mean"}
    times = {"eager_s": eager_s, "flat_s": flat_s, "eager_over_flat": eager_s / flat_s}
    return {**named, "precision": precision, **times, "flat_peak_bytes": 2**20, **changes}


BENCHES = {
    "density": [
        case(
            "probes",
            [row("scalar", 2e-3), row("PaiNN", 3e-3, "peer")],
            Floor(None, 6e9, None, ""),
            mul="500",
            lmax="4",
        ),
        case("chgcar", [row("pinchpoint", 4e-3), row("ASE", 5e-3, "peer")]),
    ],
    "cloud": [
        case("draw", [row("exact", 6e-3), row("PyG topk", 7e-3, "peer")], Floor(None, None, 43 * 10**6, ""))
    ],
    "vmc": [
        case(
            "step",
            [row("200 steps in a program", 8e-3), row("200 steps in a program, Metropolis", 9e-3)],
            molecule="H2",
            network="64x8, 2 layers, 2 determinants",
            moves="10",
        )
    ],
    "operator": [case("transform", [row("eager", 11e-3), row("PyG", 12e-3, "peer")])],
}
RECORDS: dict[str, Any] = {
    "edge_transform_h200.json": {
        "time": [
            {
                "size": size,
                "eager_precision": precision,
                "flat_precision": precision,
                "eager_s": size * 13e-9,
                "flat_s": size * seconds,
            }
            for size in (1_000_000, 4_000_000)
            for precision, seconds in (("fp32", 14e-9), ("bf16", 15e-9))
        ]
    },
    "density_whole_h200.json": {"file": {"seconds": 16e-3, "first_s": 0.5}},
    "radiance_field_h200.json": {
        "rows": [
            {"row": name, "replayed": {"seconds": s}} for name, s in (("eager bf16", 17e-3), ("o", 1e-3))
        ]
    },
    "radiance_layers_h200.json": {
        "preset": "graf",
        "batch": 8,
        "side": 32,
        "samples": 64,
        "replayed_ms": {"before": {"median": 18.0}, "after": {"median": 5.0}},
        "iteration_ms": {"before": {"median": 19.0}, "after": {"median": 20.0}},
    },
    "vmc_forms_h200.json": {
        "system": "N2",
        "net": "ferminet",
        "walkers": 1024,
        "moves": 10,
        "forms": [
            {"form": form, "seconds": s}
            for form, s in (("plain", 0.05), ("plain, tf32", 22e-3), ("ours", 20e-3))
        ],
    },
    "cloud_iteration_h200.json": {"rows": {"three views, consistency": {"iteration_s": 23e-3}}},
    "operator_step_h200.json": {
        "preset": "base",
        "precision": "fp32",
        "edges": [400_000, 600_000],
        "steps": {"eager": {"median_s": 24e-3}, "flat, recorded": {"median_s": 25e-4}},
    },
}
SWEEP = {
    "runs": [
        {"label": "before", "rows": [mlp("128,128,128", "bf16", 1.0, 26e-3)]},
        {"label": "after", "rows": [mlp("128,128,128", "bf16", 1.0, 0.5)]},
        {
            "label": "after",
            "rows": [
                mlp("128,128,128", "bf16", 54e-4, 27e-4),
                mlp("128,128,128", "fp32", 84e-4, 28e-4),
                mlp("64,64", "fp32", 29e-4, 30e-4, transform="nonlinear", flat_peak_bytes=3 * 2**20),
            ],
        },
    ]
}
COMPARED = {
    "rows": [
        {"recipe": recipe, "contender": name, "step_s": seconds}
        for recipe, factor in (("recommended", 9), ("three views, consistency", 1))
        for name, seconds in (
            ("before", factor * 31e-3),
            ("now", factor * 32e-3),
            ("eager", factor * 30e-3),
            ("dense", factor * 33e-3),
        )
    ],
    "draws": [
        {"contender": name, "waited_s": seconds}
        for name, seconds in (("before", 34e-5), ("now", 35e-5), ("now", 36e-5), ("now", 90e-5))
    ],
}


def rows_of(folder: Path, records: dict[str, Any], benches: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    (folder / "bench").mkdir()
    for system, cases in benches.items():
        text = Bench(system, "cuda", "report", tuple(cases)).to_json()
        (folder / "bench" / f"{system}.json").write_text(text)
    for name, record in records.items():
        (folder / name).write_text(json.dumps(record))
    _, rows, _ = import_module("limits").table(folder, "bench")
    return {cells[0]: cells[2:6] for cells in rows}


def find(rows: dict[str, tuple[str, ...]], *words: str) -> tuple[str, ...]:
    return next(cells for name, cells in rows.items() if all(word in name for word in words))


def test_each_row_reads_its_own_record(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, RECORDS, BENCHES)
    assert find(rows, "[128]x3", "bf16") == ("13.00 ms (`eager`)", "15.00 ms (`flat`)", "268.3 us", "1.8 %")
    assert find(rows, "[128]x3", "fp32")[:2] == ("12.00 ms (`PyG`)", "14.00 ms (`flat`)")
    assert find(rows, "probe") == (
        "3.00 ms (`PaiNN`, another, smaller model)",
        "2.00 ms (`scalar`)",
        "100.4 us",  # 6e9 operations, and 2 x 104,134 per probe
        "5 %",
    )
    assert find(rows, "CHGCAR")[1:] == ("16.00 ms", "100.4 us (the probes alone)", "0.63 %")
    assert find(rows, "CHGCAR")[0] == "5.00 ms (`ASE`, the file alone)"
    assert find(rows, "radiance field")[:2] == (
        "17.00 ms (`eager bf16`, GRAF's field as published)",
        "5.00 ms (before 18.00 ms)",
    )
    assert find(rows, "GAN")[1:3] == ("20.00 ms (before 19.00 ms)", "2.74 ms (the field alone)")
    assert find(rows, "H2")[1] == "9.00 ms (`200 steps in a program, Metropolis`)"
    assert find(rows, "N2")[:2] == (
        "50.00 ms (`plain`, JAX with folx; 22.00 ms in TF32)",
        "20.00 ms (`ours`)",
    )
    assert find(rows, "iteration, 1 M")[:2] == ("not measured", "23.00 ms (mean)")
    assert find(rows, "draw") == ("7.00 ms (`PyG topk`)", "6.00 ms (`exact`)", "10.0 us", "0.17 %")
    assert find(rows, "operator")[:2] == ("24.00 ms (`eager`)", "2.50 ms (`flat, recorded`)")
    assert find(rows, "other widths") == ("not measured", "not measured", "not counted", "-")


def test_newer_records_fill_their_rows(tmp_path: Path) -> None:
    new: dict[str, Any] = {"edge_mlp_h200.json": SWEEP, "cloud_iteration_compare_h200.json": COMPARED}
    revisions = [
        {"case": "probes", "trees": {"before": {"seconds": 29e-3}, "after": {"seconds": 14e-3}}},
        {"case": "file", "trees": {"before": {"seconds": 82e-3}, "after": {"seconds": 71e-3}}},
    ]
    new["vmc_steps_h200.json"] = {
        "cases": [
            {"case": "n2", "trees": {"before": {"seconds": 38e-3}, "after": {"seconds": 39e-3}}},
            {"case": "h2", "trees": {"after": {"seconds": 40e-5}}},
        ]
    }
    new["rates_h200.json"] = {
        "rates": {"bf16": {"per_s": 1e15}, "fp32": {"per_s": 1e14}, "bytes": {"per_s": 1e12}}
    }
    rows = rows_of(tmp_path, RECORDS | new, BENCHES)
    bf16 = ("5.40 ms (`eager`)", "2.70 ms (`flat`, before 26.00 ms)", "212.0 us", "7.9 %")
    assert find(rows, "[128]x3", "bf16") == bf16
    assert find(rows, "[128]x3", "fp32")[:2] == ("8.40 ms (`eager`)", "2.80 ms (`flat`)")
    peer, ours, floor, _ = find(rows, "other widths")
    # 22, 64, 64 and 16 wide: 6,528 products forward, twice backward, less those of 6 coordinates.
    assert (peer, floor) == ("2.90 ms (`eager`)", "384.0 us")
    assert ours.startswith("3.00 ms (64,64 GELU nonlinear mean fp32); all 3: 0.97 to 3.00 times as fast")
    assert ours.endswith("peaks of up to 3.00 MiB")
    in_turn = tmp_path / "in turn"
    in_turn.mkdir()
    both = {**new, "density_revisions_h200.json": {"cases": revisions}}
    timed = rows_of(in_turn, RECORDS | both, BENCHES)
    assert find(timed, "probe")[1] == "14.00 ms (before 29.00 ms)"
    peer, ours, _, share = find(timed, "CHGCAR")
    assert ours == "16.00 ms (71.00 ms in turn with earlier code, which took 82.00 ms)"
    assert (peer, share) == find(rows, "CHGCAR")[::3]
    sweep = SWEEP["runs"]
    attention = mlp("64,64", "bf16", 32e-4, 64e-4, weights="attention")
    with_attention = {"edge_mlp_more_h200.json": {"runs": [{"label": "after", "rows": [attention]}]}}
    separate = tmp_path / "more"
    separate.mkdir()
    text = find(rows_of(separate, {"edge_mlp_h200.json": SWEEP, **with_attention}, BENCHES), "other widths")[
        1
    ]
    assert text.startswith("6.40 ms (64,64 GELU linear attention bf16); all 4: 0.50 to 3.00 times")
    old = {"label": "before", "rows": [*sweep[0]["rows"], mlp("256", "bf16", 31e-4, 62e-4)]}
    other = tmp_path / "other"
    other.mkdir()
    slow = find(rows_of(other, {"edge_mlp_h200.json": {"runs": [old, *sweep[1:]]}}, BENCHES), "other widths")
    assert slow[0] == "3.10 ms (`eager`)" and "all 4: 0.50 to 3.00 times" in slow[1]
    assert "; 1 of them timed before the last change" in slow[1]
    assert find(rows, "iteration, 1 M")[:2] == ("33.00 ms (`dense`)", "32.00 ms (before 31.00 ms)")
    assert find(rows, "draw")[1:3] == ("360.0 us (`exact`, before 340.0 us)", "43.0 us")
    assert find(rows, "N2")[1] == "39.00 ms (before 38.00 ms)" and find(rows, "H2")[1] == "400.0 us"


def test_without_records_every_row_stays_and_says_so(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, {}, {})
    assert len(rows) == 12 and {cells[1] for cells in rows.values()} == {"not measured"}
    assert {cells[3] for cells in rows.values()} == {"-"}


def test_a_failed_case_is_not_measured(tmp_path: Path) -> None:
    failed = replace(BENCHES["density"][0], failure="no memory", rows=())
    rows = rows_of(tmp_path, {}, {"density": [failed]})
    assert find(rows, "probe")[1] == "not measured"


def test_operations_are_those_of_a_count_by_hand() -> None:
    floors = import_module("floors")
    # Widths 4, 3, 5: products of 12 and 15 forward, twice backward, without the gradients of 2 coordinates.
    assert floors.edge_mlp_operations((4, 3, 5), edges=7, coordinates=2) == 2 * 7 * (3 * 27 - 6)
    # H: one electron, one nucleus, no pairs: 4 x 3 and 3 x 3 for the layers, 3 orbitals per determinant.
    net = floors.NetConfig("ferminet", 3, 2, 2, 2)
    evaluation = 4 * 3 + 3 * 3 + 3 * 2 + 2 / 3
    laplacian = 5 * (evaluation - 2 / 3) + 3 * 2
    expected = 2 * 10 * ((4 + 3) * evaluation + laplacian)
    assert floors.vmc_operations(net, "H", walkers=10, moves=4) == pytest.approx(expected)


def test_operations_of_the_operator_are_those_that_torch_counts() -> None:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from pinchpoint.systems.operator.model.config import OperatorConfig
    from pinchpoint.systems.operator.model.transformer import PatchTransformer

    box = {"low": (0.0, 0.0, 0.0), "high": (1.0, 1.0, 1.0), "radii": (1.0,)}
    config = OperatorConfig(1, 1, **box, lattice=(4, 4, 4), channels=4, width=12, depth=3, heads=2)
    tokens = torch.randn(64, 4, requires_grad=True)
    # The counter does not know the fused attention of a CPU.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        PatchTransformer(config)(tokens).sum().backward()
    expected = import_module("floors").operator_operations(0, config)
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.02)


def test_operations_of_a_probe_are_those_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from pinchpoint.systems.density.model.config import DensityConfig
    from pinchpoint.systems.density.model.probe_network import Probes

    config = DensityConfig(("H",), mul=12, lmax=2, gaussians=3, hidden=4, head=5, interactions=3)
    network = Probes(config, torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.read(network.states(torch.randn(7, 3, config.aggregates)))
    assert counter.get_total_flops() == import_module("floors").probe_operations(config, 7)


def test_figures_of_the_reports_are_those_of_their_pages() -> None:
    reports = import_module("limits").REPORTS
    quotes = {
        "density": ("probes", "44 s"),
        "vmc": ("vmc", "383 -> 300 ms"),
        "cloud": ("draw", "4,269 to 1,200 ms"),
    }
    for page, (name, quote) in quotes.items():
        text = (ROOT / "docs" / "reports" / f"{page}.md").read_text(encoding="utf-8")
        assert quote in text and quote.replace(" to ", " -> ") in reports[name]
    cloud = (ROOT / "docs" / "reports" / "cloud.md").read_text(encoding="utf-8")
    assert "4,470 to 1,590 ms" in cloud and reports["iteration"] == "4,470 -> 1,590 ms"
    density = (ROOT / "docs" / "reports" / "density.md").read_text(encoding="utf-8")
    assert "44 s, 80 % of the run" in density and reports["chgcar"].startswith(f"{44 / 0.8:.0f} s")


def test_rates_count_each_product_and_each_byte_twice() -> None:
    spec = import_module("importlib.util").spec_from_file_location("rates", FOLDER / "kit" / "rates.py")
    assert spec is not None and spec.loader is not None
    module = import_module("importlib.util").module_from_spec(spec)
    spec.loader.exec_module(module)
    result = module.rates("cpu", side=8, copied_bytes=100, repeats=3)
    for name, count in (("bf16", 2 * 8**3), ("fp32", 2 * 8**3), ("bytes", 200)):
        assert result[name]["per_s"] * result[name]["seconds"] == pytest.approx(count)
