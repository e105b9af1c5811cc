"""The systems, by the names that `--system` takes: presets, and no code that computes anything."""

from __future__ import annotations

import difflib

from timeloom.errors import BadConfig
from timeloom.systems.blad import blad
from timeloom.systems.distdy import distdy
from timeloom.systems.dygnex import dygnex
from timeloom.systems.dynahb import adt, bvr, dbos, dbov, dynahb, pyd
from timeloom.systems.esdg import esdg
from timeloom.systems.flare import flare
from timeloom.systems.preset import Preset
from timeloom.systems.psg import psg
from timeloom.systems.real import real
from timeloom.systems.vertex import vertex

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        psg(),
        esdg(),
        blad(),
        vertex(),
        distdy(),
        flare(),
        real(),
        real("real_l", "real_l", "its integer program, or its greedy one where that takes too long"),
        real("real_g", "real_g", "its greedy algorithm"),
        dynahb(),
        pyd(),
        adt(),
        dbov(),
        dbos(),
        bvr(),
        dygnex("dygnex_l", "dygnex_l", "its integer program, or its greedy one where that takes too long"),
        dygnex("dygnex_g", "dygnex_g", "its greedy algorithm"),
    )
}


def preset_of(name: str) -> Preset:
    """Return the preset of this name."""
    if name not in PRESETS:
        close = difflib.get_close_matches(name, PRESETS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(PRESETS)}"
        raise BadConfig(f"--system {name} is unknown: {hint}")
    return PRESETS[name]
