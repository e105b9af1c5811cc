"""A scheduler that is none: sbatch, srun and scontrol of one machine, as far as examples/slurm.sh uses them.

``python fake_slurm.py sbatch SCRIPT ...`` runs the script as a job, and again where that asks to be queued again. What
it is to do stands in FAKE_SLURM/plan.json: how many tasks a step has, and what is sent in each life of the job. The
signal of the time limit reaches the tasks alone (as --signal without B: does), preemption the script and the tasks.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HOME = Path(os.environ["FAKE_SLURM"])


def sbatch(script: str, *arguments: str) -> int:
    plan = json.loads((HOME / "plan.json").read_text())
    limit_signal = re.search(r"^#SBATCH --signal=(\w+)@\d+", Path(script).read_text(), re.MULTILINE)
    told: list[dict[str, Any]] = []
    for life in range(len(plan["sent"]) + 1):
        for name in ("requeue", "step"):
            (HOME / name).unlink(missing_ok=True)
        environ = {**os.environ, "SLURM_JOB_ID": plan["job"], "SLURM_RESTART_COUNT": str(life)}
        if not life:
            del environ["SLURM_RESTART_COUNT"]
        job = subprocess.Popen(["bash", script, *arguments], env=environ)
        sent = plan["sent"][life] if life < len(plan["sent"]) else ""
        began = _send(job, sent, limit_signal[1] if limit_signal else "", plan) if sent else time.monotonic()
        told.append({"code": job.wait(), "sent": sent, "seconds": time.monotonic() - began})
        (HOME / "told.json").write_text(json.dumps(told))
        if not (HOME / "requeue").exists() or (HOME / "requeue").read_text() != plan["job"]:
            break
    return int(told[-1]["code"])


def _send(job: subprocess.Popen[bytes], sent: str, limit_signal: str, plan: dict[str, Any]) -> float:
    """Wait until the step is well under way, then send; return when that was."""
    records, before = Path(plan["records"]), _epochs(Path(plan["records"]))
    while not (HOME / "step").exists() or _epochs(records) < before + 3:
        if job.poll() is not None:
            return time.monotonic()
        time.sleep(0.02)
    number = signal.Signals[f"SIG{limit_signal}"] if sent == "limit" else signal.SIGTERM
    tasks = [int(pid) for pid in (HOME / "step").read_text().split()]
    for pid in tasks if sent == "limit" else [job.pid, *tasks]:
        os.kill(pid, number)
    return time.monotonic()


def _epochs(records: Path) -> int:
    return records.read_text().count('"epoch_ended"') if records.exists() else 0


def srun(*arguments: str) -> int:
    plan = json.loads((HOME / "plan.json").read_text())
    command = list(arguments)
    while command[0].startswith("-"):
        command.pop(0)
    count = plan["tasks"]
    step = {
        "SLURM_NTASKS": str(count), "SLURM_STEP_NODELIST": "here", "SLURM_STEP_TASKS_PER_NODE": str(count),
        "SLURM_NODEID": "0", "SLURM_STEP_ID": "0",
    }  # fmt: skip
    tasks = [
        subprocess.Popen(command, env={**os.environ, **step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
        for rank in range(count)
    ]
    (HOME / "step.new").write_text(" ".join(str(task.pid) for task in tasks))
    (HOME / "step.new").rename(HOME / "step")
    return max(code if code >= 0 else 128 - code for code in [task.wait() for task in tasks])


def scontrol(what: str, job: str) -> int:
    assert what == "requeue"
    (HOME / "requeue").write_text(job)
    return 0


if __name__ == "__main__":
    programs: dict[str, Callable[..., int]] = {"sbatch": sbatch, "srun": srun, "scontrol": scontrol}
    sys.exit(programs[sys.argv[1]](*sys.argv[2:]))
