"""The stand-ins beside what the kernels allocated on an H200 (benchmarks/results/package_probe_h200.json)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
PEAKS = json.loads((ROOT / "benchmarks/results/package_probe_h200.json").read_text(encoding="utf-8"))["peaks"]
WORKSPACES = ("cublas", "cublaslt")
# The allocator hands out a block whole if the rest is below a megabyte, which depends on earlier frees.
WHOLE_BLOCK = 2**20 + 2**19


@pytest.fixture
def probe(observer: Any) -> ModuleType:
    path = ROOT / "benchmarks/accuracy/package_probe.py"
    spec = importlib.util.spec_from_file_location("package_probe", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PEAKS)
def test_a_call_allocates_what_it_did_on_the_gpu(
    probe: ModuleType, observer: Any, take: Any, name: str
) -> None:
    observer.stand_ins.serve(["flash_attn", "liger_kernel"])
    how = {}
    if name.startswith("flash"):
        import flash_attn  # type: ignore[import-not-found]

        packed = "packed" in name
        how["attend"] = flash_attn.flash_attn_varlen_func if packed else flash_attn.flash_attn_func
    run = probe.CASES[name](**how)
    allocated = take(run)
    workspaces = sum(block.bytes for block in allocated.blocks if block.op in WORKSPACES)
    assert abs(allocated.peak - PEAKS[name]) <= workspaces + WHOLE_BLOCK
    if not workspaces and "packed 4" not in name:
        assert allocated.peak == pytest.approx(PEAKS[name], abs=512)
