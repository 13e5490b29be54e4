"""The rules of each version of torch: the attention kernel it takes, its workspaces, unknown versions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pinchpoint.backends.torch import versions
from pinchpoint.backends.torch.kernels import attention
from pinchpoint.forecasting import allocator_settings
from pinchpoint.forecasting.cards import cublas_workspace

EVERY = [".".join(map(str, pair)) for pair in versions.TABLE]


def kernels(
    capability: tuple[int, int],
    *,
    shape: tuple[int, ...] = (2, 4, 16, 64),
    keys: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.bfloat16,
    cudnn: int | None = None,
    trains: bool = False,
    **options: Any,
) -> dict[str, str]:
    """The kernel of each version of torch."""
    query = torch.empty(shape, dtype=dtype, requires_grad=trains)
    key = torch.empty(keys or shape, dtype=dtype)
    return {
        version: attention.choose(
            query,
            key,
            key,
            None,
            capability=capability,
            rules=versions.rules(version),
            cudnn=cudnn,
            **options,
        )
        for version in EVERY
    }


def by_version(**first: str) -> dict[str, str]:
    """Kernels from the version that each first appears in: by_version(v6="flash", v9="cudnn")."""
    minors = {int(name[1:]): kernel for name, kernel in first.items()}
    numbers = [int(version.split(".")[1]) for version in EVERY]
    return {f"2.{n}": minors[max(m for m in minors if m <= n)] for n in numbers}


def test_every_minor_version_of_the_range_has_rules() -> None:
    assert [f"2.{minor}" for minor in range(6, 16)] == EVERY


def test_hopper_takes_cudnn_first_where_the_wheels_cudnn_is_new_enough() -> None:
    # 2.9 wants cuDNN 9.9, 2.10 wants 9.15.1, and the wheels of both come with 9.10.2.
    assert kernels((9, 0)) == by_version(v6="flash", v9="cudnn", v10="flash", v11="cudnn")
    assert kernels((9, 0), cudnn=91900) == by_version(v6="flash", v9="cudnn")
    assert set(kernels((8, 9)).values()) == {"flash"}


def test_cudnn_is_tried_last_if_the_environment_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert set(kernels((9, 0)).values()) == {"flash"}


def test_cards_newer_than_a_version_knows_get_plain_attention() -> None:
    assert kernels((12, 0)) == by_version(v6="plain", v7="flash")
    assert kernels((12, 1)) == by_version(v6="plain", v8="flash")
    assert kernels((10, 3), cudnn=91900) == by_version(v6="plain", v7="flash", v10="cudnn")


def test_cudnn_refuses_a_dropout_between_its_steps_since_2_12() -> None:
    new = by_version(v6="flash", v9="cudnn", v12="flash")
    assert kernels((9, 0), cudnn=92600, dropout_p=0.1) == new
    assert kernels((9, 0), cudnn=92600, dropout_p=0.125) == by_version(v6="flash", v9="cudnn")
    assert set(kernels((9, 0), cudnn=91200, dropout_p=0.125).values()) == {"flash"}  # cuDNN 9.12 is refused


def test_cudnn_takes_wide_heads_by_version_and_card() -> None:
    wide = (2, 4, 16, 256)
    assert kernels((9, 0), shape=wide, cudnn=92600) == by_version(v6="flash", v9="cudnn")
    assert kernels((10, 0), shape=wide, cudnn=92600) == by_version(v6="plain", v7="flash", v14="cudnn")
    odd = (2, 4, 16, 160)  # 2.14 knows no backward pass of cuDNN for these
    assert kernels((9, 0), shape=odd, cudnn=92600, trains=True) == by_version(
        v6="flash", v9="cudnn", v14="flash"
    )
    assert kernels((9, 0), shape=odd, cudnn=92600) == by_version(v6="flash", v9="cudnn")


def test_grouped_and_shared_heads_are_fused_by_version() -> None:
    grouped: dict[str, Any] = {"keys": (2, 2, 16, 64), "enable_gqa": True}
    assert kernels((8, 0), **grouped) == by_version(v6="flash")
    assert kernels((8, 0), dtype=torch.float32, **grouped) == by_version(v6="plain", v14="efficient")
    assert kernels((8, 0), keys=(2, 1, 16, 64)) == by_version(v6="plain", v14="flash")


def test_very_many_heads_are_refused_by_version() -> None:
    many = (70_000, 1, 2, 8)
    assert kernels((9, 0), shape=many, cudnn=92600) == by_version(
        v6="flash", v9="cudnn", v13="flash", v15="efficient"
    )


def test_an_order_of_kernels_that_a_program_sets_is_followed() -> None:
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
        assert set(kernels((9, 0)).values()) == {"efficient"}
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        assert set(kernels((8, 0)).values()) == {"cudnn"}


def test_inputs_without_a_batch_are_plain_until_2_13(
    monkeypatch: pytest.MonkeyPatch, simulate: Any, count: Any
) -> None:
    def kept_bytes(version: str) -> int:
        monkeypatch.setattr(versions, "installed", lambda: version)
        with simulate() as observer:
            query = torch.empty(4, 512, 64, device="cuda", requires_grad=True)
            attend = torch.nn.functional.scaled_dot_product_attention
            return count(observer.ledger.observation, lambda: attend(query, query, query)).kept_bytes

    weights_bytes = 4 * 4 * 512 * 512
    assert kept_bytes("2.13.0") > weights_bytes > 2 * kept_bytes("2.14.0")


def test_blackwell_has_the_large_workspace_since_2_12() -> None:
    sizes = {version: cublas_workspace((12, 0), versions.rules(version)) for version in EVERY}
    assert [version for version in EVERY if sizes[version] == 32 * 2**20] == EVERY[6:]
    assert {cublas_workspace((9, 0), versions.rules(version)) for version in EVERY} == {32 * 2**20}


def test_the_newer_name_of_the_allocators_settings_is_read_since_2_10(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    for version, is_read in (("2.9.1", False), ("2.10.0", True)):
        monkeypatch.setattr(versions, "installed", lambda version=version: version)
        assert allocator_settings.expandable_segments() is is_read
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:False")  # it comes first
    assert not allocator_settings.expandable_segments()


def test_a_version_newer_than_all_known_ones_has_a_note_and_the_newest_rules() -> None:
    assert versions.notes("2.15.2+cu132") == () == versions.notes("2.6.0")
    (note,) = versions.notes("2.16.0.dev20261117+cpu")
    assert note.startswith(
        "torch 2.16.0.dev20261117+cpu is newer than the versions that are known (2.6 to 2.15)"
    )
    assert versions.rules("3.0.0") is versions.TABLE[2, 15]


def test_only_versions_before_2_6_are_too_old() -> None:
    assert versions.is_too_old("2.5.1+cpu") and not versions.is_too_old("2.6.0+cu124")


def test_the_installed_torch_is_in_the_range() -> None:
    assert versions.installed() == torch.__version__
    assert versions.notes() == () and not versions.is_too_old(versions.installed())
