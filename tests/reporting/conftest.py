"""Records of every kind with realistic numbers, as the verbs would write them."""

from __future__ import annotations

import math

import pytest

from pinchpoint.core.records import Forecast, Inside, Law, Lever, Line, Plan, Point, Record, Study, Verdict

MIB, GIB = 2**20, 2**30
MACHINE = {
    "platform": "Linux x86_64",
    "cpu_count": 16,
    "python": "3.11.9",
    "versions": {"torch": "2.13.0", "numpy": "2.1.0"},
    "gpu": None,
}
PROVENANCE = {"machine": MACHINE, "created": "2026-03-01T12:00:00+00:00"}
CARDS = {"rtx3060": 12, "rtx4090": 24, "a100-40gb": 40, "h100": 80, "h200": 141}
SHAPES = {  # (variant, mode): bytes per point, fixed part
    ("eager", "train"): (3681.0, 92 * MIB),
    ("eager", "infer"): (1140.0, 74 * MIB),
    ("checkpoint", "train"): (1820.0, 94 * MIB),
    ("checkpoint", "infer"): (1140.0, 74 * MIB),
    ("chunked", "train"): (29.0, 176 * MIB),
    ("chunked", "infer"): (16.0, 120 * MIB),
}


def forecast() -> Forecast:
    breakdown = {
        "weights": 3_407_872,
        "gradients": 3_407_872,
        "optimizer": 6_815_744,
        "activations": 2_684_354_560,
        "temporaries": 402_653_184,
        "inputs": 12_582_912,
        "workspace": 69_206_016,
    }
    allocated = sum(breakdown.values())
    reserved = allocated + 88 * MIB
    inside = (
        Inside("net.layers.*.mlp", 12, 1_207_959_552, True, "zoo/models/mlp.py", 30, "return self.act(h)"),
        Inside("", 1, 134_217_728, True),
    )
    lines = tuple(
        Line(f"/home/ada/project/fields/{file}", line, size, phase, code, inside if line == 41 else ())
        for file, line, size, phase, code in (
            ("model.py", 41, 1_342_177_280, "forward", "h = self.act(layer(h))"),
            ("model.py", 44, 805_306_368, "forward", "h = torch.cat([h, self.embed(points)], dim=-1)"),
            ("train.py", 88, 402_653_184, "backward", "loss.backward()"),
            ("model.py", 57, 268_435_456, "forward", "sdf, feature = h.split([1, 255], dim=-1)"),
            (
                "train.py",
                71,
                134_217_728,
                "forward",
                "gradient = torch.autograd.grad(sdf.sum(), points, create_graph=True)[0]",
            ),
            ("train.py", 90, 10_223_616, "optimizer", "optimizer.step()"),
            ("train.py", 63, 12_582_912, "data", "points = points.to('cuda', non_blocking=True)"),
        )
    )
    return Forecast(
        target="fields/train.py",
        framework="torch",
        method="fake tensors",
        mode="train",
        size=524_288,
        variant=None,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        workspace_bytes=breakdown["workspace"],
        context_bytes=529 * MIB,
        total_bytes=reserved + 529 * MIB,
        breakdown=breakdown,
        lines=lines,
        modules=tuple(
            {"name": name, "count": 1, "bytes_each": size, "bytes": size}
            for name, size in (
                ("net.layers", 1_610_612_736),
                ("net.layers.0", 536_870_912),
                ("net.layers.1", 536_870_912),
                ("net.embed", 402_653_184),
                ("net.head", 134_217_728),
                ("ema.net.layers", 3_407_872),
            )
        ),
        timeline=timeline(allocated),
        fits={
            "gtx1060": False,
            "rtx3050": False,
            "rtx3060": True,
            "rtx4090": True,
            "a100-40gb": True,
            "h200": True,
        },
        margin_bytes=256 * MIB,
        card="h200",
        steps=2,
        processed=524_288,
        low_bytes=allocated - 210 * MIB,
        high_bytes=allocated + 340 * MIB,
        levers=(
            Lever(
                "checkpointing",
                2_013_265_920,
                "recompute the layers in backward: torch.utils.checkpoint around each block",
            ),
            Lever("bf16", 1_476_395_008, "wrap the forward in torch.autocast('cuda', dtype=torch.bfloat16)"),
            Lever("chunk", 2_550_136_832, "send 65,536 points at one time and accumulate the gradients"),
        ),
        notes=(
            "the count of nonzero at train.py:66 depends on the data: calibrated from 2 small CPU runs",
            "torch.compile'd modules were run uncompiled",
        ),
        took_s=2.31,
        measured={
            "allocated_bytes": allocated + 300_000,
            "reserved_bytes": reserved + 20 * MIB,
            "total_bytes": reserved + 549 * MIB,
        },
        **PROVENANCE,
    )


