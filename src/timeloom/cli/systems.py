"""`timeloom systems`: what divides work among ranks, by the names that --system takes."""

from __future__ import annotations

import sys


def systems() -> None:
    """List the systems, by the names that --system takes.

    Examples
    --------
    timeloom systems
    """
    from timeloom.systems import PRESETS

    sys.stdout.write("".join(f"{name:16} {preset.about}\n" for name, preset in PRESETS.items()))
