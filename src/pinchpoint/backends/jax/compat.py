"""Every private or unstable JAX interface that pinchpoint uses, in one place.

Tested with JAX 0.10 on a CPU and 0.11 on a GPU. If an interface is missing, the result has less detail
(no source line, no plugin), but nothing is guessed.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata, util
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax._src import core as _core
from jax._src.array import ArrayImpl as ArrayImpl
from jax.extend.core import Literal

from pinchpoint.backends.recording.source_lines import is_user_file

_JAX = (str(Path(jax.__file__).parent), str(Path(jax.__file__).parent.parent / "jaxlib"))
_OURS = str(Path(__file__).parents[2])
_PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")


def user_line(source: Any) -> tuple[str, int]:
    """File and line of the innermost frame in the user's own code, or `("", 0)` if JAX recorded none."""
    library_line: tuple[str, int] = ("", 0)
    for file, line in _frames(source.traceback):
        if file.startswith(_JAX):
            continue
        if is_user_file(file):
            return file, line()
        if not library_line[0] and "site-packages" in file and not file.startswith(_OURS):
            library_line = (file, line())  # a library's line is better than none
    return library_line


def _frames(traceback: Any) -> Iterator[tuple[str, Callable[[], int]]]:
    """The frames, innermost first. Line numbers are computed on demand: most frames are JAX's own."""
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
def allow_waiting_on_tracers() -> Iterator[None]:
    """Make `x.block_until_ready()` do nothing while a step is traced."""
    from jax._src.core import Tracer

    original = Tracer.__dict__.get("block_until_ready")
    Tracer.block_until_ready = lambda self: self  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        if original is None:
            del Tracer.block_until_ready
        else:
            Tracer.block_until_ready = original  # pyright: ignore[reportAttributeAccessIssue]


def argument_names(jaxpr: Any) -> tuple[str, ...]:
    """JAX's names of the flat inputs, such as `params['w']`; an input without a name has ""."""
    count = len(jaxpr.invars)
    names = getattr(getattr(jaxpr, "debug_info", None), "arg_names", None) or ()
    # Values captured from an outer trace come before the arguments and have no name.
    return (("",) * count + tuple(name or "" for name in names))[-count:] if count else ()


def is_literal(atom: Any) -> bool:
    return isinstance(atom, Literal)


def is_tracer(value: Any) -> bool:
    from jax._src.core import Tracer

    return isinstance(value, Tracer)


def bind(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Run one equation on values or tracers."""
    bind_params = eqn.primitive.get_bind_params(eqn.params)
    # Until JAX 0.9 the functions of a call were separate from its parameters.
    functions, params = bind_params if isinstance(bind_params, tuple) else ((), bind_params)
    with eqn.ctx.manager:
        outs = eqn.primitive.bind(*functions, *values, **params)
    return outs if eqn.primitive.multiple_results else [outs]


def without_dead_code(closed_jaxpr: Any) -> Any:
    """The closed jaxpr without equations that no output needs, inside loops too; all inputs are kept."""
    from jax._src.interpreters.partial_eval import dce_jaxpr

    jaxpr, _ = dce_jaxpr(closed_jaxpr.jaxpr, [True] * len(closed_jaxpr.jaxpr.outvars), instantiate=True)
    # From JAX 0.11.1 on a jaxpr holds its own constants, and closed_jaxpr.jaxpr is closed itself.
    return jaxpr if closed_jaxpr.jaxpr is closed_jaxpr else closed_jaxpr.replace(jaxpr=jaxpr)


def scan_counts(params: dict[str, Any], operands: int) -> tuple[int, int]:
    """How many of a scan's operands are constants, and how many are its carry; the rest are sliced."""
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
            spec = util.find_spec(name)
        except ModuleNotFoundError:
            spec = None
        if spec is not None:
            package = f"jax-{name.rpartition('xla_')[2]}-plugin"
            try:
                return f"{package} {metadata.version(package)}"
            except metadata.PackageNotFoundError:
                return package
    return None


def topology_devices(target_config: str, count: int = 1) -> list[Any]:
    """Compile-only devices of one machine with CUDA cards, which need not be installed."""
    from jax.experimental import topologies

    return topologies.get_topology_desc(
        platform="cuda", target_config=target_config, topology=f"1x1x{count}"
    ).devices


@contextmanager
def abstract_card(kind: str, cores: int) -> Iterator[None]:
    """Within this context, JAX (from 0.11) lowers kernels of Pallas for a card that need not be installed."""
    try:
        from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

        mesh = AbstractMesh((), (), abstract_device=AbstractDevice(kind, cores, "gpu"))
    except (ImportError, TypeError):
        yield
        return
    with use_abstract_mesh(mesh):
        yield


def canonical_hlo(text: str) -> str:
    """A program in HLO text, as XLA writes it in the keys of its tuning results; "" if that changed."""
    try:
        from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue]

        options = _hlo.HloPrintOptions.canonical()
        options.print_operand_shape = True
        options.print_ids = False
        options.canonicalize_computations = True
        return str(_hlo.hlo_module_from_text(text).to_string(options))
    except (ImportError, AttributeError, TypeError, RuntimeError):
        return ""


