"""What every world must do, whatever it is made of: each scenario runs on every rank and asserts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter

from timeloom.dist.collectives import World
from timeloom.dist.flight import Lane, Route, depart, land, receive, send, tie
from timeloom.dist.halo import Halo, fetch_halo, finish_halo, plan_halo, start_halo
from timeloom.dist.redistribute import Deal, by_nodes, by_snapshots
from timeloom.dist.sync import Agreement, Flags, Gradients, assert_same, share
from timeloom.dist.tally import Tally, total
from timeloom.errors import RanksDiffer

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)


def draw(*shape: int, seed: int) -> Tensor:
    """The same numbers on all ranks."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor | None, meant: Tensor | None) -> None:
    assert found is not None
    assert meant is not None
    torch.testing.assert_close(found, meant, rtol=1e-10, atol=1e-10)


def a_sum_adds_what_each_rank_has(world: World) -> None:
    for dtype in DTYPES:
        x = torch.tensor([world.rank, 1, 7], dtype=dtype)
        assert world.all_reduce(x, "grad/sum") is x
        assert x.tolist() == [sum(range(world.size)), world.size, 7 * world.size]


def a_maximum_is_the_largest_of_all_ranks(world: World) -> None:
    for dtype in DTYPES:
        found = world.all_reduce(torch.tensor([world.rank, 5], dtype=dtype), "control/max", "max")
        assert found.tolist() == [world.size - 1, 5]


def a_broadcast_brings_the_roots_tensor(world: World) -> None:
    for root in range(world.size):
        for dtype in (*DTYPES, torch.bool):
            x = torch.tensor([world.rank == root, 1], dtype=dtype)
            assert world.broadcast(x, "grad/start", root=root).tolist() == [1, 1]


def tensors_without_elements_may_be_sent(world: World) -> None:
    assert world.all_reduce(torch.empty(0, 3), "grad/nothing").shape == (0, 3)
    assert world.broadcast(torch.empty(2, 0), "grad/nothing").shape == (2, 0)
    nothing = (0,) * world.size
    assert world.all_to_all(torch.empty(0, 3), "halo/nothing", sent=nothing, received=nothing).shape == (0, 3)
    each = (1,) * world.size
    found = world.all_to_all(torch.empty(world.size, 0), "halo/no columns", sent=each, received=each)
    assert found.shape == (world.size, 0)


def uneven_rows_arrive_by_rank(world: World) -> None:
    """Rank r sends r + q rows to rank q, also none."""
    for dtype in (*DTYPES, torch.bool):
        sent = [world.rank + q for q in range(world.size)]
        x = torch.cat([torch.full((n, 2), 10 * world.rank + q) for q, n in enumerate(sent)]).to(dtype)
        received = [r + world.rank for r in range(world.size)]
        found = world.all_to_all(x, "halo/uneven", sent=sent, received=received)
        meant = [[10 * r + world.rank] * 2 for r in range(world.size) for _ in range(r + world.rank)]
        assert found.tolist() == torch.tensor(meant).reshape(-1, 2).to(dtype).tolist()


def exchanges_that_overlap_do_not_mix(world: World) -> None:
    each = (1,) * world.size
    x = torch.full((world.size, 1), float(world.rank))
    flying = [world.start_all_to_all(x + 100 * i, "halo/many", sent=each, received=each) for i in range(5)]
    reducing = [world.start_all_reduce(torch.full((3,), float(i)), "grad/many") for i in range(5)]
    for i in reversed(range(5)):
        assert flying[i].finish().flatten().tolist() == [100 * i + r for r in range(world.size)]
        assert reducing[i].finish().tolist() == [world.size * i] * 3


