"""`install`: make torch report to a recorder, and return how to undo it."""

from __future__ import annotations

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.recording.recorder import Recorder
from pinchpoint.backends.torch.recording import compat
from pinchpoint.backends.torch.recording.compilation import watch_compilation
from pinchpoint.backends.torch.recording.copies import watch_copies
from pinchpoint.backends.torch.recording.cpu_memory import watch_cpu_memory
from pinchpoint.backends.torch.recording.cuda_clock import watch_device
from pinchpoint.backends.torch.recording.gradients import watch_gradients
from pinchpoint.backends.torch.recording.kept_graphs import watch_graphs
from pinchpoint.backends.torch.recording.memory import watch_memory
from pinchpoint.backends.torch.recording.phases import watch_phases
from pinchpoint.backends.torch.recording.rebuilds import watch_rebuilds
from pinchpoint.backends.torch.recording.waits import watch_waits


def install(recorder: Recorder, patches: Patches) -> None:
    """Replace functions of torch until `patches.undo()` and the recorder's `on_close`."""
    recorder.frameworks.add("torch")
    watch_device(recorder)
    watched = watch_phases(recorder, patches)
    watch_compilation(recorder, patches, tell_compiler=watched.tell_compiler)
    watch_waits(recorder, patches)
    watch_memory(recorder, patches)
    if not recorder.light:
        watch_copies(recorder, patches)
        watch_rebuilds(recorder, patches)
        watch_gradients(recorder, watched)
        watch_graphs(recorder, watched)
        watch_cpu_memory(recorder, watched)
    recorder.on_close.append(compat.tell_torchscript(patches.replaced_functions()))
