"""One rank of a test, as a process: ``python -m tests.dist.worker WHAT FOLDER`` under any launcher."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from tests.dist.scenarios import SCENARIOS
from timeloom.dist.collectives import Limits, World
from timeloom.dist.seat import Seat, seat_from
from timeloom.dist.world import end_process, join
from timeloom.errors import BadInput, TimeloomError

CPU = torch.device("cpu")


def scenarios(world: World, folder: Path) -> None:
    """All that worlds must do."""
    for scenario in SCENARIOS:
        scenario(world)


def steps(world: World, *, bad: Callable[[], None], at: int = 5, names: str = "grad") -> None:
    """Twenty steps, of which rank 1 does something bad in the fifth."""
    for step in range(20):
        world.begin_step(step)
        world.all_reduce(torch.ones(1000), names)
        if world.rank == 1 and step == at:
            # Pulses must have told of this step, as they have in steps that do some work.
            time.sleep(0.6)
            bad()
        world.all_reduce(torch.ones(10), "halo/layer0")


def killed(world: World, folder: Path) -> None:
    steps(world, bad=lambda: os.kill(os.getpid(), signal.SIGKILL))


def stopped(world: World, folder: Path) -> None:
    steps(world, bad=lambda: os.kill(os.getpid(), signal.SIGSTOP))


def raising(world: World, folder: Path) -> None:
    def fail() -> None:
        raise BadInput("row 7 is broken")

    steps(world, bad=fail)


def leaving(world: World, folder: Path) -> None:
    steps(world, bad=lambda: end_process(0))


def stuck(world: World, folder: Path) -> None:
    steps(world, bad=lambda: time.sleep(600))


def differing(world: World, folder: Path) -> None:
    """Two sums of one shape in different order: silently swapped, were it not for the fingerprints."""
    for name in ("grad/a", "grad/b") if world.rank == 0 else ("grad/b", "grad/a"):
        world.all_reduce(torch.ones(3), name)


def recovering(world: World, folder: Path) -> None:
    """Fails once: in the first attempt only."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        killed(world, folder)
    steps(world, bad=lambda: None)


def asked_to_stop(world: World, folder: Path) -> None:
    """Trains until a signal comes; all ranks agree on the step in which they stop."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    (folder / f"ready{world.rank}").touch()
    step = 0
    while not int(world.all_reduce(torch.tensor([len(asked)]), "grad/flags", "max")):
        step += 1
        time.sleep(0.01)
    (folder / f"stopped{world.rank}").write_text(str(step))
    world.close()
    end_process(75)


def listening(world: World, folder: Path) -> None:
    """Says which addresses this process listens on, and its parent."""
    found = [
        connection.laddr.ip
        for process in (psutil.Process(), psutil.Process(os.getppid()))
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    (folder / f"listening{world.rank}").write_text(" ".join(found))


def waiting(world: World, folder: Path) -> None:
    """Waits for ever, and says who it is."""
    (folder / f"pid{world.rank}.new").write_text(str(os.getpid()))
    (folder / f"pid{world.rank}.new").rename(folder / f"pid{world.rank}")
    while True:
        world.all_reduce(torch.ones(1), "grad")
        time.sleep(0.05)


def twice(world: World, folder: Path) -> None:
    """Leaves the world and joins another in the same process."""
    world.all_reduce(torch.ones(1), "grad")
    world.close()
    again = join(seat(), device=CPU, limits=LIMITS, check=False)
    assert int(again.all_reduce(torch.ones(1), "grad")) == world.size


def seat() -> Seat:
    found = seat_from(os.environ)
    assert found is not None
    return found


LIMITS = Limits(first_s=60.0, step_s=float(os.environ.get("TEST_LIMIT_S", "20")))
WHATS = (
    scenarios, killed, stopped, raising, leaving, stuck, differing, recovering, asked_to_stop, listening, waiting, twice
)  # fmt: skip


def main(what: str, folder: str) -> None:
    torch.set_num_threads(1)
    world = join(seat(), device=CPU, limits=LIMITS, check="TEST_CHECK" in os.environ)
    try:
        next(known for known in WHATS if known.__name__ == what)(world, Path(folder))
    except BaseException as error:
        world.fail(error)
        Path(folder, f"told{world.rank}").write_text(f"{type(error).__name__}: {error}")
        end_process(error.exit_code if isinstance(error, TimeloomError) else 1)
    Path(folder, f"done{world.rank}").touch()
    end_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
