"""Choose the fastest Laplacian and the largest chunk of walkers that fit a budget, by XLA's memory analysis.

The program is the caller's own. It is compiled for the local device and not run: its arguments, outputs and
temporaries are counted as XLA assigned them on each device. The options are tried in order, fastest first:
the fastest method with all walkers at once, then in chunks, then the loop in chunks, which needs least.
Without a budget the device's memory is the limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.backends.jax import xla
from pinchpoint.core.errors import DoesNotFit, Missing
from pinchpoint.core.host_memory import resident_bytes
from pinchpoint.core.units import show_bytes
from pinchpoint.kit.laplacians.chunk_plan import MIN_FAST_CHUNK
from pinchpoint.kit.laplacians.derivatives import fastest_method
from pinchpoint.systems.common.budgets import budget_of, does_not_fit
from pinchpoint.systems.vmc.optimization.devices import Host
from pinchpoint.systems.vmc.settings import Method, Settings
from pinchpoint.systems.vmc.training.records import describe_laplacian

# On a CPU with at least this many electrons, a chunk of more walkers than this no longer fits its caches.
CACHED_ELECTRONS, CACHED_WALKERS = 6, 64

# The bytes that a device needs in all, by the method and the chunk (None: all walkers).
Need = Callable[[Method, int | None], int]


@dataclass(frozen=True)
class Fit:
    """How to compute the Laplacian.

    chunk: walkers processed together, None for all; why: the reason with its numbers.
    """

    method: Method
    chunk: int | None
    predicted_bytes: int | None  # None where XLA has no memory analysis
    budget_bytes: int | None  # None where the device does not report its memory
    why: str

    def into(self, settings: Settings) -> Settings:
        return replace(settings, method=self.method, chunk=self.chunk)

    def text(self) -> str:
        """`forward, 64 walkers at one time (...)`."""
        return describe_laplacian(self.method, self.chunk, self.why)


def fit(
    settings: Settings,
    *,
    electrons: int,
    budget: str | int | None,
    host: Host,
    compile_with: Callable[[Settings], Any],
    progress: Callable[[str], None] | None = None,
    spring_bytes: int = 0,
) -> Fit:
    """Choose the method and the chunk of a program; those that `settings` names are kept.

    Raises `DoesNotFit` where a single walker is too much. compile_with: compiles the program with given
    settings. spring_bytes: the size of SPRING's own arrays, which no chunk makes smaller.
    """
    card = None if budget is None else budget_of(budget)
    allowed = device_bytes(host) if card is None else card.memory_bytes
    context = card.context_high_bytes if card is not None and host.name == "cuda" else 0

    def need(method: Method, chunk: int | None) -> int:
        if progress is not None:
            progress(f"{method}, {_size(chunk)} at one time")
        step = xla.compiled_bytes(compile_with(replace(settings, method=method, chunk=chunk)))
        if step is None:
            raise Missing(
                "XLA has no memory analysis for this device, which --budget needs.",
                hint="Leave out --budget and choose a chunk, such as --chunk 64.",
            )
        # The devices of a CPU share its memory. Read after compiling, whose memory stays resident while
        # training.
        return step + context if host.name == "cuda" else step * len(host.devices) + resident_bytes()

    first: Method = fastest_method(3 * electrons) if settings.method == "auto" else settings.method
    at_most = (
        CACHED_WALKERS * len(host.devices) if host.name == "cpu" and electrons >= CACHED_ELECTRONS else None
    )
    unknown = Fit(first, settings.chunk, None, None, "the fastest; the memory of the device is unknown")
    if allowed is None:
        return unknown
    try:
        return fastest_fit(
            need,
            methods=(first, "loop") if settings.method == "auto" and first != "loop" else (first,),
            walkers=settings.walkers,
            chunk=settings.chunk,
            at_most=at_most,
            budget_bytes=allowed,
            devices=len(host.devices),
            on_top=_ON_TOP[host.name] if budget else "",
            spring_bytes=spring_bytes // (len(host.devices) if host.name == "cuda" else 1),
        )
    except Missing:
        if budget is not None:
            raise
        return unknown


def fastest_fit(
    need: Need,
    *,
    methods: Sequence[Method],
    walkers: int,
    budget_bytes: int,
    chunk: int | None = None,
    at_most: int | None = None,
    devices: int = 1,
    on_top: str = "",
    spring_bytes: int = 0,
) -> Fit:
    """The first of the methods that fits, in the largest chunk that fits; only the last one may use chunks of
    any size.

    methods: fastest first. chunk: the only size to try, where the user named one; at_most: walkers at one
    time beyond which more are slower. A chunk divides the walkers, and every device has the same share of it.
    on_top: what is counted besides the program, and spring_bytes: the part of it that SPRING alone needs;
    both are for the error.
    """
    parts: list[int | None] = [part for part in range(devices, walkers, devices) if walkers % part == 0]
    within = [part for part in parts if at_most is None or (part is not None and part <= at_most)]
    whole = [None] if at_most is None or walkers <= at_most or not within else []
    rejections, least = "", 0
    for method in methods:
        if chunk is not None:
            sizes = [chunk]
        elif method == methods[-1]:
            # All walkers at once cannot fit where a faster method did not.
            sizes = within if rejections and within else [*within, *whole]
        else:
            large = [part for part in within if part is not None and part >= MIN_FAST_CHUNK * devices]
            sizes = [*large, *whole] or within[-1:]
        size, need_bytes, most = _largest(
            lambda chunk, method=method: need(method, chunk), sizes, budget_bytes
        )
        if need_bytes <= budget_bytes:
            why = f"{show_bytes(need_bytes)} of {show_bytes(budget_bytes)}"
            if size != sizes[-1]:
                rejections = (
                    f"{rejections}{method} with {_size(sizes[-1])} at one time needs {show_bytes(most)}; "
                )
            return Fit(method, size, need_bytes, budget_bytes, rejections + why)
        rejections, least = (
            f"{method} needs {show_bytes(need_bytes)} with {_size(size)} at one time; ",
            need_bytes,
        )
    raise _does_not_fit(least, budget_bytes, chunk, parts, on_top, spring_bytes)


def device_bytes(host: Host) -> int | None:
    """Memory available to this process: on CUDA the pool JAX may use, on a CPU the memory of the machine."""
    if host.name == "cuda":
        limits = [(device.memory_stats() or {}).get("bytes_limit") for device in host.devices]
        return min((limit for limit in limits if limit), default=None)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


_ON_TOP = {"cuda": ", including its context", "cpu": ", including what this process already holds"}


def _largest(
    need: Callable[[int | None], int], sizes: Sequence[int | None], budget_bytes: int
) -> tuple[int | None, int, int]:
    """The largest size that fits, or the smallest where none does; its bytes, and those of the largest size.

    sizes: smallest first. Bytes grow with the size, so a bisection finds it.
    """
    most = need(sizes[-1])
    if most <= budget_bytes or len(sizes) == 1:
        return sizes[-1], most, most
    size, need_bytes = sizes[0], need(sizes[0])
    if need_bytes > budget_bytes:
        return size, need_bytes, most
    low, high = 1, len(sizes) - 1  # sizes[low - 1] fits; those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        middle_bytes = need(sizes[middle])
        if middle_bytes <= budget_bytes:
            size, need_bytes, low = sizes[middle], middle_bytes, middle + 1
        else:
            high = middle
    return size, need_bytes, most


def _does_not_fit(
    least: int,
    budget_bytes: int,
    chunk: int | None,
    parts: Sequence[int | None],
    on_top: str,
    spring_bytes: int,
) -> DoesNotFit:
    at_once = chunk if chunk is not None else parts[0] if parts else None
    size = {None: "all walkers", 1: "one walker"}.get(at_once, f"{at_once} walkers")
    smaller = "a smaller --chunk" if chunk is not None and chunk > 1 else "fewer --walkers or a smaller --net"
    if least - spring_bytes <= budget_bytes:
        smaller += f", or --optimizer adam: SPRING's own arrays take about {show_bytes(spring_bytes)}"
    return does_not_fit(
        least, budget_bytes, how=f" with {size} at a time{on_top}", otherwise=f"give {smaller}"
    )


def _size(chunk: int | None) -> str:
    return "all walkers" if chunk is None else "1 walker" if chunk == 1 else f"{chunk:,} walkers"
