"""`timeloom systems`: what divides work among ranks, by the names that --system takes, and which models it serves."""

from __future__ import annotations

import sys


def systems() -> None:
    """List the systems, by the names that --system takes, and which models they serve on several ranks.

    Examples
    --------
    timeloom systems
    """
    from timeloom.config import build, merge, parse_sets
    from timeloom.nn.models import MODELS
    from timeloom.nn.settings import ModelSettings
    from timeloom.systems import PRESETS
    from timeloom.train.serves import refusal_of
    from timeloom.train.settings import RunSettings

    lines = [f"{name:16} {preset.about}" for name, preset in PRESETS.items()]
    ways = {
        " ".join((name, *more)): build(RunSettings, merge({"graph": ""}, preset.settings, parse_sets(more))).system
        for name, preset in PRESETS.items()
        for more in ((), *((one,) for one in preset.also))
    }
    lines += ["", " ".join((f"{'on several ranks':16}", *ways))]
    reasons: dict[str, list[str]] = {}
    for model in MODELS:
        cells = []
        for way, system in ways.items():
            why = refusal_of(ModelSettings(name=model), system)
            if why is not None:
                reasons.setdefault(f"{way}: {why}", []).append(model)
            cells.append(("yes" if why is None else "no").ljust(len(way)))
        lines.append(" ".join((f"{model:16}", *cells)).rstrip())
    lines += ["", *(f"{', '.join(models)} with {reason}" for reason, models in reasons.items())]
    sys.stdout.write("\n".join(lines) + "\n")
