"""`Ledger`: device storages with the line and phase that allocated them, and when they were freed.

The ledger knows torch storages but not operations; `observer` adds them. Weak references follow the
lifetime of a block, so the ledger frees a storage exactly when torch would free it.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, Literal, NamedTuple

import torch

from pinchpoint.backends.recording.source_lines import is_user_file
from pinchpoint.backends.torch import autograd_nodes, compat
from pinchpoint.backends.torch.ranks.compat import local_part
from pinchpoint.core.events import PRIVATE_POOL, BlockInfo, Observation, Phase, Span

_TORCH_DIR = f"{Path(torch.__file__).parent}{os.sep}"  # with the separator, so that torchvision is not in it
_PINCHPOINT_DIR = str(Path(__file__).parents[2])


def is_library_file(filename: str) -> bool:
    """Whether a source file belongs to torch, a package, the standard library, or pinchpoint itself."""
    return filename.startswith(_TORCH_DIR) or not is_user_file(filename)


# torch's only modules that are models by themselves: a line of theirs tells more than one of `linear.py`.
_TORCH_MODELS = str(Path(_TORCH_DIR) / "nn" / "modules" / "transformer.py")
_LARGE = 2**20  # bytes of a storage for which it is asked whether the card is full
_HELD = 2  # freed blocks whose memory another stream may still use
FileKind = Literal["user", "package", "other"]


def kind_of_file(filename: str) -> FileKind:
    """Whose code a source file is; `other`: torch's own layers, the standard library, pinchpoint."""
    if not is_library_file(filename):
        return "user"
    own = filename.startswith((_TORCH_DIR, _PINCHPOINT_DIR, "<"))
    in_package = "site-packages" in filename or "dist-packages" in filename
    return "package" if filename == _TORCH_MODELS or (in_package and not own) else "other"


class Site(NamedTuple):
    """A place in the user's code: file, line, and the module whose forward pass it belongs to.

    library_file, library_line: the innermost line of a package between it and the operation, or none.
    """

    file: str
    line: int
    module: str
    library_file: str = ""
    library_line: int = 0


def _block(
    size: int, phase: Phase, site: Site, op: str, role: str = "", span: Span | None = None
) -> BlockInfo:
    file, line, module, library_file, library_line = site
    return BlockInfo(size, phase, file, line, module, op, role, span, library_file, library_line)