def bytes_of_any_length_go_everywhere(world: World) -> None:
    mine = bytes(range(world.rank * 3))
    assert world.gather_bytes(mine, "control/bytes") == [bytes(range(r * 3)) for r in range(world.size)]
    assert world.gather_bytes(b"", "control/bytes") == [b""] * world.size
    for root in range(world.size):
        told = "plan é".encode() if world.rank == root else b"not this"
        assert world.broadcast_bytes(told, "control/plan", root=root) == "plan é".encode()
    assert world.broadcast_bytes(b"", "control/plan") == b""


def messages_go_round(world: World) -> None:
    """Two rounds under way at once, to the next rank; and both ways between neighbours."""
    if world.size == 1:
        return
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    buffers = [torch.empty(2, 2), torch.empty(2, 2)]
    flying = [
        world.start_exchange(
            "state/round", sends={after: torch.full((2, 2), 10.0 * i + world.rank)}, receives={before: buffers[i]}
        )
        for i in range(2)
    ]
    for pending in flying:
        pending.finish()
    assert [float(buffer[1, 1]) for buffer in buffers] == [before, 10.0 + before]
    if world.size > 2:
        both = {before: torch.empty(1), after: torch.empty(1)}
        own = torch.full((1,), float(world.rank))
        world.start_exchange("state/both", sends={before: own, after: own}, receives=both).finish()
        assert {peer: int(found) for peer, found in both.items()} == {before: before, after: after}


