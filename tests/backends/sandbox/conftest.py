"""`run_sandboxed`: run the source of a script in the sandbox, in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import pinchpoint

SOURCES = Path(pinchpoint.__file__).parents[1]
DRIVER = Path(__file__).with_name("driver.py")


@pytest.fixture
def run_sandboxed(tmp_path: Path) -> Callable[..., SimpleNamespace]:
    """`run_sandboxed(source, *arguments, steps=2, locked=False, allow_network=False, env={})`: its result.

    The script is work/train.py and runs in the folder work, which the test may fill before.
    """

    def run(
        source: str,
        *arguments: str,
        steps: int = 2,
        locked: bool = False,
        allow_network: bool = False,
        env: dict[str, str] | None = None,
    ) -> SimpleNamespace:
        work, scratch, result = tmp_path / "work", tmp_path / "scratch", tmp_path / "result.json"
        work.mkdir(exist_ok=True)
        script = work / "train.py"
        text = textwrap.dedent(source)
        if not script.exists() or script.read_text() != text:
            script.write_text(text)
        variables = {**os.environ, "ALLOW_NETWORK": str(int(allow_network)), **(env or {})}
        # The package must be importable even if it is not installed or the test sets its own path.
        variables["PYTHONPATH"] = os.pathsep.join([variables.get("PYTHONPATH", ""), str(SOURCES)]).strip(
            os.pathsep
        )
        process = subprocess.run(
            [
                sys.executable,
                DRIVER,
                result,
                scratch,
                str(steps),
                "locked" if locked else "open",
                script,
                *arguments,
            ],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=600,
            env=variables,
            input="typed by the user",
        )
        assert process.returncode == 0, process.stderr
        assert process.stdout == "driver's own output\n"
        return SimpleNamespace(**json.loads(result.read_text()), work=work, scratch=scratch)

    return run
