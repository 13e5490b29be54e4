"""Records in notebooks, and the example notebooks: they run, and their stored outputs are complete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pinchpoint.core.records import KINDS
from pinchpoint.reporting.notebook import picture, record_html

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples" / "notebooks").glob("*.ipynb"))
PNG = b"\x89PNG\r\n"


@pytest.fixture
def records(samples: dict[str, Any], report_records: dict[str, Any]) -> dict[str, Any]:
    return {**samples, **{record.kind: record for record in report_records.values()}}


def test_every_kind_shows_its_answer_its_numbers_and_a_picture(records: dict[str, Any]) -> None:
    assert set(records) == set(KINDS)
    for record in records.values():
        text = record_html(record)
        assert text.startswith("<div><p><strong>") and record.target in text and "<table>" in text
    drawn = {kind for kind, record in records.items() if (png := picture(record)) and png.startswith(PNG)}
    assert drawn >= {"forecast", "plan", "study", "verdict", "trace", "checkpointing"}


def test_text_of_a_record_is_escaped_in_html_and_can_be_drawn(records: dict[str, Any]) -> None:
    for kind in ("forecast", "plan", "verdict", "study"):
        record = replace(records[kind], target="<script>$x$ 水")
        assert "<script>" not in record_html(record)
        assert (picture(record) or b"").startswith(PNG)


def test_a_notebook_gets_html_and_then_a_png(
    records: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    display = pytest.importorskip("IPython.display")
    outputs: list[Any] = []
    monkeypatch.setattr(display, "display", outputs.append)
    records["forecast"]._ipython_display_()
    assert [type(output).__name__ for output in outputs] == ["HTML", "Image"]
    outputs.clear()
    replace(records["check"], trace=None)._ipython_display_()
    assert [type(output).__name__ for output in outputs] == ["HTML"]


def outputs_of(notebook: Any) -> list[list[str]]:
    """What each code cell shows: `text/html`, `image/png`, `text/markdown`, `stdout`."""
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            kinds = []
            for output in cell["outputs"]:
                types = [kind for kind in output.get("data", {}) if kind != "text/plain"]
                kinds += types or [output.get("name", output["output_type"])]
            shown.append(kinds)
    return shown


def test_the_stored_notebooks_are_executed_small_and_without_errors() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["density", "toolkit"]
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        notebook = json.loads(text)
        counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert counts == list(range(1, len(counts) + 1)) and len(text) < 500_000
        kinds = outputs_of(notebook)
        assert not any(kind in ("error", "stderr") for shown in kinds for kind in shown)
        assert ["text/html", "image/png"] in kinds


@pytest.mark.slow
def test_the_density_notebook_runs_and_shows_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    for name in ("ipykernel", "torch", "ase"):
        pytest.importorskip(name)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the tests' own; a notebook draws into its cells
    path = NOTEBOOKS[0]
    notebook = nbformat.read(path, as_version=4)
    stored = outputs_of(notebook)
    folder = {"metadata": {"path": str(path.parent)}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=folder).execute()
    assert outputs_of(notebook) == stored


@pytest.mark.slow
@pytest.mark.usefixtures("quick_workers")
def test_the_toolkit_notebook_runs_and_shows_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, not in a kernel: the forecasts of its cells share a worker that has imported torch."""
    pytest.importorskip("IPython")
    pytest.importorskip("torch")
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.chdir(NOTEBOOKS[1].parent)
    notebook = json.loads(NOTEBOOKS[1].read_text(encoding="utf-8"))
    stored = outputs_of(notebook)
    InteractiveShell.clear_instance()
    shell: Any = InteractiveShell.instance(user_module=ModuleType("notebook"))
    shell.history_manager.enabled = False
    outputs: list[dict[str, Any]] = []

    def publish(data: dict[str, Any], *_: Any, **__: Any) -> None:
        if data:
            outputs.append({"output_type": "display_data", "data": data})

    shell.display_pub.publish = publish
    shell.display_trap.hook = lambda value: value is None or publish(shell.display_formatter.format(value)[0])
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                outputs.clear()
                shell.run_cell("".join(cell["source"])).raise_error()
                cell["outputs"] = list(outputs)
    finally:
        InteractiveShell.clear_instance()
    assert outputs_of(notebook) == stored