@contextmanager
def silent_compiler() -> Iterator[None]:
    """Keep what XLA logs about refused options off the terminal."""
    sys.stderr.flush()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def attached_target_config() -> str:
    """The target config text of the installed GPU."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    return str(_jax.get_topology_for_devices(jax.devices("cuda")).target_config)


def backends_are_initialized() -> bool:
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


# A script that runs without values: see the folder `script`.
Trace: Any = _core.Trace
Tracer: Any = _core.Tracer
set_current_trace = _core.set_current_trace


def evaluating() -> Any:
    """A context in which JAX computes, as outside every trace."""
    return _core.set_current_trace(_core.eval_trace)


def aval_of(value: Any) -> Any:
    """The abstract value (shape and dtype) of anything that JAX accepts as an array."""
    return _core.typeof(value)


def on_host(aval: Any) -> bool:
    return getattr(aval, "memory_space", None) == _core.MemorySpace.Host


def forwarded_inputs(closed_jaxpr: Any) -> dict[int, int]:
    """Outputs of a program that are its unchanged inputs: position of the output -> of the input."""
    position = {var: i for i, var in enumerate(closed_jaxpr.jaxpr.invars)}
    return {
        i: position[var]
        for i, var in enumerate(closed_jaxpr.jaxpr.outvars)
        if not is_literal(var) and var in position
    }


def only_output(closed_jaxpr: Any, index: int) -> tuple[Any, list[bool]]:
    """The part of a program that computes one output, and which inputs it uses."""
    from jax._src.interpreters.partial_eval import dce_jaxpr

    inner = closed_jaxpr.jaxpr
    jaxpr, used = dce_jaxpr(inner, [i == index for i in range(len(inner.outvars))])
    return (jaxpr if inner is closed_jaxpr else closed_jaxpr.replace(jaxpr=jaxpr)), list(used)


def inner_jaxprs(eqn: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation: bodies of loops, branches and calls."""
    for value in eqn.params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def answer_concrete(patches: Any, value_of: Callable[[Any], Any]) -> None:
    """Let `value_of` replace an array where JAX needs its value before it can compute shapes."""
    original = _core.concrete_or_error
    patches.set(
        _core,
        "concrete_or_error",
        lambda force, value, context="": original(force, value_of(value), context),
    )


def replace_lower(patches: Any, replacement: Callable[..., Any]) -> Callable[..., Any]:
    """Replace the method `lower` of what `jax.jit` returns, and return the original."""
    from jax._src import pjit

    kind = type(jax.jit(lambda x: x))
    original = pjit.jit_lower
    patches.set(pjit, "jit_lower", replacement)  # every call of jax.jit sets the method again
    patches.set(kind, "lower", replacement)
    return original


