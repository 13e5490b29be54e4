"""Inviscid flow over a closed body, not RANS: sources on its panels such that nothing passes through it.

No wake, no friction, no lift by circulation: the pressure is that of ideal flow, with zero drag in truth, and the
drag found is therefore an error, kept as a quality of the body. The onset speed is 1.

Flat panels of constant strength err by a part of the panel size, which three cheap steps take away: a panel's influence on
itself is set so that all it sends out passes through the body (a flat panel does not see its own curvature); once found,
strengths grow linearly within each panel; and the pressure is freed of what changes sign from panel to panel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.panels import normal_influence, panels_of, slopes, surface_velocity
from pinchpoint.systems.operator.data.surface import Mesh, evened, neighbours

# Below this an LU is quicker than the start of the iteration; its cost grows with the cube.
_DIRECT = 1024
_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Quality:
    """How far a solution is from what must hold exactly. All are 0 in truth, but for `lowest_cp`."""

    net_source: float  # sum of strength x area, over that of their absolutes
    drag: float  # force along the flow over dynamic pressure x the area seen from ahead
    residual: float  # of the linear system, relative
    leak: float  # mean velocity through the panels, which is taken off; falls with their size
    lowest_cp: float


# A body beyond one of these is kept but left out of the splits.
LIMITS = Quality(net_source=1e-6, drag=0.05, residual=1e-8, leak=0.05, lowest_cp=-4.0)


@dataclass(frozen=True)
class Flow:
    cp: Tensor  # (F,) pressure coefficient 1 - |v|^2 just outside each panel
    velocity: Tensor  # (F, 3) along the panels
    strengths: Tensor  # (F,)
    quality: Quality


def onset(yaw_deg: float) -> Tensor:
    """(3,) the direction the flow goes: along +x without yaw, turned towards +y by it."""
    turn = math.radians(yaw_deg)
    return torch.tensor([math.cos(turn), math.sin(turn), 0.0], dtype=torch.float64)


def solve_flow(
    mesh: Mesh, *, yaw_deg: float = 0.0, ground: bool = True, device: torch.device | str = "cpu"
) -> Flow:
    """The flow over a closed mesh whose faces look outward, above the ground z = 0 where there is one."""
    if ground and float(mesh.vertices[:, 2].min()) <= 0:
        raise BadInput(
            "the body reaches into the ground (z <= 0)", hint="raise it, or solve with ground=False"
        )
    panels = panels_of(mesh.to(device))
    wind = onset(yaw_deg).to(device)
    matrix = normal_influence(panels, ground=ground)
    matrix.diagonal().add_(
        (panels.areas - panels.areas @ matrix) / panels.areas
    )  # all that a panel sends out: its area
    wanted = -(panels.normals @ wind)
    strengths = torch.linalg.solve(matrix, wanted) if len(wanted) < _DIRECT else gmres(matrix, wanted)
    residual = float(torch.linalg.vector_norm(matrix @ strengths - wanted) / torch.linalg.vector_norm(wanted))
    del matrix
    found = wind + surface_velocity(panels, strengths, ground=ground, slope=slopes(panels, strengths))
    through = (found * panels.normals).sum(dim=1)
    found = found - through[:, None] * panels.normals
    cp = evened(1 - found.square().sum(dim=1), neighbours(panels.face_edges))
    carried = strengths * panels.areas
    seen = float((panels.areas * (panels.normals @ wind).abs()).sum() / 2)
    quality = Quality(
        net_source=float(carried.sum().abs() / carried.abs().sum()),
        drag=float(-(cp * panels.areas) @ (panels.normals @ wind)) / seen,
        residual=residual,
        leak=float((through.abs() @ panels.areas) / panels.areas.sum()),
        lowest_cp=float(cp.min()),
    )
    return Flow(cp, found, strengths, quality)


def faults(quality: Quality) -> list[str]:
    """Which limits a solution breaks, in words; none for a good one."""
    broken = [
        f"{name} {getattr(quality, name):.3g} is beyond {getattr(LIMITS, name):.3g}"
        for name in ("net_source", "drag", "residual", "leak")
        if not abs(getattr(quality, name)) <= getattr(LIMITS, name)
    ]
    if not quality.lowest_cp >= LIMITS.lowest_cp:
        broken.append(f"lowest_cp {quality.lowest_cp:.3g} is below {LIMITS.lowest_cp:.3g}")
    return broken


def gmres(matrix: Tensor, wanted: Tensor, *, tolerance: float = _TOLERANCE, most: int = 200) -> Tensor:
    """Solve matrix (n, n) @ x = wanted (n,) by minimal residuals from zero.

    Without restarts: a second-kind equation needs some tens of steps. Gives its best where `most` is reached, so look at
    the residual.
    """
    norm = float(torch.linalg.vector_norm(wanted))
    if norm == 0:
        return torch.zeros_like(wanted)
    basis = [wanted / norm]
    columns: list[Tensor] = []  # of the Hessenberg matrix, on the host
    answer = torch.zeros(0, dtype=wanted.dtype)
    for step in range(1, most + 1):
        vector = matrix @ basis[-1]
        held = torch.stack(basis)
        # Twice: one pass of classical Gram-Schmidt loses the last digits.
        first = held @ vector
        vector = vector - first @ held
        second = held @ vector
        vector = vector - second @ held
        size = torch.linalg.vector_norm(vector)
        columns.append(torch.cat([first + second, size[None]]).cpu())
        small = torch.zeros(step + 1, step, dtype=wanted.dtype)
        for k, column in enumerate(columns):
            small[: len(column), k] = column
        goal = torch.zeros(step + 1, dtype=wanted.dtype)
        goal[0] = norm
        answer = torch.linalg.lstsq(small, goal[:, None]).solution[:, 0]
        if float(torch.linalg.vector_norm(small @ answer - goal)) <= tolerance * norm or float(size) == 0:
            break
        basis.append(vector / size)
    return answer.to(wanted.device) @ torch.stack(basis[: len(answer)])
