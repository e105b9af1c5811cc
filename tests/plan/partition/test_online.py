"""Does the online partitioner keep to memory, to one server for each node, and to moves that pay?"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.graph.tiny import TinyGraph
from tests.plan.partition.graphs import drawn, graph_of
from tests.plan.partition.test_ledger import bytes_by_runs
from timeloom.config import build, parse_sets
from timeloom.errors import BadConfig, TooLarge
from timeloom.plan.partition import online_moves
from timeloom.plan.partition.baselines import FollowOwners, Greedy, MetisLayer, Placer
from timeloom.plan.partition.choose import PartitionSettings
from timeloom.plan.partition.hashed import hash_owners
from timeloom.plan.partition.metis import metis_owners
from timeloom.plan.partition.online import Arrival, OnlinePartitioner, OnlineSettings, Placement
from timeloom.plan.partition.online_base import base
from timeloom.plan.partition.online_moves import Prices, State, improve, payoff
from timeloom.plan.partition.ties import Ties, ties_of
from timeloom.plan.partition.weights import SamplingSettings

EVERYTHING = SamplingSettings(batch=10**6, fanouts=(10**6,))
"""Every edge is kept for certain, so that it weighs 1."""


def arrivals(graph: TinyGraph, *, full: int = 100, changed: int = 30) -> list[Arrival]:
    n = graph.num_nodes
    return [Arrival(snapshot=s, full_N=np.full(n, full), changed_N=np.full(n, changed)) for s in graph.all]


def placed(placer: Placer, graph: TinyGraph, *, full: int = 100, changed: int = 30) -> list[Placement]:
    return [placer.place(arrival) for arrival in arrivals(graph, full=full, changed=changed)]


def placers(graph: TinyGraph, capacity_K: Any) -> dict[str, Placer]:
    servers, n = len(capacity_K), graph.num_nodes
    return {
        "convex": OnlinePartitioner(capacity_K, OnlineSettings()),
        "paper": OnlinePartitioner(capacity_K, OnlineSettings(payoff="paper", rounds=20)),
        "hash": FollowOwners(hash_owners(n, servers, 0), capacity_K),
        "metis": FollowOwners(metis_owners(graph, 3, servers, 0), capacity_K),
        "greedy": Greedy(capacity_K),
        "metis_layer": MetisLayer(capacity_K),
    }


@pytest.mark.parametrize("name", ["convex", "paper", "hash", "metis", "greedy", "metis_layer"])
@pytest.mark.parametrize("slack", [0.6, 1.1, 3.0])
def test_memory_is_counted_by_runs_and_never_exceeded_without_a_record(name: str, slack: float) -> None:
    """T29 and T31: each node that is there on exactly one server; a full server is full on record."""
    graph = drawn(7, num_snapshots=8)
    capacity_K = np.full(3, int(slack * graph.num_nodes * 190 / 3))
    found = placed(placers(graph, capacity_K)[name], graph)
    servers = [one.server_N.tolist() for one in found]
    for t, one in enumerate(found):
        assert ((one.server_N >= 0) == graph.all[t].alive).all()
        full, changed = [[100] * 60] * (t + 1), [[30] * 60] * (t + 1)
        held = [bytes_by_runs(servers[: t + 1], full, changed, 4, k) for k in range(3)]
        assert one.held_K.tolist() == held
        over = {overflow.server for overflow in one.overflows}
        assert set(np.flatnonzero(one.held_K > capacity_K).tolist()) <= over
        assert all(overflow.t == t for overflow in one.overflows)
    if slack == 0.6:
        assert any(one.overflows for one in found), "what cannot fit overflows somewhere"
    if slack == 3.0:
        assert not any(one.overflows for one in found)


@pytest.mark.parametrize("name", ["convex", "paper", "hash", "metis", "greedy", "metis_layer"])
def test_the_same_snapshots_are_placed_alike_and_later_ones_change_nothing(name: str) -> None:
    graph = drawn(7, num_snapshots=8)
    other = TinyGraph([*graph.all[:5], *drawn(8, num_snapshots=8).all[5:]])
    capacity_K = np.full(3, 6000)
    one, two = placed(placers(graph, capacity_K)[name], graph), placed(placers(other, capacity_K)[name], other)
    assert all((a.server_N == b.server_N).all() for a, b in zip(one[:5], two[:5], strict=True))


def state_of(graph: TinyGraph, seed: int, capacity: int) -> tuple[State, Ties]:
    """Return a placement drawn at random, of a snapshot whose nodes were somewhere before, or nowhere."""
    rng, n, snapshot = np.random.default_rng(seed), graph.num_nodes, graph.all[0]
    server_N = np.where(snapshot.alive, rng.integers(0, 3, n), -1).astype(np.int32)
    before_N = np.where(rng.random(n) < 0.7, server_N, rng.integers(-1, 3, n)).astype(np.int32)
    full_N, stay_N = rng.integers(60, 140, n), rng.integers(0, 50, n)
    earlier_K = rng.integers(0, 500, 3)
    used_K = earlier_K.copy()
    here = server_N >= 0
    np.add.at(used_K, server_N[here], np.where(server_N == before_N, stay_N, full_N)[here])
    state = State(
        server_N=server_N, before_N=before_N, stay_N=stay_N, full_N=full_N, earlier_K=earlier_K, used_K=used_K,
        capacity_K=np.full(3, capacity),
    )  # fmt: skip
    return state, ties_of(snapshot, rng.random(len(snapshot)))


def used_again(state: State) -> list[int]:
    used_K = state.earlier_K.copy()
    for v, k in enumerate(state.server_N.tolist()):
        if k >= 0:
            used_K[k] += state.stay_N[v] if state.before_N[v] == k else state.full_N[v]
    return [int(used) for used in used_K]


@given(seed=st.integers(0, 10**6), capacity=st.sampled_from([1500, 3000, 9000]))
def test_every_round_of_moves_and_swaps_raises_the_payoff_until_none_does(seed: int, capacity: int) -> None:
    """T31: accepted moves strictly increase the potential; they end; capacities hold where they held."""
    graph = drawn(seed % 17, num_nodes=40)
    state, ties = state_of(graph, seed, capacity)
    prices = Prices(start=0.002, steepness=12.0)
    before_K, before = state.used_K.copy(), payoff(state, ties, prices)
    nodes = np.flatnonzero(state.server_N >= 0)
    for step in (online_moves._moved, online_moves._swapped, online_moves._moved):
        count = step(nodes, state, ties, prices)
        after = payoff(state, ties, prices)
        assert after > before if count else after == before
        assert state.used_K.tolist() == used_again(state)
        before = after
    rounds, _ = improve(state, ties, prices, rounds=10_000, swaps=True)
    assert rounds < 10_000
    assert payoff(state, ties, prices) >= before
    assert (online_moves._moved(nodes, state, ties, prices), online_moves._swapped(nodes, state, ties, prices)) == (
        0,
        0,
    )
    assert (state.used_K <= np.maximum(before_K, state.capacity_K)).all()


def test_single_moves_are_stuck_where_a_swap_is_not() -> None:
    """SPEC D9.3: servers are full, U = 0, and OPT = 2 W."""
    graph = graph_of(4, [(0, 2), (1, 3)])
    ties = ties_of(graph.all[0], np.ones(2))

    def state() -> State:
        return State(
            server_N=np.array([0, 0, 1, 1], np.int32), before_N=np.full(4, -1, np.int32), stay_N=np.full(4, 10),
            full_N=np.full(4, 100), earlier_K=np.zeros(2, np.int64), used_K=np.full(2, 200),
            capacity_K=np.full(2, 200),
        )  # fmt: skip

    prices = Prices(start=1e-9, steepness=12.0)
    stuck, free = state(), state()
    assert improve(stuck, ties, prices, rounds=50, swaps=False) == (1, 0)
    assert improve(free, ties, prices, rounds=50, swaps=True)[1] == 1
    assert free.server_N[0] == free.server_N[2] != free.server_N[1] == free.server_N[3]
    assert free.used_K.tolist() == [200, 200]


def best_of_all(graph: TinyGraph, capacity: int, window: int, full: int, changed: int) -> int | None:
    """Return the most edges kept over all snapshots by any placement that fits, by trying all; None: none fits."""
    options = [
        [
            tuple(row)
            for row in itertools.product(*[(0, 1) if here else (-1,) for here in snapshot.alive.tolist()])
        ]
        for snapshot in graph.all
    ]  # fmt: skip
    best: int | None = None

    def go(chosen: list[list[int]], kept: int) -> None:
        nonlocal best
        t = len(chosen)
        if t == len(graph.all):
            best = kept if best is None else max(best, kept)
            return
        for row in options[t]:
            servers = [*chosen, list(row)]
            sizes = [[full] * graph.num_nodes] * (t + 1), [[changed] * graph.num_nodes] * (t + 1)
            if all(bytes_by_runs(servers, *sizes, window, k) <= capacity for k in (0, 1)):
                go(servers, kept + sum(row[e.source] == row[e.target] for e in graph.edges(t)))

    go([], 0)
    return best


def test_on_tiny_instances_no_placement_beats_the_best_of_all_and_few_dead_ends_occur() -> None:
    """T32: payoff-optimal <= brute-force OPT wherever nothing overflowed, and near it; what overflows was mostly lost.

    Of 400 instances SPEC section 9 saw 59 dead ends: ways existed that nobody could know in time.
    """
    pairs = list(itertools.combinations(range(4), 2))
    dead_ends = solved = 0
    ours = theirs = 0.0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        snapshots = [[pair for pair in pairs if rng.random() < 0.4] for _ in range(3)]
        graph = graph_of(4, *snapshots, alive={0, 1, 2, 3})
        capacity = int(rng.choice([250, 320, 420]))
        options = OnlineSettings(window=2, sampling=EVERYTHING)
        found = placed(OnlinePartitioner(np.full(2, capacity), options), graph, changed=10)
        best = best_of_all(graph, capacity, 2, 100, 10)
        if any(one.overflows for one in found):
            dead_ends += best is not None
            continue
        assert best is not None
        kept = sum(one.kept_weight for one in found)
        assert kept <= best + 1e-9
        solved, ours, theirs = solved + 1, ours + kept, theirs + best
    assert solved >= 30
    assert dead_ends <= 40 * 59 / 400
    assert ours > 0.6 * theirs


@pytest.mark.parametrize("factor", [10, 100, 1000])
def test_no_guarantee_theorem_4_2_is_false(factor: int) -> None:
    """T32: four nodes, two servers of 2C + 2c, a window of 2. What was put apart cannot come together again.

    The claim is a ratio of at most 2 max(1, ln(2 eta)) = 4.97; here it is factor / 2, for us and for the best that any
    rule could do after the first snapshot.
    """
    graph = graph_of(4, [(0, 1), (2, 3)], [(0, 1), (2, 3), (0, 2), (1, 3)])
    weights = [
        np.ones(2),
        np.array([float(factor) if pair in {(0, 2), (1, 3)} else 1.0 for pair in pairs_of(graph, 1)]),
    ]
    full, changed, capacity = 100, 10, 220
    placer = OnlinePartitioner(np.full(2, capacity), OnlineSettings(window=2, sampling=EVERYTHING))
    found = placed(placer, graph, full=full, changed=changed)
    first, second = (one.server_N for one in found)
    assert first[0] == first[1] != first[2] == first[3]
    assert (second == first).all(), "no move fits"
    assert not any(one.overflows for one in found)
    ours = sum(
        float(weight)
        for t, server_N in enumerate((first, second))
        for pair, weight in zip(pairs_of(graph, t), weights[t].tolist(), strict=True)
        if server_N[pair[0]] == server_N[pair[1]]
    )
    together = [[0, 1, 0, 1]] * 2
    assert all(bytes_by_runs(together, [[full] * 4] * 2, [[changed] * 4] * 2, 2, k) <= capacity for k in (0, 1))
    assert ours == 4.0
    assert 2 * factor / ours == factor / 2 > 2 * max(1.0, float(np.log(12.0)))


def pairs_of(graph: TinyGraph, t: int) -> list[tuple[int, int]]:
    return [(edge.source, edge.target) for edge in graph.edges(t)]


def test_a_base_that_cannot_fit_theorem_4_1_is_false() -> None:
    """Three nodes of C and two servers of 1.5 C: enough memory in all, and yet one node fits nowhere."""
    graph = graph_of(3, [], alive={0, 1, 2})
    free = [150, 150]
    for _ in range(3):  # lines 15 to 19 of Algorithm 1, as printed
        most = int(np.argmax(free))
        free[most] -= 100
    assert min(free) < 0
    found = placed(OnlinePartitioner(np.full(2, 150), OnlineSettings()), graph)[0]
    (overflow,) = found.overflows
    assert (overflow.needed_bytes, overflow.free_bytes) == (100, 50)
    assert sorted(found.held_K.tolist()) == [100, 200]
    with pytest.raises(
        TooLarge, match=r"snapshot 0 does not fit: node 2 takes 100 bytes, and server 0, which has most room, has 50"
    ):
        placed(OnlinePartitioner(np.full(2, 150), OnlineSettings(overflow="raise")), graph)


def test_servers_that_shrink_below_what_they_hold_are_refused_with_both_numbers() -> None:
    graph = graph_of(2, [(0, 1)], [(0, 1)], alive={0, 1})
    placer = OnlinePartitioner(np.full(1, 1000), OnlineSettings(overflow="raise", sampling=EVERYTHING))
    held = int(placed(placer, graph)[-1].held_K[0])
    placer.resize(np.full(1, 90))
    with pytest.raises(
        TooLarge, match=f"is {held - 90} bytes more than its capacity of 90; .*partition.online.overflow"
    ):
        placed(placer, graph)


def test_line_13_as_printed_charges_a_moved_node_nothing() -> None:
    """SPEC section 9: p and q of the snapshot before are both 0 of a server the node was not on."""
    graph = graph_of(4, [(0, 1), (2, 3)], [(0, 2), (0, 3), (1, 0)])
    for payoff_name in ("convex", "paper"):
        options = OnlineSettings(payoff=payoff_name, window=2, sampling=EVERYTHING)
        found = placed(OnlinePartitioner(np.full(2, 1000), options), graph, changed=10)
        cost = 100 * found[1].moved + 10 * (4 - found[1].moved)
        assert found[1].held_K.sum() - found[0].held_K.sum() == cost


def test_residents_keep_their_room_before_newcomers_take_any() -> None:
    graph = graph_of(4, [(0, 1)], [(0, 1), (2, 0), (3, 1)])
    capacity_K = np.array([250, 500])
    placer = OnlinePartitioner(capacity_K, OnlineSettings(rounds=0, sampling=EVERYTHING))
    found = placed(placer, graph, changed=25)
    assert found[0].server_N[0] == found[0].server_N[1]
    assert not found[1].overflows
    assert found[1].moved == 0


def test_a_resident_whose_changes_do_not_fit_makes_way_and_what_changed_most_goes_first() -> None:
    graph = graph_of(3, [(0, 1)], [(0, 1)], alive={0, 1, 2})
    state = State(
        server_N=np.full(3, -1, np.int32), before_N=np.zeros(3, np.int32), stay_N=np.array([10, 60, 20]),
        full_N=np.full(3, 100), earlier_K=np.array([300, 0]), used_K=np.array([300, 0]),
        capacity_K=np.array([350, 400]),
    )  # fmt: skip
    assert base(state, ties_of(graph.all[1], np.ones(1)), graph.all[1]) == []
    assert state.server_N.tolist() == [0, 1, 0]
    assert state.used_K.tolist() == [330, 100]


def test_a_price_of_nothing_gathers_what_is_tied_and_a_price_spreads_it() -> None:
    """Twelve nodes that are all tied, and room for all of them on either server."""
    graph = graph_of(12, [(u, v) for u in range(12) for v in range(u)])
    cheap, dear = (
        placed(OnlinePartitioner(np.full(2, 1300), OnlineSettings(price=price, sampling=EVERYTHING)), graph)[0]
        for price in (0.0, 6.0)
    )
    assert sorted(cheap.held_K.tolist()) == [0, 1200]
    assert min(dear.held_K.tolist()) >= 500


def test_drifting_communities_are_followed_within_memory_better_than_by_the_baselines() -> None:
    """SPEC section 9: convex keeps more than hash, METIS of the union and the printed payoff, and fits."""
    rng = np.random.default_rng(1)
    n, community = 400, np.arange(400) % 8
    snapshots = []
    for _ in range(10):
        moves = rng.random(n) < 0.03
        community = np.where(moves, rng.integers(0, 8, n), community)
        sources = rng.integers(0, n, 2400)
        order = np.argsort(community, kind="stable")
        first = np.searchsorted(community[order], np.arange(9))
        size = np.diff(first)[community[sources]]
        inside = order[first[community[sources]] + rng.integers(0, 10**9, 2400) % size]
        targets = np.where(rng.random(2400) < 0.9, inside, rng.integers(0, n, 2400))
        snapshots.append(sorted(set(zip(sources.tolist(), targets.tolist(), strict=True))))
    graph = graph_of(n, *snapshots)
    capacity_K = np.full(4, int(1.3 * n * 190 / 4))
    kept = {}
    for name, placer in placers(graph, capacity_K).items():
        found = placed(placer, graph)
        kept[name] = sum(one.kept_weight for one in found) / sum(one.total_weight for one in found)
        if name == "convex":
            assert not any(one.overflows for one in found)
            assert max(one.rounds for one in found) < 30
    assert kept["convex"] > max(kept["hash"], kept["greedy"], kept["metis"], kept["paper"])


def test_nodes_that_are_appended_between_snapshots_are_placed() -> None:
    small, large = graph_of(4, [(0, 1), (2, 3)]), graph_of(6, [(0, 1), (2, 3), (4, 0), (5, 2)])
    placer = OnlinePartitioner(np.full(2, 1000), OnlineSettings(sampling=EVERYTHING))
    placed(placer, small)
    (found,) = placed(placer, large)
    assert found.server_N[4] == found.server_N[0]
    assert found.server_N[5] == found.server_N[2]


@pytest.mark.parametrize("payoff_name", ["convex", "paper"])
@pytest.mark.parametrize("stop", [0, 2, 5])
def test_a_partitioner_that_goes_on_from_a_checkpoint_places_as_if_nothing_had_happened(
    payoff_name: Any, stop: int
) -> None:
    graph, capacity_K = drawn(7, num_snapshots=8), np.full(3, 6000)
    options = OnlineSettings(payoff=payoff_name, rounds=10)
    whole = placed(OnlinePartitioner(capacity_K, options), graph)
    before, after = OnlinePartitioner(capacity_K, options), OnlinePartitioner(capacity_K, options)
    for arrival in arrivals(graph)[:stop]:
        before.place(arrival)
    after.restore({name: array.copy() for name, array in before.arrays().items()})
    for arrival, wanted in zip(arrivals(graph)[stop:], whole[stop:], strict=True):
        found = after.place(arrival)
        assert (found.server_N == wanted.server_N).all()
        assert (found.held_K.tolist(), found.kept_weight) == (wanted.held_K.tolist(), wanted.kept_weight)
    with pytest.raises(BadConfig, match=r"a placement on 3 servers with .* cannot go on with 2"):
        OnlinePartitioner(np.full(2, 6000), options).restore(before.arrays())


def test_settings_are_read_from_a_file_or_a_command_line() -> None:
    tables = parse_sets(["by=online", "online.payoff=paper", "online.sampling.fanouts=[3, 4]", "seed=7"])
    found = build(PartitionSettings, tables, where="partition")
    assert (found.by, found.online.payoff, found.online.sampling.fanouts, found.seed) == ("online", "paper", (3, 4), 7)


@pytest.mark.parametrize("num_nodes", [1, 5])
def test_snapshots_without_edges_or_nodes_are_placed(num_nodes: int) -> None:
    graph = graph_of(num_nodes, [], [], [])
    for name, placer in placers(graph, np.full(2, 1000)).items():
        for one in placed(placer, graph):
            assert (one.server_N == -1).all(), name
            assert (one.kept_weight, one.total_weight, one.held_K.sum()) == (0.0, 0.0, 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"window": 0}, "a window of 0 snapshots"),
        ({"rounds": -1}, "online.rounds=-1: give 0 or more"),
        ({"eta": 0.5}, "online.eta=0.5: give a number above 0.5"),
        ({"price": float("nan")}, "online.price=nan: give 0 or more"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadConfig, match=sentence):
        OnlinePartitioner(np.ones(2, np.int64), OnlineSettings(**options))


def test_servers_that_hold_nothing_are_refused() -> None:
    with pytest.raises(BadConfig, match=r"capacities of \[0, 5\] bytes"):
        OnlinePartitioner(np.array([0, 5]), OnlineSettings())
    with pytest.raises(BadConfig, match="owners for 3 ranks were given for 2 servers"):
        FollowOwners(hash_owners(5, 3, 0), np.ones(2, np.int64))
