"""`timeloom calibrate`: how fast the kernels are on this machine, so that later runs choose well."""

from __future__ import annotations

import json as json_module
import sys
from typing import Annotated

from cyclopts import Parameter

from timeloom.errors import BadConfig
from timeloom.plan.cost import as_json


def calibrate(
    *,
    threads: Annotated[int, Parameter(help="Torch's threads (0: as torch chooses).")] = 0,
    device: Annotated[str, Parameter(help="cpu, cuda or cuda:0.")] = "cpu",
    json: Annotated[bool, Parameter(help="Print the costs as JSON.")] = False,
    quiet: Annotated[bool, Parameter(help="Show no progress.")] = False,
) -> None:
    """Measure the kernels on this machine (half a minute or so) and keep what they cost.

    Runs that begin later with as many threads go by it where reuse.mode=auto chooses how the rows of a window are
    made. A run that is resumed goes by the costs that it began with.

    Examples
    --------
    timeloom calibrate
    timeloom calibrate --threads 1
    """
    if threads < 0:
        raise BadConfig(f"--threads {threads} is too small: give 1 or more, or 0 for as many as torch chooses")
    from timeloom.train.calibrate import calibrate_machine

    told, path = calibrate_machine(
        device, threads, lambda line: None if quiet else print(line, file=sys.stderr, flush=True)
    )
    if json:
        sys.stdout.write(json_module.dumps(as_json(told.costs)) + "\n")
        return
    for kernel, factor in told.typical_error.items():
        sys.stdout.write(f"{kernel:10} typically told within a factor of {factor:.2f}\n")
    sys.stdout.write(f"kept in {path}, for runs with {told.costs.threads} threads\n")
