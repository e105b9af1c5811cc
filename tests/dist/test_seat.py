"""Which rank a process is, under every launcher, and by which interface it reaches the others."""

from __future__ import annotations

import socket
from dataclasses import replace

import psutil
import pytest

from timeloom.dist.seat import Seat, Way, first_host, refuse_exposure, seat_from, tasks_here, way_to
from timeloom.errors import BadConfig

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "1",
}  # fmt: skip
SLURM = {
    "SLURM_PROCID": "5", "SLURM_NTASKS": "6", "SLURM_LOCALID": "1", "SLURM_NODEID": "2", "SLURM_JOB_ID": "1000",
    "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "gpu[03-05]", "SLURM_STEP_TASKS_PER_NODE": "2(x3)",
}  # fmt: skip


def test_a_process_on_its_own_has_no_seat() -> None:
    assert seat_from({}) is None
    assert seat_from({"MASTER_ADDR": "here"}) is None


def test_torchrun_serves_the_store() -> None:
    assert seat_from(TORCHRUN) == Seat(
        rank=3, size=4, local_rank=1, local_size=2, host="node0", port=29500, store_is_served=True, attempt=1
    )


def test_without_an_agents_store_rank_0_serves_it() -> None:
    seat = seat_from({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert seat is not None
    assert not seat.store_is_served


def test_under_our_launcher_a_rank_knows_with_whom_it_ends() -> None:
    seat = seat_from({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "", "TIMELOOM_LAUNCHER": "1234"})
    assert seat is not None
    assert (seat.parent, seat.store_is_served) == (1234, True)


def test_a_slurm_step_meets_on_its_first_machine() -> None:
    seat = seat_from(SLURM)
    assert seat == Seat(
        rank=5, size=6, local_rank=1, local_size=2, host="gpu03", port=15_000 + (31_002 % 15_000),
        store_is_served=False,
    )  # fmt: skip
    moved = seat_from({**SLURM, "MASTER_ADDR": "gpu03.cluster", "MASTER_PORT": "12345"})
    assert moved is not None
    assert (moved.host, moved.port) == ("gpu03.cluster", 12345)


def test_a_slurm_step_on_one_machine_meets_on_loopback() -> None:
    seat = seat_from({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "6", "SLURM_NODEID": "0", "SLURM_LOCALID": "5"})
    assert seat is not None
    assert seat.host == "127.0.0.1"


def test_a_slurm_batch_script_and_a_single_task_are_on_their_own() -> None:
    assert seat_from({name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}) is None
    assert seat_from({**SLURM, "SLURM_NTASKS": "1"}) is None


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("gpu[03-05,9],cpu1", "gpu03"),
        ("a,b[1-2]", "a"),
        ("rack[1-2]-node[07,09]", "rack1-node07"),
        ("n[5]", "n5"),
        ("a-b.c,d", "a-b.c"),
    ],
)
def test_the_first_machine_of_a_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_a_list_of_no_machine_is_refused() -> None:
    with pytest.raises(BadConfig, match="names no machine"):
        first_host("")


@pytest.mark.parametrize(("text", "node", "tasks"), [("2(x3),1", 2, 2), ("2(x3),1", 3, 1), ("4", 0, 4), ("1,3", 1, 3)])
def test_tasks_of_a_machine(text: str, node: int, tasks: int) -> None:
    assert tasks_here(text, node) == tasks


def test_a_machine_that_slurm_does_not_list_is_refused() -> None:
    with pytest.raises(BadConfig, match="has no machine 1"):
        tasks_here("2", 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"RANK": "4"}, "rank 4 of 4"),
        ({"RANK": "x"}, "RANK='x' in the environment is no number"),
        ({"RANK": "²"}, "RANK='²' in the environment is no number"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"MASTER_ADDR": ""}, "not MASTER_ADDR; unset RANK to run alone"),
        ({"LOCAL_RANK": "2"}, "on its machine 2 of 2"),
        ({"LOCAL_WORLD_SIZE": "5", "LOCAL_RANK": "0"}, "0 of 5"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
    ],
)
def test_an_environment_that_cannot_be_meant_is_refused(change: dict[str, str], text: str) -> None:
    with pytest.raises(BadConfig, match=text):
        seat_from({**TORCHRUN, **change})


MANY = Seat(rank=0, size=2, local_rank=0, local_size=1, host="127.0.0.1", port=1, store_is_served=True)


def outward() -> list[tuple[str, str]]:
    """The interfaces of this machine that lead out, by their IPv4 addresses."""
    found = psutil.net_if_addrs().items()
    return [
        (name, a.address)
        for name, parts in found
        for a in parts
        if a.family == socket.AF_INET and a.address[:4] != "127."
    ]


def test_ranks_of_one_machine_stay_on_loopback() -> None:
    assert way_to(replace(MANY, local_size=2, host="node0.nowhere.invalid")) == Way("lo", "node0.nowhere.invalid")


def test_the_interface_is_the_one_that_leads_to_the_meeting_place() -> None:
    for name, address in outward():
        assert way_to(replace(MANY, host=address)) == Way(name, address)


def test_a_machine_that_knows_itself_by_loopback_takes_its_only_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = psutil.net_if_addrs()["lo"]

    def card(address: str) -> list[object]:
        made = type(loopback[0])
        local = made(socket.AF_INET6, "fe80::1%eth7", None, None, None)
        return [local, made(socket.AF_INET, address, None, None, None)]

    found = {"lo": loopback, "eth7": card("10.0.0.7")}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)
    assert way_to(MANY) == Way("eth7", "10.0.0.7")
    found["eth8"] = card("10.0.0.8")
    with pytest.raises(BadConfig, match=r"its other interfaces are \['eth7', 'eth8'\]: .*MASTER_ADDR"):
        way_to(MANY)


def test_a_meeting_place_that_cannot_be_reached_is_named() -> None:
    with pytest.raises(BadConfig, match=r"to meet at node0\.nowhere\.invalid, which this machine cannot reach"):
        way_to(replace(MANY, host="node0.nowhere.invalid"))


@pytest.mark.parametrize(
    ("way", "says"),
    [
        (Way("lo", "127.0.0.1"), ""),
        (Way("lo", "::1"), ""),
        (Way("lo", "node0"), ""),
        (Way("eth0", "10.0.0.7"), "meet at 10.0.0.7 (eth0), and whoever reaches it can take part"),
        (Way("eth0", "fe80::1%eth0"), "meet at fe80::1%eth0"),
        (Way("eth0", "node0"), "meet at node0 (eth0)"),
        # Ranks of one machine that were told to meet at its outward address.
        (Way("lo", "10.0.0.7"), "meet at 10.0.0.7 (lo)"),
    ],
)
def test_who_can_be_reached_by_others_is_warned(way: Way, says: str) -> None:
    warning = refuse_exposure(way, trusted=False)
    assert says in warning
    assert bool(warning) == bool(says)


def test_without_a_secret_ranks_do_not_meet_at_an_address_of_the_internet() -> None:
    for address in ("8.8.8.8", "2001:4860:4860::8888"):
        with pytest.raises(BadConfig, match=r"an address of the internet, and have no secret.*world.trusted=true"):
            refuse_exposure(Way("eth0", address), trusted=False)
        assert "whoever reaches it" in refuse_exposure(Way("eth0", address), trusted=True)
