"""Measurements behind the pages docs/systems/vmc.md and docs/reports/vmc.md: Laplacians, chunks, faults.

    python benchmarks/vmc/claims.py -o benchmarks/results/vmc_claims_cpu.json
    python benchmarks/vmc/claims.py --parts calls -o benchmarks/results/vmc_claims_calls.json

pinchpoint must be importable: installed, or `PYTHONPATH=src`. The part `laplacian` times the local energies
of 128 walkers with the network `report` by each method, in turn with the forward method. It also records the
temporaries from XLA's memory analysis, the difference of the energies of two walkers from the forward ones in
float64, and nested gradients from Python on one walker, scaled up. The part `chunks` times the energies of
512 walkers of 10 electrons at once, in chunks, and by the loop in chunks. The part `faults` runs what the
code of the report does with JAX, and its wave function with two electrons swapped; the part `calls` runs its
flags, profiler calls and counts one by one. The record is written
after every part and row, and a later call on the same file adds to it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp
import jax.profiler
import numpy as np

from pinchpoint.core.files import check_output, write_text
from pinchpoint.core.machine import describe
from pinchpoint.core.records import now
from pinchpoint.studies.timing import interleave, measure, ratio_interval, timing_of
from pinchpoint.systems.vmc.data.system import System, system_of
from pinchpoint.systems.vmc.model.baseline import Baseline, nested_energies
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.model.hamiltonian import local_energies
from pinchpoint.systems.vmc.model.wavefunction import wave_function
from pinchpoint.systems.vmc.optimization.compile_cache import use_compile_cache
from pinchpoint.systems.vmc.optimization.optimizers import energy_gradient
from pinchpoint.systems.vmc.optimization.sampling import key_of, start
from pinchpoint.systems.vmc.optimization.trees import count
from pinchpoint.systems.vmc.settings import Stage

SYSTEMS = ("H2", "LiH", "H2O")  # of 2, 4 and 10 electrons
METHODS = ("hessian", "loop", "forward")
WALKERS, NET = 128, "report"
# Most electrons for which nested gradients are timed: 10 electrons take a quarter of an hour for 128 walkers.
NESTED_MOST = 4
Row = dict[str, Any]


def energies_of(system: System, net: str, walkers: int, **how: Any) -> tuple[Callable[[], Any], int]:
    """Return a compiled call for the energies of the walkers, and the bytes of its temporaries."""
    wave = wave_function(system, NetConfig.preset(net))
    params, x = wave.init(key_of(0, Stage.PARAMETERS)), start(system, walkers, key_of(0, Stage.WALKERS))
    program = jax.jit(local_energies(wave.log, system, **how)).lower(params, x).compile()
    memory: Any = program.memory_analysis()
    return lambda: program(params, x), int(memory.temp_size_in_bytes)


def distance(system: System, net: str, method: Any, *, walkers: int = 2) -> float:
    """Return the largest relative difference of a method's energies from the forward ones, in float64."""
    with jax.enable_x64(True):
        wave = wave_function(system, NetConfig.preset(net))
        params = jax.tree_util.tree_map(
            lambda leaf: jnp.asarray(leaf, jnp.float64), wave.init(key_of(0, Stage.PARAMETERS))
        )
        x = start(system, walkers, key_of(0, Stage.WALKERS), dtype=jnp.float64)
        energies, expected = (
            np.asarray(jax.jit(local_energies(wave.log, system, method=m))(params, x))
            for m in (method, "forward")
        )
    return float(np.max(np.abs(energies - expected) / np.abs(expected)))


def laplacian(tell: Callable[[Row], None], *, systems: tuple[str, ...], walkers: int, repeats: int) -> None:
    """Measure one row per system and method."""
    for name in systems:
        system = system_of(name)
        quick, temp = energies_of(system, NET, walkers, method="forward")
        shared = {"system": name, "electrons": system.electrons, "walkers": walkers, "net": NET}
        first: list[float] | None = None
        for method in ("hessian", "loop"):
            slow, slow_temp = energies_of(system, NET, walkers, method=method)
            a, b = interleave(slow, quick, wait=jax.block_until_ready, warmup=2, repeats=repeats)
            tell(
                {
                    **shared,
                    **_timed(method, a, slow_temp),
                    "over_forward": ratio_interval(a, b),
                    "off": distance(system, NET, method),
                }
            )
            first = first or b
        tell({**shared, **_timed("forward", first or [], temp), "over_forward": (1.0, 1.0, 1.0), "off": 0.0})
        if system.electrons <= NESTED_MOST:
            baseline = Baseline(system, NetConfig.preset(NET), moves=1)
            params, x = baseline.init(key_of(0, Stage.PARAMETERS)), start(system, 1, key_of(0, Stage.WALKERS))

            def one(
                baseline: Baseline = baseline, params: Any = params, system: System = system, x: Any = x
            ) -> Any:
                return nested_energies(baseline.log_psi, params, system, x)

            timing = measure(one, wait=jax.block_until_ready, warmup=1, repeats=3)
            tell(
                {
                    **shared,
                    "method": "nested, from Python",
                    "seconds": timing.median_s * walkers,
                    "timed_walkers": 1,
                    "a_walker_s": timing.median_s,
                    "runs": timing.runs,
                    "scaled": walkers > 1,
                }
            )


