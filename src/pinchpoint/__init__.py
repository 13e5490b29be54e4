"""pinchpoint: predict the peak memory of PyTorch and JAX scripts, plan what fits, verify cheaper variants.

Names are resolved on first use, so `import pinchpoint` needs neither torch nor JAX and takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinchpoint.checking.check import check
    from pinchpoint.core.errors import PinchpointError
    from pinchpoint.core.findings import Finding, Findings
    from pinchpoint.core.kernel_registry import register_kernel
    from pinchpoint.core.records import (
        Check,
        Checkpointing,
        Forecast,
        Law,
        Plan,
        Point,
        Study,
        Trace,
        Verdict,
        load,
    )
    from pinchpoint.core.settings import Setting
    from pinchpoint.core.workload import Case, Probe, Tolerance, Variant, Workload
    from pinchpoint.forecasting.predict import predict
    from pinchpoint.planning.checkpointing.plan_checkpointing import plan_checkpointing
    from pinchpoint.planning.plan import plan
    from pinchpoint.profiling.phase import phase
    from pinchpoint.profiling.profile import Profiler, profile
    from pinchpoint.reporting.comparisons.compare import compare
    from pinchpoint.reporting.report import report
    from pinchpoint.rules.scan import scan
    from pinchpoint.streaming.stream import Flow, stream
    from pinchpoint.studies.study import study
    from pinchpoint.verification.verify import verify

__version__ = "0.1.0"

_HOMES = {
    "check": "pinchpoint.checking.check",
    "predict": "pinchpoint.forecasting.predict",
    "plan": "pinchpoint.planning.plan",
    "plan_checkpointing": "pinchpoint.planning.checkpointing.plan_checkpointing",
    "stream": "pinchpoint.streaming.stream",
    "Flow": "pinchpoint.streaming.stream",
    "study": "pinchpoint.studies.study",
    "verify": "pinchpoint.verification.verify",
    "profile": "pinchpoint.profiling.profile",
    "Profiler": "pinchpoint.profiling.profile",
    "phase": "pinchpoint.profiling.phase",
    "compare": "pinchpoint.reporting.comparisons.compare",
    "report": "pinchpoint.reporting.report",
    "scan": "pinchpoint.rules.scan",
    "load": "pinchpoint.core.records",
    "Workload": "pinchpoint.core.workload",
    "Variant": "pinchpoint.core.workload",
    "Case": "pinchpoint.core.workload",
    "Probe": "pinchpoint.core.workload",
    "Tolerance": "pinchpoint.core.workload",
    "Setting": "pinchpoint.core.settings",
    "Check": "pinchpoint.core.records",
    "Forecast": "pinchpoint.core.records",
    "Plan": "pinchpoint.core.records",
    "Checkpointing": "pinchpoint.core.records",
    "Study": "pinchpoint.core.records",
    "Point": "pinchpoint.core.records",
    "Law": "pinchpoint.core.records",
    "Verdict": "pinchpoint.core.records",
    "Finding": "pinchpoint.core.findings",
    "Findings": "pinchpoint.core.findings",
    "Trace": "pinchpoint.core.records",
    "PinchpointError": "pinchpoint.core.errors",
    "register_kernel": "pinchpoint.core.kernel_registry",
}

__all__ = [
    "Case",
    "Check",
    "Checkpointing",
    "Finding",
    "Findings",
    "Flow",
    "Forecast",
    "Law",
    "PinchpointError",
    "Plan",
    "Point",
    "Probe",
    "Profiler",
    "Setting",
    "Study",
    "Tolerance",
    "Trace",
    "Variant",
    "Verdict",
    "Workload",
    "__version__",
    "check",
    "compare",
    "load",
    "phase",
    "plan",
    "plan_checkpointing",
    "predict",
    "profile",
    "register_kernel",
    "report",
    "scan",
    "stream",
    "study",
    "verify",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pinchpoint' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