def timeline(top: int) -> tuple[tuple[int, int, str], ...]:
    """Two steps: memory rises in forward, falls in backward, and the optimizer state stays."""
    events: list[tuple[int, int, str]] = []
    for step in range(2):
        floor = 22 * MIB if step else 15 * MIB
        span = top - 402_653_184
        events += [(len(events) + i, floor + 12 * MIB, "data") for i in range(6)]
        events += [
            (len(events) + i, int(floor + 12 * MIB + (span - floor) * i / 120), "forward") for i in range(120)
        ]
        high = top if step else top - 8 * MIB
        events += [
            (
                len(events) + i,
                int(floor + (high - floor) * (1 - i / 140) * (0.93 + 0.07 * math.cos(i))),
                "backward",
            )
            for i in range(140)
        ]
        events += [(len(events) + i, floor + (i % 7) * MIB, "optimizer") for i in range(40)]
    peak = max(range(len(events)), key=lambda i: events[i][1])
    events[peak] = (peak, top, events[peak][2])
    return tuple(events)


def jax_forecast() -> Forecast:
    breakdown = {"weights": 5 * MIB, "temporaries": 958 * MIB, "inputs": 2 * MIB}
    allocated = sum(breakdown.values())
    return Forecast(
        target="orbital",
        framework="jax",
        method="jaxpr liveness",
        mode="infer",
        size=4096,
        variant="loop",
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=None,
        workspace_bytes=0,
        context_bytes=480 * MIB,
        total_bytes=allocated + 480 * MIB,
        breakdown=breakdown,
        lines=(),
        modules=(),
        timeline=(),
        fits={"rtx3060": True, "h200": True},
        margin_bytes=128 * MIB,
        card="h200",
        steps=1,
        **PROVENANCE,
    )


def plan() -> Plan:
    def run(size: int, variant: str, chunk: int | None = None) -> dict[str, object]:
        slope, fixed = SHAPES[variant, "train"]
        total = int(slope * size + fixed + 600 * MIB)
        return {
            "size": size,
            "variant": variant,
            "chunk": chunk,
            "total_bytes": total,
            "fits": total <= 23 * GIB,
        }

    tried = [run(size, "eager") for size in (1_000_000, 8_000_000, 6_400_000, 6_500_000)]
    tried += [run(size, "checkpoint") for size in (1_000_000, 16_000_000, 12_900_000, 13_200_000)]
    tried += [run(size, "chunked", 65_536) for size in (1_000_000, 64_000_000, 900_000_000, 820_000_000)]
    return Plan(
        target="field",
        mode="train",
        budget_bytes=24 * GIB,
        size=820_000_000,
        chunk=65_536,
        variant="chunked",
        margin_bytes=1 * GIB,
        peak_bytes=int(29.0 * 820_000_000 + 776 * MIB),
        tried=tuple(tried),
        choices=(
            {"variant": "eager", "size": 6_500_000, "chunk": None, "peak_bytes": tried[3]["total_bytes"]},
            {
                "variant": "checkpoint",
                "size": 13_200_000,
                "chunk": None,
                "peak_bytes": tried[7]["total_bytes"],
            },
            {
                "variant": "chunked",
                "size": 820_000_000,
                "chunk": 65_536,
                "peak_bytes": tried[11]["total_bytes"],
            },
        ),
        cards=(
            {"card": "gt710", "budget_bytes": 1 * GIB, "size": None, "variant": None, "chunk": None},
            *(
                {
                    "card": name,
                    "budget_bytes": gib * GIB,
                    "size": gib * 33_000_000,
                    "variant": "chunked",
                    "chunk": 65_536,
                }
                for name, gib in CARDS.items()
            ),
        ),
        notes=("a size between the last two tried may fit: the search stops at 1 %",),
        **PROVENANCE,
    )