def static_arguments(jitted: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the arguments of a jitted function that are compiled into it."""
    info = getattr(jitted, "_jit_info", None)
    return tuple(getattr(info, "static_argnums", ())), tuple(getattr(info, "static_argnames", ()))


def allow_set_mesh(patches: Any) -> None:
    """Let `jax.set_mesh` work while a trace is current, which it otherwise refuses."""
    original = jax.set_mesh.__init__

    def start(self: Any, *args: Any, **options: Any) -> None:
        with evaluating():
            original(self, *args, **options)

    patches.set(jax.set_mesh, "__init__", start)


def is_tracing() -> bool:
    """Whether the program is inside a function that is being traced."""
    return not _core.trace_state_clean()


# Programs over several devices: see the folder `sharded`.
def set_device_count(count: int) -> None:
    """Let JAX see so many CPU devices; before JAX first uses a device."""
    jax.config.update("jax_num_cpu_devices", count)


def on_mesh(aval: Any, sharding: Any) -> Any:
    """The abstract value of an array with this sharding, which says how explicit mesh axes divide it."""
    return _core.update_aval_with_sharding(aval, sharding) if isinstance(aval, _core.ShapedArray) else aval


def lower_program(
    args: Sequence[tuple[Any, Any, bool, bool]], params: dict[str, Any], platform: str | None = None
) -> Any:
    """Lower a call of a compiled function as JAX does before it runs it.

    args: of each argument, its abstract value, its sharding (None for a host array), whether it is committed
    to its devices, and whether it is a numpy array
    platform: for which it is lowered, by default that of the devices
    """
    from jax._src import pjit
    from jax._src.interpreters import mlir

    metas = [
        pjit.create_meta_ty(aval, sharding, None, is_committed, is_numpy)
        for aval, sharding, is_committed, is_numpy in args
    ]
    return pjit._resolve_and_lower(  # pyright: ignore[reportPrivateUsage]
        metas,
        **params,
        lowering_platforms=None if platform is None else (platform,),
        lowering_parameters=mlir.LoweringParameters(),
        pgle_profiler=None,
    )


def mesh_size(eqn: Any) -> int:
    """How many devices an equation divides its values over; 1 if it does not say."""
    mesh = eqn.params.get("mesh") if eqn.primitive.name == "shard_map" else None
    if mesh is not None:
        return math.prod(mesh.shape.values())
    sharding = eqn.params.get("sharding") if eqn.primitive.name == "sharding_constraint" else None
    return int(getattr(sharding, "num_devices", 1))


def program_devices(computation: Any) -> tuple[Any, ...]:
    """The devices on which a lowered program runs."""
    return tuple(computation._device_list)


def compile_for(computation: Any, devices: Sequence[Any], options: dict[str, Any]) -> Any:
    """Compile a lowered program for other devices than those it was lowered for: device i is `devices[i]`."""
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    def moved(sharding: Any) -> Any:
        """The same sharding on the other devices; JAX compares it with what XLA returns."""
        mesh = getattr(sharding, "mesh", None)
        if not isinstance(mesh, jax.sharding.Mesh) or mesh.empty:
            return sharding
        numbers = [device.id for device in mesh.devices.flat]
        grid = np.array([devices[n] for n in numbers], dtype=object).reshape(mesh.devices.shape)
        other = jax.sharding.Mesh(grid, mesh.axis_names, axis_types=mesh.axis_types)
        return jax.sharding.NamedSharding(other, sharding.spec)

    args = computation.compile_args
    args |= {name: tuple(map(moved, args[name])) for name in ("in_shardings", "out_shardings")}
    args |= {"backend": devices[0].client, "intermediate_shardings": None, "context_mesh": None}
    computation._device_list = _jax.DeviceList(tuple(devices[d.id] for d in program_devices(computation)))
    return computation.compile(compiler_options=options)


def output_shardings(executable: Any) -> tuple[Any, ...]:
    return tuple(executable._out_shardings)


def input_shardings(computation: Any, executable: Any) -> dict[int, Any]:
    """How the arguments that a program uses are divided: position of the argument -> sharding."""
    constants = len(computation.const_args)
    kept = sorted(executable._kept_var_idx)
    shardings = executable._in_shardings
    if len(kept) == len(shardings):  # constants are counted among the inputs
        return {i - constants: s for i, s in zip(kept, shardings, strict=True) if i >= constants}
    return dict(zip(kept, shardings[constants:], strict=False))


def is_inside_program() -> bool:
    """Whether a function that will be compiled is being traced, not the script around it."""
    trace = _core.trace_ctx.trace
    return not getattr(trace, "is_script", False) and trace is not _core.eval_trace


def replace_full(
    patches: Any, full: Callable[..., Any], full_like: Callable[..., Any]
) -> dict[str, Callable[..., Any]]:
    """Replace the functions behind `jnp.zeros`, `jnp.zeros_like` and the like, and return the originals."""
    from jax._src.lax import lax

    originals: dict[str, Callable[..., Any]] = {"full": lax.full, "full_like": lax.full_like}
    for name, function in (("full", full), ("full_like", full_like)):
        patches.set(lax, name, function)
        patches.set(jax.lax, name, function)
    return originals


def replace_array_makers(patches: Any, functions: dict[str, Callable[..., Any]]) -> None:
    """Replace functions that build arrays over several devices."""
    from jax._src import array

    for name, function in functions.items():
        patches.set(array, name, function)
        patches.set(jax, name, function)
