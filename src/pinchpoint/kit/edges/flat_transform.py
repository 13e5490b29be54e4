"""The edge transform with memory that does not grow with the edges: chunks of rows, recomputed in backward.

Only inputs are saved. With weights w, kernel k and gradient g of a row, the gradients of an edge are

    dk = w g f      df = w g k      dw = sum over channels of g k f

and those of softmax scores are w (dw - sum over channels of g out), where w = exp(score - lse) and lse
is the row's log-sum-exp: one number per row, so that a row may be split into pieces.

For the maximum of a row, the weight of an edge is 1 / n in the channels in which it is one of the n edges
with the largest value, else 0. The values are recomputed chunk by chunk, bit for bit, to find these edges.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from pinchpoint.core.errors import BadInput
from pinchpoint.kit.edges import edge_ops
from pinchpoint.kit.edges.edge_mlp import FlatPath, Gradients, Network, network_of
from pinchpoint.kit.edges.row_chunks import Rows


@dataclass(frozen=True)
class Job:
    """One transform and the chunks in which it is computed.

    reads_f: f is also an input of the network. times_f: the kernel is multiplied by f.
    weights: mean, sum, max, quadrature or attention. mlp_path, attention_path: how the networks run, if that
    is known.
    """

    mlp: nn.Module
    attention: nn.Module | None
    reads_f: bool
    times_f: bool
    weights: str
    parts: list[Rows]
    mlp_path: FlatPath | None = None
    attention_path: FlatPath | None = None

    @cached_property
    def mlp_parameters(self) -> list[nn.Parameter]:
        return list(self.mlp.parameters())

    @cached_property
    def attention_parameters(self) -> list[nn.Parameter]:
        return [] if self.attention is None else list(self.attention.parameters())

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
        mlp_inputs = x.new_empty(0, dtype=edge_ops.widest(x, y, f if job.reads_f else None, edge_attr))
        attention_inputs = x.new_empty(0, dtype=edge_ops.widest(x, y))
        network = network_of(job.mlp, edges=job.longest, inputs=mlp_inputs, path=job.mlp_path)
        scores = (
            None
            if job.attention is None
            else network_of(
                job.attention, edges=job.longest, inputs=attention_inputs, path=job.attention_path
            )
        )
        lse = None if scores is None else _lse(job, scores, x, y)
        out: Tensor | None = None
        ties: Tensor | None = None
        dtype: torch.dtype | None = None
        for part in job.parts:
            if not part.count:
                continue
            inputs, at = edge_ops.gather(x, y, f if job.reads_f else None, part)
            kernel = network.forward(_with_attr(inputs, edge_attr, part))
            score = None if scores is None else scores.forward(_relative(inputs, x, y))
            weights = _weights(score, lse, quadrature, at, part)
            factor = f if job.times_f else None
            if out is None:
                if factor is not None:
                    check_channels(kernel, factor)
                dtype = edge_ops.widest(kernel, factor, quadrature, score)
                if job.whole and job.weights in ("mean", "sum"):
                    out = edge_ops.reduce_rows(kernel, factor, part, dtype, mean=job.weights == "mean")
                    break
                # At least float32: a row that is split into many pieces is added to many times.
                sum_dtype = torch.promote_types(dtype, torch.float32)
                out = torch.zeros(x.shape[0], kernel.shape[1], dtype=sum_dtype, device=x.device)
                if job.weights == "max":
                    out.fill_(-torch.inf)
                    ties = torch.zeros_like(out)
            if ties is not None:
                _raise_largest(out, ties, _values(kernel, factor, part).to(out.dtype), part)
            else:
                edge_ops.reduce_into(out, kernel, factor, weights, part)
        assert out is not None and dtype is not None
        largest = None
        if ties is not None:  # a row without edges is 0, and no edge compares with it
            largest, out = out, torch.where(job.rows.degrees()[:, None] > 0, out, 0)
        if job.weights == "mean" and not job.whole:
            out /= job.rows.degrees().clamp_min_(1)[:, None]
        out = out.to(dtype)
        network.finish({})
        if scores is not None:
            scores.finish({})
        ctx.job, ctx.network, ctx.scores = job, network, scores
        ctx.save_for_backward(
            x, y, f, quadrature, edge_attr, lse, out if lse is not None else None, largest, ties, *parameters
        )
        device = x.device.type
        ctx.autocast = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        job: Job = ctx.job
        x, y, f, quadrature, edge_attr, lse, out, largest, ties, *parameters = ctx.saved_tensors
        enabled, dtype = ctx.autocast
        with torch.no_grad(), edge_ops.on_device(x), torch.autocast(x.device.type, dtype, enabled=enabled):
            back = _BackwardPass(
                job,
                (ctx.network, ctx.scores),
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
            hint="Use memory='eager' if gradients are part of the loss.",
        )


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
        self.of_points = [
            _sum_like(value) if want else None
            for value, want in zip(inputs, needs_grad[: len(inputs)], strict=True)
        ]
        self.network, self.scores = networks
        split = len(inputs) + len(job.mlp_parameters)
        self.of_mlp = _sums(job.mlp_parameters, needs_grad[len(inputs) : split])
        self.of_attention = _sums(job.attention_parameters, needs_grad[split:])

    def run(self, gradient: Tensor, out: Tensor | None) -> None:
        """Run all chunks. gradient: (Q, C) of the plain sums; out: (Q, C), the output, for softmax only."""
        row_dots = None if out is None or self.lse is None else (gradient * out.to(self.lse.dtype)).sum(1)
        try:
            for part in self.job.parts:
                if part.count:
                    self._chunk(gradient, row_dots, part)
        finally:  # after a failure too: a retained graph may run backward again
            self.network.finish(self.of_mlp)
            if self.scores is not None:
                self.scores.finish(self.of_attention)

    def _chunk(self, gradient: Tensor, row_dots: Tensor | None, part: Rows) -> None:
        job = self.job
        mean = job.weights == "mean" and edge_ops.divides(gradient)
        of_x, of_y, of_f, of_quadrature, of_attr = self.of_points
        factor = self.f if job.times_f else None
        inputs, at = edge_ops.gather(self.x, self.y, self.f if job.reads_f else None, part)
        moves = of_x is not None or of_y is not None
        relative = None if self.scores is None else _relative(inputs, self.x, self.y)
        inputs = _with_attr(inputs, self.edge_attr, part)
        score = None if self.scores is None or relative is None else self.scores.forward(relative)
        weights = _weights(score, self.lse, self.quadrature, at, part)
        dtype = self.network.dtype or gradient.dtype
        share = None
        if self.maxima is not None:
            share = self._share_of_maximum(gradient, self.network.forward(inputs), factor, part, at)
            times_f = share if factor is None else share * factor.index_select(0, part.sources())
            of_kernel = times_f.to(dtype)
        else:
            of_kernel = edge_ops.spread(gradient, factor, weights, part, at, dtype, mean=mean)
        want_f = of_f is not None and factor is not None
        want_weights = self.scores is not None or of_quadrature is not None
        of_inputs, kernel = self.network.backward(
            inputs,
            of_kernel,
            self.of_mlp,
            want_inputs=moves or (job.reads_f and of_f is not None) or of_attr is not None,
            want_values=want_f or want_weights,
        )
        del inputs, of_kernel  # the sums by source need memory of their own
        if of_inputs is not None:
            self._add_inputs(of_inputs, part)
            del of_inputs
        if want_weights:
            assert kernel is not None
            of_weights = edge_ops.spread_to_weights(gradient, kernel, factor, part, at)
            if of_quadrature is not None:
                edge_ops.add_by_source(of_quadrature[:, None], of_weights[:, None], part)
            if self.scores is not None:
                assert weights is not None and row_dots is not None and relative is not None
                of_score = (weights * (of_weights - row_dots.index_select(0, at)))[:, None]
                of_relative, _ = self.scores.backward(
                    relative, of_score, self.of_attention, want_inputs=moves, want_values=False
                )
                if of_relative is not None:
                    self._add_inputs(torch.cat([of_relative, -of_relative], dim=1), part)
        if want_f:
            assert kernel is not None and of_f is not None
            if share is None:
                edge_ops.add_to_f(of_f, gradient, kernel, weights, part, at, mean=mean)
            else:
                edge_ops.add_by_source(of_f, share * kernel, part)

    def _share_of_maximum(
        self, gradient: Tensor, kernel: Tensor, factor: Tensor | None, part: Rows, at: Tensor
    ) -> Tensor:
        """(e, C): the gradient of each edge's value: that of its row where it is the maximum, else 0."""
        assert self.maxima is not None
        largest, ties = (values.index_select(0, at) for values in self.maxima)
        holds = _values(kernel, factor, part).to(largest.dtype) == largest
        return torch.where(holds, gradient.index_select(0, at) / ties.clamp_min(1), 0)

    def _add_inputs(self, gradient: Tensor, part: Rows) -> None:
        """Add the gradient of the network's inputs: (e, 2d) of [y, x], or (e, 2d + C) with f."""
        dims = self.x.shape[1]
        of_x, of_y, of_f, _, of_attr = self.of_points
        if of_y is not None:
            edge_ops.add_by_source(of_y, gradient[:, :dims], part)
        if of_x is not None:
            edge_ops.add_by_row(of_x, gradient[:, dims : 2 * dims], part)
        if gradient.shape[1] == 2 * dims:  # that of the attention, or of nothing else
            return
        channels = self.f.shape[1] if self.f is not None and self.job.reads_f else 0
        if of_f is not None and channels:
            edge_ops.add_by_source(of_f, gradient[:, 2 * dims : 2 * dims + channels], part)
        if of_attr is not None:
            of_attr[part.begin : part.end] += gradient[:, 2 * dims + channels :]

    def gradients(self, parameters: list[Tensor]) -> list[Tensor | None]:
        """The gradients in the order and the dtypes of the inputs."""
        own = len(self.job.mlp_parameters)
        of_parameters = [self.of_mlp.get(at) for at in range(own)]
        of_parameters += [self.of_attention.get(at) for at in range(len(parameters) - own)]
        every_input = [*self.inputs, *parameters]
        return [
            None if value is None or like is None else value.to(like.dtype)
            for value, like in zip([*self.of_points, *of_parameters], every_input, strict=True)
        ]


