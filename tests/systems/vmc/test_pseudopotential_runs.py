"""Training, resuming and evaluating with pseudopotentials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.vmc.evaluate import evaluate
from pinchpoint.systems.vmc.train import train
from pinchpoint.systems.vmc.training.records import Evaluation, Training
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


def test_records_and_summaries_name_the_charge_and_the_pseudopotential(
    tiny_network: dict[str, Any], tmp_path: Path
) -> None:
    options = {**tiny_network, "pseudopotential": "ccecp", "walkers": 64, "steps": 2, "adam_rate": 1e-4}
    record = train("Al", tmp_path / "run", charge=1, **options)
    assert (record.system, record.charge, record.pseudopotential) == ("Al", 1, "ccecp")
    assert dict(record.summary())["system"].startswith("Al+, 2 electrons (ccECP); ")
    evaluation = evaluate(tmp_path / "run", tmp_path / "eval.json", samples=20, device="cpu")
    assert (evaluation.system, evaluation.charge, evaluation.pseudopotential) == ("Al", 1, "ccecp")
    assert ", Al+ (ccECP), step 2" in dict(evaluation.summary())["run"]

    # Earlier records have neither.
    for kind, file in ((Training, tmp_path / "run" / "record.json"), (Evaluation, tmp_path / "eval.json")):
        values = json.loads(file.read_text())
        del values["charge"], values["pseudopotential"]
        earlier = kind.from_json(json.dumps(values))
        assert earlier.charge is None and earlier.pseudopotential is None
        text = dict(earlier.summary())["system" if kind is Training else "run"]
        assert "Al, " in text and "ECP" not in text
