"""torch.save and torch.load without data: structure, shapes and devices are kept, device tensors are not.

No tensor is serialised. A saved object is found again by a token in its file, or by its path if files
are not redirected. A real checkpoint is read on the host, and each storage is placed where its location
tag or `map_location` says.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.compat import FakeTensor
from pinchpoint.backends.torch.fake import safetensors_files
from pinchpoint.backends.torch.fake.devices import at_user_line, place_of
from pinchpoint.backends.torch.observer import Observer
from pinchpoint.core.errors import CannotFake

_TOKEN = b"pinchpoint checkpoint "
_DIGITS = 12
_VALUE_LIMIT = 1_000_000  # elements; a larger device tensor is saved without its values
_TAGS = {"device": "cuda:0", "host": "cpu"}
Place = Callable[[str], str]


def install(patches: Patches, observer: Observer, *, files: Callable[[], bool]) -> None:
    """Replace torch.save and torch.load.

    files: whether files are redirected to a scratch folder, so that a token may be written to a path.
    """
    store = _Store(observer, files)
    original = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        saved_object = store.find(f)
        if saved_object is not None:
            return saved_object.load(lambda tag: _where(map_location, tag))
        if str(map_location).startswith("meta"):
            return original(f, map_location, *args, **kwargs)
        return _load_real(lambda to: original(f, to, *args, **kwargs), observer, map_location)

    def save(obj: Any, f: Any, *_: Any, **__: Any) -> None:
        store.save(obj, f)

    patches.set(torch, "save", save)
    patches.set(torch, "load", load)
    safetensors_files.install(patches, store.save, store.find)


class _Store:
    """The objects saved in this run."""

    def __init__(self, observer: Observer, files: Callable[[], bool]) -> None:
        self._observer, self._files = observer, files
        self._objects: list[_SavedObject] = []
        self._by_path: dict[str, int] = {}

    def save(self, obj: Any, f: Any) -> _SavedObject:
        self._observer.note("checkpoints are not written")
        self._objects.append(_SavedObject(obj, self._observer))
        number = len(self._objects) - 1
        token = _TOKEN + str(number).zfill(_DIGITS).encode()
        if not isinstance(f, (str, os.PathLike)):
            f.write(token)
        elif self._files():
            with open(f, "wb") as file:
                file.write(token)
        else:
            self._by_path[os.path.abspath(f)] = number
        return self._objects[number]

    def find(self, f: Any) -> _SavedObject | None:
        """The object that this run saved to the file, if the file still contains it."""
        if not isinstance(f, (str, os.PathLike)):
            at = f.tell()
            start = f.read(len(_TOKEN) + _DIGITS)
            if not start.startswith(_TOKEN):
                f.seek(at)
        elif (number := self._by_path.get(os.path.abspath(f))) is not None:
            return self._objects[number]
        else:
            with open(f, "rb") as file:
                start = file.read(len(_TOKEN) + _DIGITS)
        return self._objects[int(start.removeprefix(_TOKEN))] if start.startswith(_TOKEN) else None


# --- objects saved in this run


@dataclass(frozen=True)
class _Storage:
    """A saved storage. values: (count,) on the host, or None if they are unknown."""

    count: int
    dtype: torch.dtype
    place: str
    values: torch.Tensor | None


@dataclass(frozen=True)
class _Layout:
    """How a tensor is laid out in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    count: int
    contiguous: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Layout:
        return cls(
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.numel(),
            tensor.is_contiguous(),
        )


@dataclass(frozen=True)
class _Tensor:
    storage: int
    layout: _Layout
    requires_grad: bool
    parameter: bool


class _SavedObject:
    """One saved object: its pickle, with numbers in place of its tensors."""

    def __init__(self, obj: Any, observer: Observer) -> None:
        self._storages: list[_Storage] = []
        self._tensors: list[_Tensor] = []
        self._fault = ""
        self._observer = observer
        self.metadata: Any = None  # of a safetensors file
        buffer = io.BytesIO()
        try:
            _Pickler(buffer, self, observer).dump(obj)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            # Not an error yet: replaced library objects may not be picklable, but may never be loaded.
            self._fault = str(error)
        self._pickle = buffer.getvalue()

    def add(
        self, tensor: torch.Tensor, numbers: dict[tuple[int, torch.dtype], int], observer: Observer
    ) -> int:
        storage = tensor.untyped_storage()
        key = compat.storage_key(storage), tensor.dtype
        if key not in numbers:
            numbers[key] = len(self._storages)
            count = storage.nbytes() // tensor.element_size()
            place = "device" if observer.on_device(tensor) else "host"
            self._storages.append(_Storage(count, tensor.dtype, place, _values(tensor, count, observer)))
        parameter = isinstance(tensor, torch.nn.Parameter)
        self._tensors.append(_Tensor(numbers[key], _Layout.of(tensor), tensor.requires_grad, parameter))
        return len(self._tensors) - 1

    def load(self, where: Place) -> Any:
        if self._fault:
            raise CannotFake(
                f"The script loads a checkpoint{at_user_line()} that it saved in this run; "
                f"pinchpoint does not support such an object yet: {self._fault}",
                hint="Predict with a script that saves state_dict() instead of the object.",
            )
        bases: dict[Any, torch.Tensor] = {}
        tensors: dict[int, torch.Tensor] = {}

        def tensor(number: int) -> torch.Tensor:
            if number not in tensors:
                tensors[number] = self._make(number, bases, where)
            return tensors[number]

        return _Unpickler(io.BytesIO(self._pickle), tensor).load()

    def _make(self, number: int, bases: dict[Any, torch.Tensor], where: Place) -> torch.Tensor:
        tensor_info = self._tensors[number]
        storage = self._storages[tensor_info.storage]
        place = where(_TAGS[storage.place])
        with torch.no_grad():
            if storage.values is not None and place == "host":
                base = bases.setdefault(tensor_info.storage, storage.values.clone())
                tensor = base.as_strided(
                    tensor_info.layout.shape, tensor_info.layout.stride, tensor_info.layout.offset
                )
            else:
                zero = torch.zeros((), dtype=storage.dtype)
                values = zero.expand(storage.count) if storage.values is None else storage.values.clone()
                tensor = _place(tensor_info.storage, values, tensor_info.layout, bases, self._observer, place)
                if storage.values is None:
                    self._observer.shadows.forget(tensor)
        return _as_saved(tensor, parameter=tensor_info.parameter, requires_grad=tensor_info.requires_grad)