def _sums(parameters: list[Any], needs_grad: tuple[bool, ...]) -> Gradients:
    """Zeros like the parameters whose gradients are wanted, made by one launch."""
    sums = {
        at: torch.empty_like(value, dtype=_sum_dtype(value), memory_format=torch.contiguous_format)
        for at, (value, want) in enumerate(zip(parameters, needs_grad, strict=True))
        if want
    }
    if sums:
        torch.ops.aten._foreach_zero_(list(sums.values()))
    return sums


def _sum_dtype(value: Any) -> torch.dtype:
    """float32 or wider: 16 bits would lose the later of many chunks."""
    return torch.promote_types(value.dtype, torch.float32)


def _sum_like(value: Any) -> Tensor:
    """Zeros to which many chunks are added."""
    return torch.zeros_like(value, dtype=_sum_dtype(value), memory_format=torch.contiguous_format)


def _lse(job: Job, scores: Network, x: Tensor, y: Tensor) -> Tensor:
    """(Q,) log-sum-exp of each row's scores, piece by piece if a row is split."""
    lse = torch.full(
        (x.shape[0],), -torch.inf, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device
    )
    for part in job.parts:
        if part.count:
            inputs, _ = edge_ops.gather(x, y, None, part)
            score = scores.forward(_relative(inputs, x, y)).to(lse.dtype)
            check_score(score)
            largest = part.largest(score)
            # The maximum of a row without edges is -inf: it is not shifted, and its sum is empty.
            shift = torch.where(largest.isinf(), 0, largest)
            sums = part.sum(torch.exp(score - shift.index_select(0, part.local())))
            here = lse[part.first : part.last]
            torch.logaddexp(here, (shift + torch.log(sums))[:, 0], out=here)
    return lse


