"""cuDNN's workspaces of many shapes, compared with the requests to an H200's allocator.

The records are benchmarks/results/{rnn,packed,conv}_probe_h200.json, written by
benchmarks/accuracy/library_probe.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pinchpoint.backends.torch.kernels import convolution, convolution_search, cudnn_rnn
from pinchpoint.core.events import Span

RESULTS = Path(__file__).parents[4] / "benchmarks" / "results"
HOPPER, AMPERE = (9, 0), (8, 6)
FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def rows(name: str) -> Iterator[dict[str, Any]]:
    record = json.loads((RESULTS / f"{name}_probe_h200.json").read_text(encoding="utf-8"))
    yield from (dict(zip(record["columns"], row, strict=True)) for row in record["rows"])


def call_of(row: dict[str, Any]) -> cudnn_rnn.Call:
    return cudnn_rnn.Call(
        kind=row["kind"],
        batch=row["batch"],
        steps=row["steps"],
        width=row["width"],
        hidden=row["hidden"],
        layers=row["layers"],
        directions=2 if row["two_way"] else 1,
        dropout=row["dropout"] and row["training"],
        item_bytes=4 if row["dtype"] == "float32" else 2,
        bfloat16=row["dtype"] == "bfloat16",
        training=row["training"],
        total=row.get("rows"),
    )


def test_packed_workspaces_and_reserves_are_those_of_an_h200() -> None:
    errors, wrong_reserves = [], 0
    for row in rows("packed"):
        call = call_of(row)
        if row["layers"] == 1:
            call = replace(call, dropout=False)
        span = cudnn_rnn.workspace(call)
        errors.append(abs(span.usual / row["forward_bytes"] - 1))
        assert span.least <= row["forward_bytes"] <= span.most, row
        wrong_reserves += abs(cudnn_rnn.reserve_bytes(call) - row["reserve_bytes"]) > 256
    errors.sort()
    assert len(errors) == 260 and wrong_reserves <= 1
    assert errors[int(0.85 * len(errors))] < 1e-3
    assert errors[-1] < 0.07


def test_recurrent_workspaces_and_reserves_are_those_of_an_h200() -> None:
    errors = []
    for row in rows("rnn"):
        call = call_of(row)
        errors.append(abs(cudnn_rnn.workspace_bytes(call) / row["forward_bytes"] - 1))
        if row["training"]:
            errors.append(abs(cudnn_rnn.workspace_bytes(call, backward=True) / row["backward_bytes"] - 1))
        assert abs(cudnn_rnn.reserve_bytes(call) - row["reserve_bytes"]) <= 256, row
    errors.sort()
    assert len(errors) > 700
    assert errors[int(0.98 * len(errors))] < 1e-4
    assert errors[-1] < 0.05


def test_convolutions_take_what_they_do_on_an_h200_or_what_the_span_allows() -> None:
    """The library's choice: the usual size right for most, the span for nearly all."""
    near = {"forward": 0, "backward": 0}
    inside = {"forward": 0, "backward": 0}
    count = 0
    for row in rows("conv"):
        count += 1
        for way, found in _rounds(row).items():
            measured = row[f"{way}_bytes"]
            usual, least, most = (
                max(
                    (
                        sum(size if isinstance(size, int) else size[which] for size in sizes)
                        for sizes in found
                    ),
                    default=0,
                )
                for which in range(3)
            )
            moved = _bytes(row, "channels", "sides") + _bytes(row, "out_channels", "out_sides")
            near[way] += abs(usual - measured) <= 0.1 * moved + 2**20
            inside[way] += least - 2**20 <= measured <= most + 2**20
    assert count == 1000
    assert near["forward"] > 0.82 * count and near["backward"] > 0.7 * count, near
    assert inside["forward"] > 0.97 * count and inside["backward"] > 0.93 * count, inside


def test_convolutions_of_a_vector_quantized_autoencoder_take_what_they_do_on_an_h200() -> None:
    """One writes its result in place; one pads three channels-last channels to the four of a matrix unit."""
    source, weight, out = (
        torch.empty(shape, device="meta")
        for shape in ((128, 64, 32, 32), (128, 64, 3, 3), (128, 128, 32, 32))
    )
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    [[span]] = convolution.forward((source, weight, None, *how), out)
    assert isinstance(span, Span) and _rounded(span.usual) == 33_849_856
    source, weight, gradient = (
        torch.empty(shape, device="meta").contiguous(memory_format=torch.channels_last)
        for shape in ((128, 64, 64, 64), (3, 64, 3, 3), (128, 3, 64, 64))
    )
    _, rounds = convolution.backward(_backward_args(gradient, source, weight, [True, True]), HOPPER)
    data, sums = (span for (span,) in rounds if isinstance(span, Span))
    assert abs(data.usual - 8_397_971) < 4096  # the weight is padded as well
    assert data.usual < sums.usual < 10_462_887


