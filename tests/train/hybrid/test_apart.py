"""Ranks that train apart take part in equally many rounds, agree, and go on where they were (T26, T27, T28)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.graph.tiny import TinyGraph, tiny
from tests.train.divided_runs import owned_by, parameters_of
from tests.train.hybrid.apart_runs import (
    Clock,
    Told,
    loss_of,
    settings_of,
    train_as,
    train_as_one,
    whole_seen,
)
from timeloom.dist import threads
from timeloom.dist.collectives import World
from timeloom.errors import Diverged
from timeloom.plan.batch.feed import BatchFeed
from timeloom.plan.batch.hybrid import HybridBatch
from timeloom.plan.batch.timeline import Built
from timeloom.plan.partition.load import load_owners, walk_loads
from timeloom.plan.tune.adjuster import Adjuster, Observation
from timeloom.plan.tune.dqn import Dqn
from timeloom.records import Averaged, Batched, Ended, EpochEnded, Evaluated, Record, RunDirectory, Spans, Stepped
from timeloom.train import checkpoint
from timeloom.train.choose import decided_of
from timeloom.train.hybrid.loop import train_apart
from timeloom.train.hybrid.worker import HybridWorker
from timeloom.train.optim import gradient_norm
from timeloom.train.session import Stopped, open_session, scales_of
from timeloom.train.settings import RunSettings
from timeloom.train.trainer import Trainer, grouped

NODES = 13
FAST, SLOW = 1.0, 10.0
SHORT: dict[str, Any] = {"train": {"epochs": 4, "patience": 0}, "model": {"name": "tgcn"}}


@pytest.fixture(scope="module")
def graph() -> TinyGraph:
    """Weights, and nodes that come and go."""
    return tiny(3, num_nodes=NODES, num_snapshots=11, weighted=True, share=0.15)


def assert_agreed(found: list[Told]) -> None:
    """Check that all ranks met equally often, learnt the same, and chose the same sizes."""
    first = found[0]
    assert first.rounds
    assert isinstance(first.records[-1], Ended)
    for rank in found[1:]:
        assert rank.log == first.log
        assert [(one.step, one.steps, one.loss, one.snapshots, one.nodes) for one in rank.rounds] == [
            (one.step, one.steps, one.loss, one.snapshots, one.nodes) for one in first.rounds
        ]
        assert all(torch.equal(rank.parameters[name], value) for name, value in first.parameters.items())


@pytest.mark.parametrize("sync", ["timed", "overlapped", "allreduce"])
@pytest.mark.parametrize("adjuster", ["dqn", "bandit", "random", "fixed"])
def test_a_rank_ten_times_as_fast_ends_with_the_same_rounds_and_parameters(
    graph: TinyGraph, sync: str, adjuster: str
) -> None:
    settings = settings_of(SHORT, {"hybrid": {"sync": sync, "adjuster": adjuster}})
    found = train_as(settings, graph, [FAST, SLOW])
    assert_agreed(found)
    steps = np.array([one.steps for one in found[0].rounds])
    if sync == "allreduce":
        assert (steps == 1).all()
    else:
        # After the first round, of which nobody knows how long it is, the fast rank makes many times the steps.
        assert len(steps) > 2
        assert (steps >= 1).all()
        assert (steps[2:, 0] >= 5 * steps[2:, 1]).all()
    sizes = {(one.snapshots, one.nodes) for one in found[0].rounds}
    assert len(sizes) == 1 if adjuster == "fixed" else len(sizes) > 1


@pytest.mark.parametrize("sync", ["timed", "overlapped", "allreduce"])
@pytest.mark.parametrize("owners", [[0] * NODES, [2] * NODES, [0, 0, 2] + [0] * (NODES - 3)])
def test_a_rank_without_nodes_takes_part(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, sync: str, owners: list[int]
) -> None:
    owned_by(monkeypatch, owners)
    found = train_as(settings_of(SHORT, {"hybrid": {"sync": sync}}), graph, [FAST, FAST, SLOW])
    assert_agreed(found)
    assert all(math.isfinite(one.loss) for one in found[0].rounds)


@pytest.mark.parametrize("sync", ["timed", "overlapped"])
def test_by_hand_an_average_is_that_of_what_ranks_learnt(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    moved: dict[int, list[float]] = {0: [], 1: []}

    def move(worker: HybridWorker, *args: Any) -> Any:
        """Leave gradients out: rank r moves its parameters to r + 1 by itself."""
        rank = worker.session.world.rank
        worker.cells = 1000
        with torch.no_grad():
            for parameter in worker.session.predictor.parameters():
                moved[rank].append(float(parameter.flatten()[0]))
                parameter.fill_(rank + 1.0)
        return LEARNT

    monkeypatch.setattr(HybridWorker, "learn", move)
    settings = settings_of(SHORT, {"hybrid": {"sync": sync, "adjuster": "fixed", "weigh_by_steps": False}})
    found = train_as(settings, graph, [FAST, SLOW])
    assert_agreed(found)
    assert all(bool((value == 1.5).all()) for value in found[0].parameters.values())


@dataclass(frozen=True)
class _Learnt:
    loss: float = 1.0
    weight: float = 1.0


LEARNT = _Learnt()


def test_an_overlapped_average_keeps_what_was_learnt_meanwhile(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: dict[int, list[float]] = {0: [], 1: []}

    def move(worker: HybridWorker, *args: Any) -> Any:
        """Rank r adds r + 1 to its parameters in every step."""
        rank = worker.session.world.rank
        with torch.no_grad():
            parameters = list(worker.session.predictor.parameters())
            at[rank].append(float(parameters[0].flatten()[0]))
            for parameter in parameters:
                parameter.add_(rank + 1.0)
        worker.cells = 1
        return LEARNT

    monkeypatch.setattr(HybridWorker, "learn", move)
    table = {"hybrid": {"sync": "overlapped", "adjuster": "fixed"}, "train": {"epochs": 1}}
    found = train_as(settings_of(SHORT, table), graph, [FAST, FAST])
    assert_agreed(found)
    # All ranks make as many steps here, so each sum of steps is on average 1.5 times their number, and none is lost.
    start = at[0][0]
    steps = sum(one.steps[0] for one in found[0].rounds)
    value = float(next(iter(found[0].parameters.values())).flatten()[0])
    assert value == pytest.approx(start + 1.5 * steps, rel=1e-12)
    assert len(at[0]) == len(at[1]) == steps


def batches_of(settings: RunSettings, graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, ranks: int) -> Any:
    """Train as ranks; return what came of it, and the batches of each."""
    taken: dict[int, list[HybridBatch]] = {rank: [] for rank in range(ranks)}
    learn_from = HybridWorker.learn_from

    def noted(worker: HybridWorker, batch: HybridBatch, draw: Any) -> Any:
        taken[worker.session.world.rank].append(batch)
        return learn_from(worker, batch, draw)

    monkeypatch.setattr(HybridWorker, "learn_from", noted)
    return train_as(settings, graph, [FAST] * ranks), taken


@pytest.mark.parametrize("model", ["tgcn", "evolvegcn_o", "gat_lstm"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_added_gradients_are_those_of_one_process_with_the_same_batches(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, model: str, ranks: int
) -> None:
    """The one process goes over whole snapshots, and knows nothing of caches."""
    # The best parameters are those of the last step where nothing is validated before.
    last = {"train": {"validate_every": 100}}
    settings = settings_of(SHORT, last, {"model": {"name": model, "layers": 2}, "hybrid": {"sync": "allreduce"}})
    found, taken = batches_of(settings, graph, monkeypatch, ranks)
    assert_agreed(found)
    session = open_session(settings, graph)
    trainer = Trainer(session, None)
    for place, told in enumerate(found[0].rounds):
        trainer.optimizer.zero_grad()
        total, weight = torch.zeros((), dtype=torch.float64), 0.0
        for rank in range(ranks):
            batch = taken[rank][place]
            nodes = batch.cutout.nodes_N[: batch.cutout.num_targets]
            loss, count = loss_of(session, whole_seen(session, batch, nodes))
            total, weight = total + loss, weight + count
        (total / weight).backward()  # type: ignore[no-untyped-call]
        assert told.loss == pytest.approx(float(total.detach()) / weight, rel=1e-10)
        gradient_norm(session.predictor.parameters(), settings.optim.clip)
        trainer.optimizer.step()
    for name, value in parameters_of(session).items():
        torch.testing.assert_close(found[0].parameters[name], value, rtol=1e-10, atol=1e-12)


def test_a_rank_alone_takes_the_steps_of_its_batches(graph: TinyGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """By plain gradients, whose size counts: each step goes down the mean over its targets."""
    plain = {"train": {"validate_every": 100}, "optim": {"name": "sgd", "rate": 0.05, "momentum": 0.0, "clip": 0.0}}
    settings = settings_of(SHORT, plain)
    (found,), taken = batches_of(settings, graph, monkeypatch, 1)
    assert sum(one.steps[0] for one in found.rounds) == len(taken[0]) > len(found.rounds)
    session = open_session(settings, graph)
    trainer = Trainer(session, None)
    for batch in taken[0]:
        trainer.optimizer.zero_grad()
        nodes = batch.cutout.nodes_N[: batch.cutout.num_targets]
        total, count = loss_of(session, whole_seen(session, batch, nodes))
        (total / count).backward()  # type: ignore[no-untyped-call]
        trainer.optimizer.step()
    for name, value in parameters_of(session).items():
        torch.testing.assert_close(found.parameters[name], value, rtol=1e-9, atol=1e-11)


def test_all_nodes_and_snapshots_at_once_are_the_full_batch_of_one_process(graph: TinyGraph) -> None:
    """PyD on any number of ranks, and ADT, whose window has all snapshots, take the same steps."""
    one, *_ = train_as(settings_of(SHORT, system="pyd"), graph, [FAST])
    for ranks in (2, 3):
        found = train_as(settings_of(SHORT, system="pyd"), graph, [FAST] * ranks)
        assert_agreed(found)
        np.testing.assert_allclose(
            [one.loss for one in found[0].rounds], [each.loss for each in one.rounds], rtol=1e-10
        )
        for name, value in one.parameters.items():
            torch.testing.assert_close(found[0].parameters[name], value, rtol=1e-10, atol=1e-12)
    assert [len(told.rounds) for told in (one,)] == [4], "an epoch is one step"


@pytest.mark.parametrize("system", ["pyd", "dbov", "dbos", "bvr"])
def test_the_baselines_take_the_batches_that_their_names_say(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    settings = settings_of(SHORT, {"train": {"epochs": 1}, "hybrid": {"builders": 0}}, system=system)
    found, taken = batches_of(settings, graph, monkeypatch, 2)
    assert_agreed(found)
    train_stop = open_session(settings, graph).split.train_stop
    for batches in taken.values():
        owned = max(batch.cutout.num_targets for batch in batches)
        all_snapshots = all(len(batch.cutout) == train_stop for batch in batches)
        all_nodes = all(batch.cutout.num_targets in (6, 7) for batch in batches)
        assert (all_snapshots, all_nodes) == (system != "dbos", system in ("pyd", "dbos")), (system, owned)
        again = len(batches) - len({id(batch) for batch in batches})
        assert bool(again) == (system == "bvr")


def test_new_batches_keep_arriving_until_every_target_was_learnt_from(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T27 in training: kept batches are used again, and yet all targets are reached."""
    settings = settings_of(
        SHORT, {"train": {"epochs": 12}, "hybrid": {"sync": "allreduce", "snapshot_batch_mib": 0.0}}
    )  # fmt: skip
    _, taken = batches_of(settings, graph, monkeypatch, 1)
    cells, again = set[tuple[int, int]](), 0
    seen_numbers = set[tuple[int, int]]()
    for batch in taken[0]:
        again += (batch.action, batch.number) in seen_numbers
        seen_numbers.add((batch.action, batch.number))
        nodes = batch.cutout.nodes_N[: batch.cutout.num_targets].tolist()
        cells |= {(node, t) for node in nodes for t in range(batch.cutout.first, batch.cutout.last)}
    assert again
    assert len(cells) == NODES * open_session(settings, graph).split.train_stop


