"""Every JAX interface that JAX does not promise to keep, in one place.

Tested with JAX 0.10 here and 0.11 on a GPU machine. What is not found gives the plainer answer
(no source line, no plugin), never a guess.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import Any

import jax
from jax.extend.core import Literal

_JAX = (str(Path(jax.__file__).parent), str(Path(jax.__file__).parent.parent / "jaxlib"))
_STDLIB = sysconfig.get_paths()["stdlib"]
_OURS = str(Path(__file__).resolve().parents[1])  # the backends; shipped workloads are user code here
_PACKAGE = Path(__file__).resolve().parents[2]
_WORKLOADS = (str(_PACKAGE / "workloads"), str(_PACKAGE / "systems"))
_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")


def user_line(source: Any) -> tuple[str, int]:
    """File and line of the innermost frame of the user's own code, `("", 0)` when JAX kept none."""
    second: tuple[str, int] = ("", 0)
    for file, line in _frames(source.traceback):
        if file.startswith((*_JAX, _OURS, "<")):
            continue
        if file.startswith(_WORKLOADS) or ("site-packages" not in file and not file.startswith(_STDLIB)):
            return file, line()
        if not second[0] and "site-packages" in file:
            second = (file, line())  # a library's line is better than none
    return second


def _frames(traceback: Any) -> Iterator[tuple[str, Callable[[], int]]]:
    """Innermost first. The line is found only when asked for: most frames are JAX's own."""
    if traceback is None:
        return
    if hasattr(traceback, "raw_frames"):
        codes, offsets = traceback.raw_frames()
        for code, offset in zip(codes, offsets, strict=True):
            yield code.co_filename, lambda code=code, offset=offset: _line_of(code, offset)
    else:
        for frame in traceback.frames:
            yield frame.file_name, lambda frame=frame: frame.line_num


def _line_of(code: Any, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno


@contextmanager
def tracers_wait() -> Iterator[None]:
    """Let `x.block_until_ready()` pass while a step is traced: there is nothing to wait for."""
    from jax._src.core import Tracer

    kept = Tracer.__dict__.get("block_until_ready")
    Tracer.block_until_ready = lambda self: self  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        if kept is None:
            del Tracer.block_until_ready
        else:
            Tracer.block_until_ready = kept  # pyright: ignore[reportAttributeAccessIssue]


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """The names JAX gives the flat inputs, such as `params['w']`; empty where it gives none."""
    count = len(jaxpr.invars)
    found = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None) or ()
    # What a step captures of an outer trace comes before its arguments and has no name.
    return (("",) * count + tuple(name or "" for name in found))[-count:] if count else ()


def is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)


def is_tracer(value: Any) -> bool:
    from jax._src.core import Tracer

    return isinstance(value, Tracer)


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Run one equation on values or tracers."""
    found = eqn.primitive.get_bind_params(eqn.params)
    # Until JAX 0.9 the functions of a call came apart from its parameters.
    functions, params = found if isinstance(found, tuple) else ((), found)
    with eqn.ctx.manager:
        outs = eqn.primitive.bind(*functions, *values, **params)
    return outs if eqn.primitive.multiple_results else [outs]


def without_dead_code(closed: Any) -> Any:
    """The closed jaxpr less what no output needs, inside loops too; its inputs stay."""
    from jax._src.interpreters.partial_eval import dce_jaxpr

    kept, _ = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars), instantiate=True)
    # From JAX 0.11.1 on a jaxpr holds its own constants, and closed.jaxpr is closed itself.
    return kept if closed.jaxpr is closed else closed.replace(jaxpr=kept)


def scan_counts(params: dict[str, Any], operands: int) -> tuple[int, int]:
    """How many of a scan's operands are constants and how many its carry; the rest are sliced."""
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    # JAX 0.11 describes the groups by a tree over the operands.
    consts, carry, _ = (
        len(list(group.vals)) for group in params["ft_in"].update(list(range(operands))).unpack()
    )
    return consts, carry


def cuda_plugin() -> str | None:
    """Name and version of the installed CUDA plugin, or None."""
    for name in _PLUGINS:
        try:
            found = util.find_spec(name)
        except ModuleNotFoundError:
            found = None
        if found is not None:
            package = f"jax-{name.rpartition('xla_')[2]}-plugin"
            try:
                return f"{package} {metadata.version(package)}"
            except metadata.PackageNotFoundError:
                return package
    return None


def topology_devices(target_config: str) -> list[Any]:
    """Compile-only devices of one CUDA card that need not be here."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(
        platform="cuda", target_config=target_config, topology="1x1x1"
    ).devices


def attached_target_config() -> str:
    """The target config text of the GPU that is really here."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    return str(_jax.get_topology_for_devices(jax.devices("cuda")).target_config)


def backends_are_initialized() -> bool:
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()
