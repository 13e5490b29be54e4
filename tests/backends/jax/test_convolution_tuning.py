"""Memory for tuning convolutions, compared with compilations on an H200."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from pinchpoint.backends.jax.convolution_tuning import convolution_tuning_bytes

RECORD = json.loads(
    (Path(__file__).parents[3] / "benchmarks/results/jax_scripts_h200.json").read_text(encoding="utf-8")
)
MIB = 1 << 20


def call(case: dict[str, Any], *more: str) -> str:
    """The convolution as XLA writes it. more: shapes of further operands."""
    batch, side, channels, features, width = case["shape"]
    dtype = case["dtype"]
    x = f"{dtype}[{batch},{side},{side},{channels}]{{3,2,1,0}}"
    y = f"{dtype}[{batch},{side},{side},{features}]{{3,2,1,0}}"
    kernel = f"{dtype}[{features},{width},{width},{channels}]{{3,2,1,0}}"
    target, operands, result = {
        "forward": ("Forward", (x, kernel), y),
        "kernel gradient": ("BackwardFilter", (x, y), kernel),
        "input gradient": ("BackwardInput", (y, kernel), x),
    }[case["kind"]]
    arguments = ", ".join(f"{shape} tmp_{i}" for i, shape in enumerate((*operands, *more)))
    return (
        f"  tmp_9 = ({result}, u8[0]{{0}}) custom-call({arguments}), "
        f"window={{size={width}x{width} pad=1_1x1_1}}, dim_labels=b01f_o01i->b01f, "
        f'custom_call_target="__cudnn$conv{target}"'
    )


def test_tuning_a_convolution_takes_what_it_took_on_the_card() -> None:
    errors = {}
    for case in RECORD["convolutions"]:
        predicted = convolution_tuning_bytes(call(case))
        errors[case["kind"], case["dtype"], *case["shape"]] = predicted / case["peak_bytes"] - 1
        assert case["peak_bytes"] <= 1.05 * predicted + 400 * MIB, case
    assert median(map(abs, errors.values())) < 0.005
    assert sum(abs(error) > 0.02 for error in errors.values()) <= 9, errors


def test_a_bias_and_a_residual_are_operands_too() -> None:
    """The largest of a diffusion model on an H200: 1,765,127,424 bytes, 65,105,664 of them alive."""
    case = {"kind": "forward", "dtype": "f32", "shape": (128, 32, 192, 64, 3)}
    predicted = convolution_tuning_bytes(call(case, "f32[64]{0}", "f32[128,32,32,64]{3,2,1,0}"))
    assert abs(predicted / (1_765_127_424 - 65_105_664) - 1) < 0.001


def test_a_program_without_convolutions_tunes_none() -> None:
    assert convolution_tuning_bytes("{\n  ROOT tmp_0 = f32[8]{0} parameter(0)\n}") == 0
