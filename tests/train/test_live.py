"""Live, everything is predicted before anything is learnt from its label, and computes what is written down here."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.small_runs import drift, graph_of, history, of_kind, same_bits, saved, small
from tests.train.test_loop import EXACT, NUM_NODES, SNAPSHOTS, TRAINED, Params, alive, label, one_snapshot, target_scale
from timeloom.config import build, dump, merge
from timeloom.errors import BadConfig
from timeloom.graph.dynamic import open_graph
from timeloom.graph.perturb import Perturbed
from timeloom.graph.tasks import GraphLike
from timeloom.nn.heads import Head
from timeloom.records import EpochEnded, Evaluated, Record, RunDirectory, Stepped
from timeloom.train.arrivals import AllThere
from timeloom.train.feed import Scales
from timeloom.train.goals.classes import ClassGoal
from timeloom.train.goals.goal import Draw, Goal, Loss, Marks, Seen
from timeloom.train.goals.links import LinkGoal
from timeloom.train.goals.values import ValueGoal
from timeloom.train.inference import evaluate, predict
from timeloom.train.live import first_scored, train_live
from timeloom.train.runs import train
from timeloom.train.session import Session, open_session
from timeloom.train.settings import LiveSettings, RunSettings
from timeloom.train.trainer import Trainer

LIVE: dict[str, Any] = {"train": {"protocol": "live"}, "live": {"steps": 4, "patience": 2, "held_out": 0.3}}
TASKS: dict[str, tuple[type[Goal], dict[str, Any]]] = {
    "degree": (ValueGoal, {"name": "degree"}),
    "degree, 2 ahead": (ValueGoal, {"name": "degree", "horizon": 2}),
    "links": (LinkGoal, {"name": "links", "num_negatives": 5}),
    "links, 2 ahead": (LinkGoal, {"name": "links", "num_negatives": 5, "horizon": 2}),
    "classes": (ClassGoal, {"name": "classes"}),
    "classes, 1 ahead": (ClassGoal, {"name": "classes", "horizon": 1}),
    "classes, 2 ahead": (ClassGoal, {"name": "classes", "horizon": 2}),
}


@pytest.fixture(scope="module")
def drifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of 24 nodes with classes."""
    return drift(tmp_path_factory.mktemp("graphs") / "drift", num_snapshots=11)


def session_of(settings: dict[str, Any], graph: GraphLike, scales: Scales | None = None) -> Session:
    return open_session(build(RunSettings, merge(settings, {"graph": "g"})), graph, scales=scales)


def live(path: Path, session: Session) -> tuple[list[Record], Trainer]:
    """Run the live protocol; return all it told."""
    with RunDirectory.create(path, dump(session.settings), overwrite=False) as run:
        trainer = Trainer(session, run)
        return list(train_live(trainer, AllThere(trainer, first_scored(session.split)))), trainer


