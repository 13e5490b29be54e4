"""Streaming on a GPU gives the result of one call: within a budget, after OOM and in captured graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pinchpoint import Flow, stream
from pinchpoint.core.errors import DoesNotFit

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def wave(x: Any) -> Any:
    return x * x + 2 * x[:, :1]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 4)
    ).cuda()


@pytest.mark.parametrize("chunk", [1_024, 10_000, 65_536, "auto"], ids=str)
@pytest.mark.parametrize("kind", ["numpy", "cpu", "cuda"])
def test_a_gpu_gives_the_result_of_one_call_with_all_points(chunk: Any, kind: str) -> None:
    net, points = network(), np.random.default_rng(2).normal(size=(300_007, 3)).astype(np.float32)
    with torch.no_grad():
        whole = net(torch.from_numpy(points).cuda())
    values: Any = points if kind == "numpy" else torch.from_numpy(points).to(kind)
    result = stream(net, values, chunk=chunk)
    assert isinstance(result, np.ndarray) if kind == "numpy" else result.device.type == kind
    assert (torch.as_tensor(result).cuda() - whole).abs().max() <= 1e-5


def test_chunks_on_a_gpu_stay_within_the_budget_and_close_to_it() -> None:
    net = network()
    flows: list[Flow] = []
    torch.cuda.empty_cache()
    points = np.zeros((4_000_000, 3), np.float32)
    stream(net, points, budget="1GiB", report=flows.append)
    flow = flows[0]
    assert flow.peak_bytes is not None and flow.bytes_per_point is not None
    assert flow.peak_bytes <= 2**30 and flow.halvings == 0
    assert torch.cuda.max_memory_allocated() <= 2**30
    assert flow.chunk * flow.bytes_per_point >= 0.6 * 2**30


def test_out_of_memory_on_a_gpu_halves_the_chunk() -> None:
    net = network()
    flows: list[Flow] = []
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(2**30 / total)
    try:
        points = np.random.default_rng(3).normal(size=(3_000_000, 3)).astype(np.float32)
        result = stream(net, points, chunk=2_000_000, report=flows.append)
        with pytest.raises(DoesNotFit, match="Memory ran out at a chunk"):
            stream(
                lambda i: torch.empty(len(i), 2**22, device=i.device)[:, 0],
                10_000,
                chunk=2_048,
                tile=1_024,
                device="cuda",
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert flows[0].halvings >= 1
    with torch.no_grad():
        assert (
            np.abs(result[:1_000] - net(torch.from_numpy(points[:1_000]).cuda()).cpu().numpy()).max() <= 1e-5
        )
        assert (
            np.abs(result[-1_000:] - net(torch.from_numpy(points[-1_000:]).cuda()).cpu().numpy()).max()
            <= 1e-5
        )


def test_a_captured_graph_can_be_streamed() -> None:
    net, chunk = network(), 16_384
    static = torch.zeros(chunk, 3, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(3):
            net(static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        result = net(static)

    def replay(x: Tensor) -> Tensor:
        static.copy_(x)
        graph.replay()
        return result

    points = np.random.default_rng(4).normal(size=(200_003, 3)).astype(np.float32)
    outcome = stream(replay, points, chunk=chunk, device="cuda")
    with torch.no_grad():
        whole = net(torch.from_numpy(points).cuda()).cpu().numpy()
    assert np.abs(outcome - whole).max() <= 1e-5


def test_slow_work_on_a_gpu_is_waited_for() -> None:
    """Each chunk sleeps on the device, so that a copy that does not wait would read unfinished results."""

    def slow(x: Tensor) -> Tensor:
        torch.cuda._sleep(5_000_000)
        return wave(x)

    points = np.random.default_rng(1).normal(size=(5_003, 3)).astype(np.float32)
    assert np.array_equal(stream(slow, points, chunk=256, device="cuda"), wave(points))
