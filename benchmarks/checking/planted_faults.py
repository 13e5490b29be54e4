"""The planted-fault table: `check` of every script in examples/slow and of its fixed twin in examples/fast.

    PYTHONPATH=src python benchmarks/checking/planted_faults.py -o planted_faults.json
    PYTHONPATH=src python benchmarks/checking/planted_faults.py --read planted_faults.json    # the table only

The scripts run for real. A fault is found if the answer names its rule at a line of its statement. Whatever
the answer says about a twin is a false alarm. The exit code is 1 if a fault is missed or an alarm is false.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pinchpoint
from pinchpoint.core import machine
from pinchpoint.core.records import Check, now

EXAMPLES = Path(__file__).parents[2] / "examples"


def planted(text: str) -> list[tuple[int, int, str]]:
    """First and last line of the statement, and the rule, for every `# fault: RULE, RULE` comment."""
    statements = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]
    faults = []
    for number, line in enumerate(text.splitlines(), 1):
        for name in line.partition("# fault: ")[2].split(", "):
            starts = [node.lineno for node in statements if node.end_lineno == number]
            faults += [(min(starts, default=number), number, name)] if name else []
    return faults


def compare(faults: list[tuple[int, int, str]], result: Check) -> dict[str, Any]:
    """How many faults an answer names, which it misses, and what else it says."""
    answers = [advice for advice in result.advice if advice.rule]

    def of(fault: tuple[int, int, str]) -> list[Any]:
        first, last, name = fault
        return [each for each in answers if each.name == name and first <= each.line <= last]

    expected = [advice for fault in faults for advice in of(fault)]
    return {
        "planted": len(faults),
        "found": sum(bool(of(fault)) for fault in faults),
        "missed": [f"{name} in line {last}" for first, last, name in faults if not of((first, last, name))],
        "measured": sum(any(each.cost_s is not None for each in of(fault)) for fault in faults),
        "others": [
            f"{each.name} in line {each.line}: {each.what}" for each in result.advice if each not in expected
        ],
        "device": result.trace.device if result.trace else None,
        "steps": result.trace.steps if result.trace else 0,
        "error": result.error,
    }


def check_one(script: Path) -> dict[str, Any]:
    start = time.perf_counter()
    result = pinchpoint.check(str(script), output_to_stderr=True)
    took_s = time.perf_counter() - start
    print(f"{script.parent.name}/{script.name}: {took_s:.0f} s", file=sys.stderr)
    return {**compare(planted(script.read_text(encoding="utf-8")), result), "took_s": took_s}


def run(jobs: int) -> dict[str, Any]:
    slow = sorted((EXAMPLES / "slow").glob("*.py"))
    fast = [EXAMPLES / "fast" / script.name for script in slow]
    with ThreadPoolExecutor(jobs) as pool:
        answers = list(pool.map(check_one, [*slow, *fast]))
    scripts = {
        script.stem: {"slow": of_slow, "fast": of_fast}
        for script, of_slow, of_fast in zip(slow, answers, answers[len(slow) :], strict=False)
    }
    command = f"python benchmarks/checking/planted_faults.py --jobs {jobs}"
    return {"scripts": scripts, "command": command, "machine": machine.describe(), "created": now()}


def table(record: dict[str, Any]) -> str:
    rows = [
        "| script | found / planted | with a measured cost | other advice | false alarms on the fixed twin |",
        "|---|---:|---:|---:|---:|",
    ]
    total = [0] * 5
    for name, row in record["scripts"].items():
        slow, fast = row["slow"], row["fast"]
        values = [
            slow["found"],
            slow["planted"],
            slow["measured"],
            len(slow["others"]),
            len(fast["others"]) + bool(fast["error"]),
        ]
        total = [a + b for a, b in zip(total, values, strict=True)]
        rows.append(f"| {name} | {values[0]} / {values[1]} | {values[2]} | {values[3]} | {values[4]} |")
    rows.append(f"| all | {total[0]} / {total[1]} | {total[2]} | {total[3]} | {total[4]} |")
    return "\n".join(rows) + "\n"


def is_perfect(record: dict[str, Any]) -> bool:
    return all(
        row["slow"]["planted"]
        and not row["slow"]["missed"]
        and not row["slow"]["error"]
        and not row["fast"]["others"]
        and not row["fast"]["error"]
        for row in record["scripts"].values()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Check examples/slow and examples/fast, and count.")
    parser.add_argument("-o", "--output", type=Path, help="File for the record.")
    parser.add_argument("--read", type=Path, help="Print the table of this record instead of running.")
    parser.add_argument("--jobs", type=int, default=1, help="Scripts that run at the same time.")
    options = parser.parse_args()
    record = json.loads(options.read.read_text(encoding="utf-8")) if options.read else run(options.jobs)
    if options.output is not None:
        options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(record), end="")
    for name, row in record["scripts"].items():
        for kind, problems in (("slow", row["slow"]["missed"]), ("fast", row["fast"]["others"])):
            print("".join(f"{kind}/{name}.py: {text}\n" for text in problems), end="")
    return 0 if is_perfect(record) else 1


if __name__ == "__main__":
    sys.exit(main())