def chunks(tell: Callable[[Row], None], *, walkers: int, chunk: int, repeats: int) -> None:
    """Time energies of 10 electrons in chunks, compared with all at once and with the loop in chunks."""
    system = system_of("H2O")
    quick, temp = energies_of(system, "small", walkers, method="forward", chunk=chunk)
    others: dict[str, Row] = {
        "forward, all at once": {"method": "forward"},
        f"loop, chunks of {chunk}": {"method": "loop", "chunk": chunk},
    }
    for at, (name, how) in enumerate(others.items()):
        slow, slow_temp = energies_of(system, "small", walkers, **how)
        a, b = interleave(slow, quick, wait=jax.block_until_ready, warmup=1, repeats=repeats)
        shared = {"system": "H2O", "net": "small", "walkers": walkers}
        if not at:
            tell({**shared, **_timed(f"forward, chunks of {chunk}", b, temp), "over_chunks": (1.0, 1.0, 1.0)})
        tell({**shared, **_timed(name, a, slow_temp), "over_chunks": ratio_interval(a, b)})


def _timed(method: str, seconds: list[float], temp: int) -> Row:
    timing = timing_of(seconds)
    return {
        "method": method,
        "seconds": timing.median_s,
        "low_s": timing.low_s,
        "high_s": timing.high_s,
        "runs": timing.runs,
        "temp_bytes": temp,
    }


def faults(tell: Callable[[Row], None]) -> None:
    """Run what the code of the report does with JAX, and check its wave function."""
    tell(
        {
            "claim": "jit over a callable argument",
            "found": _error_of(lambda: jax.jit(lambda f, x: f(x))(jnp.sin, 1.0)),
        }
    )
    tell(
        {
            "claim": "the option jax_enable_x64x",
            "found": _error_of(lambda: jax.config.update("jax_enable_x64x", True)),
        }
    )
    hessian = jax.hessian(lambda x: jnp.sum(x**2))(jnp.ones((2, 3)))
    total = sum(hessian[i, i] for i in range(6))
    tell(
        {
            "claim": "the Hessian's flat diagonal",
            "found": f"an array of {np.shape(total)} where the Laplacian is the number 12",
        }
    )
    system = system_of("LiH")  # two electrons of each spin
    net = NetConfig.preset("report-cpu")
    x = start(system, 4, key_of(0, Stage.WALKERS))
    swapped = x[:, jnp.asarray([1, 0, 2, 3])]
    waves = {"original": Baseline(system, net, moves=1), "ours": wave_function(system, net)}
    for name, wave in waves.items():
        log = wave.log_psi if isinstance(wave, Baseline) else wave.log
        params = wave.init(key_of(0, Stage.PARAMETERS))
        both = [np.asarray(jax.vmap(log, (None, 0))(params, places)) for places in (x, swapped)]
        off = float(np.max(np.abs(both[0] - both[1])))
        tell(
            {
                "claim": f"|psi| stays with two like electrons swapped: {name}",
                "found": f"log|psi| changes by {off:.2g}",
            }
        )