def study(on: str = "cuda", passed: bool = True) -> Study:
    sizes = [round(5000 * (1_000_000 / 5000) ** (i / 9)) for i in range(10)]
    points: list[Point] = []
    for (variant, mode), (slope, fixed) in SHAPES.items():
        for number, size in enumerate(sizes):
            theory = int(slope * size + fixed)
            noise = 1 + 0.004 * math.sin(3 * number + len(variant))
            parts = {
                "weights": 4 * MIB,
                "gradients": 4 * MIB if mode == "train" else 0,
                "optimizer": 8 * MIB if mode == "train" else 0,
                "inputs": 12 * size,
                "workspace": 66 * MIB,
            }
            rest = theory - sum(parts.values())
            parts |= {"activations": int(rest * 0.85), "temporaries": rest - int(rest * 0.85)}
            step = {"eager": 1.0, "checkpoint": 1.33, "chunked": 1.4}[variant] * (
                9e-9 if mode == "train" else 4e-9
            ) * size + 4e-4
            if variant == "eager" and mode == "train" and size > 500_000:
                points.append(
                    Point(
                        size,
                        mode,
                        variant,
                        "oom",
                        theory_bytes=theory,
                        reason="CUDA out of memory: tried to allocate 512.00 MiB",
                    )
                )
                continue
            if variant == "checkpoint" and mode == "train" and number == 4:
                points.append(
                    Point(
                        size, mode, variant, "timeout", theory_bytes=theory, reason="took longer than 300 s"
                    )
                )
                continue
            points.append(
                Point(
                    size,
                    mode,
                    variant,
                    "ok",
                    processed=size,
                    peak_allocated_bytes=int(theory * noise),
                    peak_reserved_bytes=int(theory * 1.06),
                    total_bytes=int(theory * 1.06) + 529 * MIB,
                    time_s=step,
                    time_low_s=step * 0.98,
                    time_high_s=step * 1.03,
                    theory_bytes=theory,
                    breakdown=parts,
                    modules=(
                        {"name": "net.layers", "bytes": int(rest * 0.7)},
                        {"name": "net.head", "bytes": int(rest * 0.1)},
                    ),
                )
            )
    laws = tuple(
        Law(
            mode,
            variant,
            slope,
            slope * 0.97,
            slope * 1.025,
            fixed,
            0.998,
            -0.0042,
            breaks=(40_000.0,) if mode == "train" else (),
            segments=(
                {
                    "from": 5000.0,
                    "to": 40_000.0,
                    "slope": slope * 0.97,
                    "intercept": fixed + slope * 0.03 * 40_000,
                },
                {"from": 40_000.0, "to": 1e6, "slope": slope, "intercept": fixed},
            )
            if mode == "train"
            else (),
            intercept_low=fixed * 0.9,
            intercept_high=fixed * 1.1,
            points=9,
            residual=0.0061,
            exponent_low=0.991,
            exponent_high=1.004,
            band=tuple(
                (size, (slope * size + fixed) * 0.95, (slope * size + fixed) * 1.04)
                for size in (5e3, 2e4, 1e5, 4e5, 1e6)
            ),
        )
        for (variant, mode), (slope, fixed) in SHAPES.items()
    )
    cards = tuple(
        {
            "card": name,
            "mode": mode,
            "variant": variant,
            "memory_bytes": gib * GIB,
            "size": int((gib * GIB * 0.9 - fixed) / slope),
            "extrapolated": True,
            "low": int((gib * GIB * 0.9 - fixed) / slope / 1.025),
            "high": int((gib * GIB * 0.9 - fixed) / slope / 0.97),
        }
        for name, gib in {"gtx1650": 4, **CARDS}.items()
        for (variant, mode), (slope, fixed) in SHAPES.items()
    )
    gate = (
        ()
        if passed
        else (
            "eager train: asked for 1,000,000 points, processed 4,096",
            "slope 0.0 B/point [-1.2, 1.4] contains zero",
        )
    )
    return Study(
        target="field",
        axis="points",
        on=on,
        points=tuple(points),
        laws=laws,
        passed=passed,
        gate=gate,
        cards=cards,
        boundary=({"mode": "train", "variant": "eager", "fits": 551_000, "fails": 556_000},),
        notes=("5 warm-up steps, 30 repeats",),
        took_s=412.0,
        repeats=30,
        **PROVENANCE,
    )


