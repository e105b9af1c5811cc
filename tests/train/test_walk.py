"""However a sequence is cut into windows, a model that goes on sees one long walk; who is absent keeps what it had."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graph.tiny import TinyGraph, tiny
from timeloom.graph.tasks import TaskSettings
from timeloom.nn.model import PerNode, Shared, start
from timeloom.nn.models import MODELS
from timeloom.nn.settings import ModelSettings
from timeloom.plan.batch.windows import WindowSettings, scoring_windows
from timeloom.plan.types import Unit
from timeloom.train.evaluate import evaluate, evaluate_baselines
from timeloom.train.goals.goal import Marks, Seen
from timeloom.train.session import Session, open_session
from timeloom.train.settings import RunSettings, TrainSettings
from timeloom.train.walk import Carry, carry_of, first_carry, goes_on
from timeloom.train.workers import make_worker

ALONE = sorted(name for name in MODELS if not name.startswith("evolvegcn"))
RESTARTING = ["evolvegcn_o", "evolvegcn_h"]
COUNT = 9


def graph_of(seed: int = 0, num_nodes: int = 8) -> TinyGraph:
    return tiny(seed, num_nodes=num_nodes, num_snapshots=COUNT, weighted=True, features="stored")


def session_of(
    name: str, *, absent: str = "hold", window: WindowSettings | None = None, layers: int = 1,
    graph: TinyGraph | None = None,
) -> Session:  # fmt: skip
    """Return a run whose every parameter is drawn anew: no bias that is 0 hides a mistake."""
    settings = RunSettings(
        graph="", model=ModelSettings(name=name, hidden=4, heads=2, span=3, layers=layers, absent=absent),  # type: ignore[arg-type]
        task=TaskSettings(name="degree"), window=window or WindowSettings(length=3),
        train=TrainSettings(precision="float64", device="cpu"),
    )  # fmt: skip
    session = open_session(settings, graph_of() if graph is None else graph)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in session.predictor.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=rng, dtype=torch.float64))
    session.predictor.eval()
    return session


def over(session: Session, first: int, last: int, begin: Carry, *, keep: int = -1) -> tuple[list[Seen], Carry | None]:
    """Take a model over snapshots and look at all of them."""
    unit = Unit(first=first, last=last, targets=tuple(range(first, last)), fresh=first == 0, keep=keep)
    return session.walker.walk(unit, begin)


def whole(session: Session, last: int = COUNT) -> list[Seen]:
    with torch.no_grad():
        return over(session, 0, last, first_carry(session.model, session.feed))[0]


def alive(session: Session, t: int) -> Tensor:
    return session.feed.view(t).alive_N


@pytest.mark.parametrize("name", MODELS)
def test_an_absent_node_keeps_its_row_and_its_state(name: str) -> None:
    session = session_of(name)
    carry, born, checked = first_carry(session.model, session.feed), torch.zeros(8, dtype=torch.bool), 0
    for t in range(COUNT):
        with torch.no_grad():
            (seen,), kept = over(session, t, t + 1, carry, keep=t)
        assert kept is not None
        here = alive(session, t)
        born |= here
        assert torch.equal(seen.born_N, born)
        assert torch.equal(kept.born_N, born)
        assert torch.equal(seen.out_NH[~here], carry.out_NH[~here])
        assert (seen.out_NH[~born] == 0.0).all()
        assert (seen.out_NH[here] != 0.0).any() or not here.any()
        for slot, before, after in zip(session.model.memory(), carry.state, kept.state, strict=True):
            if isinstance(slot, PerNode) and slot.holds:
                assert torch.equal(after[~here], before[~here])
                assert (after[~born] == 0.0).all()
        checked += int((~here & born).sum())
        carry = kept
    assert checked > 3


@pytest.mark.parametrize("name", ["tgcn", "wdgcn", "dcrnn"])
def test_an_absent_node_can_run_on_instead(name: str) -> None:
    held, ran = session_of(name), session_of(name, absent="run")
    (before, after) = (whole(held), whole(ran))
    gone = [(t, v) for t in range(1, COUNT) for v in range(8) if after[t].born_N[v] and not alive(ran, t)[v]]
    assert gone
    for t, v in gone:
        assert not torch.equal(after[t].out_NH[v], after[t - 1].out_NH[v])
        assert torch.equal(before[t].out_NH[v], before[t - 1].out_NH[v])
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one.born_N, other.born_N)
        assert (other.out_NH[~other.born_N] == 0.0).all()


def test_embeddings_of_the_span_grow_old_while_a_node_is_absent() -> None:
    session = session_of("sage_linear")
    with torch.no_grad():
        carry: Carry | None = first_carry(session.model, session.feed)
        for t in range(COUNT):
            assert carry is not None
            _, kept = over(session, t, t + 1, carry, keep=t)
            assert kept is not None
            gone = ~alive(session, t)
            assert torch.equal(kept.state[0][gone, :-1], carry.state[0][gone, 1:])
            assert (kept.state[0][gone, -1] == 0.0).all()
            carry = kept


@pytest.mark.parametrize("absent", ["hold", "run"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ALONE)
def test_a_walk_in_pieces_that_go_on_is_the_whole_walk(name: str, layers: int, absent: str) -> None:
    session = session_of(name, layers=layers, absent=absent)
    expected = whole(session)
    for cuts in ([1, 2, 5], [4], [8], list(range(1, COUNT))):
        carry, found = first_carry(session.model, session.feed), list[Seen]()
        for first, last in zip([0, *cuts], [*cuts, COUNT], strict=True):
            with torch.no_grad():
                seen, kept = over(session, first, last, carry, keep=last - 1)
            assert kept is not None
            carry, found = goes_on(session.model, kept), found + seen
        for one, other in zip(found, expected, strict=True):
            assert one.t == other.t
            assert torch.equal(one.out_NH, other.out_NH)
            assert torch.equal(one.born_N, other.born_N)


def test_what_is_kept_is_that_of_the_snapshot_named_however_long_the_window_is() -> None:
    session = session_of("gcn_gru")
    carry = first_carry(session.model, session.feed)
    with torch.no_grad():
        seen, kept = over(session, 0, 6, carry, keep=2)
        _, alone = over(session, 0, 3, carry, keep=2)
        assert over(session, 0, 6, carry)[1] is None
    assert kept is not None
    assert alone is not None
    assert [one.t for one in seen] == list(range(6))
    for one, other in zip(kept.tensors(), alone.tensors(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(kept.out_NH, seen[2].out_NH)


def test_only_targets_are_seen() -> None:
    session = session_of("gcn_gru")
    unit = Unit(first=0, last=6, targets=(1, 4), fresh=True)
    seen, _ = session.walker.walk(unit, first_carry(session.model, session.feed))
    assert [one.t for one in seen] == [1, 4]


@pytest.mark.parametrize("name", MODELS)
def test_no_gradient_flows_into_the_window_before(name: str) -> None:
    session = session_of(name)
    carry = first_carry(session.model, session.feed)
    seen, kept = over(session, 0, 4, carry, keep=3)
    assert kept is not None
    assert seen[-1].out_NH.requires_grad
    assert not kept.out_NH.requires_grad
    for slot, part in zip(session.model.memory(), kept.state, strict=True):
        assert not part.requires_grad or part is (slot.start if isinstance(slot, Shared) else None)


@pytest.mark.parametrize("name", RESTARTING)
def test_an_evolving_weight_starts_anew_in_every_window(name: str) -> None:
    session = session_of(name)
    (slot,) = session.model.memory()
    assert isinstance(slot, Shared)
    assert session.restarts
    carry = first_carry(session.model, session.feed)
    assert carry.state[0] is slot.start
    with torch.no_grad():
        _, kept = over(session, 0, 4, carry, keep=3)
        assert kept is not None
        assert torch.equal(kept.state[0], slot.start)
        mine, _ = over(session, 4, 7, kept)
        fresh, _ = over(session, 4, 7, first_carry(session.model, session.feed))
    for one, other in zip(mine, fresh, strict=True):
        here = alive(session, one.t)
        assert torch.equal(one.out_NH[here], other.out_NH[here])
        assert not torch.equal(one.out_NH[here], whole(session)[one.t].out_NH[here])
    # The rows of absent nodes and who was born go on all the same.
    assert (mine[0].born_N & ~fresh[0].born_N).any()


def grown(name: str, num_nodes: int) -> tuple[Session, Session]:
    """Return a run on a graph, and on the same graph with one more node that is never there."""
    small = graph_of(num_nodes=num_nodes)
    large = [replace(one, num_nodes=num_nodes + 1, alive=np.append(one.alive, False)) for one in small.all]
    first = session_of(name, graph=_bare(small))
    second = session_of(name, graph=_bare(TinyGraph(large)))
    second.predictor.load_state_dict(first.predictor.state_dict())
    return first, second


def _bare(graph: TinyGraph) -> TinyGraph:
    return TinyGraph(graph.all)


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_carry_goes_on_where_nodes_have_joined(name: str) -> None:
    # Two of these are also the size of a weight, which must not be taken for rows of nodes.
    for num_nodes in (8, 4, 2):
        small, large = grown(name, num_nodes)
        with torch.no_grad():
            _, kept = over(small, 0, 4, first_carry(small.model, small.feed), keep=3)
            assert kept is not None
            saved = tuple(part.clone() for part in kept.tensors())
            same, more = carry_of(small.model, saved, num_nodes), carry_of(large.model, saved, num_nodes + 1)
            assert all(torch.equal(one, other) for one, other in zip(same.tensors(), saved, strict=True))
            assert (more.out_NH[num_nodes:] == 0.0).all()
            assert not more.born_N[num_nodes:].any()
            for slot, part in zip(large.model.memory(), more.state, strict=True):
                assert isinstance(slot, Shared) or len(part) == num_nodes + 1
            one, _ = over(small, 4, 8, goes_on(small.model, same))
            two, _ = over(large, 4, 8, goes_on(large.model, more))
        for mine, theirs in zip(one, two, strict=True):
            # A product of more rows may be summed in another order.
            torch.testing.assert_close(theirs.out_NH[:num_nodes], mine.out_NH, rtol=1e-12, atol=1e-13)
            assert torch.equal(theirs.born_N[:num_nodes], mine.born_N)


@pytest.mark.parametrize("name", RESTARTING)
def test_a_window_that_goes_on_from_a_saved_carry_teaches_the_first_weight(name: str) -> None:
    session = session_of(name)
    (slot,) = session.model.memory()
    assert isinstance(slot, Shared)
    _, kept = over(session, 0, 3, first_carry(session.model, session.feed), keep=2)
    assert kept is not None
    saved = carry_of(session.model, tuple(part.detach().clone() for part in kept.tensors()), 8)
    for carry in (kept, goes_on(session.model, saved)):
        seen, _ = over(session, 3, 6, carry)
        (gradient,) = torch.autograd.grad(seen[-1].out_NH.sum(), slot.start, allow_unused=True)
        assert gradient is not None
        assert (gradient != 0.0).any()


def test_before_the_first_snapshot_there_is_nothing() -> None:
    for name in MODELS:
        session = session_of(name)
        carry = first_carry(session.model, session.feed)
        assert carry.out_NH.shape == (8, session.model.out_size)
        assert not carry.out_NH.any()
        assert not carry.born_N.any()
        begun = start(session.model.memory(), 8, carry.out_NH)
        assert all(torch.equal(one, other) for one, other in zip(carry.state, begun, strict=True))


# Evaluation


@pytest.mark.parametrize("length", [1, 3, 20])
@pytest.mark.parametrize("name", ALONE)
def test_evaluation_with_inherited_states_is_one_long_walk(name: str, length: int) -> None:
    session = session_of(name, window=WindowSettings(length=length))
    expected = whole(session)
    for first, last in ((0, COUNT), (5, 7), (8, 9)):
        seen = list(make_worker(session).see(first, last))
        assert [one.t for one in seen] == list(range(first, last))
        for one in seen:
            assert torch.equal(one.out_NH, expected[one.t].out_NH)
            assert torch.equal(one.born_N, expected[one.t].born_N)
            assert not one.out_NH.requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_evaluation_from_zero_is_a_window_of_its_own_for_every_snapshot(name: str) -> None:
    session = session_of(name, window=WindowSettings(length=3, state="zero"))
    for one in make_worker(session).see(1, COUNT):
        first = max(0, one.t - 2)
        with torch.no_grad():
            alone, _ = over(session, first, one.t + 1, first_carry(session.model, session.feed))
        assert torch.equal(one.out_NH, alone[-1].out_NH)
        assert torch.equal(one.born_N, alone[-1].born_N)


@pytest.mark.parametrize(("length", "stride"), [(3, 0), (4, 2), (3, 1), (20, 0)])
@pytest.mark.parametrize("name", RESTARTING)
def test_evaluation_of_an_evolving_weight_restarts_it_where_training_does(name: str, length: int, stride: int) -> None:
    session = session_of(name, window=WindowSettings(length=length, stride=stride))
    step = stride or length
    for seen in make_worker(session).see(0, COUNT):
        # The first window that covers the snapshot begins at a multiple of the step.
        begin = 0
        while begin + length <= seen.t:
            begin += step
        with torch.no_grad():
            alone, _ = over(session, begin, seen.t + 1, first_carry(session.model, session.feed))
        here = alive(session, seen.t)
        assert torch.equal(seen.out_NH[here], alone[-1].out_NH[here])


@pytest.mark.parametrize("state", ["inherit", "zero"])
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("length", "stride"), [(1, 0), (3, 0), (4, 2), (5, 1)])
def test_every_snapshot_is_scored_once_and_as_it_would_be_alone(
    state: str, restarts: bool, length: int, stride: int
) -> None:
    settings = WindowSettings(length=length, stride=stride, state=state)  # type: ignore[arg-type]
    for first in range(7):
        for last in range(first + 1, 10):
            units = scoring_windows(settings, first, last, restarts=restarts)
            assert [t for unit in units for t in unit.targets] == list(range(first, last))
            for t in range(first, last):
                (scorer,) = [unit for unit in units if t in unit.targets]
                (alone,) = [u for u in scoring_windows(settings, t, t + 1, restarts=restarts) if u.targets]
                assert (scorer.first, scorer.fresh) == (alone.first, alone.fresh)
            for unit, following in pairwise(units):
                assert following.fresh or unit.keep == following.first - 1


@pytest.mark.parametrize("name", ["tgcn", "evolvegcn_o", "sage_attention"])
@pytest.mark.parametrize("state", ["inherit", "zero"])
def test_scores_do_not_depend_on_how_evaluation_is_cut(name: str, state: str) -> None:
    session = session_of(name, window=WindowSettings(length=3, state=state))  # type: ignore[arg-type]
    first, last = session.split.of("train")
    evaluate_baselines(session, "train")
    expected = evaluate(make_worker(session), "train")
    assert set(expected) == set(session.goal.metrics)
    marks = Marks()
    for t in reversed(range(first, last)):
        (seen,) = make_worker(session).see(t, t + 1)
        with torch.no_grad():
            session.goal.score(session.head, seen, "train", marks)
    assert marks.means() == pytest.approx(expected, rel=1e-12)
