"""How processes find each other: the store, the prefix of an attempt, and what is said where nobody comes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from timeloom.dist import world as processes
from timeloom.dist.collectives import Limits
from timeloom.dist.seat import Seat
from timeloom.dist.transport import Sighting
from timeloom.dist.world import Store, alone, host_store, join, last_seen, listen
from timeloom.errors import LostRank


def seat(rank: int, port: int, *, size: int = 3, served: bool = True) -> Seat:
    return Seat(
        rank=rank, size=size, local_rank=rank, local_size=size, host="127.0.0.1", port=port, store_is_served=served
    )


@pytest.fixture
def served() -> tuple[Store, int]:
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    return host_store(listener), port


def meet(port: int, ranks: list[int], *, delays: dict[int, float], limit_s: float = 5.0) -> dict[int, str]:
    """Return what each rank takes for the prefix of its attempt, or what it says where there is none."""
    found: dict[int, str] = {}

    def one(rank: int) -> None:
        time.sleep(delays.get(rank, 0.0))
        place = seat(rank, port)
        try:
            found[rank] = processes._agree_on_prefix(processes._connect(place, 5.0), place, limit_s)
        except LostRank as error:
            found[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("late", [0, 1, 2])
def test_every_attempt_has_a_prefix_of_its_own_whoever_comes_last(late: int, served: tuple[Store, int]) -> None:
    """What an earlier attempt left in the store, complete or not, misleads nobody."""
    _, port = served
    prefixes = []
    for _ in range(3):
        found = meet(port, [0, 1, 2], delays={late: 0.1})
        assert len(set(found.values())) == 1
        assert found[0].startswith("timeloom/")
        prefixes.append(found[0])
        # An attempt in which rank 2 never came.
        assert "rank 2 has not joined in time" in meet(port, [0, 1], delays={}, limit_s=0.1)[0]
    assert len(set(prefixes)) == 3


def test_who_waits_for_rank_0_says_so(served: tuple[Store, int]) -> None:
    _, port = served
    assert "rank 0 has not joined in time" in meet(port, [1], delays={}, limit_s=0.1)[1]


def test_a_store_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(LostRank, match=rf"rank 1 could not meet the others at 127\.0\.0\.1:{port} within 0\.5 s"):
        join(seat(1, port), device=torch.device("cpu"), limits=Limits(first_s=0.5), check=False)


def test_rank_0_serves_the_store_where_nobody_else_does_and_on_one_address_only() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    store = processes._open_store(seat(0, port, served=False), "127.0.0.1", 5.0)
    other = processes._open_store(seat(1, port, served=False), "127.0.0.1", 5.0)
    store.set("a", "b")
    assert other.get("a") == b"b"
    listening = [
        connection.laddr.ip
        for connection in psutil.Process().net_connections("inet")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]
    assert listening == ["127.0.0.1"]


def test_a_launcher_knows_where_a_rank_was_last_seen(served: tuple[Store, int]) -> None:
    store, port = served
    assert last_seen(store, 0) == Sighting()
    prefix = meet(port, [0, 1, 2], delays={})[0]
    assert last_seen(store, 1) == Sighting()
    store.set(f"{prefix}/seen/1", Sighting("grad/step 4").to_text())
    assert last_seen(store, 1) == Sighting("grad/step 4")
    meet(port, [0, 1, 2], delays={})
    assert last_seen(store, 1) == Sighting(), "an earlier attempt says nothing of this one"


def test_a_process_alone_takes_no_part_in_torch_distributed() -> None:
    world = alone(torch.device("cpu"))
    assert (world.rank, world.size) == (0, 1)
    world.close()
    assert not processes.td.is_initialized()


def test_the_end_of_a_process_loses_no_output() -> None:
    script = (
        "import sys, threading, time\n"
        "from timeloom.dist.world import end_process\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "sys.stdout.write('out'); sys.stderr.write('err')\n"
        "end_process(9)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (9, "out", "err")
