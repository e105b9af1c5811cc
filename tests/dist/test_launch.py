"""What the launcher makes of its workers' ends; the workers are small programs that know nothing of worlds."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from timeloom.dist.launch import Launch, Outcome, _Workers, supervise
from timeloom.errors import BadConfig


def run(
    script: str, *, workers: int = 2, max_restarts: int = 0, min_workers: int = 0, grace_s: float = 0.3
) -> Outcome:  # fmt: skip
    """Run a shell script as ranks."""
    return supervise(
        Launch(
            command=("sh", "-c", script), workers=workers, max_restarts=max_restarts, min_workers=min_workers,
            grace_s=grace_s,
        )
    )  # fmt: skip


def children() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]


def test_all_is_well_when_all_ranks_end_well() -> None:
    assert run("exit 0", workers=3) == Outcome(0, "", 1)


def test_each_rank_is_told_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    names = (
        "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $GLOO_SOCKET_IFNAME $TORCHELASTIC_RESTART_COUNT"
    )
    group = "$(cut -d ' ' -f 5 /proc/$$/stat)"
    run(f'echo "{names} $PPID $TIMELOOM_LAUNCHER $OMP_NUM_THREADS $(({group} - $$))" > {tmp_path}/$RANK', workers=2)
    threads = max(len(os.sched_getaffinity(0)) // 2, 1)
    for rank in range(2):
        told = (tmp_path / str(rank)).read_text().split()
        assert told == [str(rank)] * 2 + ["2", "2", "127.0.0.1", "lo", "0"] + [str(os.getpid())] * 2 + [
            str(threads),
            "0",
        ]


def test_a_choice_of_threads_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    run(f"echo $OMP_NUM_THREADS > {tmp_path}/$RANK")
    assert (tmp_path / "1").read_text() == "7\n"


@pytest.mark.parametrize(
    ("script", "code", "told"),
    [
        ("exit 3", 3, "rank 1 ended with exit code 3 (last seen at its start)"),
        ("kill -KILL $$", 137, "rank 1 was ended by SIGKILL (last seen at its start)"),
    ],
)
def test_the_first_failure_gives_the_code_and_is_named(script: str, code: int, told: str) -> None:
    assert run(f'[ "$RANK" = 1 ] || exec sleep 60; {script}', workers=3) == Outcome(
        code, f"{told}; rank 0, rank 2 did not end and had to be killed", 1
    )
    assert children() == []


def test_who_merely_lost_another_rank_is_not_the_first_failure() -> None:
    outcome = run('[ "$RANK" = 0 ] && exit 8; sleep 0.1; kill -KILL $$', grace_s=5.0)
    assert outcome == Outcome(137, "rank 1 was ended by SIGKILL (last seen at its start)", 1)
    assert run("exit 8").code == 8


def test_the_others_have_time_to_end_by_themselves(tmp_path: Path) -> None:
    assert run(f'[ "$RANK" = 0 ] && exit 3; sleep 0.2; touch {tmp_path}/told', grace_s=10.0).code == 3
    assert (tmp_path / "told").exists()


def test_a_stopped_rank_is_ended_too() -> None:
    outcome = run('[ "$RANK" = 0 ] && exit 8; kill -STOP $$; sleep 60')
    assert outcome.told.endswith("rank 1 did not end and had to be killed")
    assert children() == []


@pytest.mark.parametrize("ends", ["kill -KILL $$", "exit 1", "exit 8"])
def test_what_may_go_better_is_started_again(ends: str, tmp_path: Path) -> None:
    script = f'echo $RANK >> {tmp_path}/$TORCHELASTIC_RESTART_COUNT; [ "$RANK" = 0 ] && exit 0; {ends}'
    assert run(script, max_restarts=2).attempts == 3
    assert [sorted((tmp_path / str(attempt)).read_text().split()) for attempt in range(3)] == [["0", "1"]] * 3
    assert run(f'[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || {ends}', max_restarts=5) == Outcome(0, "", 2)


@pytest.mark.parametrize("code", [2, 3, 4, 5, 6, 7, 9, 75])
def test_what_would_fail_again_is_not_started_again(code: int) -> None:
    outcome = run(f"exit {code}", max_restarts=3)
    assert (outcome.code, outcome.attempts) == (code, 1)


def test_a_stop_that_was_agreed_on_is_no_failure() -> None:
    """One rank still saves while the other has ended; nobody is killed for that."""
    assert run('[ "$RANK" = 0 ] || sleep 0.5; exit 75', grace_s=0.0) == Outcome(75, "", 1)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on_and_end_the_restarts(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import signal, sys, time, pathlib\n"
        "def end(number, frame): sys.exit(1)\n"
        f"signal.signal({int(number)}, end)\n"
        f"import os; pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).touch()\n"
        "time.sleep(60)"
    )

    def ask() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    thread = threading.Thread(target=ask)
    thread.start()
    command = (sys.executable, "-S", "-c", script)
    outcome = supervise(Launch(command=command, workers=2, max_restarts=3, grace_s=5.0))
    thread.join()
    assert (outcome.code, outcome.attempts) == (1, 1)
    assert signal.getsignal(number) is before


def test_a_signal_to_a_rank_that_has_just_ended_hurts_nothing() -> None:
    """Passing a signal on finds the dead rank and buries it: it is no longer there to be waited for."""
    workers = _Workers()
    workers.start(0, ("sh", "-c", "exit 3"), dict(os.environ))
    workers.start(1, ("sleep", "60"), dict(os.environ))
    while psutil.Process(workers.running[0].pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    workers.pass_on(signal.SIGCONT, None)
    assert [(end.rank, end.code) for end in workers.wait(None)] == [(0, 3)]
    workers.kill()


def test_a_signal_that_comes_early_reaches_those_that_start_late() -> None:
    workers = _Workers()
    workers.pass_on(signal.SIGTERM, None)
    workers.start(0, ("sleep", "60"), dict(os.environ))
    assert [end.code for end in workers.wait(10.0)] == [-signal.SIGTERM]


def test_a_command_that_does_not_exist_leaves_nothing_behind() -> None:
    with pytest.raises(FileNotFoundError):
        supervise(Launch(command=("/no/such/program",), workers=2))
    assert children() == []


@pytest.mark.parametrize(("workers", "max_restarts"), [(0, 0), (1, -1)])
def test_a_launch_of_nothing_is_refused(workers: int, max_restarts: int) -> None:
    with pytest.raises(BadConfig, match=f"workers={workers}, max_restarts={max_restarts}"):
        Launch(command=("true",), workers=workers, max_restarts=max_restarts)


def test_a_rank_that_does_not_come_back_is_gone_on_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last of three dies whenever it is there: one restart is for coming back, the next begins without it."""
    script = f'echo $RANK/$WORLD_SIZE/$LOCAL_WORLD_SIZE >> {tmp_path}/$TORCHELASTIC_RESTART_COUNT; [ "$RANK" -lt 2 ]'
    assert run(script, workers=3, max_restarts=5, min_workers=1, grace_s=5.0) == Outcome(0, "", 3)
    told = [sorted((tmp_path / str(attempt)).read_text().split()) for attempt in range(3)]
    assert told == [["0/3/3", "1/3/3", "2/3/3"]] * 2 + [["0/2/2", "1/2/2"]]
    assert "starting all ranks again" in caplog.messages[0]
    assert caplog.messages[1].endswith("(last seen at its start); it does not come back: going on with 2")


@pytest.mark.parametrize(("min_workers", "sizes"), [(0, [3] * 5), (2, [3, 3, 2, 2, 2]), (1, [3, 3, 2, 1, 1])])
def test_ranks_become_fewer_one_by_one_but_not_fewer_than_asked_for(
    tmp_path: Path, min_workers: int, sizes: list[int]
) -> None:
    script = f"echo $WORLD_SIZE > {tmp_path}/$TORCHELASTIC_RESTART_COUNT; exit 1"
    outcome = run(script, workers=3, max_restarts=4, min_workers=min_workers)
    assert (outcome.code, outcome.attempts) == (1, 5)
    assert [int((tmp_path / str(attempt)).read_text()) for attempt in range(5)] == sizes


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"min_workers": 3, "max_restarts": 1}, "min_workers=3 of workers=2: give 1 to 2"),
        ({"min_workers": -1, "max_restarts": 1}, "min_workers=-1 of workers=2"),
        ({"min_workers": 1}, "max_restarts=0 starts none again: give --max-restarts, too"),
    ],
)
def test_fewer_ranks_than_can_be_are_refused(named: dict[str, int], says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        Launch(command=("true",), workers=2, **named)
