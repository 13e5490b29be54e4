"""`KEY=VALUE` choices of a command, told apart by what they are of: the network or the training. Imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.common.settings import overrides
from pinchpoint.systems.vmc.model.config import NetConfig
from pinchpoint.systems.vmc.settings import Settings

# Fields of the training that have an option of their own; `kind` would also be the network's.
OWN = frozenset({"kind", "walkers", "steps", "optimizer", "moves", "seed", "precision", "chunk"})


def split_choices(texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of `NetConfig` and fields of `Settings`."""
    of_net = [f.name for f in fields(NetConfig)]
    of_training = [f.name for f in fields(Settings) if f.name not in OWN]
    for text in texts:
        name, equals, _ = text.partition("=")
        if not equals or name not in (*of_net, *of_training):
            option = (
                f"it has an option of its own: --{name}"
                if name in OWN
                else f"use one of: {', '.join((*of_net, *of_training))}"
            )
            raise BadInput(f"--set {text!r} names no choice of network or training", hint=option)
    net = overrides([text for text in texts if text.partition("=")[0] in of_net], NetConfig)
    return net, overrides([text for text in texts if text.partition("=")[0] not in of_net], Settings)
