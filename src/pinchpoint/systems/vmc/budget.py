"""The quickest Laplacian and the largest chunk of walkers that stay within a budget, chosen together by XLA's own account.

The program is the caller's own, compiled for the device that is here and not run: arguments, outputs and temporaries as XLA
assigned them, on each device. Tried in turn, quickest first: the quickest method with all walkers at once, then in chunks,
then the loop in chunks, which takes least. Without a budget the device's own memory is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pinchpoint.backends.jax import xla
from pinchpoint.core.errors import DoesNotFit, Missing
from pinchpoint.core.units import show_bytes
from pinchpoint.kit.laplacians.chunk_plan import MIN_FAST_CHUNK
from pinchpoint.kit.laplacians.derivatives import fastest_method
from pinchpoint.systems.common.budgets import budget_of
from pinchpoint.systems.vmc.optimization.devices import Host, resident_bytes
from pinchpoint.systems.vmc.records import taken
from pinchpoint.systems.vmc.settings import Method, Settings

# On a CPU, from so many electrons on, more walkers at one time than this leave its caches.
CACHED_ELECTRONS, CACHED_WALKERS = 6, 64

Need = Callable[
    [Method, int | None], int
]  # from a method and a chunk (None: all walkers) to the bytes a device needs in all


@dataclass(frozen=True)
class Fit:
    """How the Laplacian is taken. chunk: walkers at one time; None: all. why: in words, with the numbers."""

    method: Method
    chunk: int | None
    predicted_bytes: int | None  # None where XLA gives no account
    budget_bytes: int | None  # None where the device does not say what it has
    why: str

    def into(self, settings: Settings) -> Settings:
        return replace(settings, method=self.method, chunk=self.chunk)

    def text(self) -> str:
        """`forward, 64 walkers at one time (...)`."""
        return taken(self.method, self.chunk, self.why)


def fit(
    settings: Settings,
    *,
    electrons: int,
    budget: str | int | None,
    host: Host,
    compiled: Callable[[Settings], Any],
    progress: Callable[[str], None] | None = None,
    spring_bytes: int = 0,
) -> Fit:
    """Method and chunk for a program; those that `settings` names are kept. `DoesNotFit` where one walker is too much.

    compiled: the program with such settings, compiled. spring_bytes: of SPRING's own arrays, which no chunk makes smaller.
    """
    card = None if budget is None else budget_of(budget)
    allowed = device_bytes(host) if card is None else card.memory_bytes
    context = card.context_bytes if card is not None and host.name == "cuda" else 0

    def need(method: Method, chunk: int | None) -> int:
        if progress is not None:
            progress(f"{method}, {_size(chunk)} at one time")
        step = xla.compiled_bytes(compiled(replace(settings, method=method, chunk=chunk)))
        if step is None:
            raise Missing(
                "XLA gives no memory analysis on this device",
                hint="leave out --budget, and choose a chunk: --set chunk=64",
            )
        # Devices of a CPU share its memory. Read after compiling: what that took stays resident while training.
        return step + context if host.name == "cuda" else step * len(host.devices) + resident_bytes()

    first: Method = fastest_method(3 * electrons) if settings.method == "auto" else settings.method
    at_most = (
        CACHED_WALKERS * len(host.devices) if host.name == "cpu" and electrons >= CACHED_ELECTRONS else None
    )
    unknown = Fit(
        first, settings.chunk, None, None, "the quickest where nothing is known of the device's memory"
    )
    if allowed is None:
        return unknown
    try:
        return quickest(
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


def quickest(
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
    """The first of the methods, quickest first, in the largest chunk that fits; the last of them in chunks of any size.

    chunk: the only one tried, where one is asked for; at_most: walkers at one time beyond which more are slower. A chunk
    divides the walkers, and every device has the same share of it. on_top: what is counted besides the program, spring_bytes:
    what SPRING alone holds of it; both for the refusal.
    """
    parts: list[int | None] = [part for part in range(devices, walkers, devices) if walkers % part == 0]
    within = [part for part in parts if at_most is None or (part is not None and part <= at_most)]
    whole = [None] if at_most is None or walkers <= at_most or not within else []
    refused, least = "", 0
    for method in methods:
        if chunk is not None:
            sizes = [chunk]
        elif (
            method == methods[-1]
        ):  # all walkers at once are out of the question where a quicker method had to give way
            sizes = within if refused and within else [*within, *whole]
        else:
            large = [part for part in within if part is not None and part >= MIN_FAST_CHUNK * devices]
            sizes = [*large, *whole] or within[-1:]
        found, needed, most = _largest(lambda size, method=method: need(method, size), sizes, budget_bytes)
        if needed <= budget_bytes:
            why = f"{show_bytes(needed)} of {show_bytes(budget_bytes)}"
            if found != sizes[-1]:
                refused = f"{refused}{method} with {_size(sizes[-1])} at one time needs {show_bytes(most)}; "
            return Fit(method, found, needed, budget_bytes, refused + why)
        refused, least = f"{method} needs {show_bytes(needed)} with {_size(found)} at one time; ", needed
    raise _does_not_fit(least, budget_bytes, chunk, parts, on_top, spring_bytes)


def device_bytes(host: Host) -> int | None:
    """What the device has for this process: on CUDA the pool JAX may take, on a CPU the memory of the machine."""
    if host.name == "cuda":
        limits = [(device.memory_stats() or {}).get("bytes_limit") for device in host.devices]
        return min((limit for limit in limits if limit), default=None)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


_ON_TOP = {"cuda": ", its context included", "cpu": ", with what this process holds already"}


def _largest(
    need: Callable[[int | None], int], sizes: Sequence[int | None], budget_bytes: int
) -> tuple[int | None, int, int]:
    """The largest size that fits, or the least where none does; its bytes, and those of the largest. sizes: smallest first.

    Needs grow with the size: half of those left are tried no more.
    """
    most = need(sizes[-1])
    if most <= budget_bytes or len(sizes) == 1:
        return sizes[-1], most, most
    found, needed = sizes[0], need(sizes[0])
    if needed > budget_bytes:
        return found, needed, most
    low, high = 1, len(sizes) - 1  # sizes[low - 1] fits; those from `high` on do not
    while low < high:
        middle = (low + high) // 2
        tried = need(sizes[middle])
        if tried <= budget_bytes:
            found, needed, low = sizes[middle], tried, middle + 1
        else:
            high = middle
    return found, needed, most


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
    smaller = (
        "a smaller --set chunk" if chunk is not None and chunk > 1 else "fewer --walkers or a smaller --net"
    )
    if least - spring_bytes <= budget_bytes:
        smaller += f", or --optimizer adam: SPRING's own arrays take about {show_bytes(spring_bytes)}"
    return DoesNotFit(
        f"a step needs {show_bytes(least)} with {size} at a time{on_top}; the budget is {show_bytes(budget_bytes)}",
        hint=f"raise --budget by at least {show_bytes(least - budget_bytes)}, or give {smaller}",
        need_bytes=least,
    )


def _size(chunk: int | None) -> str:
    return "all walkers" if chunk is None else "1 walker" if chunk == 1 else f"{chunk:,} walkers"