def _as_saved(tensor: torch.Tensor, *, parameter: bool, requires_grad: bool) -> torch.Tensor:
    return torch.nn.Parameter(tensor, requires_grad) if parameter else tensor.requires_grad_(requires_grad)


def _values(tensor: torch.Tensor, count: int, observer: Observer) -> torch.Tensor | None:
    """A copy of a whole storage's values on the host, or None if they are unknown."""
    if type(tensor) is not FakeTensor:
        return tensor.detach().as_strided((count,), (1,), 0).clone()
    if tensor.numel() != count or not tensor.is_contiguous() or count > _VALUE_LIMIT:
        return None
    values = observer.shadow(tensor)
    return None if values is None else values.detach().reshape(-1).clone()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, saved_object: _SavedObject, observer: Observer) -> None:
        super().__init__(file)
        self._saved_object, self._observer = saved_object, observer
        self._numbers: dict[tuple[int, torch.dtype], int] = {}
        self._number_of: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, torch.Tensor) or obj.layout is not torch.strided:
            return None
        if id(obj) not in self._number_of:
            self._number_of[id(obj)] = self._saved_object.add(obj, self._numbers, self._observer)
        return self._number_of[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensor: Callable[[int], torch.Tensor]) -> None:
        super().__init__(file)
        self._tensor = tensor

    def persistent_load(self, pid: Any) -> torch.Tensor:
        return self._tensor(pid)


# --- real checkpoint files


def _load_real(read: Callable[[Any], Any], observer: Observer, map_location: Any) -> Any:
    """Read on the host, then move the storages that belong on the device, each once."""
    to_device: dict[int, torch.UntypedStorage] = {}  # these references keep the keys unique

    def on_host(storage: torch.UntypedStorage, tag: str) -> torch.UntypedStorage:
        if _where(map_location, tag) == "device":
            to_device[compat.storage_key(storage)] = storage
        return storage

    content = read(on_host)
    bases: dict[Any, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        key = compat.storage_key(tensor.untyped_storage()) if tensor.layout is torch.strided else 0
        if key not in to_device:
            return tensor
        count = to_device[key].nbytes() // tensor.element_size()
        with torch.no_grad():
            flat = tensor.detach().as_strided((count,), (1,), 0)
            copy = _place((key, tensor.dtype), flat, _Layout.of(tensor), bases, observer, "device")
        return _as_saved(
            copy, parameter=isinstance(tensor, torch.nn.Parameter), requires_grad=tensor.requires_grad
        )

    def walk(leaf: Any) -> Any:
        return compat.apply_to_module(leaf, move) if isinstance(leaf, torch.nn.Module) else move(leaf)

    return compat.tree_map_only((torch.Tensor, torch.nn.Module), walk, content) if to_device else content


def _place(
    key: Any,
    flat: torch.Tensor,
    layout: _Layout,
    bases: dict[Any, torch.Tensor],
    observer: Observer,
    place: str,
) -> torch.Tensor:
    """A tensor in a copy of its storage. The copy is created once, so that shared storages stay shared.

    flat: (count,) the storage's values. If one tensor covers all of them, the copy has its shape and is
    not a view.
    """
    whole = layout.offset == 0 and layout.count == flat.numel() and layout.contiguous
    base = bases.get(key)
    if base is None:
        base = bases[key] = observer.copy_to(flat.reshape(layout.shape) if whole else flat, place)
        if whole:
            return base
    return base.as_strided(layout.shape, layout.stride, layout.offset)


def _where(map_location: Any, tag: str) -> str:
    """Return "device" or "host" for a storage saved with this location tag."""
    if isinstance(map_location, dict):
        map_location = map_location.get(tag, tag)
    elif callable(map_location):
        answer = map_location(_StandIn(), tag)
        map_location = answer.device if isinstance(answer, _StandIn) else tag
    return place_of(tag if map_location is None else map_location) or "host"


@dataclass(frozen=True)
class _StandIn:
    """Replaces the storage passed to a `map_location` function, which moves it or returns it unchanged."""

    device: Any = "cpu"

    def cuda(self, device: Any = None, *_: Any, **__: Any) -> _StandIn:
        return _StandIn("cuda" if device is None else device)

    def to(self, device: Any, *_: Any, **__: Any) -> _StandIn:
        return _StandIn(device)

    def cpu(self) -> _StandIn:
        return _StandIn()
