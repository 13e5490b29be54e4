"""The edge transform with memory that does not grow with the edges: chunks of rows, recomputed in backward.

Only inputs are saved. With weights w, kernel k and gradient g of a row, the gradients of an edge are

    dk = w g f      df = w g k      dw = sum over channels of g k f

For softmax scores and for the maximum of a row, see `weight_ops`. Both keep a few numbers per row, so that a
row may be split into pieces: its log-sum-exp; or its maxima and how many edges have them. To find these edges
again, the values are recomputed chunk by chunk, bit for bit.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges import edge_ops, weight_ops
from pinchpoint.kit.edges.autograd_mlp import AutogradMLP, Gradients
from pinchpoint.kit.edges.edge_mlp import FlatPath, network_of, parameters_of
from pinchpoint.kit.edges.layered_mlp import Network
from pinchpoint.kit.edges.row_chunks import Rows


@dataclass(frozen=True)
class Job:
    """One transform and the chunks in which it is computed.

    reads_f: f is also an input of the network. times_f: the kernel is multiplied by f.
    weights: mean, sum, max, quadrature or attention. mlp_path, attention_path: how the networks run.
    """

    mlp: nn.Module
    attention: nn.Module | None
    reads_f: bool
    times_f: bool
    weights: str
    parts: list[Rows]
    mlp_path: FlatPath
    attention_path: FlatPath | None = None

    @cached_property
    def mlp_parameters(self) -> list[nn.Parameter]:
        return _parameters(self.mlp, self.mlp_path)

    @cached_property
    def attention_parameters(self) -> list[nn.Parameter]:
        return [] if self.attention is None else _parameters(self.attention, self.attention_path)

    @property
    def whole(self) -> bool:
        """Whether one chunk has all rows, so that nothing has to be added up."""
        return len(self.parts) == 1 and not self.parts[0].piece

    @property
    def longest(self) -> int:
        """The number of edges of the largest chunk."""
        return max(part.count for part in self.parts)

    @property
    def rows(self) -> Rows:
        return Rows.all_of(self.parts[0].edges)


def _parameters(module: nn.Module, path: FlatPath | None) -> list[nn.Parameter]:
    """The parameters of a module, in its own order; a search for them takes longer than a launch."""
    layers = None if path is None else path.layers
    return list(module.parameters()) if layers is None else parameters_of(layers)


def flat_rows(
    job: Job,
    x: Tensor,
    y: Tensor,
    f: Tensor | None,
    quadrature: Tensor | None,
    edge_attr: Tensor | None = None,
) -> Tensor:
    """The transform of all chunks, (Q, C).

    x: (Q, d), y: (S, d), f: (S, C), quadrature: (S,), edge_attr: (E, A) in the order of the edges.
    """
    x, y, f = _dense(x), _dense(y), None if f is None else _dense(f)
    parameters = [*job.mlp_parameters, *job.attention_parameters]
    return _FlatTransform.apply(job, x, y, f, quadrature, edge_attr, *parameters)  # type: ignore[no-any-return]


class _FlatTransform(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, x: Tensor, *others: Any) -> Tensor:
        with edge_ops.on_device(x):
            return _FlatTransform._forward(ctx, job, x, *others)

    @staticmethod
    def _forward(
        ctx: Any,
        job: Job,
        x: Tensor,
        y: Tensor,
        f: Tensor | None,
        quadrature: Tensor | None,
        edge_attr: Tensor | None,
        *parameters: Tensor,
    ) -> Tensor:
        mlp_inputs = _like(x, edge_ops.widest(x, y, f if job.reads_f else None, edge_attr))
        mlp_inputs = _like(x, job.mlp_path.input_dtype(mlp_inputs))
        attention_inputs = _like(x, edge_ops.widest(x, y))
        network = network_of(job.mlp, edges=job.longest, inputs=mlp_inputs, path=job.mlp_path)
        scores = (
            None
            if job.attention is None
            else network_of(
                job.attention, edges=job.longest, inputs=attention_inputs, path=job.attention_path
            )
        )
        lse, ties = None, None
        out: Tensor | None = None
        dtype: torch.dtype | None = None
        for part in job.parts:
            if not part.count:
                continue
            inputs, _, relative = edge_ops.gather(
                x,
                y,
                f if job.reads_f else None,
                part,
                dtype=mlp_inputs.dtype,
                relative=scores is not None,
            )
            kernel = network.forward(_with_attr(inputs, edge_attr, part))
            score = None if scores is None or relative is None else scores.forward(relative)
            del inputs, relative
            factor = f if job.times_f else None
            if out is None:
                if factor is not None:
                    check_channels(kernel, factor)
                if score is not None:
                    check_score(score)
                dtype = edge_ops.widest(kernel, factor, quadrature, score)
                if score is not None and x.is_cuda and torch.is_autocast_enabled("cuda"):
                    # Autocast computes powers, and so the rows of `eager`, in float32.
                    dtype = edge_ops.at_least_float32(dtype)
                if job.whole and job.weights not in ("attention", "max"):
                    by_source, mean = _source_weights(quadrature, part), job.weights == "mean"
                    out = edge_ops.reduce_rows(kernel, factor, by_source, part, dtype, mean=mean)
                    break
                # At least float32: a row that is split into many pieces is added to many times, and the
                # gradient of a score is a small difference to its row.
                wide = edge_ops.at_least_float32(dtype)
                fill = torch.empty if job.whole else torch.zeros
                shape = x.shape[0], kernel.shape[1]
                out = fill(shape, dtype=wide, device=x.device)
                if job.weights == "max":
                    ties = torch.empty_like(out) if job.whole else torch.zeros_like(out)
                elif score is not None:
                    lse = fill(shape[0], dtype=edge_ops.at_least_float32(x.dtype), device=x.device)
            if score is not None and lse is not None:
                weight_ops.softmax_into(out, lse, kernel, factor, score, part)
            elif ties is not None:
                weight_ops.raise_largest(out, ties, kernel, factor, part)
            else:
                edge_ops.reduce_into(out, kernel, factor, _source_weights(quadrature, part), part)
            del kernel, score  # before those of the next chunk are there
        assert out is not None and dtype is not None
        if job.weights == "mean" and not job.whole:
            out /= job.rows.degrees().clamp_min_(1)[:, None]
        largest, wide_out = out if ties is not None else None, out if lse is not None else None
        # The maxima are copied, because the caller may write over the result.
        out = out.to(dtype, copy=largest is not None)
        network.finish({})
        if scores is not None:
            scores.finish({})
        ctx.job, ctx.network, ctx.scores, ctx.input_dtype = job, network, scores, mlp_inputs.dtype
        ctx.save_for_backward(x, y, f, quadrature, edge_attr, lse, wide_out, largest, ties, *parameters)
        device = x.device.type
        ctx.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        job: Job = ctx.job
        x, y, f, quadrature, edge_attr, lse, out, largest, ties, *parameters = ctx.saved_tensors
        with torch.no_grad(), edge_ops.on_device(x), _autocast_as_before(job, *ctx.autocast):
            back = _BackwardPass(
                job,
                (ctx.network, ctx.scores),
                ctx.input_dtype,
                (x, y, f, quadrature, edge_attr),
                lse,
                None if largest is None or ties is None else (largest, ties),
                ctx.needs_input_grad[1:],
            )
            back.run(_row_gradient(job, gradients[0]), out)
        results = back.gradients(parameters)
        if torch.is_grad_enabled():  # create_graph=True
            at = [place for place, value in enumerate(results) if value is not None]
            once = _OnceDifferentiable.apply(*(results[place].requires_grad_() for place in at))  # type: ignore[union-attr]
            for place, value in zip(at, once, strict=True):
                results[place] = value
        return None, *results


class _OnceDifferentiable(torch.autograd.Function):
    """Passes gradients on, but raises if they are differentiated again: they would count as constants."""

    @staticmethod
    def forward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return tuple(gradient.view_as(gradient) for gradient in gradients)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise BadInput(
            "memory='flat' does not support second derivatives.",
            hint="Leave gradients of the transform out of the loss: no other memory supports them either.",
        )


def _autocast_as_before(
    job: Job, device: str, dtype: torch.dtype, enabled: bool
) -> AbstractContextManager[Any]:
    """The autocast of forward; nothing, which takes less time, if it is off and not needed.

    Kernels, and the layers that replace them if they are wrong, name the dtypes of all that they compute.
    """
    paths = [path for path in (job.mlp_path, job.attention_path) if path is not None]
    if all(path.is_flat for path in paths) and not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype, enabled=enabled)


def _row_gradient(job: Job, gradient: Tensor) -> Tensor:
    """The gradient of each row's sum as a contiguous tensor; of its mean, where our kernels divide."""
    if job.weights == "mean" and not edge_ops.divides(gradient):
        gradient = gradient / job.rows.degrees().clamp_min_(1)[:, None]
    return gradient.contiguous()


