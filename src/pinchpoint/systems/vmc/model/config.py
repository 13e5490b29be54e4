"""NetConfig: the configuration of a neural wave function, as plain values that survive JSON.

Imports no framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.config_json import JsonConfig
from pinchpoint.systems.common.settings import option

KINDS = ("ferminet", "psiformer")
_COUNTS = ("one", "two", "layers", "determinants", "heads", "states")
MOST_STATES = 10


@dataclass(frozen=True)
class NetConfig(JsonConfig):
    """The configuration of one network.

    Construct it directly, with `preset` or with `from_json`. Invalid values raise BadInput on construction.
    """

    kind: Literal["ferminet", "psiformer"] = option(help="Architecture: ferminet or psiformer.")
    one: int = option(help="Width of the one-electron stream.")
    two: int = option(help="Width of the pair stream; a psiformer has none.")
    layers: int = option(help="Layers.")
    determinants: int = option(help="Determinants.")
    heads: int = option(4, "Attention heads of a psiformer; they divide the width `one`.")
    full: bool = option(True, "Use determinants of all electrons; false: products of one per spin.")
    jastrow: bool = option(True, "Add a Jastrow factor with the electron-electron cusps.")
    states: int = 1  # trained together; set by the option --states of `train`

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(
                f"There is no network of kind {self.kind!r:.40}.", hint=f"Use one of: {', '.join(KINDS)}."
            )
        for name in _COUNTS:
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise BadInput(
                    f"{name} = {getattr(self, name)!r:.40} is not a whole number of at least 1.",
                    hint=f"Set {name} to at least 1.",
                )
        if self.states > MOST_STATES:
            raise BadInput(
                f"{self.states} states are more than the {MOST_STATES} that can be trained together.",
                hint=f"Use at most {MOST_STATES} states.",
            )
        for name in ("full", "jastrow"):
            if type(getattr(self, name)) is not bool:
                raise BadInput(
                    f"{name} = {getattr(self, name)!r:.40} is neither true nor false.",
                    hint=f"Set {name} to true or false.",
                )
        if self.kind == "psiformer" and self.one % self.heads:
            raise BadInput(
                f"The width one = {self.one} is not a multiple of the {self.heads} heads.",
                hint=f"Use a width that is a multiple of {self.heads}, or another number of heads.",
            )

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Return a tested configuration. changes: fields to override."""
        if name not in PRESETS:
            raise BadInput(f"There is no network {name!r:.40}.", hint=f"Use one of: {', '.join(PRESETS)}.")
        return cls(**{**PRESETS[name], **changes})


PRESETS: dict[str, dict[str, Any]] = {
    "small": {"kind": "ferminet", "one": 32, "two": 8, "layers": 2, "determinants": 4},
    "medium": {"kind": "ferminet", "one": 128, "two": 32, "layers": 4, "determinants": 16},
    "report": {"kind": "ferminet", "one": 64, "two": 8, "layers": 2, "determinants": 2},
    "report-cpu": {"kind": "ferminet", "one": 32, "two": 8, "layers": 1, "determinants": 1},
    "ferminet": {"kind": "ferminet", "one": 256, "two": 32, "layers": 4, "determinants": 16},
    "psiformer": {"kind": "psiformer", "one": 256, "two": 32, "layers": 4, "determinants": 16, "heads": 4},
}
