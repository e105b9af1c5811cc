"""What a world says and refuses, on threads: who is missing, who does something else, which thread may speak."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.dist.scenarios import SCENARIOS, all_ranks_did_the_same_in_the_same_order
from timeloom.dist.collectives import GROUPS, Limits, World
from timeloom.dist.flight import Lane, Route, depart, land, receive, send, tie
from timeloom.dist.threads import run
from timeloom.errors import BadInput, LostRank, RanksDiffer

SHORT = Limits(first_s=0.3, step_s=0.3)


@pytest.mark.parametrize("size", [2, 3])
def test_all_scenarios_begin_the_same_collectives_on_all_ranks(size: int) -> None:
    def work(world: World) -> list[str]:
        for scenario in SCENARIOS:
            scenario(world)
        all_ranks_did_the_same_in_the_same_order(world)
        return [name for name, _ in world.log]

    logs = run(size, work, check=True)
    assert all(len(log) > 100 for log in logs)


def test_the_log_holds_names_and_shapes_and_only_where_it_is_asked_for() -> None:
    def work(world: World) -> list[tuple[str, tuple[int, ...]]]:
        world.all_reduce(torch.zeros(2, 3), "grad/a")
        world.start_exchange(
            "state/b", sends={1 - world.rank: torch.zeros(4)}, receives={1 - world.rank: torch.zeros(4)}
        ).finish()
        return world.log

    assert run(2, work, check=True) == [[("grad/a", (2, 3)), ("state/b", (4,)), ("state/b", (4,))]] * 2
    assert run(2, work) == [[], []]


def test_a_sum_is_made_in_the_order_of_the_ranks() -> None:
    parts = [1e16, 1.0, -1e16]

    def work(world: World) -> float:
        return float(world.all_reduce(torch.tensor([parts[world.rank]], dtype=torch.float64), "grad"))

    assert run(3, work) == [0.0, 0.0, 0.0]


def test_what_was_sent_may_change_after_the_end() -> None:
    """The sender overwrites its tensor as soon as it may, and the receiver comes late."""

    def work(world: World) -> float:
        x, other = torch.full((3,), float(world.rank + 1)), 1 - world.rank
        each = (1, 1)
        pending = world.start_all_to_all(x[:2].contiguous(), "halo", sent=each, received=each)
        if world.rank:
            time.sleep(0.05)
        found = pending.finish()
        x.fill_(-1)
        return float(found[other])

    assert run(2, work) == [2.0, 1.0]


def test_a_message_is_waited_for_by_its_sender() -> None:
    arrived: list[int] = []

    def work(world: World) -> None:
        if world.rank == 0:
            world.start_exchange("state", sends={1: torch.ones(1)}, receives={}).finish()
            assert arrived == [1]
        else:
            time.sleep(0.1)
            arrived.append(1)
            world.start_exchange("state", sends={}, receives={0: torch.ones(1)}).finish()

    run(2, work)


def blocked(call: Callable[[World], object], *, missing: int, size: int = 3, check: bool = False) -> list[str]:
    """Return what the other ranks say when one does not come to ``call`` in time."""
    said: dict[int, str] = {}

    def work(world: World) -> None:
        world.begin_step(317)
        world.barrier("grad")
        if world.rank == missing:
            time.sleep(0.8)
            return
        world.begin_step(318)
        with pytest.raises(LostRank) as caught:
            call(world)
        said[world.rank] = str(caught.value)

    run(size, work, limits=SHORT, check=check)
    return [said[rank] for rank in sorted(said)]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("halo/layer0", lambda world: world.barrier("halo/layer0")),
        ("grad/start", lambda world: world.broadcast(torch.zeros(1), "grad/start")),
        (
            "fetch/rows",
            lambda world: world.all_to_all(torch.zeros(3), "fetch/rows", sent=(1,) * 3, received=(1,) * 3),
        ),
    ],
)
def test_a_rank_that_does_not_come_is_named(name: str, call: Callable[[World], object], check: bool) -> None:
    assert (
        blocked(call, missing=2, check=check)
        == [f"rank 2 has not reached {name}/step 318 (last seen at grad/step 317; its process is alive) (waited 0.3 s)"]
        * 2
    )


def test_a_receiver_names_the_sender_and_a_sender_the_receiver() -> None:
    def call(world: World) -> None:
        if world.rank == 0:
            world.start_exchange("state/relay", sends={1: torch.zeros(1)}, receives={}).finish()
        else:
            world.start_exchange("state/relay", sends={}, receives={1: torch.zeros(1)}).finish()

    text = "rank 1 has not reached state/relay/step 318 (last seen at grad/step 317; its process is alive)"
    assert blocked(call, missing=1) == [f"{text} (waited 0.3 s)"] * 2


def test_a_rank_that_ends_early_is_seen_at_once() -> None:
    def work(world: World) -> None:
        world.barrier("grad")
        if world.rank == 0:
            began = time.monotonic()
            with pytest.raises(
                LostRank, match=r"rank 1 has not reached halo \(last seen at grad; its process does not"
            ):
                world.barrier("halo")
            assert time.monotonic() - began < 5

    run(2, work)


def test_the_reason_of_a_failure_is_told_by_those_that_it_stops() -> None:
    said: list[str] = []

    def work(world: World) -> None:
        if world.rank == 1:
            raise BadInput("row 7 is broken")
        try:
            world.barrier("grad")
        except LostRank as lost:
            said.append(str(lost))
            raise

    with pytest.raises(BadInput, match="row 7 is broken"):
        run(3, work)
    assert said == ["rank 1 failed at its start: BadInput: row 7 is broken (the connection was lost)"] * 2


def test_the_first_steps_may_take_longer() -> None:
    def work(world: World) -> None:
        world.begin_step(0)
        for step in (1, 2):
            if world.rank == 1 and step == 1:
                time.sleep(0.5)
            world.barrier("grad")
            world.begin_step(step)
            if world.rank == 1 and step == 1:
                time.sleep(0.5)

    with pytest.raises(LostRank, match=r"rank 1 has not reached grad/step 1 .*waited 0.2 s"):
        run(2, work, limits=Limits(first_s=5.0, step_s=0.2))


def test_seconds_waited_are_those_in_which_a_rank_did_nothing_else() -> None:
    def work(world: World) -> float:
        for _ in range(2):
            world.barrier("control")
            if world.rank == 1:
                time.sleep(0.4)
            pending = world.start_all_reduce(torch.zeros(1), "grad")
            if world.rank == 0:
                time.sleep(0.2)
            pending.finish()
        return world.tallies["grad"].waited_s

    early, late = run(2, work)
    assert 0.3 < early < 0.6
    assert late < 0.2


DIFFERENT: dict[str, tuple[Callable[[World], object], Callable[[World], object], str]] = {
    "name": (
        lambda world: world.all_reduce(torch.zeros(3), "grad/a"),
        lambda world: world.all_reduce(torch.zeros(3), "grad/b"),
        r"rank 0 is at grad/a \(.*\), but rank 1 is at grad/b \(",
    ),
    "size": (
        lambda world: world.all_reduce(torch.zeros(3), "grad/a"),
        lambda world: world.all_reduce(torch.zeros(4), "grad/a"),
        r"rank 0 .*float32 \(3,\).*rank 1 .*float32 \(4,\)",
    ),
    "dtype": (
        lambda world: world.all_reduce(torch.zeros(2), "grad/a"),
        lambda world: world.all_reduce(torch.zeros(2, dtype=torch.int32), "grad/a"),
        r"rank 0 .*torch.float32.*rank 1 .*torch.int32",
    ),
    "operation": (
        lambda world: world.all_reduce(torch.zeros(2), "grad/a"),
        lambda world: world.all_reduce(torch.zeros(2), "grad/a", "max"),
        r"rank 0 .*all_reduce sum.*rank 1 .*all_reduce max",
    ),
    "kind": (
        lambda world: world.all_reduce(torch.zeros(2), "grad/a"),
        lambda world: world.broadcast(torch.zeros(2), "grad/a"),
        r"rank 0 .*all_reduce.*rank 1 .*broadcast from 0",
    ),
    "root": (
        lambda world: world.broadcast(torch.zeros(2), "grad/a", root=0),
        lambda world: world.broadcast(torch.zeros(2), "grad/a", root=1),
        "broadcast from 0 .*broadcast from 1",
    ),
    "columns": (
        lambda world: world.all_to_all(torch.zeros(2, 3), "halo", sent=(1, 1), received=(1, 1)),
        lambda world: world.all_to_all(torch.zeros(2, 4), "halo", sent=(1, 1), received=(1, 1)),
        r"rows of \(3,\).*rows of \(4,\)",
    ),
    "message": (
        lambda world: world.start_exchange("state/h", sends={1: torch.zeros(2)}, receives={1: torch.zeros(2)}),
        lambda world: world.start_exchange("state/h", sends={0: torch.zeros(2)}, receives={0: torch.zeros(3)}),
        r"rank 0 .*message torch.float32 \(2,\).*rank 1 .*message torch.float32 \(3,\)",
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_fingerprints_name_both_sides_of_a_difference(what: str) -> None:
    first, second, text = DIFFERENT[what]
    with pytest.raises(RanksDiffer, match=text):
        run(2, lambda world: (second if world.rank else first)(world), check=True)


def test_fingerprints_find_splits_that_do_not_fit() -> None:
    def work(world: World) -> None:
        sent, received = ((1, 2), (1, 3)) if world.rank == 0 else ((3, 1), (1, 1))
        text = "rank 0 sends 2 rows to rank 1, which expects 1, and expects 3 of the 3 it sends"
        if world.rank:
            text = "rank 1 sends 3 rows to rank 0, which expects 3, and expects 1 of the 2 it sends"
        with pytest.raises(RanksDiffer, match=text):
            world.all_to_all(torch.zeros(sum(sent)), "halo", sent=sent, received=received)

    run(2, work, check=True)


def test_a_second_thread_on_a_group_is_refused() -> None:
    caught: list[BaseException] = []

    def work(world: World) -> None:
        world.barrier("fetch")

        def other() -> None:
            world.barrier("halo")
            try:
                world.barrier("fetch")
            except AssertionError as error:
                caught.append(error)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()

    run(2, work)
    assert len(caught) == 2
    assert all("a second thread uses the group fetch" in str(error) for error in caught)


def test_groups_of_several_threads_do_not_disturb_each_other() -> None:
    def work(world: World) -> None:
        wrong: list[float] = []

        def other() -> None:
            for i in range(50):
                if float(world.all_reduce(torch.full((1,), float(i)), "fetch")) != 2 * i:
                    wrong.append(i)

        thread = threading.Thread(target=other)
        thread.start()
        for i in range(50):
            assert float(world.all_reduce(torch.full((1,), 100.0 * i), "grad")) == 200 * i
        thread.join()
        assert not wrong
        assert world.tallies["fetch"].calls == world.tallies["grad"].calls == 50

    run(2, work, check=True)


class _Meet(torch.autograd.Function):
    """The identity, whose backward pass is a collective."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        ctx.world.barrier("control/backward")
        return gradients[0], None