class _BackwardPass:
    """The backward pass over all chunks, and the gradients it sums."""

    def __init__(
        self,
        job: Job,
        networks: tuple[Network, Network | None],
        input_dtype: torch.dtype,
        inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None],
        lse: Tensor | None,
        maxima: tuple[Tensor, Tensor] | None,
        needs_grad: tuple[bool, ...],
    ) -> None:
        """inputs: x, y, f, quadrature, edge_attr; maxima: (Q, C) each, the maxima and how many edges have
        them.
        """
        self.job, self.lse, self.maxima = job, lse, maxima
        self.inputs, (self.x, self.y, self.f, self.quadrature, self.edge_attr) = inputs, inputs
        (self.network, self.scores), self.input_dtype = networks, input_dtype
        self.needs_grad = needs_grad
        self.of_points: list[Tensor | None] = []
        self.of_mlp: Gradients = {}
        self.of_attention: Gradients = {}

    def _start_sums(self) -> None:
        """Allocate the sums and set them to zero, unless that is done."""
        if self.of_points:
            return
        job, points = self.job, len(self.inputs)
        self.of_points = [
            _empty_sum(value) if want else None
            for value, want in zip(self.inputs, self.needs_grad[:points], strict=True)
        ]
        split = points + len(job.mlp_parameters)
        self.of_mlp = _empty_sums(job.mlp_parameters, self.needs_grad[points:split])
        self.of_attention = _empty_sums(job.attention_parameters, self.needs_grad[split:])
        every = [*self.of_points, *self.of_mlp.values(), *self.of_attention.values()]
        if sums := [one for one in every if one is not None]:
            torch.ops.aten._foreach_zero_(sums)  # all by one launch

    def run(self, gradient: Tensor, out: Tensor | None) -> None:
        """Run all chunks. gradient: (Q, C) of the plain sums; out: (Q, C), the output, for softmax only."""
        try:
            if not self.network.adds_at_end:
                self._start_sums()
            for part in self.job.parts:
                if part.count:
                    self._chunk(gradient, out, part)
            self._start_sums()
        finally:  # after a failure too: a retained graph may run backward again
            self.network.finish(self.of_mlp)
            if self.scores is not None:
                self.scores.finish(self.of_attention)

    def _chunk(self, gradient: Tensor, out: Tensor | None, part: Rows) -> None:
        job = self.job
        mean = job.weights == "mean" and edge_ops.divides(gradient)
        want_x, want_y, want_f, want_quadrature, want_attr = self.needs_grad[: len(self.inputs)]
        factor = self.f if job.times_f else None
        f, want_relative = self.f if job.reads_f else None, self.scores is not None
        inputs, at, relative = edge_ops.gather(
            self.x, self.y, f, part, dtype=self.input_dtype, relative=want_relative
        )
        moves = want_x or want_y
        inputs = _with_attr(inputs, self.edge_attr, part)
        dtype = self.network.dtype or gradient.dtype
        weights, of_f_edges = None, None
        if self.scores is not None and relative is not None:
            assert self.lse is not None
            score = self.scores.forward(_to_read_again(self.scores, relative))
            of_kernel, weights = weight_ops.spread_softmax(gradient, factor, score, self.lse, part, at, dtype)
            del score
        elif self.maxima is not None:
            kernel = self.network.forward(_to_read_again(self.network, inputs))
            if isinstance(self.network, AutogradMLP):
                kernel = kernel.clone()  # it may be a tensor of the module, and it is overwritten
            of_kernel, of_f_edges = weight_ops.spread_maximum(
                gradient, self.maxima, kernel, factor, part, at, dtype
            )
            del kernel
        else:
            weights = _source_weights(self.quadrature, part)
            of_kernel = edge_ops.spread(gradient, factor, weights, part, at, dtype, mean=mean)
        reads_f, want_f = job.reads_f and want_f, want_f and factor is not None
        of_f_edges = of_f_edges if want_f else None
        want_weights = self.scores is not None or want_quadrature
        of_inputs, kernel = self.network.backward(
            inputs,
            of_kernel,
            self.of_mlp,
            want_inputs=moves or reads_f or want_attr,
            want_values=want_weights or (want_f and of_f_edges is None),
        )
        self._start_sums()  # here at the latest: allocating them takes the host longer than a launch
        _, of_y, of_f, of_quadrature, of_attr = self.of_points
        del inputs, of_kernel  # the sums by source need memory of their own
        if self.scores is not None:
            assert kernel is not None and weights is not None and relative is not None and out is not None
            of_score = weight_ops.spread_to_scores(
                gradient, out, kernel, factor, weights, part, at, self.scores.dtype or weights.dtype
            )
            of_relative, _ = self.scores.backward(
                relative, of_score, self.of_attention, want_inputs=moves, want_values=False
            )
            del relative, of_score
            if of_relative is not None:
                self._add_points(torch.cat([of_relative, -of_relative], dim=1), part, None)
            del of_relative
        # One sort for all sums by source.
        order = (
            edge_ops.source_order(part) if any(v is not None for v in (of_y, of_f, of_quadrature)) else None
        )
        if of_quadrature is not None:
            assert kernel is not None
            of_weights = weight_ops.spread_to_weights(gradient, kernel, factor, part, at)
            edge_ops.add_by_source(of_quadrature[:, None], of_weights[:, None], part, order=order)
        more = None
        if of_inputs is not None:
            self._add_points(of_inputs, part, order)
            column = 2 * self.x.shape[1]
            if of_f is not None and job.reads_f:
                more = of_inputs, column
            if of_attr is not None:
                of_attr[part.begin : part.end] += of_inputs[:, of_inputs.shape[1] - of_attr.shape[1] :]
        if of_f is None:
            return
        if of_f_edges is not None:
            edge_ops.add_by_source(of_f, of_f_edges, part, more=more, order=order)
        elif want_f:
            assert kernel is not None
            edge_ops.add_to_f(of_f, gradient, kernel, weights, part, at, mean=mean, more=more, order=order)
        elif more is not None:
            edge_ops.add_by_source(of_f, more[0], part, column=more[1], order=order)

    def _add_points(self, gradient: Tensor, part: Rows, order: edge_ops.Order | None) -> None:
        """Add the gradient of the points, which begins with that of [y, x]: (e, 2d) or more columns."""
        of_x, of_y, *_ = self.of_points
        if of_y is not None:
            edge_ops.add_by_source(of_y, gradient, part, order=order)
        if of_x is not None:
            edge_ops.add_by_row(of_x, gradient, part, column=self.x.shape[1])

    def gradients(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """The gradients in the order and the dtypes of the inputs."""
        own = len(self.job.mlp_parameters)
        of_parameters = [self.of_mlp.get(at) for at in range(own)]
        of_parameters += [self.of_attention.get(at) for at in range(len(parameters) - own)]
        every_input = [*self.inputs, *parameters]
        return [
            value if value is None or like is None or value.dtype is like.dtype else value.to(like.dtype)
            for value, like in zip([*self.of_points, *of_parameters], every_input, strict=True)
        ]


def _to_read_again(network: Network, inputs: Tensor) -> Tensor:
    """The inputs, or a copy for a module that may write over them."""
    return inputs.clone() if isinstance(network, AutogradMLP) else inputs


def _empty_sums(parameters: list[Any], needs_grad: tuple[bool, ...]) -> Gradients:
    """`_empty_sum` of the parameters whose gradients are wanted, by their numbers."""
    return {
        at: _empty_sum(value)
        for at, (value, want) in enumerate(zip(parameters, needs_grad, strict=True))
        if want
    }


def _empty_sum(value: Any) -> Tensor:
    """For the sum of many chunks, in float32 or wider: 16 bits would lose the later chunks."""
    return torch.empty(value.shape, dtype=edge_ops.at_least_float32(value.dtype), device=value.device)


def _like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Any tensor with the device of x and a dtype."""
    return x if x.dtype is dtype else x.new_empty(0, dtype=dtype)


def _with_attr(inputs: Tensor, edge_attr: Tensor | None, part: Rows) -> Tensor:
    """The inputs (e, W) of a chunk, followed by the attributes of its edges."""
    if edge_attr is None:
        return inputs
    (count, width), more = inputs.shape, edge_attr.shape[1]
    joined = torch.empty(count, width + more, dtype=inputs.dtype, device=inputs.device)
    joined[:, :width].copy_(inputs)
    joined[:, width:].copy_(edge_attr[part.begin : part.end])  # converted as it is written
    return joined


def _dense(points: Tensor) -> Tensor:
    """(P, W) whose rows are contiguous, as the GPU kernels require."""
    return points if points.stride(1) == 1 else points.contiguous()


def check_channels(kernel: Tensor, f: Tensor) -> None:
    """Raise `BadInput` if the kernel (e, C) and f (S, C) differ in width."""
    if kernel.shape[1:] != f.shape[1:]:
        raise BadInput(
            f"`mlp` returns {tuple(kernel.shape[1:])} channels per edge, but `f` has {tuple(f.shape[1:])}.",
            hint="Give the last layer as many outputs as f has channels, or widen f: f.expand(-1, C).",
        )


def check_score(score: Tensor) -> None:
    """Raise `BadInput` unless there is one score per edge, (e, 1)."""
    if score.shape[1:] != (1,):
        raise BadInput(
            f"`attention` returns shape {tuple(score.shape)}; it must return one score per edge, (e, 1).",
            hint="Give a module that maps (e, d) to (e, 1).",
        )


def _source_weights(quadrature: Tensor | None, part: Rows) -> Tensor | None:
    """(e,) the weight of every edge's source, or None if all weights are equal."""
    return None if quadrature is None else quadrature.index_select(0, part.sources())
