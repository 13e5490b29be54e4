"""Findings as other programs read them: SARIF for code scanning, and the annotations of GitHub Actions."""

from __future__ import annotations

import json
from pathlib import PurePath
from typing import Any

from pinchpoint.core.findings import Finding, Findings
from pinchpoint.rules.engine.catalog import all_rules
from pinchpoint.rules.engine.rule import Rule


def to_sarif(findings: Findings, version: str) -> str:
    """The findings as a SARIF 2.1.0 log. version: of pinchpoint."""
    rules = list(all_rules())
    places = {rule.code: place for place, rule in enumerate(rules)}
    driver = {
        "name": "pinchpoint",
        "version": version,
        "rules": [_describe(rule) for rule in rules],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "results": [_result(finding, places[finding.rule]) for finding in findings],
        "columnKind": "unicodeCodePoints",
    }
    if findings.unreadable:
        notes = [
            {"level": "warning", "message": {"text": f"{fault.file} was not scanned: {fault.reason}."}}
            for fault in findings.unreadable
        ]
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": notes}]
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1)


def _describe(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": " ".join(rule.text().split())},
        "help": {"text": " ".join(rule.text().split())},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": [rule.family]},
    }


def _result(finding: Finding, place: int) -> dict[str, Any]:
    region = {"startLine": finding.line, "startColumn": finding.column}
    location = {"artifactLocation": {"uri": PurePath(finding.file).as_posix()}, "region": region}
    return {
        "ruleId": finding.rule,
        "ruleIndex": place,
        "level": "warning",
        "message": {"text": f"{finding.message} {finding.hint}"},
        "locations": [{"physicalLocation": location}],
    }


def to_github(findings: Findings) -> str:
    """One command of GitHub Actions per finding, which shows it beside the line."""
    lines = [
        f"::warning file={_property(f.file)},line={f.line},col={f.column},"
        f"title={_property(f'{f.rule} {f.name}')}::{_text(f'{f.message} {f.hint}')}"
        for f in findings
    ]
    return "".join(f"{line}\n" for line in lines)


def _text(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _text(value).replace(":", "%3A").replace(",", "%2C")
