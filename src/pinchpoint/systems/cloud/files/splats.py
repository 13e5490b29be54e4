"""Gaussian splats: one meaning of their values, whichever program stored them.

Letters: N points. A splat PLY and a checkpoint of gsplat store what the optimiser changes: the constant term
of the colour, opacity before its sigmoid, logarithms of the scales, and rotations of any length. SceneSplat's
folders store colours, opacities in 0..1, scales as lengths, and unit rotations. All become colours and
opacities in 0..1, logarithms of scales, and unit rotations, w first and not negative.
"""

from __future__ import annotations

import numpy as np

HIGHER_TERMS = "f_rest_"  # prefix of the colour's terms that depend on the view
# Under `sh0`, and under `colors` with three axes, gsplat stores terms of the colour; the first is constant.
_TERMS = ("sh0", "colors")
_DROPPED = ("shN",)
_SCALES = ("scale", "scales")
_OPACITIES = ("opacity", "opacities")
_ROTATIONS = ("quat", "quats")
_HARMONIC = 0.28209479177387814  # the constant spherical harmonic, 1 / (2 sqrt(pi)): colour = 0.5 + it * f_dc
_LEAST_SCALE = 1e-7  # scales are clipped here, so that a flat splat has a logarithm


def colour_of(term: np.ndarray) -> np.ndarray:
    """Return the colour in 0..1 of the constant term."""
    return np.clip(0.5 + _HARMONIC * term.astype(np.float32), 0, 1)


def opacity_of(logit: np.ndarray) -> np.ndarray:
    """Return the opacity in 0..1 of its value before the sigmoid."""
    return 0.5 + 0.5 * np.tanh(0.5 * logit.astype(np.float32))


def unit_rotations(rotations: np.ndarray) -> np.ndarray:
    """Return quaternions (N, 4), w first, with length 1 and w >= 0; zeros become the identity."""
    wide = rotations.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    unit = np.where(length == 0, (1.0, 0.0, 0.0, 0.0), wide / np.where(length == 0, 1, length))
    return np.where(unit[:, :1] < 0, -unit, unit).astype(np.float32)


def splat_arrays(arrays: dict[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Return the arrays of a cloud of `count` points, with those of a splat under one name and meaning.

    Names: `color` (N, 3), `opacity` (N,), `scale` (N, 3), `quat` (N, 4). Opacities outside 0..1 are values
    before the sigmoid, and scales that are not all positive are logarithms. Arrays of other shapes, and
    integers, stay.
    """
    result: dict[str, np.ndarray] = {}
    for name, values in arrays.items():
        rows = values.shape[:1] == (count,) and values.dtype.kind == "f"
        shape = values.shape[1:]
        if name in _DROPPED and rows and len(shape) == 2:
            continue
        if rows and name in _TERMS and shape[-1:] == (3,) and (len(shape) == 2 or name == "sh0"):
            result["color"] = colour_of(values.reshape(count, -1, 3)[:, 0])
        elif rows and name in _OPACITIES and shape in ((), (1,)):
            flat = values.reshape(count)
            logits = flat.size and (flat.min() < 0 or flat.max() > 1)
            result["opacity"] = opacity_of(flat) if logits else flat
        elif rows and name in _SCALES and shape == (3,):
            lengths = values.size and values.min() > 0
            result["scale"] = np.log(np.maximum(values, _LEAST_SCALE)) if lengths else values
        elif rows and name in _ROTATIONS and shape == (4,):
            result["quat"] = unit_rotations(values)
        else:
            result[name] = values
    return result
