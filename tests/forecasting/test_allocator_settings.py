"""Settings of torch's allocator and cuBLAS, by the names torch reads."""

from __future__ import annotations

import pytest

from pinchpoint.forecasting import allocator_settings

MIB = 2**20


@pytest.fixture(autouse=True)
def _unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_either_variable_enables_expandable_segments(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert not allocator_settings.expandable_segments()
    monkeypatch.setenv(name, "expandable_segments:True")
    assert allocator_settings.expandable_segments() and allocator_settings.notes() == ()


def test_settings_that_are_not_modelled_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,expandable_segments:False,backend:native"
    )
    assert not allocator_settings.expandable_segments()
    assert allocator_settings.notes() == (
        "allocator settings that are not modelled: backend, max_split_size_mb",
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [("", 32 * MIB), (":4096:8", 32 * MIB), (":16:8", MIB // 8), (":4096:2:16:8", 8 * MIB + MIB // 8)],
)
def test_the_cublas_workspace_follows_its_environment_variable(
    monkeypatch: pytest.MonkeyPatch, text: str, size: int
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", text)
    assert allocator_settings.cublas_workspace_bytes(32 * MIB) == size
