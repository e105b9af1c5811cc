"""The batch adjuster that learns (DynaHB 5.1): a deep Q-network of one input, in NumPy.

As published: the state is the fall of the loss divided by the first loss; a network 1-16-A with ReLU; transitions that
never end; a replay of 1000 from which 5 are learnt after every decision; a target network that follows slowly.
Deviation: rewards are bounded by default (SPEC D8.5), and the loss is never that of the test.

Shape letters: A actions, H hidden units, B transitions that are learnt from at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from timeloom.errors import BadConfig
from timeloom.graph.keys import Float64s
from timeloom.plan.tune.adjuster import Adjuster, Observation, Saved
from timeloom.plan.tune.rewards import Change, RewardName, reward

_INITIAL = 0x11171A1
_NAMES = ("in_weight", "in_bias", "out_weight", "out_bias")


@dataclass(frozen=True, slots=True, kw_only=True)
class DqnSettings:
    """How the network learns; the defaults are the paper's, or its program's where the paper is silent."""

    reward: RewardName = "bounded"
    """bounded: clipped, -1 where the loss did not fall. paper: Eq. 3 as printed. public: as the authors' program."""
    discount: float = 0.99  # how much a later reward counts (5.1)
    explore: float = 1.0  # the share of choices made at random at first (5.1)
    explore_decay: float = 0.95  # what it is multiplied by after each learning step (5.1)
    explore_least: float = 0.1  # what it never falls below (5.1)
    rate: float = 0.005  # Adam's learning rate (5.1)
    hidden: int = 16  # hidden units (program)
    replay: int = 1000  # transitions kept (program)
    batch: int = 5  # transitions learnt from at once (program)
    follow: float = 0.01  # how far the target network moves towards the other after each learning step (program)

    def __post_init__(self) -> None:
        for name in ("discount", "explore", "explore_decay", "explore_least", "follow"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise BadConfig(f"dqn.{name}={value:g} was asked for, but it must lie between 0 and 1")
        if not 0.0 < self.rate < 10.0:
            raise BadConfig(f"dqn.rate={self.rate:g} is no learning rate: give more than 0, such as 0.005")
        if self.hidden < 1 or self.batch < 1 or self.replay < self.batch:
            raise BadConfig(
                f"dqn.hidden={self.hidden}, dqn.batch={self.batch} and dqn.replay={self.replay}: give 1 or more of "
                "each, and a replay that holds a batch"
            )


class Network:
    """Two layers, and Adam's moments."""

    def __init__(self, num_actions: int, *, hidden: int, rng: np.random.Generator) -> None:
        def drawn(inputs: int, *shape: int) -> Float64s:
            found: Float64s = rng.uniform(-1.0, 1.0, shape) / inputs**0.5
            return found

        self.parameters: list[Float64s] = [
            drawn(1, hidden), drawn(1, hidden), drawn(hidden, hidden, num_actions), drawn(hidden, num_actions),
        ]  # fmt: skip
        self.target = [part.copy() for part in self.parameters]
        self.moments = [np.zeros_like(part) for part in [*self.parameters, *self.parameters]]
        self.updates = 0

    def values(self, states_B: Float64s, parameters: Sequence[Float64s] | None = None) -> Float64s:
        """Return [B, A] what each action is expected to bring."""
        in_weight_H, in_bias_H, out_weight_HA, out_bias_A = parameters or self.parameters
        hidden_BH = np.maximum(states_B[:, None] * in_weight_H + in_bias_H, 0.0)
        found: Float64s = hidden_BH @ out_weight_HA + out_bias_A
        return found

    def gradients(self, states_B: Float64s, actions_B: Sequence[int], aims_B: Float64s) -> list[Float64s]:
        """Return the gradient of the mean square of (value of the action taken - aim)."""
        in_weight_H, in_bias_H, out_weight_HA, out_bias_A = self.parameters
        before_BH = states_B[:, None] * in_weight_H + in_bias_H
        hidden_BH = np.maximum(before_BH, 0.0)
        places = np.arange(len(states_B)), np.asarray(actions_B)
        d_out_BA = np.zeros((len(states_B), len(out_bias_A)))
        d_out_BA[places] = 2.0 / len(states_B) * ((hidden_BH @ out_weight_HA + out_bias_A)[places] - aims_B)
        d_before_BH = (d_out_BA @ out_weight_HA.T) * (before_BH > 0.0)
        return [states_B @ d_before_BH, d_before_BH.sum(0), hidden_BH.T @ d_out_BA, d_out_BA.sum(0)]

    def descend(self, gradients: Sequence[Float64s], *, rate: float, follow: float) -> None:
        """Take one step of Adam, and let the target follow."""
        self.updates += 1
        count = len(self.parameters)
        for place, gradient in enumerate(gradients):
            mean, square = self.moments[place], self.moments[count + place]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            sure = square / (1.0 - 0.999**self.updates)
            self.parameters[place] -= rate * (mean / (1.0 - 0.9**self.updates)) / (np.sqrt(sure) + 1e-8)
            self.target[place] += follow * (self.parameters[place] - self.target[place])


class Dqn(Adjuster):
    """Learns which size makes the loss fall fast."""

    def __init__(
        self, sizes: Sequence[tuple[int, int]], *, start: int, seed: int, settings: DqnSettings | None = None
    ) -> None:
        """``sizes`` are the snapshots and nodes of each action's batches: one reward asks whether batches grew."""
        super().__init__(len(sizes), start=start, seed=seed)
        self._sizes, self._settings = tuple(sizes), settings or DqnSettings()
        rng = np.random.Generator(np.random.Philox([seed, _INITIAL]))
        self.network = Network(len(sizes), hidden=self._settings.hidden, rng=rng)
        self.explore = self._settings.explore
        # Each row of the replay: state, action, reward, next state.
        self._replay: Float64s = np.empty((self._settings.replay, 4))
        self._stored = 0
        self._first_loss = self._last_loss = self._last_seconds = 0.0
        self._falls: list[float] = []
        self._last_action = start

    def _choose(self, seen: Observation) -> int:
        rng = self._rng()
        state = self._told(seen)
        if min(self._stored, len(self._replay)) >= self._settings.batch:
            self._learn(rng)
        if rng.random() < self.explore:
            return int(rng.integers(self.num_actions))
        return int(np.argmax(self.network.values(np.array([state]))[0]))

    def _told(self, seen: Observation) -> float:
        """Return the new state; where two falls are known, remember what the action brought."""
        if self._decisions == 0:
            self._first_loss = seen.loss
        else:
            fall = self._last_loss - seen.loss
            if self._falls:
                gain = reward(self._settings.reward, self._change(fall, seen.seconds))
                row = self._stored % len(self._replay)
                self._replay[row] = (self._state(self._falls[-1]), self.action, gain, self._state(fall))
                self._stored += 1
            self._falls = [fall]
        self._last_loss, self._last_seconds, self._last_action = seen.loss, seen.seconds, self.action
        return self._state(self._falls[-1]) if self._falls else 0.0

    def _state(self, fall: float) -> float:
        return fall / max(abs(self._first_loss), 1e-12)

    def _change(self, fall: float, seconds: float) -> Change:
        before, now = self._sizes[self._last_action], self._sizes[self.action]
        return Change(
            last_fall=self._falls[-1], fall=fall, last_seconds=self._last_seconds, seconds=seconds,
            grew=now[0] > before[0] and now[1] > before[1], shrank=now[0] < before[0] and now[1] < before[1],
        )  # fmt: skip

    def _learn(self, rng: np.random.Generator) -> None:
        settings, held = self._settings, min(self._stored, len(self._replay))
        chosen = self._replay[rng.choice(held, settings.batch, replace=False)]
        best_B = self.network.values(chosen[:, 3], self.network.target).max(axis=1)
        aims_B = chosen[:, 2] + settings.discount * best_B
        gradients = self.network.gradients(chosen[:, 0], chosen[:, 1].astype(np.int64).tolist(), aims_B)
        self.network.descend(gradients, rate=settings.rate, follow=settings.follow)
        self.explore = max(settings.explore_least, self.explore * settings.explore_decay)

    def _save(self) -> Saved:
        held, network = min(self._stored, len(self._replay)), self.network
        arrays = {"replay": self._replay[:held], **dict(zip(_NAMES, network.parameters, strict=True))}
        arrays |= {f"target.{name}": part for name, part in zip(_NAMES, network.target, strict=True)}
        arrays |= {f"moment.{place}": part for place, part in enumerate(network.moments)}
        told = {
            "explore": self.explore, "stored": self._stored, "updates": network.updates, "falls": self._falls,
            "first_loss": self._first_loss, "last_loss": self._last_loss, "last_seconds": self._last_seconds,
            "last_action": self._last_action,
        }  # fmt: skip
        return Saved(told, arrays)

    def _load(self, saved: Saved) -> None:
        told, arrays, network = saved.told, saved.arrays, self.network
        network.parameters = [arrays[name].copy() for name in _NAMES]
        network.target = [arrays[f"target.{name}"].copy() for name in _NAMES]
        network.moments = [arrays[f"moment.{place}"].copy() for place in range(2 * len(_NAMES))]
        network.updates, self._stored, self.explore = told["updates"], told["stored"], told["explore"]
        self._replay[: len(arrays["replay"])] = arrays["replay"]
        self._falls, self._last_action = list(told["falls"]), told["last_action"]
        self._first_loss, self._last_loss = told["first_loss"], told["last_loss"]
        self._last_seconds = told["last_seconds"]
