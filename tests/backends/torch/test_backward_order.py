"""A backward pass visits the nodes of a second derivative as a GPU does, which numbers them apart."""

from __future__ import annotations

from typing import Any

import torch

from pinchpoint.backends.torch import autograd_nodes
from pinchpoint.backends.torch.backward_order import BackwardOrder
from pinchpoint.backends.torch.ledger import Ledger


def visited(order: BackwardOrder | None) -> list[str]:
    """The order in which the factors of two terms are differentiated.

    The second term's node belongs to a backward pass; on a GPU it is the first one that its thread creates,
    and the forward pass has created more by then.
    """
    names: list[str] = []
    x = torch.ones(1, requires_grad=True)
    for _ in range(20):  # nodes of the forward pass
        _ = x * 1
    forward = x * 2
    start = (x * x).sum()
    if order is None:
        (second,) = torch.autograd.grad(start, x, create_graph=True)
    else:
        with order.backward_pass([start]):
            (second,) = torch.autograd.grad(start, x, create_graph=True)
    for tensor, name in ((forward, "forward"), (second, "second")):
        assert tensor.grad_fn is not None
        tensor.grad_fn.register_prehook(lambda gradients, name=name: names.append(name))
    loss = forward + second
    if order is None:
        loss.backward()
    else:
        with order.backward_pass([loss]):
            loss.backward()
    return names


def test_nodes_of_a_second_derivative_are_numbered_apart() -> None:
    assert visited(None) == ["second", "forward"]
    assert visited(BackwardOrder(Ledger())) == ["forward", "second"]


def test_the_order_of_nodes_of_one_thread_is_kept() -> None:
    order = BackwardOrder(Ledger())
    x = torch.ones(1, requires_grad=True)
    with order.backward_pass([]):
        _ = x * 1
    products = [x * 2]
    for _ in range(3):
        products.append(products[-1] * 2)
    before = [autograd_nodes.node_sequence(product.grad_fn) for product in products]
    with order.backward_pass([products[-1]]):
        after = [autograd_nodes.node_sequence(product.grad_fn) for product in products]
    assert after == sorted(after)
    assert before == sorted(before)
    assert len(set(after)) == len(products)


def test_gradients_are_added_in_place_unless_they_are_views(take: Any) -> None:
    """A view shares its storage with its base. Seen on an H200 in the tensor products of e3nn."""
    x = torch.rand(8, 512, device="cuda")
    _ = x @ x.t()  # takes cuBLAS's workspace
    peak, peaks = 0, list[int]()
    for use in (lambda weight: weight, lambda weight: weight.t()):
        leaf = torch.rand(512, 512, device="cuda", requires_grad=True)
        for _ in range(2):
            weight = leaf * 1
            loss = (x @ use(weight)).sum() + (x @ use(weight)).sum()
            peak = take(lambda loss=loss: loss.backward()).peak
        peaks.append(round(peak / 2**20))
    assert peaks[1] - peaks[0] == 1
