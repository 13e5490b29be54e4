"""The colours of the report by role, for the light and the dark theme.

One table defines the colours of the page's style sheet and, through it, of the plots: a plot names a
colour as "@role" and the page's script looks it up, so that switching the theme recolours both. The
eight series colours stay distinct under the three kinds of colour blindness, which a test checks.
"""

from __future__ import annotations

from collections.abc import Sequence

LIGHT = {
    "page": "#f5f7f9",
    "surface": "#ffffff",
    "sunken": "#eef2f5",
    "line": "#dbe1e8",
    "grid": "#e6ebf0",
    "ink": "#17202b",
    "muted": "#566272",
    "accent": "#1563ba",
    "on-accent": "#ffffff",
    "good": "#0b7a55",
    "good-soft": "#e2f4ec",
    "bad": "#b3261e",
    "bad-soft": "#fbe9e7",
    "warn": "#8a5a00",
    "warn-soft": "#fdf1d8",
    "info": "#1563ba",
    "info-soft": "#e5effa",
    "s1": "#1563ba",
    "s2": "#ee9b24",
    "s3": "#089870",
    "s4": "#98337e",
    "s5": "#e77042",
    "s6": "#3db9f9",
    "s7": "#68520e",
    "s8": "#7d9cac",
    "idle": "#c3ccd6",
    "idle-2": "#98a4b1",
}
DARK = {
    "page": "#0e1217",
    "surface": "#161c24",
    "sunken": "#1e2630",
    "line": "#2c3641",
    "grid": "#26303b",
    "ink": "#e6ebf1",
    "muted": "#9ba8b7",
    "accent": "#7cadff",
    "on-accent": "#0e1217",
    "good": "#4fd0a0",
    "good-soft": "#12352a",
    "bad": "#ff8a80",
    "bad-soft": "#431d1b",
    "warn": "#f5b94d",
    "warn-soft": "#3b2c10",
    "info": "#7cadff",
    "info-soft": "#172c4d",
    "s1": "#89a0fa",
    "s2": "#eca82f",
    "s3": "#47bb88",
    "s4": "#af54ae",
    "s5": "#cc6741",
    "s6": "#c7d4ef",
    "s7": "#ddd17a",
    "s8": "#7d7882",
    "idle": "#4a5664",
    "idle-2": "#6b7989",
}

SERIES = ("s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8")
SOURCES = {
    "weights": "s1",
    "gradients": "s2",
    "optimizer": "s4",
    "activations": "s3",
    "temporaries": "s5",
    "inputs": "s6",
    "workspace": "s7",
    "cached": "idle",
    "context": "idle-2",
}
PHASES = {
    "forward": "s1",
    "backward": "s2",
    "optimizer": "s4",
    "data": "s6",
    "host to device": "s3",
    "evaluation": "s7",
    "other": "idle",
}
OTHER = "s8"


def of_source(name: str) -> str:
    """Return the role of a part of the breakdown; unknown parts share one colour."""
    return SOURCES.get(name, OTHER)


def of_phase(name: str) -> str:
    return PHASES.get(name, OTHER)


def of_series(name: str, names: Sequence[str]) -> str:
    """Return the role of the series `name` by its place in `names`: one colour in every plot."""
    return SERIES[list(names).index(name) % len(SERIES)]


def style() -> str:
    """Return the CSS custom properties of both themes. Print is always light."""

    def block(colours: dict[str, str], scheme: str) -> str:
        return f"color-scheme:{scheme};" + "".join(f"--{role}:{value};" for role, value in colours.items())

    light, dark = block(LIGHT, "light"), block(DARK, "dark")
    return (
        f":root{{{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f":root[data-theme=dark]{{{dark}}}\n"
        f":root[data-paper]{{{light}}}\n"
        f"@media print{{:root,:root:not([data-theme=light]),:root[data-theme=dark]{{{light}}}}}\n"
    )
