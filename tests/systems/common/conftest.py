"""The training loop is torch's."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the training loop is torch's")
