"""Runs one script inside all guards, in a process of its own, and writes what came of it as JSON.

`python driver.py RESULT SCRATCH STEPS LOCKED SCRIPT [ARGUMENTS]`. The script finds `step()` among its built-ins: it
stands for the optimizer step that a framework's backend would count.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from pathlib import Path

from pinchpoint.backends.sandbox.run_script import Stopper, run_script
from pinchpoint.backends.sandbox.sandbox import NoHarm
from pinchpoint.backends.sandbox.script_errors import fault
from pinchpoint.core.errors import to_dict

result, scratch, steps, locked, script, *arguments = sys.argv[1:]
opened = os.open(result, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)  # before the lock, which then lets it be
stopper = Stopper(int(steps))
builtins.step = stopper.step  # type: ignore[attr-defined]
with NoHarm(Path(scratch), locked=locked == "locked") as guards:
    end = run_script(script, arguments, scratch=Path(scratch), stopper=stopper)
error = fault(end, script=script, steps=stopper.taken, refused=guards.processes.refused)
found = {
    "kind": end.kind,
    "code": end.code,
    "steps": stopper.taken,
    "output": end.output,
    "complaints": end.complaints,
    "fault": to_dict(error) if error else None,
    "exit_code": error.exit_code if error else 0,
    "refused": guards.processes.refused,
    "written": guards.overlay.written(),
    "locked": guards.locked,
}
os.write(opened, json.dumps(found).encode())
print("driver's own output")
sys.stdout.flush()
os._exit(0)
