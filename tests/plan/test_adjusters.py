"""Who chooses batch sizes: the same words give the same choices, also after being saved, and good sizes are found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from timeloom.errors import BadConfig, BadRun, Diverged
from timeloom.graph.keys import Float64s
from timeloom.plan.tune.adjuster import Adjuster, Bandit, Fixed, Observation, Random, Saved
from timeloom.plan.tune.dqn import Dqn, DqnSettings, Network
from timeloom.plan.tune.rewards import RewardName

SIZES = [(snapshots, nodes) for snapshots in (2, 4, 6) for nodes in (1, 5, 10)]
MAKERS: dict[str, Callable[[int], Adjuster]] = {
    "fixed": lambda seed: Fixed(9, start=4, seed=seed),
    "random": lambda seed: Random(9, start=4, seed=seed),
    "bandit": lambda seed: Bandit(9, start=4, seed=seed),
    "dqn": lambda seed: Dqn(SIZES, start=4, seed=seed),
}
EACH = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def told(place: int, action: int) -> Observation:
    """Return a loss that falls in jerks, and a time that depends on the action."""
    return Observation(loss=3.0 / (place + 1) + 0.1 * ((place * 7) % 3), seconds=0.1 + action)


def course(adjuster: Adjuster, first: int, last: int) -> list[int]:
    return [adjuster.observe(told(place, adjuster.action)) for place in range(first, last)]


@EACH
def test_a_seed_gives_one_course(make: Callable[[int], Adjuster]) -> None:
    assert course(make(1), 0, 60) == course(make(1), 0, 60)


@EACH
def test_one_that_was_saved_goes_on_to_the_bit(make: Callable[[int], Adjuster]) -> None:
    whole, before = make(3), make(3)
    expected = course(whole, 0, 90)
    # The loss falls at the next word, so that the time before it counts.
    course(before, 0, 42)
    saved = before.save()
    course(before, 42, 60)  # what was saved does not change with it
    after = make(99 if isinstance(before, Fixed) else 3)
    after.load(Saved(json.loads(json.dumps(saved.told)), saved.arrays))
    assert course(after, 42, 90) == expected[42:]
    ends = whole.save(), after.save()
    assert ends[0].told == ends[1].told
    assert all((ends[0].arrays[name] == ends[1].arrays[name]).all() for name in ends[0].arrays)


@EACH
def test_every_choice_is_an_action(make: Callable[[int], Adjuster]) -> None:
    assert set(course(make(0), 0, 200)) <= set(range(9))


@pytest.mark.parametrize("name", ["random", "bandit", "dqn"])
def test_other_seeds_choose_otherwise(name: str) -> None:
    assert course(MAKERS[name](1), 0, 40) != course(MAKERS[name](2), 0, 40)


def test_random_is_even() -> None:
    counts = np.bincount(course(Random(9, start=0, seed=0), 0, 2700), minlength=9)
    assert counts.min() > 240
    assert counts.max() < 360


def falls_by(action: int) -> float:
    """Return what share of the loss an action's steps take away: the fourth's most."""
    return 0.02 if action == 3 else 0.002


def shares(adjuster: Adjuster, num: int) -> list[int]:
    loss, actions = 1.0, []
    for _ in range(num):
        loss *= 1.0 - falls_by(adjuster.action)
        actions.append(adjuster.observe(Observation(loss=loss, seconds=1.0)))
    return actions


def test_a_bandit_finds_the_size_by_which_the_loss_falls_fastest() -> None:
    actions = shares(Bandit(9, start=0, seed=0), 300)
    assert actions[150:].count(3) > 90


def test_by_hand_a_bandit_forgets_what_it_saw_with_how_often_it_saw_it() -> None:
    bandit = Bandit(1, start=0, seed=0, forget=0.5)
    for loss in (4.0, 3.0, 2.0, 1.0):
        bandit.observe(Observation(loss=loss, seconds=1.0))
    # Each fall is as large as the largest of late: 1 + 1/2 + 1/4 of both.
    arrays = bandit.save().arrays
    assert arrays["count"].tolist() == arrays["sum"].tolist() == [1.75]


def test_a_bandit_tries_every_size_first() -> None:
    assert set(shares(Bandit(9, start=0, seed=0), 9)) == set(range(9))


def test_the_network_learns_which_action_brings_more() -> None:
    network = Network(3, hidden=16, rng=np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for _ in range(1500):
        states, actions = rng.random(5), rng.integers(0, 3, 5)
        gains = np.where(actions == 2, 1.0, -1.0)
        network.descend(network.gradients(states, actions.tolist(), gains), rate=0.01, follow=0.5)
    values = network.values(np.array([0.1, 0.9]))
    assert values.argmax(1).tolist() == [2, 2]
    assert values[:, 2] == pytest.approx([1.0, 1.0], abs=0.1)
    np.testing.assert_allclose(network.values(np.array([0.1]), network.target), values[:1], atol=0.05)


def test_the_network_s_gradients_are_those_of_its_loss() -> None:
    network = Network(4, hidden=6, rng=np.random.default_rng(2))
    states, actions, aims = np.array([0.3, -0.7, 1.1]), [0, 3, 3], np.array([1.0, -2.0, 0.5])

    def loss() -> float:
        return float(((network.values(states)[np.arange(3), actions] - aims) ** 2).mean())

    for part, gradient in zip(network.parameters, network.gradients(states, actions, aims), strict=True):
        for place in np.ndindex(*part.shape):
            kept = part[place]
            part[place] = kept + 1e-6
            up = loss()
            part[place] = kept - 1e-6
            slope = (up - loss()) / 2e-6
            part[place] = kept
            assert gradient[place] == pytest.approx(slope, abs=1e-7)


def test_adam_s_first_step_has_the_length_of_the_rate() -> None:
    network = Network(2, hidden=3, rng=np.random.default_rng(0))
    before = [part.copy() for part in network.parameters]
    network.descend([np.full_like(part, -7.0) for part in network.parameters], rate=0.005, follow=0.01)
    for old, new, target in zip(before, network.parameters, network.target, strict=True):
        np.testing.assert_allclose(new - old, 0.005, rtol=1e-6)
        np.testing.assert_allclose(target - old, 0.01 * 0.005, rtol=1e-6)


def test_exploring_fades_as_published_once_a_batch_is_remembered() -> None:
    dqn = Dqn(SIZES, start=0, seed=0)
    seen = []
    for place in range(70):
        dqn.observe(told(place, dqn.action))
        seen.append(dqn.explore)
    # The first transition needs two falls, the fifth is there at the seventh word.
    assert seen[5] == 1.0
    assert seen[6] == pytest.approx(0.95)
    assert seen[7] == pytest.approx(0.95**2)
    assert seen[-1] == 0.1


@pytest.mark.parametrize("name", ["bounded", "paper", "public"])
def test_a_transition_is_state_action_reward_and_next_state(name: RewardName) -> None:
    """By hand: losses 4, 3, 1 give falls 1 and 2, states 1/4 and 2/4; time went from 2 s to 1 s."""
    dqn = Dqn(SIZES, start=4, seed=0, settings=DqnSettings(reward=name))
    dqn.observe(Observation(loss=4.0, seconds=9.0))
    dqn.observe(Observation(loss=3.0, seconds=2.0))
    taken = dqn.action
    dqn.observe(Observation(loss=1.0, seconds=1.0))
    saved = dqn.save()
    assert saved.arrays["replay"].tolist() == [[0.25, taken, pytest.approx(0.5 + 0.5), 0.5]]


def test_by_hand_what_is_learnt_is_the_reward_and_the_discounted_best_of_the_target_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dqn = Dqn(SIZES, start=4, seed=0, settings=DqnSettings(batch=1, discount=0.9))
    for part in dqn.network.target:
        part[:] = 0.0
    dqn.network.target[3][2] = 7.0
    learnt = []
    gradients = dqn.network.gradients

    def spy(states: Float64s, actions: Sequence[int], aims: Float64s) -> list[Float64s]:
        learnt.append((states.tolist(), list(actions), aims.tolist()))
        return gradients(states, actions, aims)

    monkeypatch.setattr(dqn.network, "gradients", spy)
    dqn.observe(Observation(loss=4.0, seconds=9.0))
    dqn.observe(Observation(loss=3.0, seconds=2.0))
    taken = dqn.action
    dqn.observe(Observation(loss=1.0, seconds=1.0))
    assert learnt == [([0.25], [taken], [pytest.approx(1.0 + 0.9 * 7.0)])]


def test_a_full_replay_forgets_the_oldest() -> None:
    dqn = Dqn(SIZES, start=4, seed=0, settings=DqnSettings(replay=8))
    course(dqn, 0, 30)
    saved = dqn.save()
    assert saved.arrays["replay"].shape == (8, 4)
    assert saved.told["stored"] == 28
    falls = [(told(place - 1, 0).loss - told(place, 0).loss) / told(0, 0).loss for place in range(22, 30)]
    assert sorted(saved.arrays["replay"][:, 3].tolist()) == pytest.approx(sorted(falls))


def test_what_is_no_loss_is_refused() -> None:
    with pytest.raises(Diverged, match="chosen by is nan"):
        Observation(loss=float("nan"), seconds=1.0)
    with pytest.raises(Diverged, match="no duration"):
        Observation(loss=1.0, seconds=-1.0)


def test_a_checkpoint_of_another_kind_is_refused() -> None:
    with pytest.raises(BadRun, match="holds a Random at action 4, but this run chooses among 9 actions with a Dqn"):
        MAKERS["dqn"](0).load(MAKERS["random"](0).save())
    with pytest.raises(BadRun, match="among 2 actions"):
        Random(2, start=0, seed=0).load(MAKERS["random"](0).save())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"discount": 1.5}, r"dqn.discount=1.5 .* between 0 and 1"),
        ({"explore_least": float("nan")}, "dqn.explore_least=nan"),
        ({"rate": 0.0}, "dqn.rate=0 is no learning rate"),
        ({"replay": 3}, r"dqn.replay=3.*holds a batch"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, float], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        DqnSettings(**settings)  # type: ignore[arg-type]