def meet(x: Tensor, world: World) -> Tensor:
    met: Tensor = _Meet.apply(x, world)  # type: ignore[no-untyped-call]
    return met


def test_exchanges_fly_while_others_compute_forward_and_backward() -> None:
    """On rank 0 a meeting lies between departure and landing, on rank 1 before and after both: neither may block."""

    def work(world: World) -> None:
        x = torch.ones(2, 1, requires_grad=True)
        route = Route(world, "halo", (1, 1), (1, 1))
        if world.rank == 0:
            flight = depart(x, route)
            world.barrier("control/forward")
            between = meet(x, world)
            landed = land(flight)
        else:
            world.barrier("control/forward")
            landed = land(depart(x, route))
            between = meet(x, world)
        torch.autograd.backward((between * 2 + landed * 3).sum())
        assert x.grad is not None
        assert x.grad.tolist() == [[5.0], [5.0]]

    run(2, work, limits=Limits(first_s=3.0))


def test_a_state_without_gradient_is_not_sent_where_one_would_come_back() -> None:
    def work(world: World) -> None:
        if world.rank == 0:
            with pytest.raises(AssertionError, match="gradient in vain"):
                send(torch.zeros(2), Lane(world, "state", 1))
            with torch.no_grad():
                send(torch.full((2,), 3.0), Lane(world, "state", 1)).finish()
        else:
            with torch.no_grad():
                found = receive((2,), torch.float32, Lane(world, "state", 0))
            assert found.tolist() == [3.0, 3.0]
            assert not found.requires_grad

    run(2, work)


