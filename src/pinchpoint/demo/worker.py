"""A process of the demo: runs the stages of the systems it is asked for, and sends their messages.

Run it as `python -m pinchpoint.demo.worker OUTPUT SEED DEVICE`. It reads names of systems, one per line, and
writes messages as lines of JSON; `{"system": NAME, "done": true}` is the last of a system. Frameworks are
imported once for all systems of a process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pinchpoint.core.discovery import demo_modules
from pinchpoint.demo.stages import Message, run_stages


def main(output: str, seed: str, device: str) -> None:
    modules = {module.SHOW.workload: module for module in demo_modules()}
    # What libraries print must not get between the messages.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as channel:
        os.dup2(2, 1)

        def send(message: Message) -> None:
            channel.write(json.dumps(message) + "\n")
            channel.flush()

        for line in sys.stdin:
            name = line.strip()
            for message in run_stages(modules[name], Path(output), seed=int(seed), device=device):
                send({"system": name, **message})
            send({"system": name, "done": True})


if __name__ == "__main__":
    main(*sys.argv[1:])