def _with_attr(inputs: Tensor, edge_attr: Tensor | None, part: Rows) -> Tensor:
    """The inputs (e, W) of a chunk, followed by the attributes of its edges."""
    return inputs if edge_attr is None else torch.cat([inputs, edge_attr[part.begin : part.end]], dim=1)


def _values(kernel: Tensor, factor: Tensor | None, part: Rows) -> Tensor:
    """(e, C): the kernel, times f at the sources."""
    return kernel if factor is None else kernel * factor.index_select(0, part.sources())


def _raise_largest(largest: Tensor, ties: Tensor, values: Tensor, part: Rows) -> None:
    """Raise the rows' maxima (Q, C) to those of a chunk, and count the edges that have them."""
    here, count = largest[part.first : part.last], ties[part.first : part.last]
    higher = torch.maximum(here, part.largest(values))
    count *= here == higher
    count += part.sum((values == higher.index_select(0, part.local())).to(values.dtype))
    here.copy_(higher)


def _relative(inputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Vectors y - x of the edges, (e, d), from inputs that begin with [y, x], in the dtype of x and y."""
    dims = x.shape[1]
    return (inputs[:, :dims] - inputs[:, dims : 2 * dims]).to(edge_ops.widest(x, y))


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


def _weights(
    score: Tensor | None, lse: Tensor | None, quadrature: Tensor | None, at: Tensor, part: Rows
) -> Tensor | None:
    """(e,) the weight of every edge in its row's sum, or None if all weights are equal."""
    if score is not None and lse is not None:
        return torch.exp(score[:, 0].to(lse.dtype) - lse.index_select(0, at))
    return None if quadrature is None else quadrature.index_select(0, part.sources())