class Ledger:
    """Records the allocations and frees of one fake run, in order."""

    def __init__(self) -> None:
        self.observation = Observation()
        # Backward and optimizer are entered explicitly; data and forward are decided per operation.
        self.phase: Phase | None = None
        self.module_path: list[str] = []
        # Whether a step, a module's forward or a backward pass has started; everything before is data.
        self.step_started = False
        # Code objects at which a stack walk leaves the backward pass; a list, because hashing one is slow.
        self.backward_code: list[CodeType] = []
        self._block_of: dict[int, int] = {}
        self._site_of_node: dict[int, Site] = {}
        self._kinds: dict[str, FileKind] = {}
        self._kinds_of_modules: dict[Any, tuple[dict[str, Any], FileKind | None]] = {}
        self._followers: dict[int, list[int]] = {}  # blocks that are freed with another one
        self._fold: tuple[int, int, int] | None = None  # (new block, old block, event index)
        self._last_phase: Phase | None = None
        self._modules_outside = 0  # modules whose forward pass the current phase was started in
        self._closed = False
        self.stream = 0  # the CUDA stream that is current
        self._is_counted = True  # whether what is allocated counts as allocated
        self._shared: set[int] = set()  # storages that another stream uses
        self._held: list[int] = []  # blocks that stand for the memory of freed ones
        # Called with the bytes of a large storage before it is added; raises an error if the card is full.
        self.before_large: Callable[[int], None] | None = None

    # --- storages

    def holds_storage(self, storage: torch.UntypedStorage) -> bool:
        return compat.storage_key(storage) in self._block_of

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor is on the simulated device."""
        return compat.storage_key(tensor.untyped_storage()) in self._block_of

    def add(
        self, tensor: torch.Tensor, *, phase: Phase, site: Site, op: str, size_bytes: int | None = None
    ) -> None:
        """Add a new storage. Does nothing for one that is already in the ledger.

        size_bytes: the size that the device's kernel allocates, if it differs from the host's
        """
        storage = tensor.untyped_storage()
        key = compat.storage_key(storage)
        if key in self._block_of:
            return
        size = storage.nbytes() if size_bytes is None else size_bytes
        if self.before_large is not None and size >= _LARGE and not self._closed:
            self.before_large(size)
        self._block_of[key] = self._append(_block(size, phase, site, op))
        weakref.finalize(storage, self._on_free, key)
        if phase != "data":
            self.observation.counts.update(tensor.shape)

    def regrow(self, tensor: torch.Tensor, *, phase: Phase, site: Site, op: str) -> None:
        """Replace the block of a storage that an operation enlarged: allocate the new, then free the old."""
        storage = tensor.untyped_storage()
        block = self._block_of.get(compat.storage_key(storage))
        if block is not None and storage.nbytes() > self.observation.blocks[block].bytes:
            self.resize(storage, phase=phase, site=site, op=op)

    def resize(self, storage: torch.UntypedStorage, *, phase: Phase, site: Site, op: str) -> None:
        """Replace the block of a storage whose size was changed; an emptied one only frees its block."""
        key = compat.storage_key(storage)
        block = self._block_of.get(key)
        if block is None or storage.nbytes() == self.observation.blocks[block].bytes:
            return
        info = _block(storage.nbytes(), phase, site, op)
        info.role = self.observation.blocks[block].role
        if storage.nbytes():
            self._block_of[key] = self._append(info)
            self._record(block)
        else:
            self._record(block)
            self._hold(key, block)
            self._block_of[key] = self._append(info)

    def add_permanent(
        self, size_bytes: int, *, phase: Phase, site: Site, op: str, role: str, span: Span | None = None
    ) -> int:
        """Add bytes that belong to no tensor: a library's workspace, which is never freed."""
        return self._append(BlockInfo(size_bytes, phase, site.file, site.line, "", op, role, span))

    def add_temporary(self, size: int | Span, *, phase: Phase, site: Site, op: str) -> int:
        """Add a kernel's own temporary, in bytes; the caller frees it with `free_temporary`."""
        usual, span = (size.usual, size) if isinstance(size, Span) else (size, None)
        return self._append(_block(usual, phase, site, op, "temporaries", span))

    def free_temporary(self, block: int) -> None:
        self._record(block)

    def set_role(self, tensor: torch.Tensor | None, role: str, module: str = "") -> None:
        """Record what a storage is for (weights, gradients, optimizer) once that is known, and its module."""
        if tensor is not None:
            tensor = local_part(tensor)
        if type(tensor) is not compat.FakeTensor:
            return
        block = self._block_of.get(compat.storage_key(tensor.untyped_storage()))
        if block is None:
            return
        info = self.observation.blocks[block]
        if not info.role:
            info.role, info.module = role, module or info.module
        elif info.role == role and not info.module:
            info.module = module  # a weight is moved to the device before its module is called

    def module_of(self, tensor: torch.Tensor | None) -> str:
        """The module that a tensor on the device belongs to, if it is known."""
        if tensor is not None:
            tensor = local_part(tensor)
        if type(tensor) is not compat.FakeTensor:
            return ""
        block = self._block_of.get(compat.storage_key(tensor.untyped_storage()))
        return "" if block is None else self.observation.blocks[block].module

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Remember that a stream uses a tensor: its memory is not free when the tensor is freed."""
        key = compat.storage_key(tensor.untyped_storage())
        block = self._block_of.get(key)
        if block is not None and self.observation.blocks[block].stream != stream:
            self._shared.add(key)

    def release(self, blocks: set[int]) -> None:
        """Free blocks whose storages are still alive and stay on the device without memory."""
        for key, block in self._block_of.items():
            if block in blocks:
                self._record(block)
                info = replace(self.observation.blocks[block], bytes=0, held_bytes=0)
                self._block_of[key] = self._append(info)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Within this context, what is allocated takes memory but does not count as allocated."""
        self._is_counted = False
        try:
            yield
        finally:
            self._is_counted = True

    def is_in_pool(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in the memory pool of CUDA graphs."""
        block = self.block_of(tensor)
        return block >= 0 and self.observation.blocks[block].stream == PRIVATE_POOL

    def _hold(self, key: int, block: int) -> None:
        """Keep the memory of a freed block that another stream uses until two more such blocks are freed.

        How long it takes depends on the GPU. FullyShardedDataParallel, whose blocks these usually are, lets
        two of them wait, and then waits for the oldest.
        """
        if key not in self._shared or self._closed:
            return
        self._shared.discard(key)
        info = replace(self.observation.blocks[block], bytes=0, role="", span=None)
        info.held_bytes = self.observation.blocks[block].bytes
        current, self.stream = self.stream, info.stream
        self._held.append(self._append(info))
        self.stream = current
        if len(self._held) > _HELD:
            self._record(self._held.pop(0))

    def close(self) -> None:
        """Stop recording: what a script does after the requested steps is not part of the forecast."""
        self._closed = True

    @property
    def is_closed(self) -> bool:
        return self._closed

    def block_of(self, tensor: torch.Tensor) -> int:
        """The block of a tensor on the device; -1 for one on the host."""
        return self._block_of.get(compat.storage_key(tensor.untyped_storage()), -1)

    def adopt(self, tensor: torch.Tensor, block: int) -> None:
        """Let a new storage stand for a block that is already written."""
        storage = tensor.untyped_storage()
        key = compat.storage_key(storage)
        self._block_of[key] = block
        weakref.finalize(storage, self._on_free, key)

    def begin_phase(self, phase: Phase) -> None:
        """Mark that the next blocks belong to a phase."""
        if phase != self._last_phase:
            self.observation.marks.append((len(self.observation.events), phase))
            self._last_phase = phase

    def live_blocks(self) -> set[int]:
        return set(self._block_of.values())

    def hand_over(self, block: int, heir: int, followers: list[int]) -> None:
        """Let the storage of `block` stand for `heir`; when it is freed, `followers` are freed with it."""
        key = next(key for key, owned in self._block_of.items() if owned == block)
        self._block_of[key] = heir
        if followers:
            self._followers[heir] = followers

    def add_followers(self, block: int, infos: list[BlockInfo]) -> None:
        """Add blocks that are freed together with a block that is alive."""
        self._followers[block] = [*self._followers.get(block, ()), *map(self._append, infos)]

    def live_bytes(self) -> int:
        return sum(self.observation.blocks[block].bytes for block in self._block_of.values())

    def mark_foldable(self, old: torch.Tensor, new: torch.Tensor) -> None:
        """Handle `new = old + x` by the autograd engine, which a real device runs in place.

        The engine adds in place if `old` is freed next, but an active dispatch mode makes it add out of
        place. Therefore, if the next event frees `old`, the two are recorded as one block.
        """
        events = self.observation.events
        new_block = self._block_of.get(compat.storage_key(new.untyped_storage()))
        old_block = self._block_of.get(compat.storage_key(old.untyped_storage()))
        if new_block is None or old_block is None or not events or events[-1] != new_block:
            return
        if self.observation.blocks[new_block].bytes == self.observation.blocks[old_block].bytes:
            self._fold = (new_block, old_block, len(events) - 1)

    def _append(self, info: BlockInfo) -> int:
        if info.role != "temporaries":
            self._fold = None
        if info.phase != self._last_phase:
            self.begin_phase(info.phase)
        info.stream = self.stream or info.stream
        if not self._is_counted:
            info.held_bytes = info.bytes
        self.observation.blocks.append(info)
        block = len(self.observation.blocks) - 1
        self._record(block)
        return block

    def _record(self, block: int) -> None:
        if not self._closed:
            self.observation.events.append(block)

    def _on_free(self, key: int) -> None:
        block = self._block_of.pop(key)
        if self._fold is not None and block == self._fold[1]:
            new_block, old_block, at = self._fold
            self._fold = None
            heir = next((k for k, b in self._block_of.items() if b == new_block), None)
            if heir is not None:
                del self.observation.events[at]
                self._block_of[heir] = old_block
                return
        self._record(block)
        self._hold(key, block)
        for follower in self._followers.pop(block, ()):
            self._record(follower)

    # --- the current line and phase

    def site(self) -> Site:
        """The user's line that the current operation comes from.

        Inside the backward pass it is the forward line whose node is being differentiated,
        unless the pass itself runs the user's Python (recomputation, custom functions). A module that is
        recomputed keeps its name and its line of a package.
        """
        module = self.module_path[-1] if self.module_path else ""
        library_file, library_line = "", 0
        modules = self._kinds_of_modules
        frame = sys._getframe(1)
        while frame is not None:
            # The module's file tells most frames to pass over: Python reports every access to the code of a
            # frame to audit hooks, which takes longer than everything else here.
            variables = frame.f_globals
            known = modules.get(variables.get("__name__"))
            whose = (
                known[1] if known is not None and known[0] is variables else self._kind_of_module(variables)
            )
            if whose == "other" or (whose == "package" and library_file):
                frame = frame.f_back
                continue
            code = frame.f_code
            if code in self.backward_code:
                node = autograd_nodes.autograd_node()
                node_site = (
                    self._site_of_node.get(autograd_nodes.node_sequence(node)) if node is not None else None
                )
                if node_site is not None and len(self.module_path) > self._modules_outside:
                    return Site(node_site.file, node_site.line, module, library_file, library_line)
                if node_site is not None:
                    return node_site
            else:
                filename = code.co_filename
                kind = self._kinds.get(filename) or self._kind(filename)
                if kind == "user":
                    return Site(filename, frame.f_lineno, module, library_file, library_line)
                if kind == "package" and not library_file:
                    library_file, library_line = filename, frame.f_lineno
            frame = frame.f_back
        return Site(library_file, library_line, module)

    def remember_node(self, site: Site) -> None:
        """Link the newest autograd node to the current operation, if that operation created the node."""
        # The first operation that finds a number created the node; later ones may create none.
        self._site_of_node.setdefault(autograd_nodes.next_sequence() - 1, site)

    def renumber_node(self, before: int, number: int) -> None:
        """Keep the line of an autograd node that gets another number."""
        if before in self._site_of_node:
            self._site_of_node[number] = self._site_of_node[before]

    @contextmanager
    def enter_phase(self, phase: Phase) -> Iterator[None]:
        before, self.phase = self.phase, phase
        outside, self._modules_outside = self._modules_outside, len(self.module_path)
        self.step_started = self.step_started or phase != "data"
        try:
            yield
        finally:
            self.phase, self._modules_outside = before, outside

    def _kind_of_module(self, variables: dict[str, Any]) -> FileKind | None:
        """Whose code a module is; None: its frames must be looked at one by one."""
        file = variables.get("__file__")
        kind = kind_of_file(file) if isinstance(file, str) else None
        if any(file == code.co_filename for code in self.backward_code):
            kind = None
        self._kinds_of_modules[variables.get("__name__")] = variables, kind
        return kind

    def _kind(self, filename: str) -> FileKind:
        kind = self._kinds[filename] = kind_of_file(filename)
        return kind
