"""Stand-ins for mamba-ssm and causal-conv1d, on two levels.

If mamba-ssm is installed without its compiled part, its own Python runs with the stand-ins of
`selective_scan_cuda` and `causal_conv1d_cuda`. If it is absent, the functions of Mamba are replaced: the scan
keeps one state per 2,048 positions and, with a gate, the output before the gate; the fused layer keeps its
input and recomputes the convolution and the steps in the backward pass.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pinchpoint.backends.torch.observer import Observer
from pinchpoint.backends.torch.packages.unknown_kernels import forget, overwritten

_CHUNK = 2048  # positions per kept state (csrc/selective_scan/selective_scan.cpp)
Tensor = torch.Tensor


class Scan:
    """The compiled kernels of the selective scan; `fwd` and `bwd` allocate what the C++ code does."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def fwd(self, u: Tensor, delta: Tensor, A: Tensor, B: Any, C: Any, D: Any, z: Any, *_: Any) -> Any:
        gated = [] if z is None else [torch.empty_like(z)]
        out = torch.empty_like(delta)
        chunks = -(-u.shape[2] // _CHUNK)
        states = u.new_empty((*u.shape[:2], chunks, 2 * A.shape[1]), dtype=A.dtype)
        forget(self.observer, (out, states, gated))
        return [out, states, *gated]

    def bwd(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        delta_bias: Tensor | None,
        dout: Tensor,
        states: Any,
        out: Tensor | None,
        dz: Tensor | None,
        delta_softplus: bool,
        recompute_out_z: bool,
    ) -> list[Any]:
        of_gate = [] if z is None else [torch.empty_like(z) if dz is None else dz]
        recomputed = [torch.empty_like(out)] if z is not None and recompute_out_z and out is not None else []
        du, ddelta, dA = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(A)
        # Inputs that vary with the position get gradients in fp32, which are converted at the end.
        dB, dC = (torch.zeros_like(t, dtype=torch.float32 if t.dim() >= 3 else t.dtype) for t in (B, C))
        dD = None if D is None else torch.zeros_like(D)
        dbias = None if delta_bias is None else torch.zeros_like(delta_bias)
        results = [du, ddelta, dA, dB.to(B.dtype), dC.to(C.dtype), dD, dbias, *of_gate, *recomputed]
        forget(self.observer, results)
        return results


class Convolution:
    """The kernels of causal-conv1d, which write to tensors that their callers allocate."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def forward(self, x: Tensor, final_states: Tensor | None = None) -> Tensor:
        out = torch.empty_like(x)
        forget(self.observer, out)
        overwritten(self.observer, [] if final_states is None else final_states)
        return out

    def backward(self, x: Tensor, weight: Tensor, bias: Any, dx: Tensor | None) -> tuple[Any, Any, Any]:
        dx = torch.empty_like(x) if dx is None else dx
        dweight = torch.zeros_like(weight, dtype=torch.float32)
        dbias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        dweight = dweight.to(weight.dtype)
        dbias = None if bias is None or dbias is None else dbias.to(bias.dtype)
        forget(self.observer, (dx, dweight, dbias))
        return dx, dweight, dbias

    def written(self, *args: Any, **kwargs: Any) -> None:
        """Any of the compiled functions: all tensors may be written."""
        overwritten(self.observer, [a for a in args if isinstance(a, Tensor)])


class _CausalConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kernel: Convolution, x: Tensor, weight: Tensor, bias: Any, last: Any) -> Any:
        if x.stride(2) != 1 and x.stride(1) != 1:
            x = x.contiguous()
        ctx.kernel, ctx.has_bias = kernel, bias is not None
        ctx.save_for_backward(x, weight, *([] if bias is None else [bias]))
        out = kernel.forward(x, last)
        return out if last is None else (out, last)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        x, weight, *bias = ctx.saved_tensors
        dout = gradients[0]
        if dout.stride(2) != 1 and dout.stride(1) != 1:
            dout = dout.contiguous()
        dx, dweight, dbias = ctx.kernel.backward(x, weight, bias[0] if bias else None, None)
        del dout
        return None, dx, dweight, dbias, None


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scan: Scan, with_state: bool, u: Any, delta: Any, A: Any, *rest: Any) -> Any:
        B, C, D, z, bias = rest
        u, delta, B, C = (t if t.stride(-1) == 1 else t.contiguous() for t in (u, delta, B, C))
        z = z.contiguous() if z is not None and z.stride(-1) != 1 else z
        ctx.squeezed = [t.dim() == 3 for t in (B, C)]
        B, C = (t.unsqueeze(1) if t.dim() == 3 else t for t in (B, C))
        out, states, *gated = scan.fwd(u, delta, A, B, C, D, z)
        ctx.scan, ctx.has = scan, [t is not None for t in (D, z, bias)]
        kept = [t for t in (D, z, bias) if t is not None]
        ctx.save_for_backward(u, delta, A, B, C, states, *([out] if gated else []), *kept)
        result = gated[0] if gated else out
        return (result, states[:, :, -1, 1::2]) if with_state else result

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        u, delta, A, B, C, states, *rest = ctx.saved_tensors
        out = rest.pop(0) if ctx.has[1] else None
        D, z, bias = (rest.pop(0) if has else None for has in ctx.has)
        dout = gradients[0] if gradients[0].stride(-1) == 1 else gradients[0].contiguous()
        du, ddelta, dA, dB, dC, dD, dbias, *dz = ctx.scan.bwd(
            u, delta, A, B, C, D, z, bias, dout, states, out, None, True, False
        )
        dB, dC = (t.squeeze(1) if s else t for t, s in zip((dB, dC), ctx.squeezed, strict=True))
        return None, None, du, ddelta, dA, dB, dC, dD, dz[0] if dz else None, dbias


class _MambaLayer(torch.autograd.Function):
    """`mamba_inner_fn`: convolution, projections, scan and output projection of xz (batch, dim, length).

    weights: of the convolution (dim, 1, width), of x, of the steps and of the output, then the biases of the
    convolution and of the output, A, D and the bias of the steps; each may be None.
    """

    @staticmethod
    def forward(ctx: Any, scan: Scan, conv: Convolution, xz: Tensor, *weights: Any) -> Any:
        conv_weight, x_weight, step_weight, out_weight, conv_bias, out_bias, A, D, step_bias = weights
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            x_weight, step_weight, out_weight = (t.to(dtype) for t in (x_weight, step_weight, out_weight))
            out_bias = None if out_bias is None else out_bias.to(dtype)
        xz = xz if xz.stride(-1) == 1 else xz.contiguous()
        conv_weight = conv_weight.squeeze(1)
        length, rank, width = xz.shape[-1], step_weight.shape[1], A.shape[-1]
        x, z = xz.chunk(2, 1)
        convolved = conv.forward(x)
        x_dbl = F.linear(convolved.transpose(1, 2).flatten(0, 1), x_weight)
        delta = _steps(step_weight, x_dbl[:, :rank], length)
        B, C = (
            part.unflatten(0, (-1, length)).transpose(1, 2).unsqueeze(1).contiguous()
            for part in (x_dbl[:, rank : rank + width], x_dbl[:, -width:])
        )
        out, states, gated = scan.fwd(convolved, delta, A, B, C, D, z)
        del convolved, delta
        ctx.scan, ctx.conv = scan, conv
        ctx.shape = conv_bias is not None, out_bias is not None, D is not None, step_bias is not None
        kept = [t for t in (conv_bias, D, step_bias) if t is not None]
        ctx.save_for_backward(
            xz, conv_weight, x_dbl, x_weight, step_weight, out_weight, A, B, C, states, out, *kept
        )
        return F.linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        xz, conv_weight, x_dbl, x_weight, step_weight, out_weight, A, B, C, states, out, *kept = (
            ctx.saved_tensors
        )
        has_conv_bias, has_out_bias, has_D, has_step_bias = ctx.shape
        conv_bias = kept.pop(0) if has_conv_bias else None
        D = kept.pop(0) if has_D else None
        step_bias = kept.pop(0) if has_step_bias else None
        length, rank, width = xz.shape[-1], step_weight.shape[1], A.shape[-1]
        x, z = xz.chunk(2, 1)
        dout = gradients[0] if gradients[0].stride(-1) == 1 else gradients[0].contiguous()
        convolved = ctx.conv.forward(x)
        delta = _steps(step_weight, x_dbl[:, :rank], length)
        dxz = torch.empty_like(xz)
        dx, dz = dxz.chunk(2, 1)
        dout = dout.flatten(0, 1).t()
        dgated = (out_weight.t() @ dout).unflatten(1, (-1, length)).transpose(0, 1)
        dconvolved, ddelta, dA, dB, dC, dD, dstep_bias, _, gated = ctx.scan.bwd(
            convolved, delta, A, B, C, D, z, step_bias, dgated, states, out, dz, True, True
        )
        dout_weight = dout @ gated.transpose(0, 1).flatten(1).t()
        dout_bias = dout.sum((0, 1)) if has_out_bias else None
        dx_dbl = torch.empty_like(x_dbl)
        for part, gradient in ((slice(rank, rank + width), dB), (slice(-width, None), dC)):
            dx_dbl[:, part] = gradient.squeeze(1).transpose(1, 2).flatten(0, 1).contiguous()
        del dB, dC, gradient
        ddelta = ddelta.transpose(0, 1).flatten(1)
        dstep_weight = ddelta @ x_dbl[:, :rank]
        dx_dbl[:, :rank] = ddelta.t() @ step_weight
        dconvolved = dconvolved.transpose(0, 1).flatten(1)
        dx_weight = dx_dbl.t() @ convolved.transpose(1, 2).flatten(0, 1)
        torch.addmm(dconvolved, x_weight.t(), dx_dbl.t(), out=dconvolved)
        _, dconv_weight, dconv_bias = ctx.conv.backward(x, conv_weight, conv_bias, dx)
        forget(ctx.scan.observer, dxz)
        of_weights = dconv_weight.unsqueeze(1), dx_weight, dstep_weight, dout_weight, dconv_bias, dout_bias
        return None, None, dxz, *of_weights, dA, dD, dstep_bias


def _steps(weight: Tensor, low_rank: Tensor, length: int) -> Tensor:
    """(batch, dim, length), with the dimension slowest in memory, as the scan expects it."""
    return (weight @ low_rank.t()).unflatten(1, (-1, length)).transpose(0, 1)


def modules(observer: Observer) -> dict[str, dict[str, Any]]:
    scan, conv = Scan(observer), Convolution(observer)

    def selective_scan_fn(
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Any = None,
        z: Any = None,
        delta_bias: Any = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
    ) -> Any:
        return _SelectiveScan.apply(scan, return_last_state, u, delta, A, B, C, D, z, delta_bias)

    def mamba_inner_fn(
        xz: Tensor,
        conv1d_weight: Tensor,
        conv1d_bias: Any,
        x_proj_weight: Tensor,
        delta_proj_weight: Tensor,
        out_proj_weight: Tensor,
        out_proj_bias: Any,
        A: Tensor,
        B: Any = None,
        C: Any = None,
        D: Any = None,
        delta_bias: Any = None,
        **_: Any,
    ) -> Any:
        weights = conv1d_weight, x_proj_weight, delta_proj_weight, out_proj_weight
        return _MambaLayer.apply(scan, conv, xz, *weights, conv1d_bias, out_proj_bias, A, D, delta_bias)

    def causal_conv1d_fn(
        x: Tensor,
        weight: Tensor,
        bias: Any = None,
        seq_idx: Any = None,
        initial_states: Any = None,
        return_final_states: bool = False,
        final_states_out: Any = None,
        activation: str | None = None,
    ) -> Any:
        last = final_states_out
        if return_final_states and last is None:
            last = x.new_empty(x.shape[0], weight.shape[1] - 1, x.shape[1]).transpose(1, 2)
        return _CausalConv.apply(conv, x, weight, bias, last if return_final_states else None)

    def causal_conv1d_update(x: Tensor, conv_state: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return conv.forward(x, conv_state)

    def selective_state_update(state: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        out = torch.empty_like(x)
        forget(observer, out)
        overwritten(observer, state)
        return out

    class Mamba(nn.Module):
        """The layer of mamba-ssm, with its parameters and its fused path."""

        def __init__(
            self,
            d_model: int,
            d_state: int = 16,
            d_conv: int = 4,
            expand: int = 2,
            dt_rank: int | str = "auto",
            conv_bias: bool = True,
            bias: bool = False,
            device: Any = None,
            dtype: Any = None,
            **_: Any,
        ) -> None:
            super().__init__()
            inner, where = int(expand * d_model), {"device": device, "dtype": dtype}
            rank = math.ceil(d_model / 16) if isinstance(dt_rank, str) else dt_rank
            self.in_proj = nn.Linear(d_model, 2 * inner, bias=bias, **where)
            self.conv1d = nn.Conv1d(
                inner, inner, d_conv, groups=inner, padding=d_conv - 1, bias=conv_bias, **where
            )
            self.x_proj = nn.Linear(inner, rank + 2 * d_state, bias=False, **where)
            self.dt_proj = nn.Linear(rank, inner, **where)
            self.A_log = nn.Parameter(torch.zeros(inner, d_state, device=device))
            self.D = nn.Parameter(torch.ones(inner, device=device))
            self.out_proj = nn.Linear(inner, d_model, bias=bias, **where)

        def forward(self, hidden_states: Tensor, inference_params: Any = None) -> Any:
            length = hidden_states.shape[1]
            xz = self.in_proj.weight @ hidden_states.flatten(0, 1).t()
            xz = xz.unflatten(1, (-1, length)).transpose(0, 1)
            if self.in_proj.bias is not None:
                xz = xz + self.in_proj.bias.to(xz.dtype).unsqueeze(1)
            A = -torch.exp(self.A_log.float())
            return mamba_inner_fn(
                xz,
                self.conv1d.weight,
                self.conv1d.bias,
                self.x_proj.weight,
                self.dt_proj.weight,
                self.out_proj.weight,
                self.out_proj.bias,
                A,
                D=self.D.float(),
                delta_bias=self.dt_proj.bias.float(),
            )

    scans = {"selective_scan_fn": selective_scan_fn, "mamba_inner_fn": mamba_inner_fn}
    convolutions = {"causal_conv1d_fn": causal_conv1d_fn, "causal_conv1d_update": causal_conv1d_update}
    return {
        "mamba_ssm": {**scans, "Mamba": Mamba},
        "mamba_ssm.ops": {},
        "mamba_ssm.ops.selective_scan_interface": scans,
        "mamba_ssm.ops.triton": {},
        "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": selective_state_update},
        "mamba_ssm.modules": {},
        "mamba_ssm.modules.mamba_simple": {"Mamba": Mamba},
        "selective_scan_cuda": {"fwd": scan.fwd, "bwd": scan.bwd},
        "causal_conv1d": convolutions,
        "causal_conv1d.causal_conv1d_interface": convolutions,
        "causal_conv1d_cuda": dict.fromkeys(
            ("causal_conv1d_fwd", "causal_conv1d_bwd", "causal_conv1d_update"), conv.written
        ),
    }
