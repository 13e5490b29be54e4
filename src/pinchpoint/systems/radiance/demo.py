"""The radiance field in `pinchpoint demo`: fitted to views of one car, then rendered from all sides.

The GAN needs minutes on a GPU to learn cars from images without poses. Here the poses are known, so that the
same field, camera and renderer learn one car in seconds.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pinchpoint.core.demo import Picture, Show

if TYPE_CHECKING:
    from pinchpoint.systems.radiance.model.objective import Generator

SHOW = Show(
    "radiance",
    needs=("torch", "PIL"),
    order=40,
    task="a generator step on 1,024 rays",
    picture="an orbit around a car",
    variant="folded+checkpoint",
    verify_size=1_024,
    cost_s=35,
    settings={"field": "tiny", "samples": "16"},
)
CAR = 7  # number of the car among those of `radiance data`
VIEWS, SIDE = 32, 48  # pictures of the car, and their pixels per side
STEPS, IMAGES, RAYS, POINTS = 240, 8, 48, 14  # of the fit: images per step, rays per image, points per ray
RATE = 1e-2
FRAMES, FRAME_SIDE, FRAME_POINTS = 16, 80, 8  # of the orbit; whole images use four times as many points
COLUMNS = 8  # views on the sheet
HEIGHT = 0.36  # of the camera: 0 is straight above, 0.5 at the horizon
FIELD: dict[str, Any] = {
    "width": 64,
    "point_octaves": 6,
    "direction_octaves": -1,
    "z_shape": 1,
    "z_app": 1,
}


def fit(*, seed: int = 0, steps: int = STEPS, car: int = CAR, views: int = VIEWS) -> Generator:
    """Return a generator whose field shows one car, fitted to its pictures by their squared error.

    car: its number among those of `radiance data`; views: number of pictures.
    """
    import torch

    from pinchpoint.systems.radiance.data.cars import Pose, draw_car
    from pinchpoint.systems.radiance.data.sphere_tracing import picture
    from pinchpoint.systems.radiance.model.config import FieldConfig
    from pinchpoint.systems.radiance.model.objective import Generator, Request
    from pinchpoint.systems.radiance.rendering.rays import draw_poses, pixels
    from pinchpoint.systems.radiance.rendering.render import Codes, draw
    from pinchpoint.systems.radiance.settings import PRESETS, Settings

    random = torch.Generator().manual_seed(seed)
    settings = replace(Settings(**PRESETS["tiny"]), seed=seed, size=SIDE, samples=POINTS, bound=1.0, haze=0.1)
    generator = Generator(FieldConfig.preset("tiny", **FIELD), settings)
    u, v = draw_poses(views, v_range=(0.1, 0.45), generator=random)
    poses = [Pose(float(turn), float(height)) for turn, height in zip(u, v, strict=True)]
    pictures = picture([draw_car(0, car)[0]] * views, poses, size=SIDE, supersample=2)
    colours, cover, places = pictures.rgb.flatten(1, 2), pictures.cover.flatten(1, 2), pixels(SIDE)
    optimizer = torch.optim.Adam(generator.field.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    code = torch.zeros(IMAGES, 1)
    # Most pixels are background, which is learned quickly, so rays through the car are drawn more often.
    weights = 0.15 + (cover > 0).float()
    for _ in range(steps):
        rows = torch.randperm(views, generator=random)[:IMAGES]
        rays = torch.multinomial(weights[rows], RAYS, generator=random)
        draws = draw(IMAGES, RAYS, POINTS, generator=random)
        output = generator.render_rays(
            Request(Codes(code, code), u[rows], v[rows], places[rays], draws, whole=())
        )
        rgb = colours[rows].gather(1, rays[..., None].expand(-1, -1, 3))
        acc = cover[rows].gather(1, rays)
        loss = (output.rgb - rgb).square().mean() + 0.1 * (output.acc - acc).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return generator.requires_grad_(False)


def draw(output: Path, *, device: str, seed: int, steps: int = STEPS) -> Picture:
    """Fit the car on the CPU, and write an orbit around it as a movie (GIF) and as a sheet (PNG)."""
    import torch

    from pinchpoint.systems.radiance.orbit import save_movie, save_sheet, tile_images, views
    from pinchpoint.systems.radiance.rendering.render import Codes

    start = time.perf_counter()
    generator = fit(seed=seed, steps=steps)
    seconds = time.perf_counter() - start
    generator.settings = replace(generator.settings, samples=FRAME_POINTS)
    code = torch.zeros(1, 1)
    frames = [
        views(generator, Codes(code, code), number / FRAMES, HEIGHT, size=FRAME_SIDE).best
        for number in range(FRAMES)
    ]
    movie = save_movie(
        output / "radiance.gif", [tile_images(one, columns=1, zoom=3) for one in frames], fps=8
    )
    sheet = tile_images(torch.cat(frames[:: FRAMES // COLUMNS]), columns=COLUMNS // 2, zoom=3)
    save_sheet(output / "radiance.png", sheet)
    return Picture(
        movie,
        "radiance: an orbit around a car",
        f"A radiance field fitted to {VIEWS} views of a generated car, {SIDE} x {SIDE} pixels with known"
        f" poses, in {steps} steps and {seconds:.0f} s on the CPU, and rendered from new poses. Training the"
        " GAN, which needs no poses and invents cars, takes minutes on a GPU.",
    )
