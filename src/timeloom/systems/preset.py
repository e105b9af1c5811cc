"""What a preset is: a name for a set of decisions, as settings that a run may still change one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A system by its name; ``settings`` are nested as in a configuration file and lie below the user's own."""

    name: str
    about: str
    settings: Mapping[str, Any]
    also: tuple[str, ...] = ()
    """Settings, as `--set` takes them, with which it serves other models than by itself."""