def calls(tell: Callable[[Row], None]) -> None:
    """Run the calls, flags and counts of the report one by one."""
    flag = "--xla_enable_fast_min_max_math"
    done = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**os.environ, "XLA_FLAGS": flag, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    words = next((line for line in done.stderr.splitlines() if "XLA_FLAGS" in line), "")
    tell(
        {
            "claim": f"XLA_FLAGS={flag}",
            "found": f"exit code {done.returncode}; {words[words.find('Unknown') :]}",
        }
    )
    tell({"claim": "jax.profiler.start_trace()", "found": _error_of(lambda: jax.profiler.start_trace())})  # pyright: ignore[reportCallIssue]
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder)
        result: Any = jax.profiler.stop_trace()
    saved = _error_of(lambda: result.save_as_html("profile.html"))
    tell({"claim": "jax.profiler.stop_trace().save_as_html()", "found": saved})
    tell({"claim": "floats are float64 by default", "found": f"jnp.zeros(1) is {jnp.zeros(1).dtype}"})
    system, key = system_of("H2"), key_of(0, Stage.PARAMETERS)
    baseline = Baseline(system, NetConfig.preset(NET), moves=1)
    params, x = baseline.init(key), start(system, WALKERS, key_of(0, Stage.WALKERS))
    tell({"claim": "about 9,000 parameters", "found": f"{count(params):,} in the reimplemented network"})
    forward = jax.jit(lambda x: jax.vmap(baseline.log_psi, (None, 0))(params, x))
    analysis: Any = forward.lower(x).compile().cost_analysis()
    tell(
        {
            "claim": "128 samples are 768 floating-point operations",
            "found": f"{analysis['flops']:,.0f} for one evaluation of the wave function, by XLA's count",
        }
    )
    traces: list[int] = []

    def energy(walker: Any) -> Any:
        traces.append(1)
        return baseline.log_psi(params, walker)

    def fresh(x: Any) -> Any:
        return jax.jit(jax.vmap(lambda walker: energy(walker)))(x)

    for _ in range(3):
        fresh(x)
    several = len(traces)
    traces.clear()
    once = jax.jit(jax.vmap(energy))
    for _ in range(3):
        once(x)
    tell(
        {
            "claim": "jit inside the function that is called",
            "found": f"{several} compilations in 3 calls, and {len(traces)} with jit outside of it",
        }
    )
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, duration_secs, **kwargs: compiled.append(event) if "backend_compile" in event else None
    )
    counts = []
    for walker in x[:2]:
        compiled.clear()
        nested_energies(baseline.log_psi, params, system, walker[None])
        counts.append(len(compiled))
    tell(
        {
            "claim": "every nested gradient is compiled again",
            "found": f"{counts[0]} compilations of single operations for the first walker, "
            f"{counts[1]} for the second",
        }
    )

    class Network:
        weights: Any = params

    network = Network()

    def with_side_effect(weights: Any, x: Any) -> Any:
        network.weights = weights
        return baseline.log_psi(network.weights, x)

    jax.jit(with_side_effect)(params, x[0])
    later = _error_of(lambda: baseline.log_psi(network.weights, x[0]))
    tell({"claim": "network.params = params inside jit", "found": f"later uses: {later}"})
    wave = wave_function(system, NetConfig.preset(NET))
    weights = wave.init(key)
    energies = jax.jit(local_energies(wave.log, system))(weights, x)
    whole = energy_gradient(wave.log, weights, x, energies)
    parts = [
        energy_gradient(wave.log, weights, x[at : at + 8], energies[at : at + 8])
        for at in range(0, WALKERS, 8)
    ]
    mean: Any = sum(parts[1:], parts[0]) / len(parts)
    off = float(jnp.linalg.norm(mean - whole) / jnp.linalg.norm(whole))
    tell(
        {
            "claim": "gradients of micro-batches add up to that of the batch",
            "found": f"off by {off:.1%} with 16 micro-batches of 8, each with its own mean energy",
        }
    )


def _error_of(run: Callable[[], Any]) -> str:
    try:
        run()
    except (TypeError, AttributeError, jax.errors.UnexpectedTracerError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].partition(' at 0x')[0][:100]}"
    return "nothing was raised"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("faults", "calls", "laplacian", "chunks"),
        default=("faults", "calls", "laplacian", "chunks"),
    )
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    check_output(args.output)
    record: Row = {"commands": [], "created": now(), "machine": describe()}
    if args.output.exists():
        record = json.loads(args.output.read_text(encoding="utf-8"))
    record["commands"].append("python " + " ".join(sys.argv))
    use_compile_cache()

    def into(part: str) -> Callable[[Row], None]:
        def tell(row: Row) -> None:
            same = [
                (one.get("system"), one.get("method"), one.get("claim"))
                for one in record.setdefault(part, [])
            ]
            key = (row.get("system"), row.get("method"), row.get("claim"))
            record[part] = [one for one, known in zip(record[part], same, strict=True) if known != key] + [
                row
            ]
            write_text(args.output, json.dumps(record, indent=1) + "\n")
            print(f"{part}: {json.dumps(row)}", flush=True)

        return tell

    with jax.default_device(jax.devices("cpu")[0]):
        if "faults" in args.parts:
            faults(into("faults"))
        if "calls" in args.parts:
            calls(into("calls"))
        if "laplacian" in args.parts:
            laplacian(into("laplacian"), systems=tuple(args.systems), walkers=WALKERS, repeats=args.repeats)
        if "chunks" in args.parts:
            chunks(into("chunks"), walkers=512, chunk=64, repeats=args.repeats)


if __name__ == "__main__":
    main()
