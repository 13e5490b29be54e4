"""pinchpoint: know, shrink and prove what many points cost in time and memory.

Names resolve on first use, so `import pinchpoint` needs neither torch nor JAX and takes milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pinchpoint.core.errors import PinchpointError
    from pinchpoint.core.records import Forecast, Law, Plan, Point, Study, Verdict, load
    from pinchpoint.core.settings import Setting
    from pinchpoint.core.workload import Case, Probe, Tolerance, Variant, Workload
    from pinchpoint.flow.plan import plan
    from pinchpoint.flow.stream import Flow, stream
    from pinchpoint.measure.study import study
    from pinchpoint.memory.forecast import predict
    from pinchpoint.proof.verdict import verify
    from pinchpoint.render.page import report

__version__ = "0.1.0"

_HOMES = {
    "predict": "pinchpoint.memory.forecast",
    "plan": "pinchpoint.flow.plan",
    "stream": "pinchpoint.flow.stream",
    "Flow": "pinchpoint.flow.stream",
    "study": "pinchpoint.measure.study",
    "verify": "pinchpoint.proof.verdict",
    "report": "pinchpoint.render.page",
    "load": "pinchpoint.core.records",
    "Workload": "pinchpoint.core.workload",
    "Variant": "pinchpoint.core.workload",
    "Case": "pinchpoint.core.workload",
    "Probe": "pinchpoint.core.workload",
    "Tolerance": "pinchpoint.core.workload",
    "Setting": "pinchpoint.core.settings",
    "Forecast": "pinchpoint.core.records",
    "Plan": "pinchpoint.core.records",
    "Study": "pinchpoint.core.records",
    "Point": "pinchpoint.core.records",
    "Law": "pinchpoint.core.records",
    "Verdict": "pinchpoint.core.records",
    "PinchpointError": "pinchpoint.core.errors",
}

__all__ = [
    "Case",
    "Flow",
    "Forecast",
    "Law",
    "PinchpointError",
    "Plan",
    "Point",
    "Probe",
    "Setting",
    "Study",
    "Tolerance",
    "Variant",
    "Verdict",
    "Workload",
    "__version__",
    "load",
    "plan",
    "predict",
    "report",
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
