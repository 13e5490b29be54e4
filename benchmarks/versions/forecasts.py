"""Predict every step of `cases.py` with the torch of this environment, and print one JSON object.

`run.py` starts it in the environment of each version. Every step has a batch of 32 and runs on an H200; those
of `ON_BLACKWELL` also on an RTX 5090, because the choice of an attention kernel depends on the card.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import cases
import torch

from pinchpoint.core.errors import PinchpointError
from pinchpoint.forecasting.forecaster import Forecaster

ON_BLACKWELL = ("gpt_bf16_dropout", "attention_fp32_grouped")
SIZE = 32


def forecast(forecaster: Forecaster, name: str) -> dict[str, Any]:
    try:
        answer = forecaster.predict(size=SIZE, mode="train", variant=name)
    except PinchpointError as error:
        return {"error": str(error)}
    return {
        "peak_allocated_bytes": answer.peak_allocated_bytes,
        "peak_reserved_bytes": answer.peak_reserved_bytes,
        "workspace_bytes": answer.workspace_bytes,
        "low_bytes": answer.low_bytes,
        "high_bytes": answer.high_bytes,
        "notes": list(answer.notes),
    }


def main() -> None:
    answers: dict[str, Any] = {variant.name: {} for variant in cases.STEPS.variants}
    for card, names in (("h200", tuple(answers)), ("rtx5090", ON_BLACKWELL)):
        with Forecaster(f"{Path(cases.__file__)}:STEPS", card=card) as forecaster:
            for name in names:
                answers[name][card] = forecast(forecaster, name)
    json.dump({"torch": torch.__version__, "cases": answers}, sys.stdout)


if __name__ == "__main__":
    main()
