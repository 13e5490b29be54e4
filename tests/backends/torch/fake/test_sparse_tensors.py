"""Sparse matrices on the simulated device: shapes and gradients as on the host, bytes counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pinchpoint.core.errors import CannotFake

ROWS, COLUMNS, WIDTH = 3000, 2000, 16


@pytest.fixture
def host(observer: Any) -> torch.Tensor:
    torch.manual_seed(0)
    places = torch.stack([torch.randint(ROWS, (9000,)), torch.randint(COLUMNS, (9000,))])
    return torch.sparse_coo_tensor(places, torch.rand(9000), (ROWS, COLUMNS)).coalesce()


def rounded(*sizes: int) -> int:
    return sum(-(-size // 512) * 512 for size in sizes)


def test_a_moved_matrix_takes_its_indices_and_values(host: Any, take: Any) -> None:
    count = host._nnz()
    assert take(host.cuda).kept_bytes == rounded(2 * count * 8, count * 4)
    csr = host.to_sparse_csr()
    assert take(lambda: csr.to("cuda")).kept_bytes == rounded((ROWS + 1) * 8, count * 8, count * 4)
    matrix = host.to("cuda", torch.float64)
    assert matrix.is_cuda and matrix.is_sparse and matrix.layout == torch.sparse_coo
    assert (matrix.shape, matrix.dtype, matrix._nnz()) == (host.shape, torch.float64, count)
    assert not csr.cuda().is_sparse and csr.cuda().layout == torch.sparse_csr


@pytest.mark.parametrize("multiply", [torch.spmm, torch.mm, torch.sparse.mm, torch.matmul])
def test_a_product_has_the_hosts_shape_and_gradient(host: Any, multiply: Any) -> None:
    dense = torch.rand(COLUMNS, WIDTH, requires_grad=True)
    on_device = nn.Parameter(dense.detach().cuda())
    for matrix in (host.cuda(), host.to_sparse_csr().cuda()):
        out = multiply(matrix, on_device)
        assert out.is_cuda and out.shape == multiply(host, dense).shape
        on_device.grad = None
        out.sum().backward()
        assert on_device.grad is not None and on_device.grad.shape == dense.shape
    assert (host.cuda() @ on_device[:, 0]).shape == (ROWS,)


def test_a_product_keeps_its_output_only(host: Any, take: Any) -> None:
    matrix, dense = host.cuda(), torch.rand(COLUMNS, WIDTH, device="cuda")
    product = take(lambda: torch.sparse.mm(matrix, dense))
    assert product.kept_bytes == rounded(ROWS * WIDTH * 4)
    assert product.peak >= product.kept_bytes + rounded(ROWS * WIDTH * 4, host._nnz() * 4)


def test_a_dense_matrix_becomes_sparse_with_the_count_of_its_data(observer: Any) -> None:
    dense = (torch.arange(600).view(20, 30) % 7 == 0).float()
    assert dense.cuda().to_sparse()._nnz() == dense.count_nonzero().item()


def test_a_matrix_is_built_from_tensors_of_the_device(host: Any, take: Any) -> None:
    places, values = host.indices().cuda(), host.values().cuda().requires_grad_()
    built: Any = None

    def build() -> None:
        nonlocal built
        built = torch.sparse_coo_tensor(places, values, host.shape)

    assert take(build).peak == 0
    assert not built.is_coalesced()
    torch.sparse.mm(built, torch.rand(COLUMNS, WIDTH, device="cuda")).sum().backward()
    assert values.grad is not None and values.grad.shape == values.shape


def test_a_buffer_moves_with_its_module(host: Any) -> None:
    module = nn.Module()
    module.register_buffer("adjacency", host)
    module.cuda()
    adjacency: Any = module.adjacency
    assert adjacency.is_cuda and adjacency._nnz() == host._nnz()


def test_what_is_not_supported_is_named_with_its_line(host: Any) -> None:
    with pytest.raises(CannotFake, match=r"does not support add for sparse matrices .*test_sparse_tensors"):
        host.cuda() + host.cuda()
    with pytest.raises(CannotFake, match="does not support a copy to the host"):
        host.cuda().cpu()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        host.cuda() @ torch.rand(7, 3, device="cuda")


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_a_sparse_gradient_is_predicted_as_dense_and_makes_it_unknown_whether_the_run_fits(
    observer: Any, kind: Any
) -> None:
    table = kind(1000, 64, sparse=True).cuda()
    optimizer = torch.optim.SparseAdam(table.parameters())
    for _ in range(2):
        table(torch.randint(1000, (8, 4)).cuda()).square().sum().backward()
        optimizer.step()
    assert table.weight.grad.shape == (1000, 64)
    assert {state["exp_avg"].shape for state in optimizer.state.values()} == {(1000, 64)}
    (reason,) = observer.ledger.observation.reasons
    assert "sparse gradient is predicted as a dense one" in reason and "test_sparse_tensors.py" in reason
