"""A negative is never a positive, comes from its own source's history, and every allowed one is equally likely."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from timeloom.graph.keys import Int64s
from timeloom.graph.negatives import Negatives, historical_negatives, inductive_negatives, random_negatives
from timeloom.graph.pairs import SeenPairs

N = 7
NODE = st.integers(0, N - 1)
PAIRS = st.sets(st.tuples(NODE, NODE), max_size=25)
Pairs = set[tuple[int, int]]


def keys_of(pairs: Pairs) -> Int64s:
    return np.array(sorted(u * N + v for u, v in pairs), np.int64)


def seen_of(pairs: Pairs) -> SeenPairs:
    seen = SeenPairs(N)
    seen.add(keys_of(pairs))
    return seen


@dataclass(frozen=True)
class Case:
    """What is asked of a generator of negatives."""

    sources: list[int]
    num: int
    candidates: set[int]
    taken: Pairs
    seed: int

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    @property
    def candidate_nodes(self) -> Int64s:
        return np.array(sorted(self.candidates), np.int64)

    @property
    def nodes(self) -> Int64s:
        return np.array(self.sources, np.int64)

    def random(self) -> Negatives:
        return random_negatives(
            self.nodes, self.num, candidates=self.candidate_nodes, taken=keys_of(self.taken), num_nodes=N, rng=self.rng
        )

    def historical(self, seen: Pairs) -> Negatives:
        return historical_negatives(
            self.nodes, self.num, seen=seen_of(seen), candidates=self.candidate_nodes, taken=keys_of(self.taken),
            num_nodes=N, rng=self.rng,
        )  # fmt: skip

    def inductive(self, since: Pairs, training: Pairs) -> Negatives:
        return inductive_negatives(
            self.nodes, self.num, seen_since=seen_of(since), seen_in_training=seen_of(training),
            candidates=self.candidate_nodes, taken=keys_of(self.taken), num_nodes=N, rng=self.rng,
        )  # fmt: skip

    def may_be(self, source: int, target: int) -> bool:
        return source != target and (source, target) not in self.taken

    def allowed_at_random(self, source: int) -> set[int]:
        return {target for target in self.candidates if self.may_be(source, target)}


CASES = st.builds(
    Case, sources=st.lists(NODE, max_size=6), num=st.integers(0, 6), candidates=st.sets(NODE), taken=PAIRS,
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip


def must_be_history_or_random(case: Case, found: Negatives, history: Pairs) -> None:
    """Each row is drawn from the source's allowed history, or else at random, or else nothing is valid."""
    assert found.targets_PK.shape == found.valid_PK.shape == (len(case.sources), case.num)
    filled = 0
    for source, targets, valid in zip(case.sources, found.targets_PK.tolist(), found.valid_PK.tolist(), strict=True):
        own = {v for u, v in history if u == source and case.may_be(u, v)}
        allowed = own or case.allowed_at_random(source)
        if allowed:
            assert all(valid)
            assert set(targets) <= allowed
            filled += 0 if own else case.num
        else:
            assert not any(valid)
            assert set(targets) <= {source}
    assert found.filled == filled


@given(CASES)
def test_random_negatives_are_allowed_candidates(case: Case) -> None:
    found = case.random()
    assert found.filled == 0
    assert found.targets_PK.shape == found.valid_PK.shape == (len(case.sources), case.num)
    for source, targets, valid in zip(case.sources, found.targets_PK.tolist(), found.valid_PK.tolist(), strict=True):
        allowed = case.allowed_at_random(source)
        assert valid == [bool(allowed)] * case.num
        assert set(targets) <= (allowed or {source})


@given(CASES, PAIRS)
def test_historical_negatives_are_of_the_sources_own_history(case: Case, seen: Pairs) -> None:
    must_be_history_or_random(case, case.historical(seen), seen)


@given(CASES, PAIRS, PAIRS)
def test_inductive_negatives_were_never_seen_in_training(case: Case, since: Pairs, training: Pairs) -> None:
    must_be_history_or_random(case, case.inductive(since, training), since - training)


