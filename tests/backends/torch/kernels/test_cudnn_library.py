"""Asking an installed cuDNN about a described card; without the library, nothing is asked."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from pinchpoint.backends.torch.kernels import convolution, cudnn_library
from pinchpoint.backends.torch.kernels.cudnn_library import Convolution, CudnnLibrary
from pinchpoint.core.events import Span

# The weight gradient of a layer of a DCGAN: on an H200, the search for kernels took 90 MiB.
CALL = Convolution(
    way="weight",
    x=(256, 128, 16, 16),
    y=(256, 256, 8, 8),
    w=(256, 128, 4, 4),
    stride=(2, 2),
    padding=(1, 1),
    dilation=(1, 1),
    dtype="float32",
    channels_last=False,
    excluded=frozenset({cudnn_library.ROUNDS_INPUTS}),
)

Ask = Callable[[], CudnnLibrary]


class Answers:
    """Stands for the library: answers every question with the same sizes, and remembers the questions."""

    def __init__(self, sizes: list[int] | None) -> None:
        self.sizes, self.calls = sizes, list[Convolution]()

    def workspaces(self, call: Convolution) -> list[int] | None:
        self.calls.append(call)
        return self.sizes

    all_workspaces = workspaces


class Crashing:
    """Stands for a library of five kernels, of which the second and the fourth crash."""

    def answer(self, call: Convolution, start: int, pipe: Any) -> None:
        if call.dtype == "int8":
            os.kill(os.getpid(), signal.SIGSEGV)
        for number in range(start, 5):
            pipe.send(("kernel", number))
            if number in (1, 3):
                os.kill(os.getpid(), signal.SIGSEGV)
            pipe.send(("size", 100 + number))


@pytest.fixture
def ask() -> Iterator[Callable[[], CudnnLibrary]]:
    """Starts the process of a library, and ends it after the test."""
    with ExitStack() as stack:

        def start() -> CudnnLibrary:
            library = CudnnLibrary(capability=(9, 0), processors=132)
            stack.callback(library.close)
            return library

        yield start


def test_without_the_library_there_is_no_answer(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert ask().workspaces(CALL) is None


def test_a_library_that_crashes_takes_nothing_with_it(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_library._Asker, "open", lambda *_: Crashing())
    library = ask()
    assert library.workspaces(CALL) == [100, 102, 104]
    assert library.all_workspaces(CALL) is None  # a search may take what is missing
    assert library.workspaces(CALL._replace(dtype="int8")) is None
    assert library.workspaces(CALL._replace(dtype="float16")) == [100, 102, 104]


def test_a_library_that_always_crashes_is_given_up(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_library._Asker, "open", lambda *_: os.kill(os.getpid(), signal.SIGSEGV))
    library = ask()
    assert library.workspaces(CALL) is None and library.workspaces(CALL._replace(dtype="float16")) is None


def test_a_closed_library_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cudnn_library._Asker, "open", lambda *_: Crashing())
    library = CudnnLibrary(capability=(9, 0), processors=132)
    server = library._server
    assert library.workspaces(CALL) == [100, 102, 104]
    library.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert library.workspaces(CALL._replace(dtype="float16")) is None  # nobody answers any more


def test_the_installed_library_lists_what_an_h200_tried(ask: Ask) -> None:
    library = ask()
    sizes = library.workspaces(CALL)
    if sizes is None:
        pytest.skip("this build of torch has no cuDNN")
    assert sizes[0] == 50 * 2**20 + 16 and max(sizes) == 90 * 2**20 + 16
    assert library.workspaces(CALL._replace(w=(256, 64, 4, 4), dtype="int8")) is None  # not a convolution


def test_the_first_kernel_of_the_list_is_the_usual_one() -> None:
    source, weight = torch.empty(8, 32, 64, 64, device="meta"), torch.empty(32, 32, 3, 3, device="meta")
    how = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    library: Any = Answers([300, 700])
    [[span]] = convolution.forward((source, weight, None, *how), source, library)
    assert isinstance(span, Span) and span.usual == 300 and span.least == 0 and span.most > source.nbytes
    args = (source, source, weight, None, *how, [True, True, False])
    copies, rounds = convolution.backward(args, (9, 0), library)
    assert copies == [] and [span.usual for (span,) in rounds if isinstance(span, Span)] == [300, 300]
    assert [call.way for call in library.calls] == ["forward", "data", "weight"]
    unknown: Any = Answers(None)
    assert convolution.forward((source, weight, None, *how), source, unknown) == convolution.forward(
        (source, weight, None, *how), source
    )


def test_a_window_of_one_element_is_asked_about_only_with_a_stride() -> None:
    source, weight = torch.empty(8, 96, 64, 64, device="meta"), torch.empty(96, 96, 1, 1, device="meta")
    for stride, calls in ((1, 0), (2, 1)):
        library: Any = Answers([300])
        out = torch.empty(8, 96, 64 // stride, 64 // stride, device="meta")
        how = ([stride] * 2, [0, 0], [1, 1], False, [0, 0], 1)
        convolution.forward((source, weight, None, *how), out, library)
        assert len(library.calls) == calls


def test_a_convolution_of_sequences_is_asked_as_one_of_flat_images() -> None:
    source, weight = torch.empty(8, 32, 64, device="meta"), torch.empty(16, 32, 3, device="meta")
    out, library = torch.empty(8, 16, 32, device="meta"), Answers([5])
    how: Any = ([2], [1], [1], False, [0], 1)
    convolution.forward((source, weight, None, *how), out, library)  # type: ignore[arg-type]
    (call,) = library.calls
    assert call.x == (8, 32, 1, 64) and call.w == (16, 32, 1, 3)
    assert (call.stride, call.padding, call.dilation) == ((1, 2), (0, 1), (1, 1))


def test_a_transposed_convolution_is_asked_as_the_input_gradient_that_it_is() -> None:
    source, weight = torch.empty(8, 32, 16, 16, device="meta"), torch.empty(32, 4, 4, 4, device="meta")
    out, library = torch.empty(8, 4, 32, 32, device="meta"), Answers([5])
    how: Any = ([2, 2], [1, 1], [1, 1], True, [0, 0], 1)
    convolution.forward((source, weight, None, *how), out, library)  # type: ignore[arg-type]
    args = (out, source, weight, None, *how, [True, True, False])
    convolution.backward(args, (9, 0), library)  # type: ignore[arg-type]
    assert [call.way for call in library.calls] == ["data", "forward", "weight"]
    assert all(call.x == (8, 4, 32, 32) and call.y == (8, 32, 16, 16) for call in library.calls)
