"""safetensors without data: a file that this run saved is loaded again with its names, shapes and devices.

`save_file`, `save_model` and `save` keep what they are given in the store of `saving`. `load_file`,
`load_model`, `load` and `safe_open` find it there; other files are read as usual.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Self

import torch

from pinchpoint.backends.patches import Patches
from pinchpoint.backends.torch import compat
from pinchpoint.backends.torch.fake.devices import place_of

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def install(patches: Patches, save: Callable[..., Any], find: Callable[[Any], Any]) -> None:
    """Replace the functions of safetensors, if it is installed.

    save: keeps an object under a path or in a file and returns the entry. find: returns the entry or None;
    its `load` takes the function that chooses a place.
    """
    try:
        import safetensors
        import safetensors.torch as functions
    except ModuleNotFoundError:
        return
    original_file, original_open, original_load = functions.load_file, safetensors.safe_open, functions.load

    def save_file(tensors: Any, filename: Any, metadata: Any = None) -> None:
        save(tensors, filename).metadata = metadata

    def save_model(model: Any, filename: Any, metadata: Any = None, force_contiguous: bool = True) -> None:
        save_file(model.state_dict(), filename, metadata)

    def save_bytes(tensors: Any, metadata: Any = None) -> bytes:
        buffer = io.BytesIO()
        save_file(tensors, buffer, metadata)
        return buffer.getvalue()

    def load_file(filename: Any, device: Any = "cpu", **kwargs: Any) -> Any:
        entry = find(filename)
        if entry is not None:
            return entry.load(lambda tag: place_of(device) or "host")
        tensors = original_file(filename, device="cpu", **kwargs)
        is_moved = place_of(device) == "device"
        return {name: tensor.to(device) for name, tensor in tensors.items()} if is_moved else tensors

    def load_model(
        model: Any, filename: Any, strict: bool = True, device: Any = "cpu", **kwargs: Any
    ) -> tuple[set[str], list[str]]:
        return _load_into(model, load_file(filename, device, **kwargs), strict=strict)

    def load(data: bytes) -> Any:
        entry = find(io.BytesIO(data))
        return original_load(data) if entry is None else entry.load(lambda tag: "host")

    def safe_open(filename: Any, framework: str, device: Any = "cpu", **kwargs: Any) -> Any:
        entry = find(filename)
        if entry is None:
            return original_open(filename, framework, device, **kwargs)
        return _OpenFile(entry.load(lambda tag: "host"), entry.metadata, device)

    # transformers reads tensors in threads, but fake tensors can only be used in one.
    patches.set_environment("HF_DEACTIVATE_ASYNC_LOAD", "1")
    patches.set(functions, "save_file", save_file)
    patches.set(functions, "save_model", save_model)
    patches.set(functions, "save", save_bytes)
    patches.set(functions, "load_file", load_file)
    patches.set(functions, "load_model", load_model)
    patches.set(functions, "load", load)
    patches.set(safetensors, "safe_open", safe_open)


class _OpenFile:
    """Replaces the object that `safe_open` returns. Tensors are moved to the device when they are read."""

    def __init__(self, tensors: dict[str, torch.Tensor], metadata: Any, device: Any) -> None:
        self._tensors, self._metadata, self._device = tensors, metadata, device

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def keys(self) -> list[str]:
        return sorted(self._tensors)

    def offset_keys(self) -> list[str]:
        return list(self._tensors)

    def metadata(self) -> Any:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        return tensor.to(self._device) if place_of(self._device) == "device" else tensor

    def get_tensors(self) -> dict[str, torch.Tensor]:
        return {name: self.get_tensor(name) for name in self._tensors}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._tensors[name], lambda: self.get_tensor(name))


class _Slice:
    """A tensor of an open file that is read when it is indexed."""

    def __init__(self, tensor: torch.Tensor, read: Callable[[], torch.Tensor]) -> None:
        self._tensor, self._read = tensor, read

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return _DTYPES[self._tensor.dtype]

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._read()[index]


def _load_into(model: Any, tensors: dict[str, Any], *, strict: bool) -> tuple[set[str], list[str]]:
    """Copy tensors into a model. A name that shares its storage with a loaded one is not missing."""
    result = model.load_state_dict(tensors, strict=False)
    own = {name: compat.storage_key(t.untyped_storage()) for name, t in model.state_dict().items()}
    loaded = {own[name] for name in tensors if name in own}
    missing = {name for name in result.missing_keys if own.get(name) not in loaded}
    unexpected = list(result.unexpected_keys)
    if strict and (missing or unexpected):
        raise RuntimeError(
            f"Error(s) in loading state_dict for {type(model).__name__}: "
            f"missing keys {sorted(missing)}, unexpected keys {sorted(unexpected)}."
        )
    return missing, unexpected
