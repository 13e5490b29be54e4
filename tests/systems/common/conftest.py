"""Skip these tests without torch, which the training loop needs."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the training loop is torch's")
