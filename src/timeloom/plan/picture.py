"""A schedule as a picture: a line for each device, time from left to right.

Shape letters: S steps, D devices.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from timeloom.plan.schedule.instance import Instance
from timeloom.plan.schedule.schedule import Schedule, loads_of

_BUSY, _WAITS, _ENDS = "█", "·", "│"
_COLORS = ("#4e79a7", "#f28e2b", "#76b7b2", "#59a14f", "#edc948", "#b07aa1")
_LINE, _WIDTH = 22, 1000


def as_text(found: Schedule, problem: Instance, *, width: int = 100, most_devices: int = 16) -> list[str]:
    """Return lines of characters: busy, waiting for the others, and where steps end."""
    loads_SD = loads_of(found, problem)
    ends_S = np.cumsum(loads_SD.max(1))
    scale = width / ends_S[-1] if ends_S[-1] > 0 else 0.0
    lines = []
    for device in range(min(problem.num_devices, most_devices)):
        row = [_WAITS] * width
        for step, end in enumerate(ends_S.tolist()):
            begin = end - float(loads_SD[step].max())
            busy = range(int(begin * scale), min(round((begin + loads_SD[step, device]) * scale), width))
            for place in busy:
                row[place] = _BUSY
        for end in ends_S[:-1].tolist():
            # Steps too short to be seen have no mark.
            if len(ends_S) <= width // 4:
                row[min(int(end * scale), width - 1)] = _ENDS
        lines.append(f"device {device:<4} {''.join(row)}")
    if problem.num_devices > most_devices:
        lines.append(f"... and {problem.num_devices - most_devices} more devices")
    return lines


def as_svg(found: Schedule, problem: Instance) -> str:
    """Return a picture whose every box is what a device does in a step; pointing at it names the groups."""
    return "\n".join(_svg_lines(found, problem)) + "\n"


def _svg_lines(found: Schedule, problem: Instance) -> Iterator[str]:
    loads_SD = loads_of(found, problem)
    ends_S = np.cumsum(loads_SD.max(1))
    scale = _WIDTH / ends_S[-1] if ends_S[-1] > 0 else 0.0
    height = _LINE * problem.num_devices
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">'
    for number, (step, end) in enumerate(zip(found.steps, ends_S.tolist(), strict=True)):
        begin = end - float(loads_SD[number].max())
        for device, groups in enumerate(step):
            if not groups:
                continue
            took = float(loads_SD[number, device])
            yield (
                f'<rect x="{begin * scale:.2f}" y="{device * _LINE + 2}" width="{took * scale:.2f}" '
                f'height="{_LINE - 4}" fill="{_COLORS[number % len(_COLORS)]}"><title>step {number}, device {device}: '
                f"groups {', '.join(map(str, groups))}, {took:.4g} s</title></rect>"
            )
    yield "</svg>"