def verdict() -> Verdict:
    names = [
        "embed.weight",
        *(f"layers.{i}.{kind}" for i in range(10) for kind in ("weight", "bias")),
        "head.weight",
    ]
    comparisons = (
        {
            "name": "density",
            "what": "output",
            "error": 2.1e-7,
            "tolerance": 1e-5,
            "ok": True,
            "where": "[1023, 0]",
        },
        {"name": "points", "what": "gradient", "error": 0.0, "tolerance": 1e-4, "ok": True, "where": ""},
        *(
            {
                "name": name,
                "what": "gradient",
                "error": 10 ** (-7.4 + 0.11 * i),
                "tolerance": 1e-4,
                "ok": True,
                "where": f"[{i}, {2 * i}]",
            }
            for i, name in enumerate(names)
        ),
    )
    return Verdict(
        target="field",
        mode="train",
        size=262_144,
        baseline="eager",
        variant="chunked",
        status="pass",
        reason="same values and gradients; 1.74x faster, 96 % less memory",
        worst_error=6.6e-6,
        where="gradient head.weight [21, 42]",
        speedup=1.74,
        speedup_low=1.69,
        speedup_high=1.80,
        peak_before_bytes=1_061_158_912,
        peak_after_bytes=46_137_344,
        baseline_s=0.01084,
        variant_s=0.00623,
        repeats=30,
        comparisons=comparisons,
        device="cuda",
        **PROVENANCE,
    )


def failed_verdict() -> Verdict:
    return Verdict(
        target="mine.py:WORKLOAD",
        mode="train",
        size=4096,
        baseline="eager",
        variant="dropped",
        status="fail",
        reason="output values differs beyond its tolerance",
        worst_error=0.031,
        where="output values [4095]",
        speedup=0.97,
        speedup_low=0.91,
        speedup_high=1.04,
        baseline_s=0.002,
        variant_s=0.0021,
        repeats=30,
        comparisons=(
            {
                "name": "values",
                "what": "output",
                "error": 0.031,
                "tolerance": 1e-5,
                "ok": False,
                "where": "[4095]",
            },
            {
                "name": "layer.weight",
                "what": "gradient",
                "error": None,
                "tolerance": 1e-4,
                "ok": False,
                "where": "missing",
            },
            {
                "name": "layer.bias",
                "what": "gradient",
                "error": 3e-8,
                "tolerance": 1e-4,
                "ok": True,
                "where": "[3]",
            },
        ),
        **PROVENANCE,
    )


@pytest.fixture(scope="session")
def report_records() -> dict[str, Record]:
    """One record of each kind, and special cases: no reserved bytes, a failed gate, a failed verdict."""
    return {
        "forecast": forecast(),
        "jax": jax_forecast(),
        "plan": plan(),
        "study": study(),
        "fake": study("fake"),
        "gate": study(passed=False),
        "verdict": verdict(),
        "failed": failed_verdict(),
    }
