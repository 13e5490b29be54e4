"""Forecaster: many predictions of one target by a worker process that imports the libraries once.

The worker sees no GPU, even if this machine has one. It is killed when a prediction exceeds its time limit
and when this process ends. Its temporary files are in a folder that this process removes.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, Self

from pinchpoint.core import errors, machine
from pinchpoint.core.child_process import Warden
from pinchpoint.core.errors import TargetFailed, TimedOut
from pinchpoint.core.ranks import Rank
from pinchpoint.core.records import Forecast
from pinchpoint.core.settings import Overrides
from pinchpoint.core.targets import Factory, find
from pinchpoint.core.workload import Workload
from pinchpoint.forecasting import cards
from pinchpoint.forecasting.worker_process.target_loading import STATUS_FILE

_DEFAULT_CARD = "h200"
_DUMP_LENGTH = 8_000  # characters of a traceback that are kept


class Forecasts(Protocol):
    """Predicts one target at many sizes, as `Forecaster` does; see `Forecaster.predict`."""

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
        args: tuple[str, ...] = (),
        rank: Rank | None = None,
        settings: Overrides | None = None,
    ) -> Forecast: ...


class Forecaster:
    """`with Forecaster("field") as f: f.predict(size=4096, mode="train")`."""

    def __init__(
        self,
        target: str | Workload | Factory,
        *,
        card: str = _DEFAULT_CARD,
        seed: int = 0,
        timeout_s: float = 300.0,
        settings: Overrides | None = None,
        packages: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        only_card: bool = False,
        find_least: bool = False,
        allow_network: bool = False,
        on_status: Callable[[str], None] | None = None,
    ) -> None:
        """environment: variables that a script runs with, as a launcher sets them.

        only_card: answer whether it fits for this card only. find_least: find with how few bytes it would.
        allow_network: let a script send data, besides downloading.
        on_status: called about once a second with what a script is doing, while a prediction runs.
        """
        self._answers = {"only_card": only_card, "find_least": find_least}
        self._on_status = on_status
        self.allow_network = allow_network
        self.target = find(target)
        self.packages = list(packages)
        self.environment = dict(environment or {})
        self.card = cards.card(card)
        self.seed = seed
        self.settings = dict(settings or {})
        self.timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._warden: Warden | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._log: Any = None

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        # A worker that is killed at its time limit cannot clean up, so this process removes its folder.
        self._scratch = tempfile.TemporaryDirectory(prefix="pinchpoint-", ignore_cleanup_errors=True)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        assert self._scratch is not None, "use it as a context manager"
        environment = {
            # Threads that wait for others sleep: they would otherwise spin, on cores that others could use.
            "OMP_WAIT_POLICY": "passive",
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "",
            "JAX_PLATFORMS": "cpu",
            # JAX's CUDA plugin would refuse to load where there is a driver but no card is visible.
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pinchpoint.forecasting.worker_process.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self._warden = Warden(self._process, self._scratch.name)
        target = asdict(self.target)
        hello = {"target": target, "card": self.card.name, "scratch": self._scratch.name, **self._answers}
        self._ask(hello)

    def __exit__(self, *_: object) -> None:
        self._kill()
        if self._scratch is not None:
            self._scratch.cleanup()
        if self._log is not None:
            self._log.close()

    def predict(
        self,
        *,
        size: int | None = None,
        mode: str | None = None,
        variant: str | None = None,
        chunk: int | None = None,
        steps: int = 2,
        half: bool = False,
        args: tuple[str, ...] = (),
        rank: Rank | None = None,
        settings: Overrides | None = None,
        chunk_must_apply: bool = False,
        recompute: Mapping[str, bool] | None = None,
    ) -> Forecast:
        """Return one Forecast. size is None only for a script, which takes args instead.

        settings: by default those of this Forecaster. chunk_must_apply: raise if the variant ignores `chunk`.
        rank: run a script as torchrun would run this process of several.
        recompute: modules of a script to recompute in the backward pass, and whether the results of their
        products are kept. If empty, what that would free and cost is recorded. Either adds "recomputation" to
        `seen`.
        """
        request = {
            "size": size,
            "mode": mode,
            "variant": variant,
            "chunk": chunk,
            "chunk_must_apply": chunk_must_apply and chunk is not None,
            "steps": steps,
            "half": half,
            "args": list(args),
            "rank": None if rank is None else asdict(rank),
            "recompute": None if recompute is None else dict(recompute),
            "packages": self.packages,
            "environment": self.environment,
            "allow_network": self.allow_network,
            "seed": self.seed,
            "timeout_s": self.timeout_s,
            "settings": self.settings if settings is None else dict(settings),
        }
        if self._process is None:  # an earlier request was killed at its time limit
            self._start()
        # The worker would describe the GPU that it simulates.
        return replace(Forecast.from_dict(self._ask(request)), machine=machine.describe())

    def output(self) -> str:
        """What the target has printed so far."""
        self._log.seek(0)
        return self._log.read()

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None, (
            "use it as a context manager"
        )
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            ready = self._wait(process.stdout)
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if line is None:
            self._kill()
            smaller = "give the script less to do" if self.target.kind == "script" else "use a smaller --size"
            error = TimedOut(
                f"Predicting {self.target.text} took longer than {self.timeout_s:g} s.",
                hint=f"Raise --timeout, or {smaller}: time depends on the number of operations.",
            )
            raise self._with_dump(error)
        if not line:
            last = self.output().strip().splitlines()[-1:] or ["no output"]
            raise TargetFailed(
                f"The process that imports {self.target.text} died: {last[0]}", hint="Run again with --debug."
            )
        answer = json.loads(line)
        if "error" in answer:
            raise self._with_dump(errors.from_dict(answer))
        return answer

    def _wait(self, stream: Any) -> bool:
        """Wait for an answer until the time limit, and report what the worker is doing in the meantime."""
        end_s = time.monotonic() + self.timeout_s
        while (left_s := end_s - time.monotonic()) > 0:
            # Without a listener, one wait; otherwise the worker's status file is read every second.
            wait_s = left_s if self._on_status is None else min(left_s, 1.0)
            if select.select([stream], [], [], wait_s)[0]:
                return True
            if self._on_status is not None and self._scratch is not None:
                status = Path(self._scratch.name, STATUS_FILE)
                text = status.read_text(encoding="utf-8").strip() if status.exists() else ""
                if text:
                    self._on_status(text)
        return False

    def _with_dump(self, error: errors.PinchpointError) -> errors.PinchpointError:
        """The error with the traceback that the target's process wrote when it crashed or ran out of time."""
        text = self.output()
        starts = [text.rfind(mark) for mark in ("Fatal Python error:", "Timeout (")]
        if max(starts) >= 0:
            error.add_note(f"in the process of the target:\n{text[max(starts) :][:_DUMP_LENGTH].strip()}")
        return error

    def _kill(self) -> None:
        """End the worker and everything it has forked or started."""
        if self._process is None:
            return
        if self._warden is not None:
            self._warden.end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = self._warden = None


def open_forecasts(
    forecaster: Forecasts | None, target: str | Workload | Factory, **options: Any
) -> AbstractContextManager[Forecasts]:
    """The forecaster that the caller has, or else a new `Forecaster` of the target with these options."""
    return Forecaster(target, **options) if forecaster is None else nullcontext(forecaster)