def calls_bytes_and_waits_are_counted_by_name(world: World) -> None:
    before, ranks = world.tallies, world.size
    for _ in range(3):
        world.all_reduce(torch.zeros(60, dtype=torch.float64), "grad/counted")
    sent = [2] * ranks
    world.all_to_all(torch.zeros(2 * ranks, 5), "halo/counted", sent=sent, received=sent)
    world.broadcast(torch.zeros(7), "grad/counted start")
    now = world.tallies
    assert "grad/counted" not in before
    assert now["grad/counted"].calls == 3
    assert now["grad/counted"].sent_bytes == now["grad/counted"].received_bytes == 3 * (2 * (ranks - 1) * 480 // ranks)
    assert now["halo/counted"].sent_bytes == now["halo/counted"].received_bytes == 40 * (ranks - 1)
    assert now["grad/counted start"].sent_bytes == (28 * (ranks - 1) if world.rank == 0 else 0)
    assert now["grad/counted start"].received_bytes == (0 if world.rank == 0 else 28)
    assert all(tally.waited_s >= 0 for tally in now.values())
    assert total(now).calls == sum(tally.calls for tally in now.values())
    if ranks > 1:
        assert now["grad/counted"].waited_s > 0
        buffer, other = torch.empty(3), (world.rank + 1) % ranks
        source = (world.rank - 1) % ranks
        world.start_exchange("state/counted", sends={other: torch.ones(3)}, receives={source: buffer}).finish()
        assert world.tallies["state/counted"].sent_bytes == world.tallies["state/counted"].received_bytes == 12


def what_cannot_be_sent_is_refused_before_anything_is_sent(world: World) -> None:
    x, each = torch.zeros(4, 4), (1,) * world.size
    refused: list[tuple[str, Callable[[], object]]] = [
        ("not contiguous", lambda: world.all_reduce(x.t()[:2], "grad/a")),
        ("not contiguous", lambda: world.broadcast(x[:, 1], "grad/a")),
        ("sparse", lambda: world.all_reduce(x.to_sparse(), "grad/a")),
        ("complex", lambda: world.all_reduce(x.to(torch.complex64), "grad/a")),
        ("int16", lambda: world.all_reduce(x.to(torch.int16), "grad/a")),
        ("truth values", lambda: world.all_reduce(x.bool(), "grad/a")),
        ("on meta", lambda: world.all_reduce(x.to("meta"), "grad/a")),
        ("no group 'gard'", lambda: world.all_reduce(x, "gard/a")),
        ("gradient would end", lambda: world.all_reduce(x.requires_grad_(), "grad/a")),
        ("of 4 rows", lambda: world.all_to_all(torch.zeros(4), "halo/a", sent=[5] * world.size, received=each)),
        ("ranks", lambda: world.all_to_all(torch.zeros(1), "halo/a", sent=(1,) * 9, received=each)),
        ("keeps", lambda: world.all_to_all(torch.zeros(world.size), "halo/a", sent=each, received=[0] * world.size)),
        ("of", lambda: world.broadcast(torch.zeros(1), "grad/a", root=world.size)),
        ("to itself", lambda: world.start_exchange("state/a", sends={world.rank: torch.zeros(1)}, receives={})),
        ("of", lambda: world.start_exchange("state/a", sends={}, receives={world.size: torch.zeros(1)})),
    ]
    before = world.tallies
    for why, call in refused:
        with pytest.raises(AssertionError, match=why):
            call()
    assert world.tallies == before
    pending = world.start_all_reduce(torch.zeros(1), "grad/once")
    pending.finish()
    with pytest.raises(AssertionError, match="finished once"):
        pending.finish()


def different_data_is_named_by_rank(world: World) -> None:
    assert_same(world, "the plan", b"same")
    if world.size > 1:
        with pytest.raises(RanksDiffer, match=r"the plan of rank 1 is not that of rank 0"):
            assert_same(world, "the plan", b"mine" if world.rank == 1 else b"theirs")


def parameters_start_as_those_of_rank_0(world: World) -> None:
    tensors = {
        "weight": (torch.arange(6.0).view(2, 3) + world.rank).requires_grad_(),
        "steps": torch.tensor(7 + world.rank),
        "bias": torch.full((2,), 2.0 + world.rank),
        "turned": (torch.arange(6.0).view(2, 3) + world.rank).t(),
        "seen": torch.tensor([world.rank == 0]),
    }
    share(world, tensors)
    assert tensors["weight"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert int(tensors["steps"]) == 7
    assert tensors["bias"].tolist() == [2.0, 2.0]
    assert tensors["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert tensors["seen"].tolist() == [True]
    if world.size > 1:
        with pytest.raises(RanksDiffer, match="the list of parameters of rank 1"):
            share(world, {"a": torch.zeros(2 + (world.rank == 1))})


UNITS = ((2, 1, 2), (2, 0, 2), (1, 1, 1), (0, 0, 3), (0, 0, 0))


def gradients_are_weighted_by_units(world: World) -> None:
    """T11: k units on a rank, also none, give the mean over all units of one process; several buckets and dtypes."""
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        ((3, 4), torch.float64), ((5,), torch.float32), ((2, 2), torch.float64), ((), torch.float64),
        ((7,), torch.float32),
    ]  # fmt: skip
    parameters = [Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in shapes]
    unused = Parameter(torch.zeros(2, dtype=torch.float64))
    odd = Parameter(torch.zeros(3, dtype=torch.float64))
    gradients = Gradients(world, [*parameters, unused, odd], bucket_bytes=40)
    for counts in UNITS:
        dealt = [count if rank < world.size else 0 for rank, count in enumerate(counts)]
        first = sum(dealt[: world.rank])
        for place, parameter in enumerate(parameters):
            parameter.grad = None
            for unit in range(first, first + dealt[world.rank]):
                grad = draw(*shapes[place][0], seed=100 * place + unit).to(parameter.dtype)
                parameter.grad = grad if parameter.grad is None else parameter.grad + grad
        odd.grad = torch.ones(3, dtype=torch.float64) if world.rank == world.size - 1 else None
        # Three for each unit: their mean is 3 wherever the units are, and nothing where there are none.
        found = gradients.agree(dealt[world.rank], Flags(), loss=3.0 * dealt[world.rank])
        assert found.learnt
        assert found.loss == 3.0 if sum(dealt) else math.isnan(found.loss)
        assert replace(found, loss=3.0) == Agreement(
            weight=sum(dealt), stop=0, non_finite=0, error=0, save=0, loss=3.0, learnt=True
        )
        assert unused.grad is None
        close(odd.grad, torch.ones(3, dtype=torch.float64) / max(sum(dealt), 1))
        for place, parameter in enumerate(parameters):
            units = [draw(*shapes[place][0], seed=100 * place + unit) for unit in range(sum(dealt))]
            if not units:
                assert parameter.grad is None
            elif parameter.dtype == torch.float64:
                close(parameter.grad, torch.stack(units).mean(0))
            else:
                assert parameter.grad is not None
                torch.testing.assert_close(parameter.grad.double(), torch.stack(units).mean(0), rtol=1e-5, atol=1e-6)


def ten_steps_give_one_ranks_parameters(world: World) -> None:
    """T13: four units a step, dealt anew in each; a parameter that no unit uses must not even decay."""

    def loss_of(parameters: list[Parameter], unit: int) -> Tensor:
        return (
            (torch.tanh(draw(3, 4, seed=unit) @ parameters[0]) * parameters[1] - draw(3, 2, seed=1000 + unit))
            .square()
            .sum()
        )

    def trained(mine: Callable[[int], bool], agree: Callable[[list[Parameter], int], object]) -> list[Parameter]:
        parameters = weights_of((4, 2), (2,), (3,))
        for step in range(10):
            for parameter in parameters:
                parameter.grad = None
            units = [unit for unit in range(4 * step, 4 * step + 4) if mine(unit + step)]
            for unit in units:
                torch.autograd.backward(loss_of(parameters, unit + 1))
            agree(parameters, len(units))
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.data.mul_(0.9).sub_(parameter.grad, alpha=0.05)
        return parameters

    def mean(parameters: list[Parameter], num_units: int) -> None:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= num_units

    alone = trained(lambda unit: True, mean)
    together = trained(
        lambda unit: unit % world.size == world.rank,
        lambda parameters, num_units: Gradients(world, parameters).agree(num_units, Flags()),
    )
    for found, meant in zip(together, alone, strict=True):
        close(found.detach(), meant.detach())
    assert_same(world, "every bit", b"".join(found.detach().numpy().tobytes() for found in together))


def flags_of_any_rank_reach_all_and_harm_no_gradient(world: World) -> None:
    parameter = Parameter(torch.zeros(2))
    gradients = Gradients(world, [parameter])
    last = world.rank == world.size - 1
    parameter.grad = torch.ones(2)
    found = gradients.agree(1, Flags(stop=last, non_finite=world.rank == 0, error=True, save=last), loss=2.0)
    assert found == Agreement(
        weight=world.size, stop=1, non_finite=1, error=world.size, save=1, loss=2.0, learnt=True
    )  # fmt: skip
    assert parameter.grad.tolist() == [1.0, 1.0]
    parameter.grad = torch.tensor([math.nan if last else 1.0, 2.0])
    assert gradients.agree(1, Flags(non_finite=last)).non_finite == 1
    assert parameter.grad[0].isnan()
    assert parameter.grad[1] == 2.0
    assert Gradients(world, []).agree(2.5, Flags(stop=True)).weight == 2.5 * world.size
    assert Gradients(world, [Parameter(torch.empty(0)), parameter]).agree(1, Flags()).weight == world.size
    parameter.grad = None
    assert not gradients.agree(1, Flags()).learnt
    parameter.grad = torch.ones(2) if last else None
    assert gradients.agree(1, Flags()).learnt


def half_precision_is_added_in_single(world: World) -> None:
    parameter = Parameter(torch.zeros(1, dtype=torch.bfloat16))
    parameter.grad = torch.ones(1, dtype=torch.bfloat16)
    assert Gradients(world, [parameter]).agree(1001, Flags()).weight == 1001 * world.size


def one_collective_a_bucket_carries_everything(world: World) -> None:
    """Four parameters of 10 numbers in one bucket, then in two; 6 numbers and a flag each lie in the last."""

    def sent(gradients: Gradients) -> dict[str, int]:
        before = world.tallies
        gradients.agree(1, Flags())
        new = {name: now.sent_bytes - before.get(name, Tally()).sent_bytes for name, now in world.tallies.items()}
        calls = {name: now.calls - before.get(name, Tally()).calls for name, now in world.tallies.items()}
        assert all(count <= 1 for count in calls.values())
        return {name: new[name] for name, count in calls.items() if count}

    def cost(numbers: int) -> int:
        return 2 * (world.size - 1) * 4 * numbers // world.size

    parameters = [Parameter(torch.zeros(10)) for _ in range(4)]
    assert sent(Gradients(world, parameters)) == {"grad/bucket0": cost(50)}
    assert sent(Gradients(world, parameters, bucket_bytes=80)) == {"grad/bucket0": cost(20), "grad/bucket1": cost(30)}


NODES = 9
OWNERS: dict[str, tuple[int, ...]] = {
    "uneven": (0, 1, 2, 2, 1, 0, 2, 2, 2),
    "one has none": (0, 2, 2, 0, 0, 2, 2, 0, 2),
    "no edge between ranks": (0, 0, 0, 1, 1, 1, 2, 2, 2),
}


def adjacency(case: str) -> Tensor:
    """Row v sums its neighbours; in the last case no edge leaves its block."""
    A = draw(NODES, NODES, seed=1) * (draw(NODES, NODES, seed=2) > 0.3)
    if case == "no edge between ranks":
        A = A * torch.kron(torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64))
    return A


def two_layers(x: Tensor, weights: list[Tensor], aggregate: Callable[[Tensor, int], Tensor]) -> Tensor:
    h = torch.relu(aggregate(x @ weights[0], 0))
    return aggregate(torch.tanh(h @ weights[1]), 1)


def weights_of(*shapes: tuple[int, ...]) -> list[Parameter]:
    return [Parameter(draw(*shape, seed=10 + place)) for place, shape in enumerate(shapes)]


def plan_of(world: World, owners: list[int], A: Tensor) -> tuple[list[int], list[int], Halo]:
    """Return this rank's nodes, the nodes of its halo, and the plan."""
    own = [v for v in range(NODES) if owners[v] == world.rank]
    needed = {v for v in range(NODES) if A[own][:, v].any()} - set(own)
    halo = [[v for v in range(NODES) if v in needed and owners[v] == rank] for rank in range(world.size)]
    places = {v: [u for u in range(NODES) if owners[u] == owners[v]].index(v) for v in range(NODES)}
    wanted = [torch.tensor([places[v] for v in part], dtype=torch.int32) for part in halo]
    return own, [v for part in halo for v in part], plan_halo(world, wanted, "halo/plan", num_own=len(own))


def a_halo_exchange_gives_one_ranks_loss_and_gradients(world: World) -> None:
    """T15: two layers over divided nodes, an empty part, an empty halo."""
    for case, dealt in OWNERS.items():
        halo_equals_one_rank(world, [owner % world.size for owner in dealt], adjacency(case))
    assert plan_of(world, [owner % world.size for owner in dealt], adjacency(case))[2].num_halo == 0


def halo_equals_one_rank(world: World, owners: list[int], A: Tensor) -> None:
    x, y = draw(NODES, 4, seed=3), draw(NODES, 2, seed=4)
    alone, whole_x = weights_of((4, 3), (3, 2)), x.clone().requires_grad_()
    loss = ((two_layers(whole_x, [*alone], lambda h, _: A @ h) - y) ** 2).sum()
    torch.autograd.backward(loss)
    own, halo, plan = plan_of(world, owners, A)
    assert plan.num_halo == len(halo)
    mine, own_x = weights_of((4, 3), (3, 2)), x[own].clone().requires_grad_()
    landed: list[Tensor] = []

    def aggregate(h: Tensor, layer: int) -> Tensor:
        flight = start_halo(world, plan, h, f"halo/layer{layer}")
        near = A[own][:, own] @ h
        landed.append(finish_halo(flight))
        return near + A[own][:, halo] @ landed[-1]

    part = ((two_layers(own_x, [*mine], aggregate) - y[own]) ** 2).sum()
    torch.autograd.backward(tie(part, landed))
    close(world.all_reduce(part.detach().clone(), "control/loss"), loss.detach())
    Gradients(world, mine).agree(1 / world.size, Flags())
    for found, meant in zip(mine, alone, strict=True):
        close(found.grad, meant.grad)
    assert whole_x.grad is not None
    close(own_x.grad, whole_x.grad[own])


def rows_and_gradients_of_any_layout_travel(world: World) -> None:
    """Turned on the way there; on the way back one number stands for all."""
    each = (1,) * world.size
    x = (torch.arange(2.0 * world.size, dtype=torch.float64) + 100 * world.rank).view(2, world.size).requires_grad_()
    rows = land(depart(x.t(), Route(world, "halo/turned", each, each)))
    assert rows.tolist() == [[100 * r + world.rank, 100 * r + world.rank + world.size] for r in range(world.size)]
    torch.autograd.backward(rows.sum())
    close(x.grad, torch.ones(2, world.size, dtype=torch.float64))
    h = torch.arange(6.0, dtype=torch.float64).view(2, 3).requires_grad_()
    if world.rank == 0 and world.size > 1:
        parcel = send(h.t(), Lane(world, "state/relay", 1))
        parcel.finish()
        torch.autograd.backward(tie(torch.zeros((), dtype=torch.float64, requires_grad=True), [parcel.stub]))
        close(h.grad, torch.ones(2, 3, dtype=torch.float64))
    if world.rank == 1:
        found = receive((3, 2), torch.float64, Lane(world, "state/relay", 0))
        assert torch.equal(found, h.t())
        torch.autograd.backward(found.sum())


def a_rank_whose_part_uses_nothing_still_answers_the_others(world: World) -> None:
    """The landed rows go nowhere on rank 0, and come in any order into the losses of the others."""
    each = (1,) * world.size
    x = torch.ones(world.size, 2, dtype=torch.float64, requires_grad=True)
    routes = [Route(world, f"halo/{i}", each, each) for i in range(3)]
    landed = [land(depart(x * (i + 1), route)) for i, route in enumerate(routes)]
    loss = torch.zeros((), dtype=torch.float64, requires_grad=True) * 1.0
    for i in {0: [], 1: [2, 0, 1]}.get(world.rank, [1, 0]):
        loss = loss + (landed[i] * (world.rank + 1)).sum()
    torch.autograd.backward(tie(loss, landed))
    users = [{0: [], 1: [0, 1, 2]}.get(rank, [0, 1]) for rank in range(world.size)]
    meant = [[(rank + 1.0) * sum(i + 1 for i in used)] * 2 for rank, used in enumerate(users)]
    close(x.grad, torch.tensor(meant, dtype=torch.float64))


def halo_rows_come_without_gradient_where_none_is_wanted(world: World) -> None:
    wanted = [torch.tensor([1, 0, 1] if rank != world.rank else []) for rank in range(world.size)]
    plan = plan_halo(world, wanted, "fetch/plan", num_own=2)
    own = torch.tensor([[10.0 * world.rank], [10.0 * world.rank + 1]])
    meant = [[10.0 * r + i] for r in range(world.size) if r != world.rank for i in (1, 0, 1)]
    found = fetch_halo(world, plan, own, "fetch/rows")
    assert found.tolist() == meant
    assert not found.requires_grad
    with torch.no_grad():
        assert not fetch_halo(world, plan, own.requires_grad_(), "fetch/rows").requires_grad


def a_gradient_of_a_shared_row_is_the_sum_of_all_that_want_it(world: World) -> None:
    """Row 0 is wanted twice by every other rank; the backward pass adds by rank, and may be done twice."""
    wanted = [torch.tensor([0, 0] if rank != world.rank else [], dtype=torch.int64) for rank in range(world.size)]
    plan = plan_halo(world, wanted, "halo/plan", num_own=2)
    own = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    rows = fetch_halo(world, plan, own, "halo/shared")
    loss = (rows * (world.rank + 1)).sum()
    for _ in range(2):
        own.grad = None
        torch.autograd.backward(loss, retain_graph=True)
        others = sum(2 * (rank + 1) for rank in range(world.size) if rank != world.rank)
        close(own.grad, torch.tensor([[others], [0]], dtype=torch.float64))


def a_row_that_is_not_there_cannot_be_wanted(world: World) -> None:
    wanted = [torch.tensor([2] if rank == 0 else [], dtype=torch.int64) for rank in range(world.size)]
    if world.rank == 0:
        with pytest.raises(AssertionError, match="row 2 is wanted of 2"):
            plan_halo(world, wanted, "halo/plan", num_own=2)
    else:
        plan_halo(world, wanted, "halo/plan", num_own=2)


DEALS = (((2, 1, 2), (3, 1, 1)), ((0, 3, 2), (2, 3, 0)), ((5, 0, 0), (0, 0, 5)), ((1, 2, 2), (1, 0, 4)))


def deal_of(world: World, snapshots: tuple[int, ...], nodes: tuple[int, ...]) -> Deal:
    """Five snapshots and five nodes; what is dealt to ranks that are not there goes to the last one."""
    last = world.size - 1
    return Deal(
        (*snapshots[:last], sum(snapshots[last:])), (*nodes[:last], sum(nodes[last:]))
    )  # fmt: skip


def through_time(x_TnF: Tensor, U: Tensor, h: Tensor) -> list[Tensor]:
    states = []
    for x in x_TnF:
        h = torch.tanh(x + h @ U)
        states.append(h)
    return states


def redistribution_gives_one_ranks_loss_and_gradients(world: World) -> None:
    """T16: structure by snapshots, time by nodes, output by snapshots; uneven, and with ranks that hold none."""
    A, x, y = draw(5, 5, 5, seed=1), draw(5, 5, 3, seed=2), draw(5, 5, 2, seed=3)
    shapes = ((3, 4), (4, 4), (4, 2))
    alone = weights_of(*shapes)
    W, U, V = alone
    whole = torch.stack(through_time(torch.relu(A @ x @ W), U, torch.zeros(5, 4, dtype=torch.float64)))
    loss = ((A @ whole @ V - y) ** 2).sum()
    torch.autograd.backward(loss)
    for snapshots, nodes in DEALS:
        deal = deal_of(world, snapshots, nodes)
        first = sum(deal.snapshots[: world.rank])
        mine = slice(first, first + deal.snapshots[world.rank])
        parameters = weights_of(*shapes)
        W, U, V = parameters
        by_node = by_nodes(world, deal, torch.relu(A[mine] @ x[mine] @ W), "state/to nodes")
        start = torch.zeros(deal.nodes[world.rank], 4, dtype=torch.float64)
        states = torch.stack(through_time(by_node, U, start))
        back = by_snapshots(world, deal, states, "state/to snapshots")
        part = ((A[mine] @ back @ V - y[mine]) ** 2).sum()
        torch.autograd.backward(tie(part, [by_node, back]))
        close(world.all_reduce(part.detach().clone(), "control/loss"), loss.detach())
        Gradients(world, parameters).agree(1 / world.size, Flags())
        for found, meant in zip(parameters, alone, strict=True):
            close(found.grad, meant.grad)


def redistribution_there_and_back_changes_nothing(world: World) -> None:
    for snapshots, nodes in DEALS:
        deal = deal_of(world, snapshots, nodes)
        first = sum(deal.snapshots[: world.rank])
        x = draw(5, 5, 2, seed=7)[first : first + deal.snapshots[world.rank]]
        found = by_nodes(world, deal, x, "state/to nodes")
        start = sum(deal.nodes[: world.rank])
        assert torch.equal(found, draw(5, 5, 2, seed=7)[:, start : start + deal.nodes[world.rank]])
        assert torch.equal(by_snapshots(world, deal, found, "state/to snapshots"), x)


def a_state_handed_on_gives_one_ranks_loss_and_gradients(world: World) -> None:
    """Each rank has some snapshots; the state goes from rank to rank, its gradient comes back."""
    x, y = draw(7, 3, 4, seed=1), draw(7, 3, 4, seed=2)
    alone = weights_of((4, 4))
    loss = ((torch.stack(through_time(x, alone[0], torch.zeros(3, 4, dtype=torch.float64))) - y) ** 2).sum()
    torch.autograd.backward(loss)
    cuts = [0, *[3 + 2 * rank for rank in range(world.size - 1)], 7]
    mine = slice(cuts[world.rank], cuts[world.rank + 1])
    parameters = weights_of((4, 4))
    h, ties = torch.zeros(3, 4, dtype=torch.float64), []
    if world.rank > 0:
        h = receive((3, 4), torch.float64, Lane(world, "state/relay", world.rank - 1))
        ties.append(h)
    states = through_time(x[mine], parameters[0], h)
    if world.rank < world.size - 1:
        parcel = send(states[-1], Lane(world, "state/relay", world.rank + 1))
        ties.append(parcel.stub)
        parcel.finish()
    part = ((torch.stack(states) - y[mine]) ** 2).sum()
    torch.autograd.backward(tie(part, ties))
    Gradients(world, parameters).agree(1 / world.size, Flags())
    close(world.all_reduce(part.detach().clone(), "control/loss"), loss.detach())
    close(parameters[0].grad, alone[0].grad)


def all_ranks_did_the_same_in_the_same_order(world: World) -> None:
    """The last scenario: what all the others began, by name; messages between two ranks are their own affair."""
    assert_same(
        world, "the order of collectives", repr([name for name, _ in world.log if "relay" not in name]).encode()
    )


SCENARIOS: list[Callable[[World], None]] = [
    a_sum_adds_what_each_rank_has,
    a_maximum_is_the_largest_of_all_ranks,
    a_broadcast_brings_the_roots_tensor,
    tensors_without_elements_may_be_sent,
    uneven_rows_arrive_by_rank,
    exchanges_that_overlap_do_not_mix,
    bytes_of_any_length_go_everywhere,
    messages_go_round,
    calls_bytes_and_waits_are_counted_by_name,
    what_cannot_be_sent_is_refused_before_anything_is_sent,
    different_data_is_named_by_rank,
    parameters_start_as_those_of_rank_0,
    gradients_are_weighted_by_units,
    ten_steps_give_one_ranks_parameters,
    flags_of_any_rank_reach_all_and_harm_no_gradient,
    half_precision_is_added_in_single,
    one_collective_a_bucket_carries_everything,
    a_halo_exchange_gives_one_ranks_loss_and_gradients,
    rows_and_gradients_of_any_layout_travel,
    a_rank_whose_part_uses_nothing_still_answers_the_others,
    halo_rows_come_without_gradient_where_none_is_wanted,
    a_gradient_of_a_shared_row_is_the_sum_of_all_that_want_it,
    a_row_that_is_not_there_cannot_be_wanted,
    redistribution_gives_one_ranks_loss_and_gradients,
    redistribution_there_and_back_changes_nothing,
    a_state_handed_on_gives_one_ranks_loss_and_gradients,
    all_ranks_did_the_same_in_the_same_order,
]
