"""Shared fixtures: no user settings, no GPU tests without a GPU, one sample of each record."""

from __future__ import annotations

import compileall
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.templates import Template

import pinchpoint
from pinchpoint.core.records import (
    Advice,
    Check,
    Checkpointing,
    Forecast,
    Gain,
    Law,
    Line,
    Plan,
    Point,
    Problem,
    Record,
    Study,
    Trace,
    TraceEvent,
    TracePhase,
    Verdict,
)

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JAX_PLATFORMS", "cpu" if not Path("/dev/nvidiactl").exists() else "")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Each worker has a core of its own; frameworks that start one thread per core would compete for them.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if os.environ["JAX_PLATFORMS"] == "cpu" and find_spec("jaxlib") and version("jaxlib").startswith("0.10."):
    # Programs in tests are compiled once and run for milliseconds. With less optimisation XLA needs less than
    # half the time for one, and another tenth less if it does not divide one for several threads. Only for
    # versions that know the flags: an unknown one ends the process.
    os.environ["XLA_FLAGS"] = " ".join(
        [
            "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0",
            "--xla_cpu_parallel_codegen_split_count=1",
            os.environ.get("XLA_FLAGS", ""),
        ]
    ).strip()
if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    and threading.current_thread() is threading.main_thread()
):
    # A shell leaves SIGINT ignored for background jobs, and tests of Ctrl-C would then wait forever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Rewriting the assertions of the tests takes as long as the imports; its result is kept although a container
# may say PYTHONDONTWRITEBYTECODE. Tests write modules again within a second, which stay without bytecode.
_WRITES_NO_BYTECODE = sys.dont_write_bytecode
sys.dont_write_bytecode = False


def pytest_configure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # Tests start hundreds of processes that import the package, and those of predicted scripts write no
        # bytecode: without this, each compiles what it imports.
        compileall.compile_dir(Path(pinchpoint.__file__).parent, quiet=2)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_cuda():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no CUDA device is visible here"))
    if "COVERAGE_RUN" in os.environ:
        for item in items:
            if item.get_closest_marker("traces_lines"):
                item.add_marker(pytest.mark.skip(reason="coverage has set a trace function of its own"))


def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _WRITES_NO_BYTECODE
    # What is imported by now lives until the end; to look through it for garbage took 8 % of the CPU time.
    gc.collect()
    gc.freeze()


def _has_cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()


@pytest.fixture(autouse=True)
def _no_user_settings(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.delenv("PINCHPOINT_CARDS", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.getbasetemp() / "no-settings"))


