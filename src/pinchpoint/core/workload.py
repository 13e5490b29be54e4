"""Workloads: computations whose cost grows with the number of points, and the variants that compute them.

The least a user must write is a plain factory, `step_of(size, device) -> step`. A `Workload` adds modes,
variants, tolerances and the number of points that a step really processes. No framework is imported until
`build` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.settings import Overrides, Setting, resolve_one

Mode = Literal["train", "infer"]
MODES: tuple[Mode, ...] = ("train", "infer")


@dataclass(frozen=True)
class Probe:
    """What `verify` compares: one evaluation with a fixed seed, as plain arrays.

    outputs: name -> array. gradients: name of a parameter or input -> array, or None when the computation
    gives it no gradient.
    """

    outputs: Mapping[str, Any]
    gradients: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One built instance of a workload: model and data are ready, and `step` does one step.

    step: is called with `args`. For JAX it is a jitted function, and `args` may be arrays or
    `jax.ShapeDtypeStruct`s, which allow a prediction without allocating anything. For torch, `args` is empty.
    processed: the points that one step really processes, counted by the workload, not copied from the
    requested size.
    probe: evaluates once for `verify`.
    """

    step: Callable[..., Any]
    processed: int
    args: tuple[Any, ...] = ()
    probe: Callable[[], Probe] | None = None


@dataclass(frozen=True)
class Variant:
    """One way to compute a workload.

    flat: the peak is claimed not to grow with the size.
    held_bytes: for a flat variant, the most bytes that it stores per additional point, such as a graph or the
    points themselves. The claim is then that the peak grows by no more than this.
    chunk: a good number of points per chunk, beyond which larger chunks are not faster; `plan` uses it.
    chunked: whether it processes its points in chunks, in a workload that supports chunks at all.
    """

    name: str
    note: str = ""
    flat: bool = False
    held_bytes: float = 0.0
    chunk: int | None = None
    chunked: bool = True


@dataclass(frozen=True)
class Tolerance:
    """The largest relative error allowed in outputs and in gradients, by L2 norm."""

    outputs: float = 1e-5
    gradients: float = 1e-4


@dataclass(frozen=True)
class Workload:
    """A named computation whose cost grows along one axis.

    build: `build(size, device=..., mode=..., variant=..., seed=..., chunk=...) -> Case`, or its address
    "package.module:name", so that listing workloads imports no framework. `chunk` is passed only if `chunked`
    is true (None selects the workload's default), and `settings`, name -> text, only if the workload declares
    settings.
    random: outputs are random draws, so that `verify` compares distributions instead of values.
    """

    name: str
    axis: str
    framework: Literal["torch", "jax"]
    build: Callable[..., Case] | str
    variants: tuple[Variant, ...]
    about: str = ""
    modes: tuple[Mode, ...] = MODES
    tolerance: Tolerance = Tolerance()
    random: bool = False
    chunked: bool = False
    default_size: int = 4096
    settings: tuple[Setting, ...] = ()

    def __post_init__(self) -> None:
        if not self.variants:
            raise BadInput(
                f"The workload {self.name!r} has no variants.",
                hint="Give it at least one variant; the first is the baseline.",
            )

    @property
    def baseline(self) -> Variant:
        return self.variants[0]

    def variant(self, name: str | None) -> Variant:
        """The named variant, or the baseline for None."""
        if name is None:
            return self.baseline
        for variant in self.variants:
            if variant.name == name:
                return variant
        names = ", ".join(v.name for v in self.variants)
        raise BadInput(f"{self.name} has no variant {name!r}.", hint=f"Use one of: {names}.")

    def check_mode(self, mode: str) -> None:
        if mode not in self.modes:
            raise BadInput(f"{self.name} has no mode {mode!r}.", hint=f"Use one of: {', '.join(self.modes)}.")

    def check_chunk(self, variant: str | None) -> None:
        """Raise if this variant does not process its points in chunks."""
        candidate = self.variant(variant)
        others = [v.name for v in self.variants if v.chunked] if self.chunked else []
        if self.chunked and candidate.chunked:
            return
        if not others:
            raise BadInput(f"{self.name} does not support chunking.", hint="Leave --chunk out.")
        raise BadInput(
            f"The variant {candidate.name!r} of {self.name} does not support chunking.",
            hint=f"Choose a variant that does with --variant ({', '.join(others)}), or leave --chunk out.",
        )

    def resolve_settings(self, settings: Overrides | None) -> dict[str, str]:
        """Every setting with its value, defaults included."""
        return resolve_one(self.name, self.settings, settings)

    def case(
        self,
        size: int,
        *,
        device: str,
        mode: Mode = "train",
        variant: str | None = None,
        seed: int = 0,
        chunk: int | None = None,
        settings: Overrides | None = None,
    ) -> Case:
        """Build one case. Raises whatever the workload's own code raises."""
        self.check_mode(mode)
        values = self.resolve_settings(settings)
        build = self.build if callable(self.build) else _load(self.build)
        options: dict[str, Any] = {"chunk": chunk} if self.chunked else {}
        if self.settings:
            options["settings"] = values
        return build(size, device=device, mode=mode, variant=self.variant(variant).name, seed=seed, **options)


@dataclass(frozen=True)
class BuiltStep:
    """A target built for one size. processed: the points that one step processes, if the target says so."""

    step: Callable[..., Any]
    args: tuple[Any, ...] = ()
    processed: int | None = None

    def run(self) -> Any:
        return self.step(*self.args)


def build(
    thing: Workload | Callable[..., Any],
    size: int,
    *,
    text: str,
    device: str,
    mode: str | None = None,
    variant: str | None = None,
    seed: int = 0,
    chunk: int | None = None,
    settings: Overrides | None = None,
) -> BuiltStep:
    """Build a workload's case, or call a factory. Raises whatever the target's own code raises."""
    settings_of(thing, settings, text=text)
    if chunk is not None and not (isinstance(thing, Workload) and thing.chunked):
        raise BadInput(f"{text} does not support chunking.", hint="Leave the chunk out.")
    if not isinstance(thing, Workload):
        return unpack(thing(size, device), text)
    built_mode: Any = mode or thing.modes[0]
    case = thing.case(
        size, device=device, mode=built_mode, variant=variant, seed=seed, chunk=chunk, settings=settings
    )
    return unpack(case, text)


def settings_of(thing: Any, settings: Overrides | None, *, text: str) -> dict[str, str]:
    """The settings of a workload with their values; anything else has none, and giving one is an error."""
    if isinstance(thing, Workload):
        return thing.resolve_settings(settings)
    if settings:
        raise BadInput(
            f"{text} is a plain factory and has no settings.",
            hint="Leave --set out, or turn the factory into a Workload with settings=(...).",
        )
    return {}


def unpack(result: Any, text: str = "The factory") -> BuiltStep:
    """Interpret what a target returned: a `Case`, a step, or (step, arguments).

    A step may have an attribute `processed`.
    """
    match result:
        case BuiltStep():
            return result
        case Case():
            return BuiltStep(result.step, result.args, result.processed)
        case (step, tuple() | list() as args) if isinstance(result, tuple) and callable(step):
            return BuiltStep(step, tuple(args), getattr(step, "processed", None))
    if callable(result):
        return BuiltStep(result, processed=getattr(result, "processed", None))
    raise BadInput(
        f"{text} returned {type(result).__name__}, not a step.",
        hint="Return a function that does one step when called, or (function, arguments).",
    )


def _load(path: str) -> Callable[..., Case]:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
