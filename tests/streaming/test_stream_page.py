"""The examples of docs/toolkit/stream.md run unchanged and give the result of one call with all points."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

PAGE = Path(__file__).parents[2] / "docs" / "toolkit" / "stream.md"


def example(head: str, **names: Any) -> dict[str, Any]:
    """Run the first block of Python under a heading and return what it defines."""
    part = PAGE.read_text(encoding="utf-8").split(f"## {head}\n")[1]
    matches = re.search(r"```python\n(.*?)```", part, re.DOTALL)
    assert matches is not None
    exec(compile(matches.group(1).replace('device="cuda"', 'device="cpu"'), str(PAGE), "exec"), names)
    return names


def test_the_radiance_field_example_gives_the_result_of_one_call() -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    origins, directions = (rng.normal(size=(3_001, 3)).astype(np.float32) for _ in range(2))
    field = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 4))
    result = example("A radiance field", origins=origins, directions=directions, field=field)
    with torch.no_grad():
        colours, depths = result["render"](torch.from_numpy(origins), torch.from_numpy(directions), field)
    assert np.allclose(result["colours"], colours, atol=1e-6) and np.allclose(
        result["depths"], depths, atol=1e-5
    )


def test_the_probes_example_matches_densities_computed_by_hand() -> None:
    from pinchpoint import stream

    # One atom at the origin of a cube of 5: by hand at a few points, periodic images included.
    names = {"torch": torch, "stream": stream, "model": lambda r: torch.exp(-r)}
    rho = example("Probes of a graph", **names, atoms=np.zeros((1, 3), np.float32), cell=5 * torch.eye(3))[
        "rho"
    ]
    assert (
        rho[0, 0, 0] == 1
        and rho[8, 0, 0] == pytest.approx(np.exp(-0.5))
        and rho[0, 72, 0] == pytest.approx(np.exp(-0.5))
    )
    assert rho[40, 40, 40] == 0  # 4.33 away: beyond the radius of 4
