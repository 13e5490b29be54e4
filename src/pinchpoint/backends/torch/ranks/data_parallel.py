"""DistributedDataParallel without peers: the buckets of its reducer, which C++ code of torch allocates."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pinchpoint.backends.torch import compat as torch_compat
from pinchpoint.backends.torch.fake.devices import at_user_line
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.ranks import compat
from pinchpoint.core.units import MIB

_FIRST_BUCKET_BYTES = MIB
_BROADCAST_BYTES = 250 * MIB  # weights that are copied together when rank 0 sends them
# Hooks that keep a copy of a bucket in half precision while it is reduced.
_COMPRESSING = {
    "fp16_compress_hook": torch.float16,
    "bf16_compress_hook": torch.bfloat16,
    "fp16_compress_wrapper": torch.float16,
    "bf16_compress_wrapper": torch.bfloat16,
}
_IGNORED = "_ddp_params_and_buffers_to_ignore"  # attribute of a module: names that are not reduced
_PLAIN_HOOKS = ("allreduce_hook", "noop_hook")


def make_class(observer: Observer, dist: Any) -> type[torch.nn.Module]:
    ledger = observer.ledger

    class DistributedDataParallel(torch.nn.Module):
        """Runs the wrapped module and keeps the reducer's buckets allocated."""

        def __init__(
            self,
            module: torch.nn.Module,
            device_ids: Any = None,
            output_device: Any = None,
            dim: int = 0,
            broadcast_buffers: bool | None = None,
            init_sync: bool = True,
            process_group: Any = None,
            bucket_cap_mb: float | None = None,
            find_unused_parameters: bool = False,
            check_reduction: bool = False,
            gradient_as_bucket_view: bool = False,
            static_graph: bool = False,
            mixed_precision: Any = None,
            device_mesh: Any = None,
            forward_sync_buffers: bool | None = None,
            **__: Any,
        ) -> None:
            super().__init__()
            ignored = set(getattr(module, _IGNORED, ()))
            parameters = [p for name, p in module.named_parameters() if name not in ignored]
            if not any(p.requires_grad for p in parameters):  # torch's own message
                raise RuntimeError(
                    "DistributedDataParallel is not needed when a module doesn't have any parameter that "
                    "requires a gradient."
                )
            if mixed_precision is not None:
                reason = f"mixed_precision of DistributedDataParallel{at_user_line()} is not modelled"
                observer.ledger.observation.reasons.append(reason)
            if device_mesh is not None:
                process_group = device_mesh.get_group(mesh_dim=0)
            self.module = module
            self.device_ids = device_ids
            self.device = parameters[0].device
            self.process_group = process_group
            sync_buffers = forward_sync_buffers if forward_sync_buffers is not None else broadcast_buffers
            self._buffers_to_sync = [
                buffer
                for name, buffer in module.named_buffers()
                if name not in ignored and sync_buffers is not False
            ]
            self.gradient_as_bucket_view = gradient_as_bucket_view
            self.static_graph = static_graph
            self.require_backward_grad_sync = True
            self._compressed_to: torch.dtype | None = None
            self._finds_unused = find_unused_parameters and not static_graph
            self._expects_gradients = True  # whether the last forward pass was outside `no_sync`
            self.bucket_bytes_cap = int((bucket_cap_mb or 25) * MIB)
            self._first_bytes = _FIRST_BUCKET_BYTES if bucket_cap_mb is None else self.bucket_bytes_cap
            self._arrived: list[torch.nn.Parameter] = []  # parameters in the order of their first gradients
            self._is_final = self._finds_unused  # whether the buckets are not made again
            if dist.is_initialized() and init_sync:
                self._send([*parameters, *self._buffers_to_sync])
            parameters = [p for p in parameters if p.requires_grad]
            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(self._receive)
            # One bucket for all until the order of the gradients is known. If some may be unused, the
            # parameters are grouped in the order of the module, and the last bucket comes first.
            first_bytes = self._first_bytes if self._is_final else sys.maxsize
            self._make_buckets(_grouped(parameters, first_bytes, self.bucket_bytes_cap)[::-1])

        def _send(self, states: list[torch.Tensor]) -> None:
            collectives = observer.collectives
            collectives.sends_states = True
            try:
                compat.broadcast_coalesced(self.process_group, [s.detach() for s in states], _BROADCAST_BYTES)
            finally:
                collectives.sends_states = False

        def _make_buckets(self, groups: list[list[torch.nn.Parameter]]) -> None:
            self._parts: dict[torch.Tensor, tuple[_Bucket, int]] = {}
            for group in groups:
                bucket = _Bucket(group)
                ledger.set_role(bucket.buffer, "gradients")
                at = 0
                for parameter in group:
                    self._parts[parameter] = bucket, at
                    at += parameter.numel()

        def _receive(self, parameter: Any) -> None:
            """Do what the reducer does with a new gradient, and with a bucket that is complete."""
            if not self._expects_gradients:
                return
            if not self._is_final:
                self._arrived.append(parameter)
            bucket, at = self._parts[parameter]
            if self.gradient_as_bucket_view:
                parameter.grad = bucket.buffer[at : at + parameter.numel()].view(parameter.shape)
            bucket.waiting -= 1
            if bucket.waiting <= 0:
                bucket.waiting = bucket.size
                if self._compressed_to is not None:
                    bucket.buffer.to(self._compressed_to)

        # As in torch, only the wrapped module is compiled: in parts, one for each bucket.
        @compat.uncompiled
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            is_first = not self._arrived and not self._is_final
            if self._arrived and not self._is_final and torch.is_grad_enabled():
                self._is_final = True
                self._parts = {}  # the first bucket is freed before the others are made
                arrived = [*dict.fromkeys(self._arrived)]
                self._make_buckets(_grouped(arrived, self._first_bytes, self.bucket_bytes_cap))
            if self._buffers_to_sync and self._expects_gradients and dist.is_initialized():
                self._send(self._buffers_to_sync)
            if torch.is_grad_enabled():
                self._expects_gradients = self.require_backward_grad_sync
            if self.device_ids:
                args, kwargs = torch_compat.tree_map_only(
                    torch.Tensor, lambda tensor: tensor.to(self.device), (args, kwargs)
                )
            with compat.inside_data_parallel(self):
                result = self.module(*args, **kwargs)
            if torch.is_grad_enabled() and (self._finds_unused or (self.static_graph and is_first)):
                # Outputs are copied, so that the backward pass starts with the reducer.
                result = torch_compat.tree_map_only(torch.Tensor, torch.clone, result)
            return result

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
            try:
                yield
            finally:
                self.require_backward_grad_sync = before

        @contextlib.contextmanager
        def join(self, *_: Any, **__: Any) -> Iterator[None]:
            yield

        def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
            name = getattr(hook, "__name__", type(hook).__name__)
            self._compressed_to = _COMPRESSING.get(name)
            if name not in _COMPRESSING and name not in _PLAIN_HOOKS:
                reason = f"the communication hook {name}{at_user_line()} is not run: its memory is not known"
                observer.ledger.observation.reasons.append(reason)

        @classmethod
        def _get_active_ddp_module(cls) -> Any:
            return compat.active_data_parallel()

        def _set_static_graph(self) -> None:
            self.static_graph = True

        def _get_ddp_logging_data(self) -> dict[str, Any]:
            return {}

        @staticmethod
        def _set_params_and_buffers_to_ignore_for_model(module: torch.nn.Module, names: Any) -> None:
            setattr(module, _IGNORED, names)

    return DistributedDataParallel


def _grouped(
    parameters: list[torch.nn.Parameter], first_bytes: int, cap_bytes: int
) -> list[list[torch.nn.Parameter]]:
    """Parameters by bucket. A bucket is full when it has reached its limit; the first has its own."""
    groups: list[list[torch.nn.Parameter]] = []
    limit, size = 0, 0
    for parameter in parameters:
        if not groups or size >= limit or parameter.dtype != groups[-1][0].dtype:
            limit, size = (cap_bytes if groups else first_bytes), 0
            groups.append([])
        groups[-1].append(parameter)
        size += parameter.numel() * parameter.element_size()
    return groups


class _Bucket:
    """A buffer for the gradients of some parameters, and how many of them are still missing."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        first = parameters[0]
        count = sum(parameter.numel() for parameter in parameters)
        self.buffer = torch.empty(count, dtype=first.dtype, device=first.device)
        self.size = self.waiting = len(parameters)
