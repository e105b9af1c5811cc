"""How a problem is solved in a process of its own, beside training.

The problem goes to the process, and its answer comes back, through files without a name: nothing waits for a reader.
`python -m timeloom.plan.schedule.apart` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from timeloom.errors import TimeloomError
from timeloom.parent import end_with
from timeloom.plan.schedule.choose import ScheduleSettings, scheduler_of
from timeloom.plan.schedule.instance import Instance
from timeloom.plan.schedule.schedule import Judged, from_json, judge, solve

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
_NICE = 10
_SOURCES = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A problem, and how it is to be solved."""

    problem: Instance
    settings: ScheduleSettings
    epoch_s: float
    """The time of an epoch now: solvers get twice as long."""
    seed: int


class Solver:
    """A process that solves one problem."""

    def __init__(self, question: Question) -> None:
        self._problem = question.problem
        self._answer, self._complaint = (
            tempfile.TemporaryFile(),  # noqa: SIM115 (closed by `close`)
            tempfile.TemporaryFile(),  # noqa: SIM115
        )
        paths = [str(_SOURCES), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | dict.fromkeys(_THREADS, "1") | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        with tempfile.TemporaryFile() as asked:
            asked.write(json.dumps(_as_json(question)).encode())
            asked.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid())],
                stdin=asked,
                stdout=self._answer,
                stderr=self._complaint,
                env=environment,
            )

    def poll(self) -> Judged | None:
        """Return the answer if there is one (None: not yet); this takes no time."""
        code = self._process.poll()
        if code is None:
            return None
        told, complaint = _read(self._answer), _read(self._complaint)
        if code != 0:
            last = (complaint.strip().splitlines() or ["it said nothing"])[-1]
            raise TimeloomError(
                f"the process that solves the schedule ended with {code}: {last}; --set schedule.scheduler=in_order "
                "trains without one"
            )
        found = json.loads(told)
        schedule = replace(from_json(found["steps"], self._problem), by=str(found["by"]))
        return judge(schedule, self._problem, solved_s=float(found["solved_s"]))

    def close(self) -> None:
        """End the process if it is still at work."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._answer.close()
        self._complaint.close()


def _read(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _as_json(question: Question) -> dict[str, Any]:
    problem = question.problem
    return {
        "seconds": problem.seconds_K.tolist(), "reuse": problem.reuse_KB.tolist(), "speeds": problem.speeds_D.tolist(),
        "limit": problem.limit, "alpha_s": problem.alpha_s, "settings": asdict(question.settings),
        "epoch_s": question.epoch_s, "seed": question.seed,
    }  # fmt: skip


def _from_json(told: dict[str, Any]) -> Question:
    seconds = np.array(told["seconds"], np.float64)
    problem = Instance(
        seconds_K=seconds, reuse_KB=np.array(told["reuse"], np.float64).reshape(len(seconds), -1),
        speeds_D=np.array(told["speeds"], np.float64), limit=told["limit"], alpha_s=told["alpha_s"],
    )  # fmt: skip
    settings = ScheduleSettings(**told["settings"])
    return Question(problem=problem, settings=settings, epoch_s=told["epoch_s"], seed=told["seed"])


def main() -> None:
    """Answer the question on standard input."""
    # Whoever asked may be killed; nobody else wants to know the answer.
    end_with(int(sys.argv[1]))
    # Training comes first.
    os.nice(_NICE)
    question = _from_json(json.load(sys.stdin))
    found = solve(question.problem, scheduler_of(question.settings, epoch_s=question.epoch_s, seed=question.seed))
    told = {"steps": found.schedule.as_json(), "by": found.schedule.by, "solved_s": found.solved_s}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
