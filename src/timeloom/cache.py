"""Where timeloom keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_home() -> Path:
    """Return the user's cache folder for timeloom (`TIMELOOM_CACHE` overrides it)."""
    if chosen := os.environ.get("TIMELOOM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "timeloom"