@given(CASES, PAIRS, PAIRS)
def test_the_same_generator_gives_the_same_negatives(case: Case, since: Pairs, training: Pairs) -> None:
    def flat(found: Negatives) -> tuple[list[int], list[bool], int]:
        return found.targets_PK.ravel().tolist(), found.valid_PK.ravel().tolist(), found.filled

    assert flat(case.random()) == flat(case.random())
    assert flat(case.historical(since)) == flat(case.historical(since))
    assert flat(case.inductive(since, training)) == flat(case.inductive(since, training))


def must_be_uniform(targets: Int64s, allowed: set[int]) -> None:
    counts = Counter(targets.ravel().tolist())
    assert counts.keys() == allowed
    assert chisquare(list(counts.values())).pvalue > 0.001


TAKEN = {(0, 1), (0, 4), (2, 0), (2, 1), (3, 6), (5, 5)}


def test_random_negatives_are_uniform_over_what_is_allowed() -> None:
    case = Case(sources=[0, 2, 0, 5], num=5000, candidates={0, 1, 2, 3, 4, 6}, taken=TAKEN, seed=1)
    found = case.random()
    for row, source in enumerate(case.sources):
        must_be_uniform(found.targets_PK[row], case.allowed_at_random(source))
    # Two positives of one source draw on their own.
    assert (found.targets_PK[0] != found.targets_PK[2]).any()


def test_historical_negatives_are_uniform_over_what_is_allowed() -> None:
    case = Case(sources=[2, 0, 4], num=5000, candidates={1, 2, 3}, taken=TAKEN, seed=2)
    history = {(2, v) for v in range(N)} | {(0, v) for v in range(1, N)} | {(1, 0), (3, 1)}
    found = case.historical(history)
    must_be_uniform(found.targets_PK[0], {3, 4, 5, 6})
    must_be_uniform(found.targets_PK[1], {2, 3, 5, 6})
    must_be_uniform(found.targets_PK[2], {1, 2, 3})
    assert found.filled == 5000


def test_a_source_all_of_whose_targets_are_taken_has_no_valid_negative() -> None:
    taken = {(3, v) for v in range(N) if v != 3}
    case = Case(sources=[3, 1, 3], num=4, candidates=set(range(N)), taken=taken, seed=3)
    for found in (case.random(), case.historical(taken), case.inductive(taken, set())):
        assert found.valid_PK.all(axis=1).tolist() == [False, True, False]
        assert found.valid_PK.any(axis=1).tolist() == [False, True, False]
        assert (found.targets_PK[[0, 2]] == 3).all()


@pytest.mark.parametrize("sources", [[], [2, 2]])
@pytest.mark.parametrize("num", [0, 1, 3])
def test_nothing_to_draw_from_gives_nothing_valid(sources: list[int], num: int) -> None:
    case = Case(sources=sources, num=num, candidates=set(), taken=set(), seed=4)
    for found in (case.random(), case.historical(set()), case.inductive(set(), set())):
        assert found.targets_PK.shape == (len(sources), num)
        assert found.targets_PK.dtype == np.int64
        assert found.valid_PK.dtype == np.bool_
        assert not found.valid_PK.any()
        assert found.filled == 0


def test_a_graph_without_nodes_has_no_negatives() -> None:
    none = np.empty(0, np.int64)
    found = random_negatives(none, 3, candidates=none, taken=none, num_nodes=0, rng=np.random.default_rng(0))
    assert found.targets_PK.shape == (0, 3)


def test_pairs_of_the_largest_graph_do_not_overflow() -> None:
    most = 2**31 - 1
    last, rng = np.array([most - 1]), np.random.default_rng(5)
    candidates, taken = np.array([0, most - 2, most - 1]), np.array([(most - 1) * most])
    found = random_negatives(last, 3, candidates=candidates, taken=taken, num_nodes=most, rng=rng)
    assert found.targets_PK.tolist() == [[most - 2] * 3]
    seen = SeenPairs(most)
    seen.add(np.array([most * most - 2]))
    found = historical_negatives(last, 2, seen=seen, candidates=candidates, taken=taken, num_nodes=most, rng=rng)
    assert found.targets_PK.tolist() == [[most - 2] * 2]
    assert found.filled == 0
