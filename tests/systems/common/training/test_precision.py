"""The precision inside a block, restored after it for both of torch's interfaces."""

from __future__ import annotations

import pytest
import torch

from pinchpoint.systems.common.training.precision import exact_convolutions, matmuls


@pytest.mark.parametrize(
    ("precision", "inside"), [("fp32", "highest"), ("bf16", "highest"), ("tf32", "high")]
)
def test_the_precision_of_matrix_products_is_changed_inside_the_block_only(
    precision: str, inside: str
) -> None:
    before = torch.get_float32_matmul_precision()
    with matmuls(precision):
        assert torch.get_float32_matmul_precision() == inside
    assert torch.get_float32_matmul_precision() == before


def test_settings_of_the_newer_torch_interface_are_restored_too() -> None:
    products = torch.backends.cuda.matmul
    if not hasattr(products, "fp32_precision"):
        pytest.skip("this torch has one interface only")
    products.fp32_precision = "tf32"
    try:
        with matmuls("fp32"):
            assert torch.get_float32_matmul_precision() == "highest"
        assert products.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("before", ["tf32", "ieee"])
def test_convolutions_are_exact_inside_the_block_only(before: str) -> None:
    convolutions = torch.backends.cudnn.conv  # pyright: ignore[reportAttributeAccessIssue]
    usual = convolutions.fp32_precision
    convolutions.fp32_precision = before
    try:
        with exact_convolutions():
            assert convolutions.fp32_precision == "ieee"
        assert convolutions.fp32_precision == before
    finally:
        convolutions.fp32_precision = usual
