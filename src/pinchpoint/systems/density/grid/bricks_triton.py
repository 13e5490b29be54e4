"""The Triton kernel of `bricks` for CUDA: the atoms around a brick. Imported only with a GPU and Triton.

With torch, finding them takes about fifty launches, during which a GPU has nothing else to do.
"""

# Triton reads the source of these functions, so they have no annotations except Triton's own.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportAttributeAccessIssue=false
from __future__ import annotations

import triton  # ty: ignore
import triton.language as tl
from torch import Tensor

from pinchpoint.kit.triton_launch import Launcher

_IMAGES = 128  # that a program compares with its brick in one step
_ALIGNED = 16  # bytes: a launch with other addresses takes longer, and compiles the kernel again
_Around = tuple[tuple[int, int, int], tuple[Tensor, ...], float, float]  # `Surroundings.of_kernel`


def write_counts(around: _Around, numbers: Tensor, counts: Tensor) -> None:
    """Write how many images are near each of the bricks with these numbers to counts: (T,) int64."""
    _launch(around, numbers, 0, counts, counts, counts, is_counted=True)


def write_nearby(around: _Around, numbers: Tensor, atoms: Tensor, apart: Tensor) -> None:
    """Write the images near each brick to its slots: atoms (T, K) int64, and apart (T, K, 3).

    Both as in `Surroundings.nearby`, but a brick with more images than slots has a NaN among its positions.
    """
    _launch(around, numbers, atoms.shape[1], atoms, atoms, apart, is_counted=False)


def _launch(
    around: _Around,
    numbers: Tensor,
    slots: int,
    counts: Tensor,
    atoms: Tensor,
    apart: Tensor,
    *,
    is_counted: bool,
) -> None:
    numbers = numbers.contiguous()
    if numbers.data_ptr() % _ALIGNED:  # a part of other numbers
        numbers = numbers.clone()
    (_, ny, nz), tensors, reach_a, far_a = around
    images = len(tensors[-1])
    _near(
        len(numbers),
        (numbers, *(one.contiguous() for one in tensors), counts, atoms, apart),
        (ny, nz, images, slots, reach_a**2, far_a),
        is_counted,
        _IMAGES,
        warps=1,
    )


@Launcher
@triton.jit(do_not_specialize=["ny", "nz", "images", "slots", "reach_squared", "far"])
def _near(
    numbers,
    sides,
    steps,
    middle,
    positions,
    atom,
    counts,
    atoms,
    apart,
    ny,
    nz,
    images,
    slots,
    reach_squared,
    far,
    IS_COUNTED: tl.constexpr,
    IMAGES: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    number = tl.load(numbers + row)
    # Sums of products are written as `fma`: the form that counts and the one that writes are compiled apart,
    # and must find the same images.
    i = _middle_of(number // nz // ny, sides)
    j = _middle_of(number // nz % ny, sides + 1)
    k = _middle_of(number % nz, sides + 2)
    x, y, z = _along(i, j, k, steps), _along(i, j, k, steps + 1), _along(i, j, k, steps + 2)
    middle_x, middle_y, middle_z = tl.load(middle), tl.load(middle + 1), tl.load(middle + 2)
    near_x = (x - middle_x).to(tl.float32)
    near_y = (y - middle_y).to(tl.float32)
    near_z = (z - middle_z).to(tl.float32)
    count = tl.zeros((), tl.int32)
    atoms += row * slots
    apart += row * slots * 3
    for start in range(0, images, IMAGES):
        image = start + tl.arange(0, IMAGES)
        there = image < images
        own = positions + image * 3
        image_x = tl.load(own, mask=there, other=0.0)
        image_y = tl.load(own + 1, mask=there, other=0.0)
        image_z = tl.load(own + 2, mask=there, other=0.0)
        apart_x = near_x - (image_x - middle_x).to(tl.float32)
        apart_y = near_y - (image_y - middle_y).to(tl.float32)
        apart_z = near_z - (image_z - middle_z).to(tl.float32)
        square = tl.fma(apart_z, apart_z, tl.fma(apart_y, apart_y, apart_x * apart_x))
        is_near = there & (square < reach_squared)
        one = is_near.to(tl.int32)
        if not IS_COUNTED:
            slot = count + tl.cumsum(one, axis=0) - 1  # images keep their order
            has_slot = is_near & (slot < slots)
            tl.store(atoms + slot, tl.load(atom + image, mask=there, other=0), mask=has_slot)
            # In float64, which becomes float32 here, as in `Surroundings.nearby`.
            tl.store(apart + slot * 3, image_x - x, mask=has_slot)
            tl.store(apart + slot * 3 + 1, image_y - y, mask=has_slot)
            tl.store(apart + slot * 3 + 2, image_z - z, mask=has_slot)
        count += tl.sum(one, axis=0)
    if IS_COUNTED:
        tl.store(counts + row, count.to(tl.int64))
    else:
        # NaN instead of a density that lacks atoms.
        tl.store(apart, float("nan"), mask=count > slots)
        for start in range(0, slots, IMAGES):
            slot = start + tl.arange(0, IMAGES)
            is_unused = (slot >= count) & (slot < slots)
            tl.store(atoms + slot, tl.zeros((IMAGES,), tl.int64) + tl.load(atom), mask=is_unused)
            for axis in tl.static_range(3):
                tl.store(apart + slot * 3 + axis, tl.zeros((IMAGES,), tl.float32) + far, mask=is_unused)


@triton.jit
def _middle_of(place, side):
    """Where the middle of a brick is along an axis, in grid points. side: points along the brick."""
    points = tl.load(side)
    return tl.fma(place.to(tl.float64), points, (points - 1) * 0.5)


@triton.jit
def _along(i, j, k, step):
    """One coordinate of a place that is given in grid points. step: the same coordinate of a step."""
    return tl.fma(k, tl.load(step + 6), tl.fma(j, tl.load(step + 3), i * tl.load(step)))
