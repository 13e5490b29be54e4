"""Stand-ins are served only to a target that needs them, and disappear afterwards."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from typing import Any

import pytest

from pinchpoint.core.errors import CannotFake


def test_an_absent_package_stays_absent_until_it_is_needed(observer: Any) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        import flash_attn  # type: ignore[import-not-found]
    assert observer.stand_ins.wanted(caught.value) == ["flash_attn"]
    observer.stand_ins.serve(["flash_attn"])
    import flash_attn  # type: ignore[import-not-found]

    assert flash_attn.__version__ == importlib.metadata.version("flash-attn")
    assert importlib.util.find_spec("flash_attn") is not None
    assert "flash-attn" in importlib.metadata.packages_distributions()["flash_attn"]
    assert observer.stand_ins.wanted(caught.value) == []
    assert "flash_attn is not installed here" in observer.ledger.observation.notes[0]


def test_a_message_of_a_library_names_the_package_too(observer: Any) -> None:
    error = ImportError("FlashAttention2 has been toggled on, but it doesn't seem to be installed.")
    assert observer.stand_ins.wanted(error) == ["flash_attn"]
    assert observer.stand_ins.wanted(ImportError("No module named 'yaml'")) == []
    assert observer.stand_ins.wanted(RuntimeError("sizes differ")) == []


def test_an_error_that_was_handled_before_does_not_count(observer: Any) -> None:
    def try_both() -> None:
        try:
            importlib.import_module("flash_attn")
        except ImportError:
            importlib.import_module("selective_scan_cuda")

    with pytest.raises(ImportError) as caught:
        try_both()
    assert observer.stand_ins.wanted(caught.value) == ["selective_scan_cuda"]


def test_a_package_that_the_target_tried_to_import_explains_a_later_error(observer: Any) -> None:
    try:
        import flash_attn  # type: ignore[import-not-found]
    except ImportError:
        flash_attn = None
    with pytest.raises(AttributeError) as caught:
        flash_attn.flash_attn_func()  # type: ignore[union-attr]
    assert observer.stand_ins.wanted(caught.value) == ["flash_attn"]


def test_a_name_that_is_not_modelled_can_be_imported_but_not_used(observer: Any) -> None:
    observer.stand_ins.serve(["flash_attn"])
    from flash_attn.ops.fused_dense import FusedDense  # type: ignore[import-not-found]

    class Mine(FusedDense):  # type: ignore[misc]
        pass

    with pytest.raises(CannotFake, match=r"flash_attn\.ops\.fused_dense\.FusedDense"):
        FusedDense(3, 4)
    with pytest.raises(CannotFake, match=r"flash_attn\.ops\.fused_dense\.FusedDense"):
        Mine(3, 4)


def test_nothing_is_left_after_a_forecast(simulate: Any) -> None:
    with simulate() as observer:
        observer.stand_ins.serve(["flash_attn"])
        import flash_attn.bert_padding  # type: ignore[import-not-found]  # noqa: F401
    assert not [name for name in sys.modules if name.startswith("flash_attn")]
    assert importlib.util.find_spec("flash_attn") is None
