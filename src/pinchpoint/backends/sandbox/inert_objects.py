"""Objects that accept everything and do nothing, which replace experiment trackers in a script.

Any attribute and any call of an `Inert` returns another `Inert`. It works as a context manager, a decorator,
a base class and the class of an isinstance check, and it converts to an empty collection, to 0 and to
"offline". Settings are real: a script can read back what it puts into `config`, because it may build its
model from them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

_TEXTS = {
    "id",
    "name",
    "run_id",
    "run_name",
    "repo_id",
    "experiment_id",
    "project",
    "project_name",
    "entity",
    "url",
    "group",
    "artifact_uri",
    "key",
}
_OFFLINE = "offline"
_PROTOCOLS = ("__", "_fields", "_asdict", "_repr_", "_ipython_")
_ERRORS = ("Error", "Exception", "Warning")


def attribute(name: str) -> Any:
    """The attribute of an inert object with this name: text if scripts build paths and titles from it."""
    if name.startswith(_PROTOCOLS) and not name.startswith("__internal_api__"):  # comet's own attribute
        raise AttributeError(name)  # libraries use these to find out what an object is
    if name in _TEXTS:
        return _OFFLINE
    if name == "dir":
        return tempfile.gettempdir()
    if name.endswith(_ERRORS) and name[0].isupper():
        return type(name, (Exception,), {})  # an `except` clause needs a real class
    if name.startswith("connect"):
        return _identity  # clearml returns the connected settings
    if name == "hparams":
        # tensorboard's function; scripts unpack its three summaries.
        return lambda *args, **kwargs: (Inert(), Inert(), Inert())
    return Inert()


class Inert:
    """An object that accepts every operation and does nothing."""

    def __getattr__(self, name: str) -> Any:
        return attribute(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A decorator must return the function it decorates; any other call returns an inert object.
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else Inert()

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (
            ()
            if any(isinstance(base, type) and issubclass(base, InertBase) for base in bases)
            else (InertBase,)
        )

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __enter__(self) -> Inert:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    async def __aenter__(self) -> Inert:
        return self

    async def __aexit__(self, *error: Any) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True

    def __contains__(self, item: Any) -> bool:
        return False

    def __getitem__(self, key: Any) -> Inert:
        return Inert()

    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def __delitem__(self, key: Any) -> None:
        return None

    def __str__(self) -> str:
        return _OFFLINE

    def __repr__(self) -> str:
        return "<inert tracker>"

    def __format__(self, spec: str) -> str:
        return _OFFLINE

    def __fspath__(self) -> str:
        return _OFFLINE

    def __int__(self) -> int:
        return 0

    __index__ = __int__

    def __float__(self) -> float:
        return 0.0

    def __lt__(self, other: Any) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __add__(self, other: Any) -> Any:
        return _OFFLINE + other if isinstance(other, str) else Inert()

    def __radd__(self, other: Any) -> Any:
        return other + _OFFLINE if isinstance(other, str) else Inert()

    def __or__(self, other: Any) -> Inert:
        return Inert()

    # For unions in annotations (`Run | None`), paths and arithmetic on counters.
    __ror__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __or__


class InertBase:
    """The base of a script's class that derives from a tracker's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __getattr__(self, name: str) -> Any:
        return attribute(name)


class Settings(dict[str, Any]):
    """A run's `config` or `summary`: a dict whose items are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The setting {name!r} was never passed to the tracker.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, *values: Any, allow_val_change: bool = True, **more: Any) -> None:
        for value in values:
            super().update(as_dict(value))
        super().update(more)

    def setdefaults(self, values: Any) -> None:
        for name, value in as_dict(values).items():
            self.setdefault(name, value)

    def as_dict(self) -> dict[str, Any]:
        return dict(self)


def as_dict(settings: Any) -> dict[str, Any]:
    """Settings as scripts pass them (a mapping, pairs, an argparse namespace or an object) as a dict."""
    return (
        dict(settings)
        if hasattr(settings, "keys") or isinstance(settings, (list, tuple))
        else dict(getattr(settings, "__dict__", {}))
    )


class InertModule(ModuleType):
    """A package in which every name is inert and every submodule can be imported."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, "Replaces an experiment tracker while a script is predicted.")
        self.__path__ = []
        self.__all__ = []
        self.__version__ = version

    def __getattr__(self, name: str) -> Any:
        return attribute(name)


class Run(Inert):
    """What `init` of a wandb-like tracker returns."""

    def __init__(self, config: Settings, finish: Callable[..., None]) -> None:
        self.config = config
        self.summary = Settings()
        self.finish = finish

    def __exit__(self, *error: Any) -> None:
        self.finish()


class RunModule(InertModule):
    """wandb, swanlab and trackio: one current run with settings, and sweeps that call a function."""

    def __init__(self, name: str, version: str) -> None:
        super().__init__(name, version)
        self.config = Settings()
        self.summary = Settings()
        self.run: Run | None = None
        self._sweep: dict[str, Any] = {}
        self._sweep_choices: dict[str, Any] = {}  # parameters of the next run

    def init(self, *args: Any, config: Any = None, **kwargs: Any) -> Run:
        self.config.clear()
        self.config.update(config, self._sweep_choices)  # a sweep's choice overrides the script's default
        self.run = Run(self.config, self.finish)
        self.summary = self.run.summary
        return self.run

    def finish(self, *args: Any, **kwargs: Any) -> None:
        self.run = None

    def sweep(self, sweep: Any, *args: Any, **kwargs: Any) -> str:
        self._sweep = as_dict(sweep).get("parameters", {}) if not callable(sweep) else {}
        return _OFFLINE

    def agent(
        self, sweep_id: Any, function: Callable[[], Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        """Run the function once with the first choice of every parameter."""
        for name, choice in self._sweep.items():
            values = choice.get("values", [choice.get("value", choice.get("min"))])
            self._sweep_choices[name] = values[0]
        if function is not None:
            function()


def _identity(value: Any = None, *args: Any, **kwargs: Any) -> Any:
    return value
