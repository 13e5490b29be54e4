"""What counts as measured of DeepSpeed; everything else leaves `fits` unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.packages.changed_modules import is_measured


class DeepSpeedEngine:
    """Answers as the engine of DeepSpeed with ZeRO 2 in bf16."""

    has_moe_layers = False

    def __init__(self, **others: Any) -> None:
        self.basic_optimizer: Any = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
        answers = {"zero_optimization_stage": 2, "bfloat16_enabled": True, "zero_hpz_partition_size": 1}
        for name, value in {**answers, **others}.items():
            setattr(self, name, lambda value=value: value)


@pytest.mark.parametrize(
    "setting",
    [
        {"zero_optimization_stage": 0},
        {"bfloat16_enabled": False},
        {"zero_use_cpu_optimizer": True},
        {"zero_offload_param": SimpleNamespace(device="cpu")},
        {"zero_hpz_partition_size": 8},
        {"zero_quantized_weights": True},
    ],
)
def test_only_plain_zero_in_bf16_is_measured(setting: dict[str, Any]) -> None:
    assert is_measured(DeepSpeedEngine())
    assert is_measured(DeepSpeedEngine(zero_offload_param=SimpleNamespace(device="none")))
    assert not is_measured(DeepSpeedEngine(**setting))


def test_an_optimizer_of_another_package_is_not_measured() -> None:
    engine = DeepSpeedEngine()
    engine.basic_optimizer = object()
    assert not is_measured(engine)
