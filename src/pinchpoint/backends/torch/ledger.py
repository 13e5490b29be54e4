"""The book of device storages: who allocated what, at which line, in which phase, and when it went.

Knows torch storages but not operations; `observer` feeds it. Block life is followed by weak
references, so a storage is freed in the book exactly when torch would free it.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from pinchpoint.backends.torch import compat
from pinchpoint.core.events import BlockInfo, Observation, Phase, Span

_TORCH_DIR = str(Path(torch.__file__).parent)
_PINCHPOINT_DIR = str(Path(__file__).resolve().parents[2])
# Shipped workloads and systems count as user code.
_WORKLOAD_DIRS = (str(Path(_PINCHPOINT_DIR) / "workloads"), str(Path(_PINCHPOINT_DIR) / "systems"))


class Site(NamedTuple):
    """Where in the user's code: file, line, and the module whose forward it was."""

    file: str
    line: int
    module: str


class Ledger:
    """Allocations and frees of one fake run, in order."""

    def __init__(self) -> None:
        self.seen = Observation()
        self.phase: Phase | None = (
            None  # backward and optimizer are entered; data and forward are told per operation
        )
        self.module_path: list[str] = []
        self.begun = (
            False  # a step, a module's forward or a backward pass has started: until then all is data
        )
        self.backward_code: set[object] = set()  # code objects at which a stack walk leaves the backward pass
        self._block_of: dict[int, int] = {}
        self._site_of_node: dict[int, Site] = {}
        self._library: dict[str, bool] = {}
        self._fold: tuple[int, int, int] | None = None  # (new block, old block, event index)
        self._last_phase: Phase | None = None
        self._closed = False

    # -- storages ---------------------------------------------------------------------------

    def holds(self, tensor: torch.Tensor) -> bool:
        """Is this tensor on the (pretended) device?"""
        return compat.storage_key(tensor.untyped_storage()) in self._block_of

    def add(
        self, tensor: torch.Tensor, *, phase: Phase, site: Site, op: str, size_bytes: int | None = None
    ) -> None:
        """Enter a new storage. Does nothing for one that is already in the book.

        size_bytes: where the device's kernel allocates another size than the host's.
        """
        storage = tensor.untyped_storage()
        key = compat.storage_key(storage)
        if key in self._block_of:
            return
        size = storage.nbytes() if size_bytes is None else size_bytes
        self._block_of[key] = self._append(BlockInfo(size, phase, site.file, site.line, site.module, op))
        weakref.finalize(storage, self._freed, key)
        if phase != "data":
            self.seen.counts.update(tensor.shape)

    def regrow(self, tensor: torch.Tensor, *, phase: Phase, site: Site, op: str) -> None:
        """A storage in the book was resized by an operation: its larger block comes before the old one goes."""
        storage = tensor.untyped_storage()
        key = compat.storage_key(storage)
        block = self._block_of.get(key)
        if block is not None and storage.nbytes() > self.seen.blocks[block].bytes:
            self._block_of[key] = self._append(
                BlockInfo(storage.nbytes(), phase, site.file, site.line, site.module, op)
            )
            self._record(block)

    def add_lasting(self, size_bytes: int, *, phase: Phase, site: Site, op: str, role: str) -> None:
        """Enter bytes that no tensor holds and nothing frees: a library's workspace."""
        self._append(BlockInfo(size_bytes, phase, site.file, site.line, "", op, role))

    def add_passing(self, size: int | Span, *, phase: Phase, site: Site, op: str) -> int:
        """Enter a kernel's own temporary, in bytes; the caller closes it with `end_passing`."""
        usual, span = (size.usual, size) if isinstance(size, Span) else (size, None)
        return self._append(
            BlockInfo(usual, phase, site.file, site.line, site.module, op, "temporaries", span)
        )

    def end_passing(self, block: int) -> None:
        self._record(block)

    def name_role(self, tensor: torch.Tensor | None, role: str, module: str = "") -> None:
        """Say what a storage is for, once that is known (weights, gradients, optimizer), and whose."""
        if tensor is None or type(tensor) is not compat.FakeTensor:
            return
        block = self._block_of.get(compat.storage_key(tensor.untyped_storage()))
        if block is not None and not self.seen.blocks[block].role:
            self.seen.blocks[block].role = role
            self.seen.blocks[block].module = module or self.seen.blocks[block].module

    def close(self) -> None:
        """The steps asked for are done: what a script does on its way out is not part of them."""
        self._closed = True

    def live_bytes(self) -> int:
        return sum(self.seen.blocks[block].bytes for block in self._block_of.values())

    def may_fold(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """`new = old + x` by the autograd engine: in place on a real device if `old` dies at once.

        An active dispatch mode makes the engine add out of place. When the next event is the
        death of `old`, the two become one block again.
        """
        events = self.seen.events
        new_block = self._block_of.get(compat.storage_key(new.untyped_storage()))
        old_block = self._block_of.get(compat.storage_key(old.untyped_storage()))
        if new_block is None or old_block is None or not events or events[-1] != new_block:
            return
        if self.seen.blocks[new_block].bytes == self.seen.blocks[old_block].bytes:
            self._fold = (new_block, old_block, len(events) - 1)

    def _append(self, info: BlockInfo) -> int:
        if info.role != "temporaries":
            self._fold = None
        if info.phase != self._last_phase:
            self.seen.marks.append((len(self.seen.events), info.phase))
            self._last_phase = info.phase
        self.seen.blocks.append(info)
        block = len(self.seen.blocks) - 1
        self._record(block)
        return block

    def _record(self, block: int) -> None:
        if not self._closed:
            self.seen.events.append(block)

    def _freed(self, key: int) -> None:
        block = self._block_of.pop(key)
        if self._fold is not None and block == self._fold[1]:
            new_block, old_block, at = self._fold
            self._fold = None
            heir = next((k for k, b in self._block_of.items() if b == new_block), None)
            if heir is not None:
                del self.seen.events[at]
                self._block_of[heir] = old_block
                return
        self._record(block)

    # -- where we are -----------------------------------------------------------------------

    def site(self) -> Site:
        """The user's line behind the operation running now.

        Inside the backward pass that is the forward line whose node is being differentiated,
        unless the pass itself runs the user's Python (recomputation, custom functions).
        """
        module = self.module_path[-1] if self.module_path else ""
        fallback: Site | None = None
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            if code in self.backward_code:
                node = compat.autograd_node()
                known = self._site_of_node.get(compat.node_sequence(node)) if node is not None else None
                if known is not None:
                    return known
            elif not self._is_library(code.co_filename):
                return Site(code.co_filename, frame.f_lineno, module)
            elif fallback is None and not code.co_filename.startswith((_TORCH_DIR, _PINCHPOINT_DIR, "<")):
                fallback = Site(code.co_filename, frame.f_lineno, module)
            frame = frame.f_back
        return fallback or Site("", 0, module)

    def remember_node(self, site: Site) -> None:
        """The operation running now has made the newest autograd node, if it made one."""
        # The first operation to see a number is the one that made the node; later ones may make none.
        self._site_of_node.setdefault(compat.next_sequence() - 1, site)

    @contextmanager
    def within(self, phase: Phase) -> Iterator[None]:
        before, self.phase = self.phase, phase
        self.begun = self.begun or phase != "data"
        try:
            yield
        finally:
            self.phase = before

    def _is_library(self, filename: str) -> bool:
        known = self._library.get(filename)
        if known is None:
            packages = "site-packages" in filename or "dist-packages" in filename
            known = packages or filename.startswith((_TORCH_DIR, _PINCHPOINT_DIR, sys.base_prefix, "<"))
            # The shipped workloads are user code that happens to live in the package.
            known = self._library[filename] = known and not filename.startswith(_WORKLOAD_DIRS)
        return known