@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize("task", TASKS)
def test_no_label_is_learnt_from_before_it_was_due_and_its_own_prediction_was_scored(
    drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, state: str
) -> None:
    kind, chosen = TASKS[task]
    events: list[tuple[str, int, str]] = []
    loss, score = kind.loss, kind.score

    def lossy(goal: Goal, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        events.append(("loss" if torch.is_grad_enabled() else "stop", seen.t, draw.side))
        return loss(goal, head, seen, draw)

    def scoring(goal: Goal, head: Head, seen: Seen, part: Any, marks: Marks) -> None:
        events.append(("score", seen.t, part))
        score(goal, head, seen, part, marks)

    monkeypatch.setattr(kind, "loss", lossy)
    monkeypatch.setattr(kind, "score", scoring)
    result = train(drifting, tmp_path / "run", small(LIVE, {"task": chosen, "window": {"state": state, "length": 2}}))
    session = session_of(small(LIVE, {"task": chosen}), open_graph(drifting))
    ahead, scored, learnt = session.split.horizon, first_scored(session.split), 0
    for what, t, side in events:
        if what == "score":
            assert t == scored, "everything is scored once, in order"
            scored += 1
            continue
        if t + max(ahead, 1) < first_scored(session.split):
            assert t >= learnt, "what comes before the first score is learnt from in order too"
            learnt = t
            continue
        assert t < scored, "a prediction is scored before its label is learnt from"
        # When snapshot `scored` is about to be predicted from, its own class is not known; its edges are.
        assert t + ahead <= scored - (1 if ahead == 0 else 0)
        assert t == scored - max(ahead, 1), "it is the newest that is known"
        assert (what, side) in (("loss", "fit"), ("stop", "held"))
    assert scored == 11 - ahead
    assert {what for what, *_ in events} == {"loss", "stop", "score"}
    assert all(math.isfinite(value) for value in result.scores.values() if not math.isnan(value))


@pytest.mark.parametrize("task", TASKS)
def test_nothing_told_up_to_a_snapshot_depends_on_later_ones(drifting: Path, tmp_path: Path, task: str) -> None:
    settings, graph = small(LIVE, {"task": TASKS[task][1]}), open_graph(drifting)
    session = session_of(settings, graph)
    true, _ = live(tmp_path / "true", session)
    for after in (3, 6, 9):
        other = session_of(settings, Perturbed(graph, after, seed=1), session.feed.scales)
        told, _ = live(tmp_path / str(after), other)
        known = after - session.split.horizon + 1

        def before(records: list[Record], known: int = known) -> list[Record]:
            kept = [record for record in records if isinstance(record, EpochEnded | Evaluated | Stepped)]
            upto = next(at for at, one in enumerate(kept) if isinstance(one, EpochEnded) and one.epoch == known)
            # What is learnt at snapshot `known` is still of a label that was seen; its own prediction is of one later.
            return [dataclasses.replace(record, seconds=0.0) for record in kept[:upto]]

        assert repr(before(told)) == repr(before(true))
        assert [repr(record) for record in told] != [repr(record) for record in true]
        assert len(before(true)) > known


@pytest.mark.parametrize("task", ["degree", "links", "classes"])
def test_after_training_not_even_the_scales_depend_on_later_snapshots(
    drifting: Path, tmp_path: Path, task: str
) -> None:
    settings, graph = small(LIVE, {"task": TASKS[task][1]}), open_graph(drifting)
    session = session_of(settings, graph)
    after = session.split.train_stop - 1 + session.split.horizon
    other = session_of(settings, Perturbed(graph, after, seed=1))
    assert other.feed.scales is not None
    assert repr(other.feed.scales) == repr(session.feed.scales)
    told = []
    for name, one in (("true", session), ("other", other)):
        records = [record for record in live(tmp_path / name, one)[0] if isinstance(record, EpochEnded | Evaluated)]
        scored = [record.epoch for record in records if isinstance(record, Evaluated) and record.split == "live"]
        assert scored[0] == first_scored(session.split) > 0
        learnt = [record for record in records if record.epoch <= after - session.split.horizon]
        told.append([dataclasses.replace(record, seconds=0.0) for record in learnt])
        assert len(told[-1]) == session.split.train_stop
    assert repr(told[0]) == repr(told[1])


def raw_prediction(p: Params, h: Tensor, born: Tensor) -> Tensor:
    """Return the predicted labels; of nodes never seen it is the mean of training."""
    mean, deviation = target_scale()
    told = (h @ p["head.linear.weight"].t() + p["head.linear.bias"])[:, 0]
    return mean + deviation * torch.where(born, told, 0.0)


def fit_and_held(p: Params, t: int, h: Tensor, born: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """Return the losses of the targets after snapshot t: of those that are learnt from, and of those held out."""
    mean, deviation = target_scale()
    nodes = torch.nonzero((alive(t) | alive(t + 1)) & born)[:, 0]
    drawn = torch.from_numpy(np.random.Generator(np.random.Philox([0, 1, t, 0])).random(len(nodes)) < share)
    told = (h @ p["head.linear.weight"].t() + p["head.linear.bias"])[:, 0]
    errors = torch.square(told - (label(t + 1) - mean) / deviation)[nodes]
    return errors[~drawn], errors[drawn]


def slowly(
    start: Params, *, state: str, steps: int, patience: int, share: float
) -> tuple[list[float], list[int], list[tuple[float, int]], Params]:
    """Return what the live protocol tells: the last losses, the numbers of updates, the scores; and the parameters.

    Of a score the sum and the count are returned.
    """
    p, momentum = {name: value.clone() for name, value in start.items()}, dict[str, Tensor]()
    h_before, born_before = torch.zeros(NUM_NODES, 3, dtype=torch.float64), torch.zeros(NUM_NODES, dtype=torch.bool)
    losses, updates, scores = list[float](), list[int](), list[tuple[float, int]]()

    def seen(p: Params, first: int, last: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return state and born nodes after the first and after the last of some snapshots."""
        h, born = h_before, born_before
        if state == "zero":
            first, h, born = max(0, last - 1), torch.zeros_like(h_before), torch.zeros_like(born_before)
        h_first, born_first = h, born
        for s in range(first, last + 1):
            h, born = one_snapshot(p, s, h), born | alive(s)
            if s == first:
                h_first, born_first = h, born
        return h_first.detach(), born_first, h, born

    for t in range(len(SNAPSHOTS) - 1):
        losses.append(math.nan)
        updates.append(0)
        if t > 0:
            best, best_loss, stale = p, math.inf, 0
            for _ in range(steps):
                for value in p.values():
                    value.requires_grad_()
                *_, h, born = seen(p, t - 1, t - 1)
                fit, held = fit_and_held(p, t - 1, h, born, share)
                if len(fit):
                    losses[-1] = float(fit.mean().detach())
                    g = torch.autograd.grad(fit.mean(), list(p.values()))
                    for name, one in zip(p, g, strict=True):
                        momentum[name] = 0.5 * momentum.get(name, torch.zeros(())) + one
                    p = {name: value.detach() - 0.1 * momentum[name] for name, value in p.items()}
                updates[-1] += 1
                *_, h, born = seen(p, t - 1, t - 1)
                _, held = fit_and_held(p, t - 1, h, born, share)
                if not len(held) or float(held.mean()) < best_loss:
                    best, best_loss, stale = p, float(held.mean()) if len(held) else math.inf, 0
                else:
                    stale += 1
                    if stale >= patience:
                        break
            p = {name: value.detach() for name, value in best.items()}
        h_kept, born_kept, h, born = seen(p, max(t - 1, 0), t)
        error = raw_prediction(p, h.detach(), born) - label(t + 1)
        active = alive(t) | alive(t + 1)
        scores.append((float(error.square()[active].sum().detach()), int(active.sum())))
        if t > 0:
            h_before, born_before = h_kept, born_kept
    return losses, updates, scores, p


@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize(("steps", "patience"), [(1, 1), (7, 1), (7, 2), (5, 9)])
def test_live_scores_equal_a_loop_written_out(tmp_path: Path, state: str, steps: int, patience: int) -> None:
    graph = graph_of(tmp_path / "tiny", SNAPSHOTS)
    changes = {
        "live": {"steps": steps, "patience": patience, "held_out": 0.4, "warmup": 0.75}, "optim": {"momentum": 0.5},
        "window": {"state": state, "length": 2},
    }  # fmt: skip
    settings = small(EXACT, LIVE, changes)
    session = session_of(settings, open_graph(graph))
    assert session.split.train_stop == TRAINED
    start = session.predictor.state_dict()
    losses, updates, scores, after = slowly(start, state=state, steps=steps, patience=patience, share=0.4)
    result = train(graph, tmp_path / "run", settings)
    run = tmp_path / "run"
    told = [math.nan if one["loss"] is None else one["loss"] for one in of_kind(run, "epoch_ended")]
    assert told == pytest.approx(losses, rel=1e-9, nan_ok=True)
    assert [len(of_kind(run, "stepped", epoch=t)) for t in range(len(updates))] == updates
    begins = first_scored(session.split)
    assert [one["scores"]["mse"] for one in of_kind(run, "evaluated", split="live")] == pytest.approx(
        [total / count for total, count in scores[begins:]], rel=1e-9
    )
    for name, value in after.items():
        torch.testing.assert_close(saved(run).tensors[f"now/{name}"], value, rtol=1e-9, atol=1e-12)
    for split, first in (("all", begins), ("test", session.split.val_stop)):
        (record,) = of_kind(run, "evaluated", split=split)
        wanted = sum(total for total, _ in scores[first:]) / sum(count for _, count in scores[first:])
        assert record["scores"]["mse"] == pytest.approx(wanted, rel=1e-9)
        assert set(record["baselines"]) == {"zero", "mean", "persistence"}
    assert result.scores["mse"] == pytest.approx(wanted, rel=1e-9)
    if steps == 7 and patience == 1:
        assert len({count for count in updates if count}) > 1, "some snapshots are left early"


def test_held_out_targets_are_the_same_at_every_update_and_are_not_learnt_from() -> None:
    for count in (0, 1, 50, 1000):
        sides: list[list[bool]] = []
        for epoch in (0, 3):
            fit, held = (Draw(seed=4, epoch=epoch, side=side, held_out=0.3).of(count, 6) for side in ("fit", "held"))
            assert fit is not None
            assert held is not None
            assert (fit ^ held).all()
            sides.append(held.tolist())
        assert sides[0] == sides[1]
    other = Draw(seed=4, epoch=0, side="held", held_out=0.3).of(1000, 7)
    assert other is not None
    assert other.tolist() != sides[0]
    assert 0.2 < np.mean(sides[0]) < 0.4


def test_the_share_that_is_held_out_only_stops(drifting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With another loss of what is held out, but the same order of losses, nothing else changes."""
    train(drifting, tmp_path / "a", small(LIVE))
    true = ValueGoal.loss

    def scaled(goal: ValueGoal, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        loss = true(goal, head, seen, draw)
        return loss if draw.side != "held" or loss is None else Loss(1000.0 * loss.total + 7.0, loss.count)

    monkeypatch.setattr(ValueGoal, "loss", scaled)
    train(drifting, tmp_path / "b", small(LIVE))
    assert history(tmp_path / "a") == history(tmp_path / "b")
    assert same_bits(saved(tmp_path / "a").tensors, saved(tmp_path / "b").tensors)


def test_live_beats_a_model_that_never_learns(tmp_path: Path) -> None:
    graph = drift(tmp_path / "g", num_nodes=100, num_edges=500, num_snapshots=30, num_communities=4, lag=3)
    settings = small(LIVE, {"model": {"hidden": 16}, "optim": {"rate": 0.03}, "live": {"steps": 10}})
    learnt = train(graph, tmp_path / "run", settings)
    idle = train(graph, tmp_path / "idle", merge(settings, {"optim": {"rate": 1e-9}}))
    assert learnt.scores["mse"] < 0.9 * idle.scores["mse"]
    assert learnt.scores["mse"] < learnt.baselines["persistence"]["mse"]


def test_a_live_run_is_not_measured_again_but_predicts(drifting: Path, tmp_path: Path) -> None:
    result = train(drifting, tmp_path / "run", small(LIVE))
    with pytest.raises(BadConfig, match="its honest scores are those in its records"):
        evaluate(tmp_path / "run")
    columns = predict(tmp_path / "run")
    assert len(columns["node"]) == 24
    assert np.isfinite(columns["predicted"]).all()
    (ended,) = of_kind(tmp_path / "run", "ended")
    assert ended["reason"] == "snapshots"
    assert ended["epochs"] == 10
    assert result.scores == of_kind(tmp_path / "run", "evaluated", split="test")[0]["scores"]


def test_every_step_of_a_live_run_says_its_snapshot(drifting: Path, tmp_path: Path) -> None:
    train(drifting, tmp_path / "run", small(LIVE, {"train": {"log_steps": True}}))
    steps = of_kind(tmp_path / "run", "stepped")
    assert {step["epoch"] for step in steps} == set(range(1, 10))
    assert [step["epoch"] for step in steps] == sorted(step["epoch"] for step in steps)
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("given", [{"steps": 0}, {"patience": 0}, {"held_out": 0.0}, {"held_out": 1.0}])
def test_settings_of_the_live_protocol_that_cannot_be_meant_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadConfig, match=r"live.steps and live.patience are 1 or more"):
        LiveSettings(**given)


@pytest.mark.parametrize("warmup", [0.0, 1.0, -0.1])
def test_a_warmup_that_is_no_share_is_refused(warmup: float) -> None:
    with pytest.raises(BadConfig, match=r"live.warmup=.* is no share"):
        LiveSettings(warmup=warmup)
