"""Training, resuming and evaluating with pseudopotentials."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.evaluate import evaluate
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.runs import Log, read_run


def test_beryllium_with_two_electrons_trains_resumes_and_is_evaluated(
    tiny_network: dict[str, Any], tmp_path: Path
) -> None:
    options = {**tiny_network, "pseudopotential": "ccecp", "walkers": 64, "adam_rate": 0.03}
    record = train("Be", tmp_path / "whole", **{**options, "steps": 40})
    assert record.electrons == 2 and record.reference_ha is None
    rows = Log.read(tmp_path / "whole" / "log.csv")
    first, last = (np.mean([row.energy_ha for row in part]) for part in (rows[:5], rows[-5:]))
    # Two electrons in the core of beryllium: about -1.01 Ha. All four would have -14.7 Ha.
    assert -1.3 < last < -0.7 and last < first

    train("Be", tmp_path / "parts", **{**options, "steps": 20})
    train("Be", tmp_path / "parts", resume=True, steps=40, device="cpu")
    again = Log.read(tmp_path / "parts" / "log.csv")
    assert [row.energy_ha for row in again] == [row.energy_ha for row in rows]
    assert read_run(tmp_path / "parts").config.system.pseudopotential == "ccecp"
    with pytest.raises(BadInput, match="another state of Be"):
        train("Be", tmp_path / "parts", resume=True, charge=1, device="cpu")

    energy = evaluate(tmp_path / "whole", samples=40, device="cpu")
    assert energy.energy_ha == pytest.approx(float(last), abs=0.1)
