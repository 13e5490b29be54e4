"""Runs one script in the sandbox, in a separate process, and writes the result as JSON.

`python driver.py RESULT SCRATCH STEPS LOCKED SCRIPT [ARGUMENTS]`. The script can call the built-in `step()`,
which replaces the optimizer step that a framework's backend would count.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from pathlib import Path

from pinchpoint.backends.sandbox.run_script import Stopper, run_script
from pinchpoint.backends.sandbox.sandbox import Sandbox
from pinchpoint.backends.sandbox.script_errors import script_error
from pinchpoint.core.errors import to_dict

result, scratch, steps, locked, script, *arguments = sys.argv[1:]
opened = os.open(result, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # before the lock, which allows open files
stopper = Stopper(int(steps))
builtins.step = stopper.step  # type: ignore[attr-defined]
allow_network = os.environ.pop("ALLOW_NETWORK", "") == "1"
with Sandbox(Path(scratch), locked=locked == "locked", allow_network=allow_network) as guards:
    end = run_script(script, arguments, scratch=Path(scratch), stopper=stopper)
error = script_error(end, script=script, steps=stopper.steps, not_started=guards.processes.refused_commands)
outcome = {
    "kind": end.kind,
    "code": end.code,
    "steps": stopper.steps,
    "output": end.output,
    "complaints": end.complaints,
    "fault": to_dict(error) if error else None,
    "exit_code": error.exit_code if error else 0,
    "refused": guards.processes.refused_commands,
    "written": guards.overlay.written_files(),
    "locked": guards.locked,
    "notes": guards.notes(),
    "filtered": guards.filtered,
}
os.write(opened, json.dumps(outcome).encode())
print("driver's own output")
sys.stdout.flush()
os._exit(0)
