"""Notes about operations whose memory on a GPU is not fully modelled; each appears once in a Forecast."""

from __future__ import annotations

import torch

from pinchpoint.backends.torch.ledger import Ledger, Site
from pinchpoint.core.files import shown_path


def note_on(name: str) -> str | None:
    """What a user should know about an operation, besides its memory."""
    if name == "aten::convolution" and torch.backends.cudnn.benchmark:
        return (
            "torch.backends.cudnn.benchmark is on: while cuDNN searches, it uses free memory for a moment "
            "and skips kernels that do not fit; `fits` does not count this memory"
        )
    return None


class Notes:
    """Adds a note about what is missing, once per operation, with the first line that runs it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._names: set[str] = set()

    def say(self, name: str, what: str, site: Site, *, is_reason: bool = False) -> None:
        """Add a note; a reason also makes it unknown whether the run fits."""
        if name not in self._names:
            self._names.add(name)
            where = shown_path(f"{site.file}:{site.line}")
            observation = self.ledger.observation
            (observation.reasons if is_reason else observation.notes).append(f"{name} at {where}: {what}")

    def add_reason(self, site: str, what: str) -> None:
        """Add a reason about `file:line:operation`, once."""
        line, name = site.rsplit(":", 1)
        if site not in self._names:
            self._names.add(site)
            self.ledger.observation.reasons.append(f"{name} at {shown_path(line)}: {what}")
