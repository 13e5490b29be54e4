"""Recurrent layers on the simulated device: projections and packed sequences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from pinchpoint.backends.torch import compat

LENGTHS = [32, 32, 20, 20, 7, 5, 1, 1]
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def reserve(blocks: list[Any]) -> int:
    """The largest byte buffer that outlives its call."""
    return max(block.bytes for block in blocks if "empty" in block.op)


def test_a_projected_layer_keeps_its_hidden_width_and_gives_the_projected_one(
    observer: Any, take: Any
) -> None:
    x = torch.zeros(64, 16, 128, device="cuda")
    plain, projected = nn.LSTM(128, 1024, 2).cuda(), nn.LSTM(128, 1024, 2, proj_size=32).cuda()
    whole, less = take(lambda: plain(x)), take(lambda: projected(x))
    narrow = take(lambda: nn.LSTM(128, 32, 2).cuda()(x))
    assert less.kept_bytes > 10 * narrow.kept_bytes
    # The outputs are narrower; everything else has the full width.
    outputs = 64 * 16 * 1024 * 4
    assert whole.kept_bytes - outputs < less.kept_bytes < whole.kept_bytes
    assert reserve(less.blocks) >= reserve(whole.blocks)
    (workspace,) = [block for block in less.blocks if block.span]
    (full,) = [block for block in whole.blocks if block.span]
    assert workspace.bytes >= full.bytes and workspace.span.least == 0
    assert any("projections" in note for note in observer.ledger.observation.notes)


def test_a_projected_layer_trains_with_the_shapes_of_the_host(simulate: Any) -> None:
    def shapes(device: str) -> list[tuple[int, ...]]:
        net = nn.LSTM(8, 24, 2, batch_first=True, bidirectional=True, proj_size=6).to(device)
        out, (hidden, cell) = net(torch.ones(3, 5, 8, device=device))
        out.sum().backward()
        return [
            tuple(t.shape)
            for t in (out, hidden, cell, *(p.grad for p in net.parameters() if p.grad is not None))
        ]

    truth = shapes("cpu")
    with simulate():
        assert shapes("cuda") == truth


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("two_way", [False, True])
def test_a_packed_call_keeps_its_share_of_the_padded_one(
    observer: Any, take: Any, kind: str, two_way: bool
) -> None:
    net = KINDS[kind](64, 128, 2, bidirectional=two_way).cuda()
    x = torch.zeros(32, len(LENGTHS), 64, device="cuda")
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS))
    assert (
        tuple(packed.data.shape) == (sum(LENGTHS), 64)
        and packed.data.is_cuda
        and not packed.batch_sizes.is_cuda
    )
    padded, less = take(lambda: net(x)), take(lambda: net(packed))
    share = sum(LENGTHS) / (32 * len(LENGTHS))
    assert reserve(less.blocks) - 256 == share * (reserve(padded.blocks) - 256)
    (workspace,) = [block for block in less.blocks if block.span]
    (full,) = [block for block in padded.blocks if block.span]
    assert workspace.bytes < full.bytes
    assert not observer.ledger.observation.notes


def test_packing_takes_the_packed_bytes_twice_for_a_moment(take: Any) -> None:
    x = torch.zeros(32, len(LENGTHS), 64, device="cuda")
    allocations = take(lambda: pack_padded_sequence(x, LENGTHS).data)
    size = -(-sum(LENGTHS) * 64 * 4 // 512) * 512
    assert (allocations.kept_bytes, allocations.peak) == (size, 2 * size)


def train(device: str, *, enforce_sorted: bool, batch_first: bool) -> list[tuple[int, ...]]:
    """Shapes of all tensors of a tagger with packed sequences, and the lengths it reads back."""
    torch.manual_seed(0)
    lengths = LENGTHS if enforce_sorted else LENGTHS[::-1]
    net = nn.LSTM(8, 16, 2, batch_first=batch_first, bidirectional=True, dropout=0.1).to(device)
    head = nn.Linear(32, 4).to(device)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
    x = torch.randn(len(LENGTHS), 32, 8) if batch_first else torch.randn(32, len(LENGTHS), 8)
    x = x.to(device).requires_grad_()
    packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first, enforce_sorted)
    out, (hidden, cell) = net(packed)
    assert isinstance(out, PackedSequence)
    padded, again = pad_packed_sequence(out, batch_first, total_length=40)
    head(padded).sum().backward()
    optimizer.step()
    assert again.tolist() == lengths and not again.is_cuda
    assert x.grad is not None and padded.is_cuda == x.is_cuda == x.grad.is_cuda
    return [tuple(t.shape) for t in (packed.data, packed.batch_sizes, out.data, hidden, cell, padded, x.grad)]


@pytest.mark.parametrize("enforce_sorted", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_training_on_packed_sequences_has_the_shapes_of_the_host(
    simulate: Any, enforce_sorted: bool, batch_first: bool
) -> None:
    truth = train("cpu", enforce_sorted=enforce_sorted, batch_first=batch_first)
    with simulate():
        assert train("cuda", enforce_sorted=enforce_sorted, batch_first=batch_first) == truth


def test_packed_values_are_those_of_the_host(simulate: Any) -> None:
    parts = [torch.arange(3.0), torch.arange(2.0) + 10, torch.arange(1.0) + 20]
    with simulate(calibrating=True) as observer:
        torch.manual_seed(0)
        packed = pack_sequence([part.cuda() for part in parts])
        assert packed.data.tolist() == [0.0, 10.0, 20.0, 1.0, 11.0, 2.0]
        assert pad_packed_sequence(packed, True, -1.0)[0].tolist() == [
            [0.0, 1.0, 2.0],
            [10.0, 11.0, -1.0],
            [20.0, -1.0, -1.0],
        ]
        net = nn.GRU(1, 4)
        x = torch.randn(3, 3, 1)
        truth = net(pack_padded_sequence(x, [3, 2, 1]))[0].data
        x = x.cuda().requires_grad_()
        out = net.cuda()(pack_padded_sequence(x, [3, 2, 1]))[0].data
        assert torch.allclose(observer.shadow(out), truth)
        out.sum().backward()
        into = observer.shadow(x.grad)
        assert into is not None and into[2, 1].item() == 0 and into[2, 0].item() != 0


def test_lengths_on_the_device_are_the_users_mistake(observer: Any) -> None:
    x = torch.zeros(3, 2, 4, device="cuda")
    with pytest.raises(RuntimeError, match="CPU int64"):
        pack_padded_sequence(x, torch.tensor([3, 2], device="cuda"))
    with pytest.raises(RuntimeError, match=r"length|sorted"):
        pack_padded_sequence(x, torch.tensor([2, 3]))


@pytest.mark.parametrize(("kind", "kept_rows"), [("lstm", 3 * 4 + 2), ("gru", 2 * 3 + 5 + 1)])
def test_a_cell_keeps_its_gates_for_the_backward_pass(take: Any, kind: str, kept_rows: int) -> None:
    """Both matrix products, the gates of the fused kernel, and the new states; each row is one state wide."""
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[kind](128, 256).cuda()
    source, state = torch.zeros(64, 128, device="cuda"), torch.zeros(64, 256, device="cuda")
    hidden = (state, state) if kind == "lstm" else state
    taken = take(lambda: cell(source, hidden))
    workspace = sum(block.bytes for block in taken.blocks if block.role == "workspace")
    assert taken.kept_bytes - workspace == kept_rows * 64 * 256 * 4


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell])
def test_a_cell_trains_with_the_shapes_of_the_host(simulate: Any, kind: Any) -> None:
    def shapes(device: str) -> list[Any]:
        cell = kind(8, 6).to(device)
        state = cell(torch.ones(3, 8, device=device))
        state = cell(torch.ones(3, 8, device=device), state)
        outputs = state if isinstance(state, tuple) else (state,)
        outputs[0].sum().backward()
        return [tuple(t.shape) for t in (*outputs, *(p.grad for p in cell.parameters()))]

    truth = shapes("cpu")
    with simulate():
        assert shapes("cuda") == truth


def test_moving_a_layer_gathers_its_weights_in_one_buffer_and_frees_their_blocks(
    observer: Any, take: Any
) -> None:
    layer = nn.LSTM(128, 256, 2)
    taken = take(layer.cuda)
    weight_bytes = 4 * sum(p.numel() for p in layer.parameters())
    assert taken.kept_bytes == weight_bytes
    assert max(block.bytes for block in taken.blocks) == weight_bytes
    assert taken.peak == 2 * weight_bytes
    storages = {compat.storage_key(p.untyped_storage()) for p in layer.parameters()}
    assert len(storages) == 1
