"""`check_model_type`: whether the installed transformers has a language model of a configuration's type.

The names are read from the source of transformers, whose import takes seconds.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

from pinchpoint.core.errors import BadInput

_CLASSES = {
    False: ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
    True: ("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
}
_CONFIG = re.compile(
    r'"([\w.-]+)"\s*[,:]\s*"\w+Config"'
)  # ("llama", "LlamaConfig") or "llama": "LlamaConfig"
_MODEL = re.compile(r'\(\s*"([\w.-]+)"\s*,')


def check_model_type(config: dict[str, Any], path: Path) -> None:
    """Raise BadInput if transformers is installed and has no such model, or none that writes text."""
    folder = _auto_folder()
    if folder is None or "auto_map" in config:  # a model with code of its own
        return
    kind = config["model_type"]
    known = {name for file in folder.glob("*.py") for name in _CONFIG.findall(file.read_text("utf-8"))}
    if not known:  # written in a way that is not known here
        return
    version = importlib.metadata.version("transformers")
    if kind not in known:
        close = difflib.get_close_matches(kind, sorted(known), n=3, cutoff=0.7)
        instead = f"Write {' or '.join(close)} as its model_type, or" if close else "If the model is newer,"
        raise BadInput(
            f"The installed transformers {version} has no model of type {kind!r}, which {path} names.",
            hint=f"{instead} upgrade transformers: pip install --upgrade transformers.",
        )
    class_name, table = _CLASSES[bool(config.get("is_encoder_decoder"))]
    names = _names_in(folder / "modeling_auto.py", table)
    if names and kind not in names:
        raise BadInput(
            f"A model of type {kind!r} is not a language model: transformers {version} has no {class_name} "
            "for it, which --model builds.",
            hint="Give a script that trains it: pinchpoint predict train.py.",
        )


def _auto_folder() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    folders = (spec.submodule_search_locations if spec else None) or []
    return next(
        (path for path in (Path(each) / "models" / "auto" for each in folders) if path.is_dir()), None
    )


def _names_in(file: Path, table: str) -> set[str]:
    """The model types in one of the tables of a file, which ends at a line with a single bracket."""
    text = file.read_text("utf-8") if file.is_file() else ""
    _, _, rest = text.partition(f"\n{table} = ")
    return set(_MODEL.findall(rest.partition("\n)\n")[0]))
