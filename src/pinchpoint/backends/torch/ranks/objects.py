"""Collectives of Python objects, which torch sends as bytes: other ranks have the objects of this one.

Whole numbers in them are also tried larger, to see if they decide about sizes.

An object that only another rank has, such as a config that rank 0 reads and sends, comes from a run as that
rank, in which `SentObjects` keeps it.
"""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from pinchpoint.backends.torch.fake.devices import at_user_line
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.ranks import compat
from pinchpoint.core.errors import CannotFake


class NeedsObjects(BaseException):
    """Raised where a script needs objects of another rank. Not an Exception, so that it is not handled."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self.rank = rank


class SentObjects:
    """Lists of objects that ranks send to all others, as text, by the rank that sends them."""

    def __init__(self, received: Mapping[str, list[str]] | None = None) -> None:
        self.sent: list[str] = []  # by this rank, in order
        self._received = received or {}
        self._counts: dict[int, int] = {}  # how many lists were received, by rank

    def send(self, values: list[Any]) -> None:
        try:
            self.sent.append(base64.b64encode(pickle.dumps(values)).decode())
        except Exception:  # torch would raise the same error, but the objects may not be needed
            self.sent.append("")

    def receive(self, rank: int) -> list[Any] | None:
        """The next list of a rank; None if it is not known."""
        number = self._counts[rank] = self._counts.get(rank, 0) + 1
        lists = self._received.get(str(rank), [])
        text = lists[number - 1] if number <= len(lists) else ""
        return pickle.loads(base64.b64decode(text)) if text else None

    def is_asked(self, rank: int) -> bool:
        """Whether that rank was run already."""
        return str(rank) in self._received


def functions(observer: Observer) -> list[Callable[..., Any]]:
    """The functions of torch.distributed that exchange objects."""
    import torch.distributed as dist

    def note(what: str) -> None:
        observer.note(f"{what}{at_user_line()} has this rank's own values in place of those of other ranks")

    def gather(name: str, objects: list[Any], obj: Any) -> None:
        note(name)
        objects[:] = [obj, *(_received(observer, obj) for _ in objects[1:])]

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None) -> None:
        gather("all_gather_object", object_list, obj)

    def gather_object(obj: Any, object_gather_list: list[Any] | None = None, *_: Any, **__: Any) -> None:
        gather("gather_object", object_gather_list or [], obj)

    def broadcast_object_list(
        object_list: list[Any],
        src: int | None = None,
        group: Any = None,
        device: Any = None,
        group_src: int | None = None,
    ) -> None:
        if group_src is not None:
            src = compat.ranks_of(group or dist.group.WORLD)[group_src]
        if src in (None, dist.get_rank()):
            observer.objects.send(object_list)
            return
        assert src is not None
        values = observer.objects.receive(src)
        if values is not None:
            object_list[:] = values
        elif all(value is None for value in object_list) and not observer.objects.is_asked(src):
            raise NeedsObjects(src)
        else:
            note("broadcast_object_list")

    def scatter_object_list(
        scatter_object_output_list: list[Any],
        scatter_object_input_list: list[Any] | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        if scatter_object_input_list:
            number = min(dist.get_rank(), len(scatter_object_input_list) - 1)
            scatter_object_output_list[0] = scatter_object_input_list[number]
        else:
            note("scatter_object_list")

    def send_object_list(*_: Any, **__: Any) -> None: ...

    def recv_object_list(object_list: list[Any], *_: Any, **__: Any) -> int:
        if "distributed.pipelining" in sys._getframe(1).f_globals.get("__name__", ""):
            raise CannotFake(
                f"A stage of a pipeline asks its neighbours for the shapes of their tensors{at_user_line()}, "
                "which pinchpoint does not support yet.",
                hint="Give PipelineStage its input_args and output_args for one microbatch, such as "
                'torch.empty(8, 512, device="meta"); from torch 2.12 on with requires_grad=True.',
            )
        note("recv_object_list")
        return 0

    return [
        all_gather_object,
        gather_object,
        broadcast_object_list,
        scatter_object_list,
        send_object_list,
        recv_object_list,
    ]


def _received(observer: Observer, obj: Any) -> Any:
    """What another rank sends in place of an object: its whole numbers, in lists and dicts, may be larger."""
    if type(obj) is int:
        site = observer.ledger.site()
        return int(observer.dynamic.receive(torch.tensor(obj), f"{site.file}:{site.line}"))
    if type(obj) in (list, tuple):
        return type(obj)(_received(observer, part) for part in obj)
    if type(obj) is dict:
        return {key: _received(observer, part) for key, part in obj.items()}
    return obj
