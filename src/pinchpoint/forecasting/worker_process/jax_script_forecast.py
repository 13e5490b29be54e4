"""A Forecast of an unmodified JAX script, which runs in the sandbox on arrays without values."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pinchpoint.backends.sandbox.run_script import Stopper, StopScript, run_script
from pinchpoint.backends.sandbox.sandbox import Sandbox
from pinchpoint.backends.sandbox.script_errors import script_error
from pinchpoint.core import errors
from pinchpoint.core.errors import BadInput, CannotFake, PinchpointError
from pinchpoint.core.files import shown_path
from pinchpoint.core.records import Forecast
from pinchpoint.core.targets import user_line
from pinchpoint.forecasting import assembly
from pinchpoint.forecasting.cards import cards
from pinchpoint.forecasting.worker_process import branches, jax_forecast, script_end
from pinchpoint.forecasting.worker_process.target_loading import Fork, LoadedTarget

# What JAX and numpy say about a mesh that is larger than the devices.
_FEW_DEVICES = re.compile(
    r"[Nn]umber of devices|logical devices|XLA devices|only \d+ .*devices|cannot reshape array of size"
    r"|cannot select an axis to squeeze out"  # pmap of more or fewer parts than there are devices
)


def predict(loaded_target: LoadedTarget, request: dict[str, Any], fork: Fork) -> Forecast:
    if request.get("rank") and (rank := request["rank"]["rank"]):
        raise BadInput(
            f"{loaded_target.target.text} uses JAX, for which --rank {rank} has no meaning.",
            hint="Leave --rank out: one process uses all devices, and the one that needs most is predicted.",
        )

    def run(options: dict[str, Any]) -> dict[str, Any]:
        scratch = Path(tempfile.mkdtemp(prefix="pinchpoint-script-"))
        try:
            answer = fork(lambda: _run(loaded_target, request, scratch, options))
            return script_end.with_last_output(answer, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    return branches.explore(_predict, run)


def _predict(run: Any) -> Forecast:
    answer = run({})
    if "error" in answer:
        raise errors.from_dict(answer)
    return Forecast.from_dict(answer)


def _run(
    loaded_target: LoadedTarget, request: dict[str, Any], scratch: Path, options: dict[str, Any]
) -> dict[str, Any]:
    from pinchpoint.backends.jax.compile_targets import matmul_workspace
    from pinchpoint.backends.jax.script.loops import mark_script
    from pinchpoint.backends.jax.script.peaks import find_peak
    from pinchpoint.backends.jax.script.session import ScriptSession, unknown_site
    from pinchpoint.backends.jax.sharded.communicators import nccl_bytes
    from pinchpoint.backends.jax.sharded.script_devices import ScriptDevices

    target, card = loaded_target.target, loaded_target.card
    stopper = Stopper(request["steps"])
    decisions = options["decisions"]

    def stop() -> None:
        stopper.steps = stopper.limit
        raise StopScript

    job = request.get("rank") or {"world_size": 1, "local_world_size": 1}
    devices = ScriptDevices(job["world_size"], job["local_world_size"])
    session = ScriptSession(
        devices=devices,
        steps=request["steps"],
        stop=stop,
        decisions=decisions,
        workspace_bytes=matmul_workspace(card.capability),
    )
    sandbox = Sandbox(scratch, locked=True, allow_network=request.get("allow_network", False))
    with sandbox as guards, session.running():
        end = run_script(
            target.where,
            request["args"],
            scratch=scratch,
            stopper=stopper,
            module=target.name,
            transform=mark_script,
        )
    is_late_error = end.kind == "raised" and session.has_jumped  # as may happen after turns were left out
    site = unknown_site(end.error)
    if site and not is_late_error:
        raise CannotFake(
            f"{target.text} uses a device value as a size or an index at {shown_path(site)}, "
            "which pinchpoint does not support yet for JAX.",
            hint="Compute the size on the host from the data, or give jnp.nonzero and similar functions "
            "their size argument.",
        )
    if (end.kind == "raised" and not is_late_error) or (end.kind == "exited" and not session.calls):
        error = script_error(
            end, script=target.text, steps=session.calls, not_started=guards.processes.refused_commands
        )
        if error is not None:
            if decisions.flipped and (end.kind != "raised" or branches.ends_on_purpose(end.error)):
                return {branches.ENDED: True}
            raise _with_devices_hint(error, devices.count) from end.error
    if not session.calls:
        raise BadInput(
            f"{target.text} does not compute anything with JAX.",
            hint="Pass the arguments that make it train after --, such as -- --epochs 1.",
        )
    mode = "train" if session.training_steps else "infer"
    if request.get("mode") not in (None, mode):
        raise BadInput(
            f"The mode of {target.text} is {mode}, not {request['mode']}.",
            hint=f"Leave --mode out, or use --mode {mode}.",
        )
    # XLA writes files while it compiles, and so do we for it; elsewhere this process may not write any more.
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    peak = find_peak(session.ledger, card)
    total = peak.high_bytes + card.context_bytes
    margin = assembly.margin_bytes(total)
    share = jax_forecast.memory_share()
    needs = peak.high_bytes + margin
    forecast = Forecast(
        target=target.text,
        framework="jax",
        method=peak.method,
        mode=mode,
        size=None,
        variant=None,
        peak_allocated_bytes=peak.peak_bytes,
        peak_reserved_bytes=None,
        workspace_bytes=peak.breakdown["workspace"],
        context_bytes=card.context_bytes,
        total_bytes=peak.peak_bytes + card.context_bytes,
        breakdown=peak.breakdown,
        lines=peak.lines,
        modules=(),
        timeline=peak.timeline,
        fits={
            other.name: needs <= jax_forecast.room_bytes(other, share)
            for other in {**cards(), card.name: card}.values()
        },
        margin_bytes=margin,
        needs_bytes=needs,
        card=card.name,
        steps=session.training_steps,
        low_bytes=peak.low_bytes if peak.low_bytes < peak.high_bytes else None,
        high_bytes=peak.high_bytes if peak.low_bytes < peak.high_bytes else None,
        seen={
            "training_steps": session.training_steps,
            "inference_calls": 0 if session.training_steps else session.inference_calls,
            "evaluation": session.evaluation_calls > 0,
        },
        notes=(
            *peak.notes,
            *session.ledger.notes,
            *session.end_notes(),
            *guards.notes(),
            jax_forecast.share_note(share),
        ),
    )
    if request.get("rank"):
        nccl = nccl_bytes(session.groups, devices.count)
        forecast = assembly.with_rank(forecast, None, devices.count, nccl, card)
    late = (_late_error(end.error),) if end.error is not None and is_late_error else ()
    forecast = assembly.with_reasons(forecast, (*peak.reasons, *late, *session.end_reasons()))
    return forecast.to_dict() | {
        "blocks": _digest(session.ledger),
        "decisions": decisions.results(),
    }


def _with_devices_hint(error: PinchpointError, count: int) -> PinchpointError:
    """The error of a script that may need more devices than it saw, with a hint."""
    if not _FEW_DEVICES.search(error.what):
        return error
    return type(error)(
        error.what,
        hint=f"The script saw {count} device{'' if count == 1 else 's'}. "
        "Give the number that it needs, such as --world-size 8.",
    )


def _late_error(error: BaseException) -> str:
    at = user_line(error)
    where = f" at {at}" if at else ""
    return (
        f"the script raised {type(error).__name__}{where} after turns that repeat others were left out, "
        "and what follows was not run"
    )


def _digest(ledger: Any) -> str:
    """A hash of the programs and the bytes around them, to tell whether two runs differ.

    The bytes are rounded: two runs may end after different numbers of steps, with longer lists of losses.
    """
    programs = ledger.programs.values()
    text = repr(sorted((e.name, f"{e.live_bytes:.3g}", e.program.added_bytes) for e in programs))
    return hashlib.sha256(text.encode()).hexdigest()