def test_a_state_that_nobody_uses_still_gets_its_gradient() -> None:
    def work(world: World) -> None:
        loss = torch.zeros((), requires_grad=True) * 1.0
        if world.rank == 0:
            h = torch.ones(3, requires_grad=True)
            parcel = send(h * 2, Lane(world, "state", 1))
            parcel.finish()
            torch.autograd.backward(tie(loss, [parcel.stub]))
            assert h.grad is not None
            assert h.grad.tolist() == [0.0] * 3
        else:
            found = receive((3,), torch.float32, Lane(world, "state", 0))
            torch.autograd.backward(tie(loss, [found]))

    run(2, work)


def test_a_tie_changes_neither_value_nor_gradient_whatever_it_ties() -> None:
    x, bad = torch.tensor([2.0], requires_grad=True), torch.tensor([float("nan")], requires_grad=True)
    tied = tie(x * 3, [bad * 2])
    assert tied.tolist() == [6.0]
    torch.autograd.backward(tied)
    assert x.grad is not None
    assert x.grad.tolist() == [3.0]
    assert bad.grad is None or bad.grad.tolist() == [0.0]


def test_the_error_of_a_rank_comes_before_those_that_only_miss_it() -> None:
    def work(world: World) -> None:
        if world.rank == 2:
            time.sleep(0.1)
            raise BadInput("mine")
        world.barrier("grad")

    with pytest.raises(BadInput, match="mine"):
        run(3, work)


def test_results_come_in_the_order_of_the_ranks_and_end_after_all() -> None:
    def work(world: World) -> int:
        time.sleep(0.02 * (3 - world.rank))
        world.close()
        return world.rank

    assert run(3, work) == [0, 1, 2]
    assert GROUPS[-1] == "control"
