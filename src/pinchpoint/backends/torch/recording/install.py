"""`install`: make torch report to a recorder, and return how to undo it."""

from __future__ import annotations

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.torch.recording.cuda_clock import watch_device
from pinchpoint.backends.torch.recording.phases import watch_phases
from pinchpoint.backends.torch.recording.waits import watch_waits


def install(recorder: Recorder, patches: Patches) -> None:
    """Replace functions of torch until `patches.undo()` and the recorder's `on_close`."""
    recorder.frameworks.add("torch")
    watch_device(recorder)
    watch_phases(recorder, patches)
    watch_waits(recorder, patches)
