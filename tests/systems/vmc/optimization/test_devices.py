"""Walkers spread over four devices make the run that one device makes; and compiled programs are found again
on disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from pinchpoint.core.errors import BadInput, DoesNotFit, Missing
from pinchpoint.systems.vmc.optimization import devices
from pinchpoint.systems.vmc.optimization.devices import mesh_of, on, placing_jit

ON_FOUR_DEVICES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import jax
jax.config.update("jax_enable_x64", True)
import numpy as np
from closed import helium
from pinchpoint.systems.vmc.settings import Settings
from pinchpoint.systems.vmc.optimization.devices import mesh_of, place
from pinchpoint.systems.vmc.optimization.training_step import begin, make_step
wave = helium()
worst, compiled = 0.0, []
ends = []
for devices, chunk in ((jax.devices()[:1], None), (jax.devices(), 8)):
    settings = Settings(
        walkers=32, moves=3, burn=0, optimizer="spring", precision="float64", chunk=chunk, method="hessian")
    mesh = mesh_of(settings.walkers, devices)
    carry, step = begin(wave, settings, mesh=mesh), make_step(wave, settings, mesh=mesh)
    for _ in range(4):
        carry, stats = step(carry)
    compiled.append(step._cache_size())
    assert len(carry.walkers.x.sharding.device_set) == len(devices)
    assert carry.params["in"].sharding.is_fully_replicated
    ends.append(jax.device_get((carry, stats)))
    # What one count of devices left, another takes up.
    again = place(ends[-1][0], mesh_of(settings.walkers, jax.devices()))
    assert np.array_equal(again.walkers.x, ends[-1][0].walkers.x)
for a, b in zip(*map(jax.tree_util.tree_leaves, ends)):
    worst = max(worst, float(np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)))))
print(json.dumps({"devices": len(jax.devices()), "worst": worst, "compiled": compiled}))
"""

TWICE = """
import jax
from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache
use_compile_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
hits = []
def note(name, **_):
    if name.endswith("cache_hits"):
        hits.append(name)
jax.monitoring.register_event_listener(note)
jax.jit(lambda x: jax.numpy.tanh(x) @ x)(jax.numpy.ones((8, 8)))
print(len(hits))
"""


def python(code: str, *, devices: int = 1, **environment: str) -> str:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    told = {**os.environ, "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "XLA_FLAGS": flags, **environment}
    here = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code, here], capture_output=True, text=True, timeout=600, check=False, env=told
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_four_devices_in_chunks_make_the_run_that_one_makes_at_once() -> None:
    found = json.loads(python(ON_FOUR_DEVICES, devices=4).splitlines()[-1])
    assert found["devices"] == 4
    assert found["worst"] < 1e-8
    assert found["compiled"] == [1, 1]


def test_the_second_start_finds_its_programs_on_disk(tmp_path: Path) -> None:
    first, second = (int(python(TWICE, XDG_CACHE_HOME=str(tmp_path)).splitlines()[-1]) for _ in range(2))
    assert first == 0
    assert second >= 1
    assert list((tmp_path / "pinchpoint" / "jax").glob("*/*"))


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes.", DoesNotFit),
        ("INTERNAL: Failed to initialize BLASLT support [executable_name='jit_run']", Missing),
        ("INTERNAL: something else", jax.errors.JaxRuntimeError),
    ],
)
def test_a_device_without_memory_or_library_is_no_bug(text: str, raised: type[Exception]) -> None:
    with pytest.raises(raised, match=text[:30]), on("cpu", precision="float32"):
        raise jax.errors.JaxRuntimeError(text)


def test_walkers_that_do_not_divide_among_devices_are_refused() -> None:
    devices = [object()] * 3
    with pytest.raises(BadInput, match="Use 12 walkers"):
        mesh_of(10, devices)


def test_cards_alone_are_told_to_leave_products_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(
        devices.jax, "jit", lambda program, **options: told.append(options["compiler_options"])
    )
    placing_jit(lambda x: x, mesh=None)
    monkeypatch.setattr(devices, "device_of", lambda mesh: SimpleNamespace(platform="gpu"))
    placing_jit(lambda x: x, mesh=None)
    assert told == [None, {"xla_gpu_enable_triton_gemm": False}]
    # The name must be one that XLA knows: a wrong one is refused on any device.
    monkeypatch.undo()
    assert float(jax.jit(lambda x: x + 1, compiler_options=told[1])(1.0)) == 2.0
