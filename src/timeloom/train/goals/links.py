"""Predicting which pairs of nodes will be linked.

Shape letters: H the model's output size, P positives, K negatives of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from timeloom.graph.keys import Float64s, Int64s
from timeloom.graph.negatives import Negatives, historical_negatives, inductive_negatives, random_negatives
from timeloom.graph.pairs import SeenPairs, pair_keys
from timeloom.graph.snapshot import Snapshot
from timeloom.graph.tasks import Part, Split, TaskSettings
from timeloom.nn.heads import DotHead, Head, NodeHead, PairHead
from timeloom.train.feed import Feed
from timeloom.train.goals.goal import PAIRS_STREAM, Columns, Draw, Goal, Loss, Marks, Seen, as_tensor, keyed
from timeloom.train.goals.sample import Truth
from timeloom.train.meeting import meeting_of
from timeloom.train.metrics import auc, average_precision, mean_ranks, source_ranks

_PAIRS_AT_ONCE = 1 << 18
_HITS = (1, 3, 10)


@dataclass(frozen=True, slots=True)
class _Past:
    """The pairs that are known after a snapshot: all, those in it, those of training, and those since."""

    seen: SeenPairs
    now: SeenPairs
    in_training: SeenPairs
    since: SeenPairs


@dataclass(frozen=True, slots=True)
class _Trial:
    """The pairs of one snapshot that are scored."""

    sources_P: Int64s
    targets_P: Int64s
    new_P: NDArray[np.bool_]
    """Which of them were never linked before."""
    against: dict[str, Negatives]


class LinkGoal(Goal):
    """A score for every pair: higher where a link `horizon` snapshots later is likelier. Self loops do not count.

    `KIND.mrr` and `KIND.hits@k` rank a pair among others of the same source with mean ties (TGB); `KIND.mrr_source` is
    ROLAND's; `KIND.ap` and `KIND.auc` are of one negative a positive, snapshot by snapshot.
    """

    def __init__(self, feed: Feed, task: TaskSettings, split: Split, seed: int) -> None:
        self._feed, self._task, self._split, self._seed = feed, task, split, seed
        self._meeting = meeting_of(feed.holding)
        self._trials: dict[int, _Trial] = {}
        self._first_as_target: Int64s | None = None
        names = ("mrr", "mrr_seen", "mrr_new", "mrr_source", *(f"hits@{k}" for k in _HITS), "ap", "auc")
        what = f"probability of a link, beside a {task.negatives[0]} pair"
        self.truth = Truth(what=what, form="probability", classes=("not linked", "linked"))
        self.metrics = tuple(f"{kind}.{name}" for kind in task.negatives for name in names)

    def head(self, num_in: int, dropout: float) -> Head:
        """Return a small network, or a product, of both ends."""
        if self._task.decoder == "dot":
            return DotHead(num_in, dropout=dropout)
        return PairHead(num_in, 1, dropout=dropout)

    def _positives(self, t: int) -> Int64s:
        """Return the sorted keys of all pairs linked `horizon` after snapshot t, without self loops."""
        later = t + self._task.ahead
        return self._feed.remembered("links", later, lambda: _links(self._feed.snapshot(later)))

    def _candidates(self, t: int) -> Int64s:
        """Return the nodes that an edge led to up to snapshot t (where there are none yet: all)."""
        if self._first_as_target is None:
            first = np.full(self._feed.graph.num_nodes, np.iinfo(np.int64).max)
            for s in range(self._split.test_stop - 1, -1, -1):
                first[self._feed.snapshot(s).targets] = s
            self._first_as_target = first
        found = np.flatnonzero(self._first_as_target <= t)
        return found if len(found) else np.arange(self._feed.graph.num_nodes)

    def reads(self, t: int) -> NDArray[np.bool_] | None:
        """Return all: which pairs are drawn depends on the epoch."""
        return None

    def asks(self, t: int, born_N: NDArray[np.bool_], draw: Draw) -> Int64s:
        """Return the ends of the pairs that are drawn; one not yet born has no row anywhere."""
        sources_P, targets_P, _ = self._drawn(t, draw)
        return np.unique(np.concatenate([sources_P, targets_P]))

    def _drawn(self, t: int, draw: Draw) -> tuple[Int64s, Int64s, int]:
        """Return the pairs to come and as many random ones as asked for, and how many come."""
        size, taken = self._feed.graph.num_nodes, self._positives(t)
        positive = taken if (chosen := draw.of(len(taken), t)) is None else taken[chosen]
        drawn = random_negatives(
            positive // size, self._task.train_negatives, candidates=self._candidates(t), taken=taken,
            num_nodes=size, rng=draw.rng(t),
        )  # fmt: skip
        sources = np.repeat(positive // size, self._task.train_negatives)[drawn.valid_PK.reshape(-1)]
        sources_P = np.concatenate([positive // size, sources])
        targets_P = np.concatenate([positive % size, drawn.targets_PK[drawn.valid_PK]])
        return sources_P, targets_P, len(positive)

    def loss(self, head: Head, seen: Seen, draw: Draw) -> Loss | None:
        """Return the cross entropy of the pairs to come and of as many random ones as asked for."""
        sources_P, targets_P, num_positive = self._drawn(seen.t, draw)
        if not num_positive:
            return None
        met = seen.meet(self._meeting, sources_P, targets_P)
        truth = as_tensor(met.mine_Q < num_positive, seen.out_NH)
        ends = _of_pairs(head).ends(met.rows_LH)
        logits = _of_pairs(head).score(ends, met.source_Q, met.target_Q)[:, 0]
        exact = torch.promote_types(logits.dtype, torch.float32)
        error = binary_cross_entropy_with_logits(logits.to(exact), truth.to(exact), reduction="sum")
        return Loss(error, len(met.mine_Q))

    def baselines(self, part: Part, first: int, last: int) -> dict[str, Marks]:
        """Return `edgebank` (linked before) and `persistence` (linked in the snapshot seen), and draw the trials."""
        marks = {"edgebank": Marks(), "persistence": Marks()}
        for t, past in self._pasts(first, last):
            trial = self._trials[t] = self._trial(t, past)
            for name, known in (("edgebank", past.seen), ("persistence", past.now)):
                self._mark(marks[name], trial, _remembered(known, trial, self._feed.graph.num_nodes))
        return marks

    def guesses(self, first: int, last: int) -> Iterator[tuple[int, Columns]]:
        """Yield the keys of the pairs that each baseline takes for linked."""
        for t, past in self._pasts(first, last):
            yield t, {"edgebank": past.seen.keys, "persistence": past.now.keys}

    def _pasts(self, first: int, last: int) -> Iterator[tuple[int, _Past]]:
        size = self._feed.graph.num_nodes
        seen, in_training, since = SeenPairs(size), SeenPairs(size), SeenPairs(size)
        for t in range(last):
            keys = pair_keys(self._feed.snapshot(t))
            seen.add(keys)
            (in_training if t < self._split.train_stop + self._task.ahead else since).add(keys)
            if t >= first:
                now = SeenPairs(size)
                now.add(keys)
                yield t, _Past(seen, now, in_training, since)

    def _trial(self, t: int, past: _Past) -> _Trial:
        size, taken = self._feed.graph.num_nodes, self._positives(t)
        rng, most = keyed(self._seed, PAIRS_STREAM, t), self._task.most_pairs
        keys = taken
        if 0 < most < len(taken):
            keys = taken[np.sort(rng.choice(len(taken), most, replace=False))]
        sources_P, num, candidates = keys // size, self._task.num_negatives, self._candidates(t)
        against: dict[str, Negatives] = {}
        for kind in self._task.negatives:
            if kind == "random":
                drawn = random_negatives(
                    sources_P, num, candidates=candidates, taken=taken, num_nodes=size, rng=rng
                )  # fmt: skip
            elif kind == "historical":
                drawn = historical_negatives(
                    sources_P, num, seen=past.seen, candidates=candidates, taken=taken, num_nodes=size, rng=rng
                )
            else:
                drawn = inductive_negatives(
                    sources_P, num, seen_since=past.since, seen_in_training=past.in_training, candidates=candidates,
                    taken=taken, num_nodes=size, rng=rng,
                )  # fmt: skip
            against[kind] = Negatives(drawn.targets_PK.astype(np.int32), drawn.valid_PK, drawn.filled)
        return _Trial(sources_P, keys % size, ~past.seen.contains(keys), against)

    def score(self, head: Head, seen: Seen, part: Part, marks: Marks) -> None:
        """Collective. Add how the pairs to come rank among others."""
        trial, num, width = self._trials[seen.t], self._task.num_negatives, len(self._trials[seen.t].sources_P)
        against = trial.against.values()
        sources = np.concatenate([trial.sources_P, *(np.repeat(trial.sources_P, num) for _ in against)])
        targets = np.concatenate([trial.targets_P, *(one.targets_PK.reshape(-1) for one in against)]).astype(np.int64)
        met = seen.meet(self._meeting, sources, targets)
        ends = _of_pairs(head).ends(met.rows_LH)
        told = [
            _of_pairs(head).score(
                ends, met.source_Q[at : at + _PAIRS_AT_ONCE], met.target_Q[at : at + _PAIRS_AT_ONCE]
            )[:, 0].double().cpu().numpy()
            for at in range(0, len(met.mine_Q), _PAIRS_AT_ONCE)
        ]  # fmt: skip
        of_all = self._meeting.of_all(np.concatenate([np.empty(0), *told]), met, len(sources))
        positive_P, *negative = np.split(of_all, width + num * width * np.arange(len(trial.against)))
        scores = {"": positive_P}
        scores |= {kind: part.reshape(-1, num) for kind, part in zip(trial.against, negative, strict=True)}
        self._mark(marks, trial, scores)
        if self._meeting.tells:
            self._sample(marks, seen.t, trial, scores)

    def _sample(self, marks: Marks, t: int, trial: _Trial, scores: dict[str, Float64s]) -> None:
        """Sample as many pairs that come to be linked as others: one negative of the first kind for each."""
        kind, size = next(iter(trial.against)), self._feed.graph.num_nodes
        paired_P = trial.against[kind].valid_PK[:, 0]
        logits_2P = np.stack([scores[""][paired_P], scores[kind][paired_P, 0]])
        targets_2P = np.stack([trial.targets_P, trial.against[kind].targets_PK[:, 0]])[:, paired_P]
        keys_2P = trial.sources_P[paired_P] * size + targets_2P
        linked_2P = np.broadcast_to([[1.0], [0.0]], keys_2P.shape)
        shares_2P = np.exp(-np.logaddexp(0.0, -logits_2P))
        marks.sample.add(t, keys_2P.reshape(-1), linked_2P.reshape(-1), shares_2P.reshape(-1))

    def _mark(self, marks: Marks, trial: _Trial, scores: dict[str, Float64s]) -> None:
        """Add the ranks of one snapshot. A positive without any valid negative cannot be ranked and does not count."""
        if not self._meeting.tells:
            return
        positive_P = scores[""]
        for kind, negatives in trial.against.items():
            rankable_P = negatives.valid_PK.any(1)
            ranks_P = mean_ranks(positive_P, scores[kind], negatives.valid_PK)
            for name, chosen in (("mrr", rankable_P), ("mrr_seen", rankable_P & ~trial.new_P),
                                 ("mrr_new", rankable_P & trial.new_P)):  # fmt: skip
                marks.tally.add(f"{kind}.{name}", float((1.0 / ranks_P[chosen]).sum()), int(chosen.sum()))
            by_source = source_ranks(
                trial.sources_P[rankable_P], positive_P[rankable_P], scores[kind][rankable_P],
                negatives.valid_PK[rankable_P],
            )  # fmt: skip
            marks.tally.add(f"{kind}.mrr_source", float((1.0 / by_source).sum()), len(by_source))
            for k in _HITS:
                marks.tally.add(f"{kind}.hits@{k}", int((ranks_P[rankable_P] <= k).sum()), int(rankable_P.sum()))
            paired = negatives.valid_PK[:, 0]
            both = np.concatenate([positive_P[paired], scores[kind][paired, 0]])
            truth, count = np.arange(len(both)) < paired.sum(), int(paired.sum())
            marks.tally.add(f"{kind}.ap", average_precision(both, truth) * count, count)
            marks.tally.add(f"{kind}.auc", auc(both, truth) * count, count)

    def table(self, head: Head, seen: Seen, pairs: Int64s | None) -> Columns:
        """Return the probability of given pairs, or of all pairs linked so far, the likeliest first."""
        size = self._feed.graph.num_nodes
        if pairs is None:
            known = SeenPairs(size)
            for t in range(seen.t + 1):
                known.add(pair_keys(self._feed.snapshot(t)))
            pairs = np.stack([known.keys // size, known.keys % size])
        ends = _of_pairs(head).ends(seen.out_NH)
        told = [
            torch.sigmoid(
                _of_pairs(head).score(ends, as_tensor(pairs[0, at : at + _PAIRS_AT_ONCE], seen.out_NH),
                                      as_tensor(pairs[1, at : at + _PAIRS_AT_ONCE], seen.out_NH))[:, 0].double()
            ).cpu().numpy()
            for at in range(0, pairs.shape[1], _PAIRS_AT_ONCE)
        ]  # fmt: skip
        shares = np.concatenate([np.empty(0), *told])
        order = np.argsort(-shares, kind="stable")
        return {"source": pairs[0][order], "target": pairs[1][order], "probability": shares[order]}


def _links(snapshot: Snapshot) -> Int64s:
    keys = pair_keys(snapshot)
    between: Int64s = keys[keys // snapshot.num_nodes != keys % snapshot.num_nodes]
    return between


def _of_pairs(head: Head) -> PairHead | DotHead:
    assert not isinstance(head, NodeHead)
    return head


def _remembered(known: SeenPairs, trial: _Trial, size: int) -> dict[str, Float64s]:
    """Return 1 for pairs that are known and 0 for others."""
    scores = {"": known.contains(trial.sources_P * size + trial.targets_P).astype(np.float64)}
    for kind, negatives in trial.against.items():
        keys = trial.sources_P[:, None] * size + negatives.targets_PK
        scores[kind] = known.contains(keys.reshape(-1)).astype(np.float64).reshape(keys.shape)
    return scores
