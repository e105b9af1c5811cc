"""Ranks of any speed take part in equally many collectives, agree, and end together (T28)."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timeloom.errors import Diverged
from timeloom.graph.keys import Float64s
from timeloom.plan.batch.hybrid_settings import HybridSettings
from timeloom.plan.batch.rounds import FIRST_STEPS, Decision, Report, Rounds, carried, pack, unpack, weight_of

TIMED = HybridSettings(round_steps=5)
OVERLAPPED = HybridSettings(round_steps=5, sync="overlapped")


@dataclass
class Rank:
    """A simulated rank: its steps take a time each, and move its one parameter towards its own goal."""

    step_s: float
    goal: float
    parameter: float = 0.0
    steps: int = 0
    collectives: int = 0
    decisions: list[Decision] = field(default_factory=list)


@dataclass
class Simulation:
    """Ranks with a clock each; a collective ends for all when the last rank has entered it."""

    ranks: list[Rank]
    settings: HybridSettings
    last_round: int
    link_s: float = 0.01

    def run(self) -> None:
        """Run until all ranks end; a rank that waits for one that never comes fails the test."""
        count = len(self.ranks)
        waiting: dict[int, dict[int, tuple[float, Float64s]]] = {}
        results: dict[int, tuple[float, Float64s]] = {}
        actors = [self.behave(place, waiting, results) for place in range(count)]
        # A rank is taken up again at its own time; one that waits comes up when the collective has ended.
        ready = [(0.0, place) for place in range(count)]
        blocked: dict[int, int] = {}
        alive = set(range(count))
        while alive:
            assert ready, (
                f"ranks {sorted(blocked)} wait in collectives {sorted(blocked.values())} for others that ended"
            )
            _, place = heapq.heappop(ready)
            try:
                now_s, wait_for = next(actors[place])
            except StopIteration:
                alive.discard(place)
                continue
            if wait_for < 0 or wait_for in results:
                heapq.heappush(ready, (max(now_s, results[wait_for][0]) if wait_for >= 0 else now_s, place))
            else:
                blocked[place] = wait_for
            for number, sent in waiting.items():
                if number not in results and len(sent) == count:
                    end_s = max(at for at, _ in sent.values()) + self.link_s
                    results[number] = end_s, np.sum([buffer for _, buffer in sent.values()], axis=0)
                    for other in [rank for rank, waits in blocked.items() if waits == number]:
                        del blocked[other]
                        heapq.heappush(ready, (end_s, other))

    def behave(
        self,
        place: int,
        waiting: dict[int, dict[int, tuple[float, Float64s]]],
        results: dict[int, tuple[float, Float64s]],
    ) -> Iterator[tuple[float, int]]:
        """Yield (own time, collective waited for or -1) at every moment at which others may go on."""
        rank, settings, count = self.ranks[place], self.settings, len(self.ranks)
        rounds = Rounds(settings, has_nodes=not math.isinf(rank.step_s))
        now_s, number, sent = 0.0, 0, 0.0
        rounds.begin(now_s)
        pending = False
        while True:
            while not rounds.is_due(now_s):
                now_s += rank.step_s
                rank.steps += 1
                rank.parameter += 0.1 * (rank.goal - rank.parameter)
                rounds.stepped(abs(rank.goal - rank.parameter), rank.step_s)
                yield now_s, -1
            if settings.sync == "overlapped" and pending:
                yield now_s, number - 1
                now_s = max(now_s, results[number - 1][0])
                if self.finish(rank, rounds, results[number - 1][1], sent):
                    return
                pending = False
            mine = rounds.report(stop=number + 1 >= self.last_round and place == 0)
            weight = weight_of(mine, by_steps=settings.weigh_by_steps)
            sent = rank.parameter
            buffer = np.concatenate([[weight * sent], pack(mine, place, count)])
            waiting.setdefault(number, {})[place] = (now_s, buffer)
            rank.collectives += 1
            number += 1
            if settings.sync == "overlapped":
                pending = True
                yield now_s, -1
            else:
                yield now_s, number - 1
                now_s = max(now_s, results[number - 1][0])
                if self.finish(rank, rounds, results[number - 1][1], sent):
                    return
            rounds.begin(now_s)

    def finish(self, rank: Rank, rounds: Rounds, summed: Float64s, sent: float) -> bool:
        decision = rounds.take(unpack(summed[1:]))
        rank.decisions.append(decision)
        if decision.total_weight:
            average = summed[:1] / decision.total_weight
            rank.parameter = float(carried(average, np.array([sent]), np.array([rank.parameter]))[0])
        return decision.stop


def simulated(speeds: list[float], settings: HybridSettings, last_round: int = 12) -> list[Rank]:
    ranks = [Rank(step_s, goal=float(place)) for place, step_s in enumerate(speeds)]
    Simulation(ranks, settings, last_round).run()
    return ranks


@given(
    st.lists(st.floats(1e-3, 10.0) | st.just(math.inf), min_size=1, max_size=6),
    st.sampled_from(["timed", "overlapped", "allreduce"]),
    st.integers(1, 9),
    st.booleans(),
)
def test_ranks_of_any_speed_enter_equally_many_collectives_and_end(
    speeds: list[float], sync: str, last_round: int, by_steps: bool
) -> None:
    """T28; an infinite step is a rank without nodes."""
    settings = HybridSettings(sync=sync, round_steps=4, weigh_by_steps=by_steps)  # type: ignore[arg-type]
    ranks = simulated(speeds, settings, last_round)
    assert len({rank.collectives for rank in ranks}) == 1
    assert ranks[0].collectives >= last_round
    assert all(rank.decisions == ranks[0].decisions for rank in ranks)


def test_a_rank_ten_times_as_fast_makes_about_ten_times_the_steps_and_ends_with_the_same_parameters() -> None:
    """T28: speed ratio 1 : 10."""
    fast, slow = simulated([0.01, 0.1], TIMED)
    assert fast.collectives == slow.collectives == 12
    assert 5 < fast.steps / slow.steps < 11
    assert fast.parameter == slow.parameter


def test_in_every_round_each_rank_with_nodes_makes_a_step_even_one_slower_than_the_round() -> None:
    fast, slow = simulated([0.01, 50.0], HybridSettings(round_seconds=0.1))
    assert slow.steps == 12
    assert fast.steps >= 12


def test_a_rank_without_nodes_takes_part_and_does_not_dilute_the_average() -> None:
    """T28: a rank with no data participates."""
    alone = simulated([0.01], TIMED)[0]
    first, empty = simulated([0.01, math.inf], TIMED)
    assert empty.steps == 0
    assert empty.collectives == first.collectives
    assert empty.parameter == first.parameter == alone.parameter


def test_ranks_without_any_nodes_keep_what_they_have_and_end() -> None:
    for rank in simulated([math.inf, math.inf], TIMED, last_round=3):
        assert (rank.parameter, rank.collectives) == (0.0, 3)
        assert [decision.loss for decision in rank.decisions] == [None] * 3


def test_overlapped_rounds_end_with_nothing_under_way_and_the_ranks_near_each_other() -> None:
    fast, slow = simulated([0.01, 0.03], OVERLAPPED, last_round=40)
    # The vote to stop travels in round 40 and is heard by all one round later, before another is started.
    assert fast.collectives == slow.collectives == 40
    assert abs(fast.parameter - slow.parameter) < 0.5


def test_by_hand_the_interval_follows_the_median_rank() -> None:
    rounds = Rounds(HybridSettings(round_steps=10), has_nodes=True)
    assert rounds.interval_s == 0.0
    decision = rounds.take([Report(3, 0.2, 6.0), Report(3, 0.1, 3.0), Report(3, 0.9, 3.0), Report()])
    assert decision == Decision(
        number=1, stop=False, total_weight=3.0, interval_s=2.0, loss=12 / 9, held_loss=None, step_seconds=0.2,
        save=False, cells=0, edges=0, steps=(3, 3, 3, 0),
    )  # fmt: skip
    # Where nobody made a step the time stays as it was.
    assert rounds.take([Report(), Report()]).interval_s == pytest.approx(2.0)


def test_by_hand_losses_of_validation_are_weighed_by_nodes_and_steps_by_number_where_asked() -> None:
    rounds = Rounds(HybridSettings(weigh_by_steps=True), has_nodes=True)
    decision = rounds.take([Report(2, 0.1, 1.0, 30.0, 10.0), Report(5, 0.1, 1.0, 10.0, 30.0, 1.0)])
    assert (decision.total_weight, decision.held_loss, decision.stop) == (7.0, 1.0, True)


def test_a_step_that_had_nothing_to_learn_from_fills_its_time_and_has_no_weight() -> None:
    rounds = Rounds(HybridSettings(round_seconds=3.0), has_nodes=True)
    rounds.begin(0.0)
    rounds.stepped(None, 2.0, cells=6, edges=10)
    assert rounds.is_due(3.0)
    idle = rounds.report(save=True)
    rounds.stepped(4.0, 2.0, cells=5, edges=1)
    decision = rounds.take([idle, rounds.report()])
    assert (decision.total_weight, decision.loss, decision.steps) == (1.0, 4.0, (0, 1))
    assert (decision.cells, decision.edges, decision.save) == (17, 21, True)


def test_a_given_time_between_rounds_stays() -> None:
    rounds = Rounds(HybridSettings(round_seconds=3.0), has_nodes=True)
    assert rounds.take([Report(3, 0.2, 6.0)]).interval_s == 3.0


def test_the_first_round_has_a_few_steps_and_later_ones_last_their_time() -> None:
    rounds = Rounds(HybridSettings(round_steps=10), has_nodes=True)
    rounds.begin(100.0)
    for _ in range(FIRST_STEPS):
        assert not rounds.is_due(1e9)
        rounds.stepped(1.0, 0.5)
    assert rounds.is_due(100.0)
    rounds.take([rounds.report()])
    rounds.begin(200.0)
    assert not rounds.is_due(300.0), "no round without a step"
    rounds.stepped(1.0, 0.5)
    assert not rounds.is_due(204.9)
    assert rounds.is_due(205.0)
    assert rounds.report() == Report(1, 0.5, 1.0)


def test_reports_of_all_ranks_come_through_a_sum_even_one_that_is_no_number() -> None:
    reports = [Report(1, 0.1, 2.0, 3.0, 4.0, 0.0), Report(), Report(5, 0.5, math.inf, 0.0, 0.0, 1.0)]
    summed = sum(pack(report, rank, 3) for rank, report in enumerate(reports))
    assert unpack(np.asarray(summed)) == tuple(reports)


def test_a_loss_that_is_no_number_ends_all_ranks_with_the_same_words() -> None:
    reports = [Report(1, 0.1, 2.0), Report(1, 0.1, math.nan)]
    for _ in range(2):
        with pytest.raises(Diverged, match="rank 1 reports losses of nan in training"):
            Rounds(TIMED, has_nodes=True).take(reports)


def test_rounds_go_on_where_they_were_saved() -> None:
    rounds = Rounds(TIMED, has_nodes=True)
    rounds.take([Report(3, 0.2, 6.0)])
    again = Rounds(TIMED, has_nodes=True)
    again.load(json.loads(json.dumps(rounds.save())))
    assert again.take([Report()]) == rounds.take([Report()])
    assert again.interval_s == pytest.approx(1.0)
