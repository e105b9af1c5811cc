"""A tiny recurrent network over real blocks, on one rank and on several, against states kept by the definition.

What every window gives is compared with the statement of SPEC section 7 in its plainest form: a dictionary of the
states that the step before computed, node by node and snapshot by snapshot (T18, T20, T21). Parameters differ from step
to step, so that a state of another step or another snapshot is another number.

Shape letters: N nodes, O own rows, R ranks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.plan.flare import Scene, chosen_nodes, flare_settings, scenes, snapshot_of
from timeloom.graph.keys import Float64s
from timeloom.graph.snapshot import Snapshot
from timeloom.plan.batch.blocks import Block, RankedSides, Slicer, ranked_sides, sides_of
from timeloom.plan.batch.flare import FlareSettings
from timeloom.plan.batch.kept import state_rows
from timeloom.plan.batch.order import Chunking, ChunkOrder, chunk_order
from timeloom.plan.batch.trapezoid import cut_of, exchanging, trapezoids, trapezoids_of_epoch
from timeloom.plan.types import Unit

Told = list[list[dict[int, float]]]
"""The state of every node, for each snapshot of each unit."""


@dataclass(frozen=True)
class World:
    """Snapshots, chunks, and what is seen of each node at each snapshot."""

    snapshots: list[Snapshot]
    chunking: Chunking
    order: ChunkOrder
    x_TN: Float64s


def world_of(scene: Scene, count: int) -> World:
    rng = np.random.default_rng(scene.seed)
    num_nodes = scene.chunking.num_nodes
    pairs = [{(int(u), int(v)) for u, v in rng.integers(0, num_nodes, (2 * num_nodes, 2))} for _ in range(count)]
    snapshots = [snapshot_of(edges, num_nodes, t=t) for t, edges in enumerate(pairs)]
    order = chunk_order(scene.chunking, seed=scene.seed, epoch=scene.epoch)
    return World(snapshots, scene.chunking, order, rng.normal(size=(count, num_nodes)))


def cell(seen: float, mean: float, before: float, step: int) -> float:
    return float(np.tanh(seen + 0.7 * mean + 0.9 * before + 0.1 * step))


def by_definition(world: World, settings: FlareSettings, steps: list[tuple[Unit, ...]]) -> Told:
    """Return every state by dictionaries: neighbours are averaged over edges that the block has."""
    told, stored = list[list[dict[int, float]]](), dict[int, dict[int, float]]()
    start = dict[int, dict[int, float]]()
    owner_N = world.chunking.owner_N
    for step, units in enumerate(steps):
        for unit in units:
            start, stored = ({}, {}) if unit.fresh else (start, stored)
            states = dict[int, dict[int, float]]()
            for t, chunks, crosses in zip(
                range(unit.first, unit.last), unit.chunks, exchanging(settings, unit), strict=True
            ):  # fmt: skip
                nodes, now = chosen_nodes(world.order, chunks), world.snapshots[t]
                pairs = list(zip(now.sources.tolist(), now.targets.tolist(), strict=True))
                states[t] = {}
                for v in nodes:
                    heard = [
                        world.x_TN[t, u]
                        for u, w in pairs
                        if w == v and u in nodes and (crosses or owner_N[u] == owner_N[v])
                    ]
                    mean = sum(heard) / len(heard) if heard else 0.0
                    here = states.get(t - 1, {})
                    before = here[v] if v in here else stored.get(t - 1, {}).get(v, 0.0)
                    states[t][v] = cell(world.x_TN[t, v], mean, before, step)
            # What this unit computed and nothing older, but for the start of a part that was warmed up.
            start = start if unit.targets else states
            stored = {**start, **states}
            told.append(list(states.values()))
    return told


class Rank:
    """One rank: its rows of what is seen, and one kept state for each of its nodes."""

    def __init__(self, world: World, owner: int) -> None:
        self.order = world.order.own(owner)
        self.slicer = Slicer(world.order, owner)
        self.edges: list[RankedSides] = [
            ranked_sides(sides_of(one, world.chunking, owner), world.order) for one in world.snapshots
        ]
        self.x_TO = world.x_TN[:, self.order.nodes]
        self.kept_O = np.zeros(len(self.order.nodes))
        self.state_O, self.keeps = self.kept_O, list[tuple[int, Float64s]]()


def by_kept_states(world: World, settings: FlareSettings, steps: list[tuple[Unit, ...]]) -> Told:
    """Return every state as a data plane computes it: blocks, exchanges, slices of rows, one kept state a node."""
    ranks = [Rank(world, owner) for owner in range(world.chunking.num_owners)]
    told = list[list[dict[int, float]]]()
    for step, units in enumerate(steps):
        for unit in units:
            for rank in ranks:
                rank.kept_O = np.zeros(len(rank.kept_O)) if unit.fresh else rank.kept_O
                rank.keeps = []
            places = range(unit.last - unit.first)
            told.append([compute(world, settings, ranks, (unit, place, step)) for place in places])
            for rank in ranks:
                for low, states in rank.keeps:
                    rank.kept_O[low : low + len(states)] = states
    return told


def compute(
    world: World, settings: FlareSettings, ranks: list[Rank], at: tuple[Unit, int, int]
) -> dict[int, float]:  # fmt: skip
    """Compute one snapshot of a unit on all ranks; return the state of every node of it."""
    unit, place, step = at
    t, found = unit.first + place, dict[int, float]()
    crosses = exchanging(settings, unit)[place]
    blocks = [rank.slicer.block(rank.edges[t], unit.chunks[place], halo=crosses) for rank in ranks]
    for owner, (rank, block) in enumerate(zip(ranks, blocks, strict=True)):
        rows = state_rows(unit, rank.order.ends)[place]
        assert rows.size == block.num_own
        seen = np.concatenate([rank.x_TO[t, : block.num_own], arrived(ranks, blocks, owner, t)])
        before = np.concatenate([rank.state_O[: rows.going_on], rank.kept_O[rows.going_on : rows.size]])
        sums = np.add.reduceat(np.append(seen[block.into.neighbours], 0.0), block.into.starts[: block.num_own])
        degrees = block.in_degrees_O
        means = np.where(degrees > 0, sums / np.maximum(degrees, 1), 0.0)
        rank.state_O = np.array(
            [cell(*one, step) for one in zip(seen[: block.num_own], means, before, strict=True)], np.float64
        )
        rank.keeps.append((rows.kept_from, rank.state_O[rows.kept_from :].copy()))
        found |= dict(zip(rank.order.nodes[: rows.size].tolist(), rank.state_O.tolist(), strict=True))
    return found


def arrived(ranks: list[Rank], blocks: list[Block], here: int, t: int) -> Float64s:
    """Return the rows that the others send to a rank."""
    parts = [np.empty(0)]
    for rank, block in zip(ranks, blocks, strict=True):
        begin = sum(block.exchange.sent[:here])
        rows = block.exchange.rows_S[begin : begin + block.exchange.sent[here]]
        parts.append(rank.x_TO[t, rows])
    return np.concatenate(parts)


def check_equal(one: Told, other: Told) -> None:
    assert [[set(states) for states in unit] for unit in one] == [[set(states) for states in unit] for unit in other]
    for ours, theirs in zip(one, other, strict=True):
        for mine, yours in zip(ours, theirs, strict=True):
            for node, state in mine.items():
                assert state == pytest.approx(yours[node], abs=1e-12)


@examples(max_examples=60)
@given(scene=scenes(), settings=flare_settings(), count=st.integers(1, 9), halo=st.booleans())
def test_one_kept_state_a_node_is_what_the_definition_says_on_any_number_of_ranks(
    scene: Scene, settings: FlareSettings, count: int, halo: bool
) -> None:
    assume(count >= settings.full)
    settings = dataclasses.replace(
        settings, chunks=scene.chunking.per_owner, temporal_halo="exchange" if halo else "drop"
    )
    world = world_of(scene, count)
    steps = trapezoids_of_epoch(settings, count, seed=scene.seed, epoch=scene.epoch)
    check_equal(by_kept_states(world, settings, steps), by_definition(world, settings, steps))


@examples(max_examples=40)
@given(scene=scenes(), full=st.integers(1, 3), decayed=st.integers(0, 4), count=st.integers(3, 8))
def test_where_nothing_shrinks_and_nothing_is_learnt_states_are_those_of_one_pass(
    scene: Scene, full: int, decayed: int, count: int
) -> None:
    """T18 and T20: alpha = 1 or m = 0, frozen parameters, any number of ranks: a recurrence over the full history."""
    world = world_of(scene, count)
    settings = FlareSettings(full=full, decayed=decayed, alpha=1.0, chunks=scene.chunking.per_owner)
    steps = trapezoids(settings, count)
    frozen = [unit for units in steps for unit in units]
    # All units in one step: the parameters of `cell` follow the step.
    told = by_kept_states(world, settings, [tuple(frozen)])
    # One process: every edge counts, whoever owns its ends.
    everything = dataclasses.replace(settings, temporal_halo="exchange")
    once = by_definition(
        world, everything, [(Unit(first=0, last=count, targets=(), fresh=True, chunks=(settings.chunks,) * count),)]
    )[0]
    for unit, states in zip(frozen, told, strict=True):
        check_equal([states], [once[unit.first : unit.last]])


@examples(max_examples=30)
@given(scene=scenes(), count=st.integers(4, 9), epoch=st.integers(0, 9), warmup=st.booleans())
def test_states_of_one_part_of_a_split_sequence_do_not_know_the_other(
    scene: Scene, count: int, epoch: int, warmup: bool
) -> None:
    """T21: whatever is different in the later part, states of the earlier part are the same, though they come after."""
    settings = FlareSettings(
        full=2, decayed=3, alpha=0.3, chunks=scene.chunking.per_owner, split=True, warmup=warmup
    )  # fmt: skip
    steps = trapezoids_of_epoch(settings, count, seed=scene.seed, epoch=epoch)
    cut = cut_of(settings, count, seed=scene.seed, epoch=epoch)
    earlier = [place for place, units in enumerate(steps) if units[-1].last <= cut]
    assume(earlier and len(earlier) < len(steps))
    world = world_of(scene, count)
    other = dataclasses.replace(world, x_TN=np.where(np.arange(count)[:, None] >= cut, 5.0, world.x_TN))
    first, second = (by_kept_states(one, settings, steps) for one in (world, other))
    skipped = sum(len(units) for units in steps[: earlier[0]])
    check_equal(first[skipped:], second[skipped:])
    if not warmup:
        # Nor does the later part know the earlier one.
        past = dataclasses.replace(world, x_TN=np.where(np.arange(count)[:, None] < cut, 5.0, world.x_TN))
        check_equal(first[:skipped], by_kept_states(past, settings, steps)[:skipped])
