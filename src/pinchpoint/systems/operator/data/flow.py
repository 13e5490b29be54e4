"""Inviscid flow (not RANS) over a closed body, from sources on its panels that let no flow through it.

There is no wake, no friction and no lift by circulation: the pressure is that of ideal flow, whose exact drag
is zero. The computed drag is therefore an error, recorded in the quality of the body. The onset speed is 1.

Flat panels of constant strength have an error proportional to the panel size, which three cheap steps remove:
a panel's influence on itself is set so that its whole flux passes through the body (a flat panel ignores its
own curvature); after the solution, strengths vary linearly within each panel; and the component of the
pressure that changes sign from panel to panel is removed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pinchpoint.core.errors import BadInput
from pinchpoint.systems.operator.data.panels import normal_influence, panels_of, slopes, surface_velocity
from pinchpoint.systems.operator.data.surface import Mesh, neighbours, smooth

# For fewer panels an LU factorisation is faster than GMRES; its cost grows with the cube.
_DIRECT = 1024
_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Quality:
    """Errors of a solution in relations that an exact solution satisfies.

    All are 0 for the exact solution, except `lowest_cp`.
    """

    net_source: float  # sum of strength x area, divided by the sum of absolute values
    drag: float  # force along the flow / (dynamic pressure x frontal area)
    residual: float  # relative residual of the linear system
    leak: float  # mean velocity through the panels, which is subtracted; shrinks with their size
    lowest_cp: float


# A body that exceeds one of these stays on disk but is excluded from the splits.
LIMITS = Quality(net_source=1e-6, drag=0.05, residual=1e-8, leak=0.05, lowest_cp=-4.0)


@dataclass(frozen=True)
class Flow:
    cp: Tensor  # (F,) pressure coefficient 1 - |v|^2 just outside each panel
    velocity: Tensor  # (F, 3) along the panels
    strengths: Tensor  # (F,)
    quality: Quality


def onset(yaw_deg: float) -> Tensor:
    """(3,) the direction of the flow: +x without yaw, rotated towards +y by yaw."""
    turn = math.radians(yaw_deg)
    return torch.tensor([math.cos(turn), math.sin(turn), 0.0], dtype=torch.float64)


def solve_flow(
    mesh: Mesh, *, yaw_deg: float = 0.0, ground: bool = True, device: torch.device | str = "cpu"
) -> Flow:
    """Solve the flow over a closed mesh with outward faces, above the ground z = 0 if `ground`."""
    if ground and float(mesh.vertices[:, 2].min()) <= 0:
        raise BadInput(
            "The body reaches into the ground (z <= 0).", hint="Raise it, or solve with ground=False."
        )
    panels = panels_of(mesh.to(device))
    wind = onset(yaw_deg).to(device)
    matrix = normal_influence(panels, ground=ground)
    # The whole flux of a panel is its area.
    matrix.diagonal().add_((panels.areas - panels.areas @ matrix) / panels.areas)
    rhs = -(panels.normals @ wind)
    strengths = torch.linalg.solve(matrix, rhs) if len(rhs) < _DIRECT else gmres(matrix, rhs)
    residual = float(torch.linalg.vector_norm(matrix @ strengths - rhs) / torch.linalg.vector_norm(rhs))
    del matrix
    velocity = wind + surface_velocity(panels, strengths, ground=ground, slope=slopes(panels, strengths))
    through = (velocity * panels.normals).sum(dim=1)
    velocity = velocity - through[:, None] * panels.normals
    cp = smooth(1 - velocity.square().sum(dim=1), neighbours(panels.face_edges))
    fluxes = strengths * panels.areas
    frontal_area = float((panels.areas * (panels.normals @ wind).abs()).sum() / 2)
    quality = Quality(
        net_source=float(fluxes.sum().abs() / fluxes.abs().sum()),
        drag=float(-(cp * panels.areas) @ (panels.normals @ wind)) / frontal_area,
        residual=residual,
        leak=float((through.abs() @ panels.areas) / panels.areas.sum()),
        lowest_cp=float(cp.min()),
    )
    return Flow(cp, velocity, strengths, quality)


def faults(quality: Quality) -> list[str]:
    """The limits that a solution exceeds, in words; empty for a good one."""
    messages = [
        f"{name} {getattr(quality, name):.3g} is beyond {getattr(LIMITS, name):.3g}"
        for name in ("net_source", "drag", "residual", "leak")
        if not abs(getattr(quality, name)) <= getattr(LIMITS, name)
    ]
    if not quality.lowest_cp >= LIMITS.lowest_cp:
        messages.append(f"lowest_cp {quality.lowest_cp:.3g} is below {LIMITS.lowest_cp:.3g}")
    return messages


def gmres(matrix: Tensor, rhs: Tensor, *, tolerance: float = _TOLERANCE, most: int = 200) -> Tensor:
    """Solve matrix (n, n) @ x = rhs (n,) with GMRES from zero.

    There are no restarts: an equation of the second kind needs a few dozen steps. After `most` steps it
    returns the best solution so far, so check the residual.
    """
    norm = float(torch.linalg.vector_norm(rhs))
    if norm == 0:
        return torch.zeros_like(rhs)
    basis = [rhs / norm]
    columns: list[Tensor] = []  # of the Hessenberg matrix, on the host
    answer = torch.zeros(0, dtype=rhs.dtype)
    for step in range(1, most + 1):
        vector = matrix @ basis[-1]
        vectors = torch.stack(basis)
        # Twice: one pass of classical Gram-Schmidt loses the last digits.
        first = vectors @ vector
        vector = vector - first @ vectors
        second = vectors @ vector
        vector = vector - second @ vectors
        size = torch.linalg.vector_norm(vector)
        columns.append(torch.cat([first + second, size[None]]).cpu())
        small = torch.zeros(step + 1, step, dtype=rhs.dtype)
        for k, column in enumerate(columns):
            small[: len(column), k] = column
        goal = torch.zeros(step + 1, dtype=rhs.dtype)
        goal[0] = norm
        answer = torch.linalg.lstsq(small, goal[:, None]).solution[:, 0]
        if float(torch.linalg.vector_norm(small @ answer - goal)) <= tolerance * norm or float(size) == 0:
            break
        basis.append(vector / size)
    return answer.to(rhs.device) @ torch.stack(basis[: len(answer)])
