"""A workload: a thing whose cost grows with its points, and the ways to compute it.

The least a user must write is a plain factory, `step_of(size, device) -> step`. A `Workload`
adds modes, variants, tolerances and the count of points really processed. Neither needs a
framework to be imported until `build` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from pinchpoint.core.errors import BadInput
from pinchpoint.core.settings import Asked, Setting, resolve_one

Mode = Literal["train", "infer"]
MODES: tuple[Mode, ...] = ("train", "infer")


@dataclass(frozen=True)
class Probe:
    """What `verify` compares: one evaluation with a fixed seed, as plain arrays.

    outputs: name -> array; gradients: name of parameter or input -> array, or None when the
    computation gives it none.
    """

    outputs: Mapping[str, Any]
    gradients: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One built instance of a workload: model and data are ready, `step` does one step.

    step: called with `args`; for JAX a jitted function whose `args` may be arrays or
    `jax.ShapeDtypeStruct`s (then nothing real is made to predict it). For torch `args` is empty.
    processed: the points one step really pushes through, counted by the workload, not copied
    from the size that was asked for.
    probe: evaluates once for `verify`.
    """

    step: Callable[..., Any]
    processed: int
    args: tuple[Any, ...] = ()
    probe: Callable[[], Probe] | None = None


@dataclass(frozen=True)
class Variant:
    """One way to compute a workload. `flat`: its peak is claimed not to grow with the size.

    held_bytes: of a flat variant, the most it may hold for each further point: a graph or the points themselves
    must lie somewhere. The claim is then that the peak grows by no more than this.
    chunk: points at one time that suit it, where larger chunks bring no more speed: `plan` keeps to it.
    """

    name: str
    note: str = ""
    flat: bool = False
    held_bytes: float = 0.0
    chunk: int | None = None


@dataclass(frozen=True)
class Tolerance:
    """How far a variant may stray: relative error of outputs and of gradients, by L2 norm."""

    outputs: float = 1e-5
    gradients: float = 1e-4


@dataclass(frozen=True)
class Workload:
    """A named computation that grows along one axis.

    build: `build(size, device=..., mode=..., variant=..., seed=..., chunk=...) -> Case`, or
    "package.module:name" so that listing workloads imports no framework. `chunk` is passed only
    when `chunked` is true (None: the workload's own default), and `settings`, name -> text, only where
    the workload declares some.
    random: outputs are draws; `verify` then compares distributions, not values.
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
                f"workload {self.name!r} has no variants", hint="give at least one; the first is the baseline"
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
        known = ", ".join(v.name for v in self.variants)
        raise BadInput(f"{self.name} has no variant {name!r}", hint=f"use one of: {known}")

    def check_mode(self, mode: str) -> None:
        if mode not in self.modes:
            raise BadInput(f"{self.name} has no mode {mode!r}", hint=f"use one of: {', '.join(self.modes)}")

    def chosen(self, settings: Asked | None) -> dict[str, str]:
        """Every setting with its value, those not asked for with their default."""
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
        settings: Asked | None = None,
    ) -> Case:
        """Build one case. Raises whatever the workload's own code raises."""
        self.check_mode(mode)
        chosen = self.chosen(settings)
        build = self.build if callable(self.build) else _load(self.build)
        options: dict[str, Any] = {"chunk": chunk} if self.chunked else {}
        if self.settings:
            options["settings"] = chosen
        return build(size, device=device, mode=mode, variant=self.variant(variant).name, seed=seed, **options)


@dataclass(frozen=True)
class Built:
    """A target built for one size: what one step is, and the points it really processes where the target says so."""

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
    settings: Asked | None = None,
) -> Built:
    """Build a workload's case, or call a factory. Raises whatever the target's own code raises."""
    chosen_of(thing, settings, text=text)
    if chunk is not None and not (isinstance(thing, Workload) and thing.chunked):
        raise BadInput(f"{text} goes through its points in no chunks", hint="leave the chunk out")
    if not isinstance(thing, Workload):
        return unpack(thing(size, device), text)
    chosen: Any = mode or thing.modes[0]
    case = thing.case(
        size, device=device, mode=chosen, variant=variant, seed=seed, chunk=chunk, settings=settings
    )
    return unpack(case, text)


def chosen_of(thing: Any, settings: Asked | None, *, text: str) -> dict[str, str]:
    """A workload's settings with their values; of anything else none, and asking for one is an error."""
    if isinstance(thing, Workload):
        return thing.chosen(settings)
    if settings:
        raise BadInput(
            f"{text} is a plain factory and has no settings",
            hint="leave --set out, or make a Workload of it with settings=(...)",
        )
    return {}


def unpack(made: Any, text: str = "the factory") -> Built:
    """What a target made: a `Case`, a step, or (step, arguments). A step may say `step.processed`."""
    if isinstance(made, Built):
        return made
    if isinstance(made, Case):
        return Built(made.step, made.args, made.processed)
    if callable(made):
        return Built(made, processed=getattr(made, "processed", None))
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple | list):
        return Built(made[0], tuple(made[1]), getattr(made[0], "processed", None))
    raise BadInput(
        f"{text} returned {type(made).__name__}, not a step",
        hint="return a function that does one step when called, or (function, arguments)",
    )


def _load(path: str) -> Callable[..., Case]:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