@pytest.fixture(autouse=True)
def _malloc_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget on a CPU changes how malloc works in the whole process, which slows all later tests down."""
    monkeypatch.setattr("pinchpoint.systems.common.budgets.return_freed_memory", lambda: True)


@pytest.fixture(autouse=True)
def _same_tracer() -> Iterator[None]:
    """Set the tracer of `make coverage` again if a test has removed it, or nothing later would count."""
    tracer = sys.gettrace()
    yield
    if tracer is not None and sys.gettrace() is not tracer:
        sys.settrace(tracer)


def pytest_sessionfinish() -> None:
    """Write what `make coverage` has counted here: pytest-xdist kills workers that take long to exit."""
    coverage = sys.modules.get("coverage")
    running = None if coverage is None else coverage.Coverage.current()
    if running is not None:
        running.save()


@pytest.fixture(scope="session")
def template() -> Iterator[Template]:
    workers = Template()
    yield workers
    workers.end()


@pytest.fixture(scope="module")
def quick_workers(template: Template) -> Iterator[None]:
    """Workers of torch targets are forked from one that has imported torch, for files that start many."""
    from pinchpoint.core.targets import likely_framework
    from pinchpoint.forecasting import forecaster

    plain, one_at_a_time = forecaster.Forecaster._start, threading.Lock()

    def start(self: forecaster.Forecaster) -> None:
        with one_at_a_time, pytest.MonkeyPatch.context() as patch:
            if likely_framework(self.target) == "torch":
                patch.setattr(forecaster, "subprocess", template)
            plain(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecaster.Forecaster, "_start", start)
        yield


@pytest.fixture
def samples() -> dict[str, Record]:
    """One small record of each kind, by kind."""
    breakdown = {
        "weights": 100,
        "gradients": 100,
        "optimizer": 200,
        "activations": 500,
        "temporaries": 40,
        "inputs": 10,
        "workspace": 50,
    }
    forecast = Forecast(
        target="mine.py:step_of",
        framework="torch",
        method="fake tensors",
        mode="train",
        size=1000,
        variant=None,
        peak_allocated_bytes=1000,
        peak_reserved_bytes=2048,
        workspace_bytes=50,
        context_bytes=500,
        total_bytes=2548,
        breakdown=breakdown,
        lines=(Line("mine.py", 12, 500, "forward", "y = f(x)"),),
        modules=({"name": "net", "count": 1, "bytes_each": 700, "bytes": 700},),
        timeline=((0, 100, "forward"), (1, 1000, "backward")),
        fits={"h200": True},
        margin_bytes=64,
        card="h200",
        steps=2,
    )
    plan = Plan(
        target="field",
        mode="train",
        budget_bytes=24 * 2**30,
        size=5000,
        chunk=512,
        variant="chunked",
        margin_bytes=2**30,
        peak_bytes=22 * 2**30,
        tried=({"size": 5000, "variant": "chunked", "chunk": 512, "total_bytes": 22 * 2**30, "fits": True},),
    )
    checkpointing = Checkpointing(
        target="train.py",
        budget_bytes=24 * 2**30,
        card="rtx4090",
        modules=("blocks.0", "blocks.1"),
        groups=(
            {
                "modules": "blocks.0-1",
                "class": "Block",
                "keeps": "",
                "count": 2,
                "freed_bytes": 2**30,
                "recompute_s": 0.01,
            },
        ),
        fits=True,
        peak_bytes=22 * 2**30,
        peak_allocated_bytes=21 * 2**30,
        before_bytes=23 * 2**30,
        margin_bytes=2**30,
        step_s=0.2,
        extra_s=0.01,
        how=({"title": "in PyTorch", "code": "from torch.utils.checkpoint import checkpoint"},),
        tried=({"modules": 2, "total_bytes": 22 * 2**30, "extra_s": 0.01, "fits": True},),
        refused={"Net.attention": "it is called with a cache"},
    )
    sizes = (1000, 2000, 4000, 8000)
    study = Study(
        target="field",
        axis="points",
        on="fake",
        points=tuple(
            Point(
                n,
                "train",
                "eager",
                "ok",
                n,
                5000 + 64 * n,
                8192 + 64 * n,
                9000 + 64 * n,
                theory_bytes=5000 + 64 * n,
            )
            for n in sizes
        ),
        laws=(Law("train", "eager", 64.0, 63.5, 64.5, 5000.0, 1.0, 0.0, points=4),),
        passed=True,
        gate=(),
    )
    verdict = Verdict(
        target="field",
        mode="train",
        size=1000,
        baseline="eager",
        variant="chunked",
        status="pass",
        reason="equal results, smaller peak",
        worst_error=1e-7,
        where="gradient weight[3]",
        speedup=1.5,
        speedup_low=1.4,
        speedup_high=1.6,
        peak_before_bytes=1000,
        peak_after_bytes=500,
    )
    trace = Trace(
        target="train.py",
        framework="torch",
        device="cpu",
        ended="stopped",
        steps=3,
        step_is="optimizer step",
        took_s=3.0,
        setup_s=1.0,
        first_step_s=1.0,
        step_times={"median_s": 0.5, "mean_s": 0.5, "low_s": 0.4, "high_s": 0.6, "longest_s": 0.6},
        phases=(TracePhase("forward", 0.25, 0.25), TracePhase("backward", 0.75, 0.75)),
        events=(TraceEvent("wait", "Tensor.item", "train.py", 9, 6, 3, 0.1, 0.02, "other", "loss.item()"),),
        problems=(Problem("wait", "Tensor.item would wait.", "Keep the value.", "train.py", 9, count=6),),
        timeline=tuple(
            {
                "step": step,
                "start_s": 1.0 + step,
                "host_s": 0.5,
                "device_s": None,
                "phases": {"forward": 0.2, "backward": 0.3},
                "memory_bytes": 1000 + step,
            }
            for step in range(3)
        ),
    )
    wait = Advice(
        "`loss.item()` waits.",
        "Read it later.",
        "measured",
        "train.py",
        9,
        "loss.item()",
        "PP101",
        "sync-in-loop",
        evidence=("Tensor.item would wait.",),
        cost_s=0.1,
        share=0.2,
    )
    kept = replace(
        wait, rule="PP301", name="graph-kept", cost_s=None, share=None, diff="-a\n+b\n", is_safe=True
    )
    gain = Gain(
        1, ("train.py",), "-a\n+b\n", "faster", "It is.", (kept,), "step", (0.5,), (0.4,), 1.25, 1.2, 1.3
    )
    check = Check("train.py", (wait,), ("train.py",), trace, forecast, gain, notes=("A note.",))
    records = (forecast, plan, checkpointing, study, verdict, trace, check)
    return {record.kind: record for record in records}


@pytest.fixture(scope="session")
def density_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of two molecules whose densities are superposed Gaussians: quick, and without PySCF."""
    pytest.importorskip("torch", reason="densities are torch's")
    import numpy as np

    from pinchpoint.systems.common.data import dataset_folder
    from pinchpoint.systems.density.data import dataset, sample
    from pinchpoint.systems.density.data.molecules import VALENCE

    class Solved:
        """A normalised Gaussian of an atom's electrons at each atom: exp(-r² / s²) / (s³ π^1.5), s² = 0.5."""

        converged, energy = True, 0.0

        def __init__(self, species: tuple[str, ...], positions: np.ndarray, *, level: int) -> None:
            self.each, self.positions = np.array([VALENCE[symbol] for symbol in species]), positions
            self.electrons = int(self.each.sum())

        def density(self, points: np.ndarray) -> np.ndarray:
            apart = np.linalg.norm(points[:, None] - self.positions, axis=2)
            return np.exp(-(apart**2) / 0.5) @ self.each / (0.5 * np.pi) ** 1.5

    def made(program: Any, orders: list[sample.Order], *, jobs: int) -> Iterator[tuple[sample.Order, bytes]]:
        for order in orders:
            yield order, sample.pack(sample.make_sample(order))

    folder = tmp_path_factory.mktemp("density") / "data"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_folder, "run_workers", made)
        patch.setattr(sample, "solve", Solved)
        patch.setattr(dataset, "require_pyscf", lambda: None)
        dataset.make_data(folder, preset="tiny", geometries=4, spacing_a=0.6)
    return folder
