"""Where a run runs: its devices, its kind of number, and what memory it took there."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

from pinchpoint.backends.base import backend, resolve_device
from pinchpoint.backends.jax import measurement
from pinchpoint.systems.vmc.optimization.sharding import mesh_of


@dataclass(frozen=True)
class Host:
    """Devices of one kind. name: cpu or cuda."""

    name: str
    devices: tuple[Any, ...]

    def mesh(self, walkers: int) -> Mesh | None:
        """Over all devices; None where there is one."""
        return mesh_of(walkers, self.devices)

    def sharing(self, walkers: int) -> Host:
        """With as many of the devices as have equal shares of the walkers."""
        count = max(count for count in range(1, len(self.devices) + 1) if walkers % count == 0)
        return Host(self.name, self.devices[:count])

    def peak_bytes(self) -> int | None:
        """Peak allocated on CUDA since this process began; on a CPU the most it was ever resident with."""
        if self.name == "cuda":
            return measurement.peaks("cuda").allocated_bytes
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


@contextmanager
def on(device: str, *, precision: str) -> Iterator[Host]:
    """Within, arrays are made on that device, and float64 exists where it is asked for; both are as before after it."""
    name = resolve_device(device, backend("jax"))
    devices = jax.devices(name)
    wide = precision == "float64" or bool(jax.config.jax_enable_x64)  # pyright: ignore[reportAttributeAccessIssue]
    with jax.default_device(devices[0]), jax.enable_x64(wide):
        yield Host(name, tuple(devices))


def resident_bytes() -> int:
    """What this process is resident with now, or where the system does not say, its most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return Host("cpu", ()).peak_bytes() or 0