def test_the_first_rank_alone_learns_what_size_is_best_and_hears_training_losses_only(
    graph: TinyGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T26 in training: what is observed is the mean loss of all ranks' steps of the round."""
    observed: list[Observation] = []
    observe = Adjuster.observe

    def noted(adjuster: Adjuster, seen: Observation) -> int:
        assert isinstance(adjuster, Dqn)
        observed.append(seen)
        return observe(adjuster, seen)

    monkeypatch.setattr(Adjuster, "observe", noted)
    found = train_as(settings_of(SHORT), graph, [FAST, FAST, SLOW])
    assert [seen.loss for seen in observed] == [one.loss for one in found[0].rounds]
    assert [seen.seconds for seen in observed] == [one.step_seconds for one in found[0].rounds]


@pytest.mark.parametrize("share", [1.0, 0.3, 2.0])
def test_an_epoch_is_as_many_targets_as_the_training_part_has_or_a_share_of_them(
    graph: TinyGraph, share: float
) -> None:
    settings = settings_of(SHORT, {"hybrid": {"epoch_share": share}})
    found = train_as(settings, graph, [FAST, SLOW])[0]
    whole = share * NODES * open_session(settings, graph).split.train_stop
    epoch_ends = [record for record in found.records if isinstance(record, EpochEnded)]
    assert len(epoch_ends) == 4
    for record in epoch_ends:
        steps = [one.nodes for one in found.records if isinstance(one, Stepped) and one.epoch == record.epoch]
        assert record.nodes == sum(steps) >= whole > sum(steps[:-1])
        assert record.edges > 0
    scored = [record for record in found.records if isinstance(record, Evaluated)]
    assert [one.split for one in scored] == ["val"] * 4 + ["test"]


def test_a_loss_that_is_no_number_ends_all_ranks(graph: TinyGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    learn = HybridWorker.learn

    def spoilt(worker: HybridWorker, *args: Any) -> Any:
        learnt = learn(worker, *args)
        if worker.session.world.rank == 1:
            for parameter in worker.session.predictor.parameters():
                if parameter.grad is not None:
                    parameter.grad.fill_(math.nan)
        return learnt

    monkeypatch.setattr(HybridWorker, "learn", spoilt)
    told: list[str] = []

    def run(world: World) -> None:
        with pytest.raises(Diverged, match="rank 1 reports losses of nan"):
            train_as_one(settings_of(SHORT), graph, world, Clock(FAST))
        told.append("ended")

    threads.run(2, run)
    assert len(told) == 2


def part_of(
    settings: RunSettings, graph: TinyGraph, world: World, clock: Clock, run: Path, *, stop_after: int = 0,
    saved: checkpoint.Checkpoint | None = None,
) -> tuple[list[Record], Any]:  # fmt: skip
    """Train from the start or a checkpoint, until so many rounds or the end; a run that is stopped saves."""
    asked = [False]
    more: dict[str, Any] = {"should_stop": lambda: asked[0]}
    if saved is not None:
        more |= {"scales": scales_of(grouped(saved.tensors)["scales"]), "decided": decided_of(saved.state["decided"])}
    session = open_session(settings, graph, world=world, **more)
    directory = RunDirectory.create(run, "", overwrite=True) if world.rank == 0 and saved is None else None
    if world.rank == 0 and saved is not None:
        directory = RunDirectory.open(run)
    trainer, records = Trainer(session, directory), list[Record]()
    if saved is not None:
        trainer.restore(saved)
    try:
        for record in train_apart(trainer, clock):
            records.append(record)
            # Only one of the ranks is asked.
            asked[0] = world.rank == world.size - 1 and 0 < stop_after <= len(rounds_of(records))
    except Stopped:
        trainer.save()
    finally:
        if directory is not None:
            directory.__exit__(None, None, None)
    return records, parameters_of(session)


def rounds_of(records: list[Record]) -> list[Any]:
    return [
        (one.epoch, one.step, one.snapshots, one.nodes, one.steps, one.loss)
        for one in records
        if isinstance(one, Averaged)
    ]


@pytest.mark.parametrize("sync", ["timed", "overlapped", "allreduce"])
@pytest.mark.parametrize("ticks", [[FAST], [FAST, SLOW]])
@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_stopped_run_goes_on_to_the_same_bits(
    graph: TinyGraph, tmp_path: Path, sync: str, ticks: list[float], stop_after: int
) -> None:
    """With the same clocks, and batches that training builds itself; moments, batches and sizes are all saved."""
    settings = settings_of(SHORT, {"hybrid": {"sync": sync, "round_steps": 2}, "train": {"save_seconds": 1e9}})
    ranks = len(ticks)
    clocks = [Clock(tick) for tick in ticks]
    first = threads.run(
        ranks,
        lambda world: part_of(
            settings, graph, world, clocks[world.rank], tmp_path / "run", stop_after=stop_after
        ),
    )  # fmt: skip
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    second = threads.run(
        ranks, lambda world: part_of(settings, graph, world, clocks[world.rank], tmp_path / "run", saved=saved)
    )
    # Stopping an overlapped run is one more average: the same happens where it is only saved.
    if sync == "overlapped":
        whole = threads.run(
            ranks,
            lambda world: saved_on_the_way(settings, graph, world, Clock(ticks[world.rank]), tmp_path, stop_after),
        )
    else:
        whole = threads.run(
            ranks, lambda world: part_of(settings, graph, world, Clock(ticks[world.rank]), tmp_path / "whole")
        )
    assert len(rounds_of(first[0][0])) < len(rounds_of(whole[0][0]))
    assert rounds_of([*first[0][0], *second[0][0]]) == rounds_of(whole[0][0])
    for mine, theirs in zip(second, whole, strict=True):
        assert all(torch.equal(mine[1][name], value) for name, value in theirs[1].items())


def saved_on_the_way(
    settings: RunSettings, graph: TinyGraph, world: World, clock: Clock, folder: Path, after: int
) -> tuple[list[Record], Any]:
    """Train to the end, and save after so many rounds."""
    session = open_session(settings, graph, world=world)
    directory = RunDirectory.create(folder / "whole", "", overwrite=True) if world.rank == 0 else None
    trainer, records = Trainer(session, directory), list[Record]()
    due = [False]
    trainer.is_due = lambda: due[0]  # type: ignore[method-assign]
    try:
        for record in train_apart(trainer, clock):
            records.append(record)
            due[0] = world.rank == world.size - 1 and len(rounds_of(records)) == after
    finally:
        if directory is not None:
            directory.__exit__(None, None, None)
    return records, parameters_of(session)


def test_on_another_number_of_ranks_a_run_goes_on_from_the_parameters(graph: TinyGraph, tmp_path: Path) -> None:
    settings = settings_of(SHORT, {"train": {"save_seconds": 1e9}})
    threads.run(2, lambda world: part_of(settings, graph, world, Clock(FAST), tmp_path / "run", stop_after=2))
    saved = checkpoint.latest(tmp_path / "run" / "checkpoints")
    found = threads.run(3, lambda world: part_of(settings, graph, world, Clock(FAST), tmp_path / "run", saved=saved))
    assert isinstance(found[0][0][-1], Ended)
    assert all(torch.equal(found[2][1][name], value) for name, value in found[0][1].items())


def test_a_step_whose_targets_have_no_label_teaches_nothing_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    graph = tiny(3, num_nodes=NODES, num_snapshots=11, share=0.15, labels="class", fixed_labels=True)
    owned_by(monkeypatch, [1] * 2 + [0] * (NODES - 2))
    settings = settings_of(SHORT, {"task": {"name": "classes", "node_split": "nodes"}})
    assert_agreed(train_as(settings, graph, [FAST, FAST]))


def test_batches_are_built_beside_training_and_all_threads_end(graph: TinyGraph) -> None:
    settings = settings_of(SHORT, {"hybrid": {"builders": 2, "snapshot_batch_mib": 0.0}})
    session = open_session(settings, graph)
    trainer = Trainer(session, None)
    feed = trainer.worker.batches  # type: ignore[attr-defined]
    assert isinstance(feed, BatchFeed)
    told = list(train_apart(trainer, Clock(FAST)))
    batched = [record for record in told if isinstance(record, Batched)]
    assert [one.epoch for one in batched] == [0, 1, 2, 3]
    assert sum(one.beside for one in batched) > 0
    # Every step's batch came from somewhere, and is counted once.
    given = sum(one.reused + one.unused + one.whole + one.built for one in batched)
    assert given == sum(one.steps[0] for one in told if isinstance(one, Averaged))
    assert all(0.0 <= one.hidden_s <= one.beside_s for one in batched)
    assert all(one.waited_s > 0.0 for one in batched)
    assert not any(thread.is_alive() for thread in feed._threads)


def test_a_timeline_shows_what_was_built_beside_a_step(graph: TinyGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder that is at it all the time shows in every step that is told, within the step."""
    settings = settings_of(SHORT, {"hybrid": {"builders": 1, "snapshot_batch_mib": 0.0}, "train": {"spans": 1000}})
    trainer = Trainer(open_session(settings, graph), None)
    learn_from = HybridWorker.learn_from
    worker = trainer.worker
    assert isinstance(worker, HybridWorker)
    feed = worker.batches
    assert feed is not None

    def while_one_is_built(worker: HybridWorker, batch: HybridBatch, draw: Any) -> Any:
        now_s = time.perf_counter()
        learnt = learn_from(worker, batch, draw)
        feed._log.append(Built(0, 0, 0, now_s - 100.0, time.perf_counter() - 1e-5))
        return learnt

    monkeypatch.setattr(HybridWorker, "learn_from", while_one_is_built)
    told = [record for record in train_apart(trainer, Clock(FAST)) if isinstance(record, Spans)]
    assert told
    for one in told:
        mine = [part for part in one.parts if part[0] == "build"]
        assert mine, "a step beside which a batch was built"
        end = max(start + seconds for name, start, seconds in one.parts if name != "build")
        assert all(start >= 0.0 and start + seconds <= end + 1e-5 for _, start, seconds in mine)


@pytest.mark.parametrize("layers", [1, 3])
def test_loads_are_counted_as_far_as_the_model_hears(layers: int) -> None:
    graph = tiny(11, num_nodes=24, num_snapshots=11)
    stop = open_session(settings_of(SHORT), graph).split.train_stop
    wanted = {far: load_owners(walk_loads(graph, stop, far), 2).owner_N.tolist() for far in (1, 2, 3)}
    assert wanted[layers] != wanted[2]

    def owners(world: World) -> list[int]:
        session = open_session(settings_of(SHORT, {"model": {"layers": layers}}), graph, world=world)
        return session.feed.holding.nodes.owners.owner_N.tolist()  # type: ignore[attr-defined,no-any-return]

    assert threads.run(2, owners) == [wanted[layers]] * 2


def test_settings_of_the_system_are_those_of_the_paper() -> None:
    hybrid = settings_of().hybrid
    assert (hybrid.adjuster, hybrid.reservoir, hybrid.sync) == ("dqn", True, "timed")
