"""One rank of a test, as a process: ``python -m tests.train.rank FOLDER`` under any launcher takes ten steps.

FOLDER/settings.toml says what is learnt; losses, norms and parameters go to FOLDER/rank0, rank1, ...
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import torch

from tests.train.test_systems import learn
from timeloom.config import build
from timeloom.graph.dynamic import open_graph
from timeloom.train.planning import plan_epoch
from timeloom.train.ranks import end_process, here, joined
from timeloom.train.session import open_session
from timeloom.train.settings import RunSettings


def main(folder: Path) -> None:
    settings = build(RunSettings, tomllib.loads((folder / "settings.toml").read_text()))
    stop = open_session(settings, open_graph(settings.graph)).split.train_stop
    with joined(settings, here()) as world:
        found = learn(settings, world, lambda epoch: plan_epoch(settings, stop, epoch=epoch, ranks=world.size))
        numbers = {name: torch.tensor(getattr(found, name), dtype=torch.float64) for name in ("losses", "norms")}
        torch.save({**found.parameters, **numbers}, folder / f"rank{world.rank}")
    end_process(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