def test_the_search_for_kernels_takes_about_what_it_does_on_an_h200() -> None:
    record = json.loads((RESULTS / "conv_search_h200.json").read_text(encoding="utf-8"))
    ratios, largest = [], {}
    for values in record["rows"]:
        row = dict(zip(record["columns"], values, strict=True))
        dtype = getattr(torch, row["dtype"])
        source, weight, output = (
            torch.empty(row[name], dtype=dtype, device="meta") for name in ("input", "weight", "output")
        )
        how = ([row["stride"]] * 2, [0] * 2, [row["dilation"]] * 2, row["transposed"], [0] * 2, row["groups"])
        if row["backward"]:
            searches = convolution_search.backward_searches(
                (output, source, weight, None, *how, [True, True, False])
            )
        else:
            searches = convolution_search.forward_searches((source, weight, None, *how), output)
        estimate = max(map(convolution_search.search_bytes, searches))
        ratios.append(estimate / row["extra_bytes"])
        before = largest.get(row["program"], (0, 0))
        largest[row["program"]] = max(before[0], estimate), max(before[1], row["extra_bytes"])
    ratios.sort()
    assert len(ratios) > 100
    assert ratios[len(ratios) // 10] > 0.9 and ratios[9 * len(ratios) // 10] < 1.2
    # The largest call of a program decides its peak; what is small beside the rest may be off.
    for program, (estimate, measured) in largest.items():
        assert 0.75 < estimate / measured < 1.3 or measured < 2**29, program


def test_the_search_transforms_no_call_for_which_the_library_lists_fewer_kernels() -> None:
    """Layers of a DCGAN on an H200: the search for the second one's input gradient took 42 MiB."""
    for images, takes_little in ((256, True), (64, False)):
        source, weight, out = (
            torch.empty(shape, device="meta")
            for shape in ((images, 256, 8, 8), (512, 256, 4, 4), (images, 512, 4, 4))
        )
        args = (out, source, weight, None, [2] * 2, [1] * 2, [1] * 2, False, [0] * 2, 1, [True, False, False])
        (search,) = convolution_search.backward_searches(args)
        assert (convolution_search.search_bytes(search) < 50 * 2**20) == takes_little


def test_the_gradient_of_an_input_that_wants_none_takes_nothing() -> None:
    source, weight = torch.empty(8, 32, 64, 64, device="meta"), torch.empty(32, 32, 3, 3, device="meta")
    for wanted in ([True, True], [False, True]):
        copies, rounds = convolution.backward(_backward_args(source, source, weight, wanted), HOPPER)
        assert copies == [] and [len(sizes) == 1 for sizes in rounds] == wanted


def test_in_half_precision_images_are_copied_unless_they_have_the_layout_of_the_kernels() -> None:
    image = torch.empty(4, 64, 32, 32, dtype=torch.float16, device="meta")
    weight = torch.empty(64, 64, 3, 3, dtype=torch.float16, device="meta")
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    [[span]] = convolution.forward((image, weight, None, *how), image)
    assert isinstance(span, Span) and span.least == 2 * image.nbytes
    _, rounds = convolution.backward(_backward_args(image, image, weight, [True, True]), HOPPER)
    assert [span.least for (span,) in rounds if isinstance(span, Span)] == [2 * image.nbytes] * 2
    _, rounds = convolution.backward(_backward_args(image, image, weight, [True, True]), AMPERE)
    assert [(span.usual, span.least) for (span,) in rounds if isinstance(span, Span)] == [(0, 0)] * 2
    last = torch.empty(64, 64, 256, 256, dtype=torch.float16, device="meta")
    last = last.contiguous(memory_format=torch.channels_last)
    [[copy_bytes, span]] = convolution.forward((last, weight, None, *how), last)
    assert copy_bytes == weight.nbytes
    assert isinstance(span, Span) and span.most < 0.1 * last.nbytes


def test_before_hopper_the_backward_pass_is_assumed_to_need_no_other_layout_but_may() -> None:
    source, weight = torch.empty(8, 32, 64, 64, device="meta"), torch.empty(32, 32, 3, 3, device="meta")
    args = _backward_args(source, source, weight, [True, True])
    rounds = (convolution.backward(args, capability)[1] for capability in (HOPPER, AMPERE))
    for (hopper,), (ampere,) in zip(*rounds, strict=True):
        assert isinstance(hopper, Span) and isinstance(ampere, Span)
        assert hopper.usual > 2 * 8 * 32 * 64 * 64 * 4 and ampere.usual == 0
        assert ampere.most >= hopper.usual


def _rounds(row: dict[str, Any]) -> dict[str, list[Any]]:
    dtype, dims, groups = getattr(torch, row["dtype"]), len(row["sides"]), row["groups"]
    outside, inside = (
        (row["channels"], row["out_channels"])
        if row["transposed"]
        else (row["out_channels"], row["channels"])
    )
    source = torch.empty(row["batch"], row["channels"], *row["sides"], dtype=dtype, device="meta")
    out = torch.empty(row["batch"], row["out_channels"], *row["out_sides"], dtype=dtype, device="meta")
    weight = torch.empty(outside, inside // groups, *[row["window"]] * dims, dtype=dtype, device="meta")
    if row["channels_last"]:
        source, out, weight = (t.contiguous(memory_format=FORMATS[dims + 2]) for t in (source, out, weight))
    stride = [row["stride"]] * dims
    forward = (source, weight, None, stride, None, None, row["transposed"], None, groups)
    backward = _backward_args(out, source, weight, [row["wants_input"], True], stride, groups)
    copies, rounds = convolution.backward(backward, HOPPER)
    return {
        "forward": [row for row in convolution.forward(forward, out) if row],
        "backward": [[*copies, *sizes] for sizes in rounds if sizes],
    }


def _backward_args(
    gradient: torch.Tensor,
    source: torch.Tensor,
    weight: torch.Tensor,
    needs_gradient: list[bool],
    stride: Any = (1, 1),
    groups: int = 1,
) -> tuple[Any, ...]:
    return (gradient, source, weight, None, stride, None, None, False, None, groups, [*needs_gradient, False])


def _bytes(row: dict[str, Any], channels: str, sides: str) -> int:
    points = row["batch"] * row[channels] * (4 if row["dtype"] == "float32" else 2)
    for side in row[sides]:
        points *= side
    return points


def _rounded(size: int) -> int:
    return -(-size // 512) * 512
