"""Who does what in the epochs to come: a schedule that is solved from measured times, beside training (REAL 3.3).

Every epoch ranks tell what their windows took; the first one solves, in another process, and all go by what it found.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np

from timeloom.graph.dynamic import DynamicGraph
from timeloom.plan.batch.windows import training_windows
from timeloom.plan.reuse import Encoding, GroupTimes, Spreads, changes_of, group_times
from timeloom.plan.schedule.schedule import Schedule, loads_of, schedule_of
from timeloom.plan.stages import Stages
from timeloom.records import Scheduled
from timeloom.train.profile import Part
from timeloom.train.session import Session


class Control:
    """One rank's part in it. A run whose schedule is fixed has nothing to decide."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.schedule: Schedule | None = None
        """What the next epoch goes by; None: windows in the order of time."""
        self._stages: Stages | None = None
        self.active = session.settings.schedule.needs_times and session.settings.train.protocol == "fixed"
        self._units = training_windows(session.settings.window, session.split.train_stop) if self.active else []
        if self.active and session.world.rank == 0:
            self._stages = self._first_stages()

    def epoch_ended(
        self, epoch: int, seconds: float, first_step: int, spans: list[tuple[int, float, tuple[Part, ...]]]
    ) -> Iterator[Scheduled]:  # fmt: skip
        """Collective. Tell what an epoch took; yield the schedule of the next one where there is a new one."""
        if not self.active:
            return
        session, measured = self._session, self._measured()
        told = json.dumps({"seconds": measured, "alpha": _agreeing_s(spans)}).encode()
        found = [json.loads(one) for one in session.world.gather_bytes(told, "control/seconds")]
        answer = b"" if self._stages is None else self._asked(self._stages, found, seconds)
        answer = session.world.broadcast_bytes(answer, "control/schedule")
        if answer:
            solved = json.loads(answer)
            self.schedule = schedule_of(solved["steps"], session.world.size)
            yield self._told(epoch + 1, first_step, solved)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        schedule = None if self.schedule is None else self.schedule.as_json()
        return {"schedule": schedule, "stages": None if self._stages is None else self._stages.state()}

    def restore(self, told: dict[str, Any]) -> None:
        """Go back to a checkpoint. A schedule for another number of ranks is solved anew from the times it had."""
        if not self.active:
            return
        size = self._session.world.size
        fits = told["schedule"] is not None and len(told["schedule"][0]) == size
        self.schedule = schedule_of(told["schedule"], size) if fits else None
        if self._stages is not None and told["stages"] is not None:
            self._stages.restore(told["stages"] | {"solved": bool(fits)})

    def close(self) -> None:
        """End the solver, if it is still at work."""
        if self._stages is not None:
            self._stages.close()

    def _asked(self, stages: Stages, found: list[dict[str, Any]], seconds: float) -> bytes:
        taken, ranks = np.full(len(self._units), np.nan), np.zeros(len(self._units), np.int64)
        for rank, one in enumerate(found):
            for number, value in one["seconds"].items():
                taken[int(number)], ranks[int(number)] = value, rank
        if stages.stage == "profile" and np.isnan(taken).any():
            # An epoch that was begun before an interruption was not measured whole.
            return b""
        alphas = [one["alpha"] for one in found if not math.isnan(one["alpha"])]
        stages.alpha_s = min(alphas, default=0.0)
        solved = stages.epoch_ended(taken, ranks, seconds)
        if solved is None:
            return b""
        loads = loads_of(solved.schedule, stages.problem()).tolist()
        return json.dumps(solved.as_json() | {"loads": loads}).encode()

    def _measured(self) -> dict[int, float]:
        """Return what each of this rank's windows took since this was asked last."""
        profile = self._session.profile
        numbers = {unit: number for number, unit in enumerate(self._units)}
        taken, profile.seconds = profile.seconds, {}
        return {numbers[unit]: seconds for unit, seconds in taken.items() if unit in numbers}

    def _told(self, epoch: int, first_step: int, solved: dict[str, Any]) -> Scheduled:
        assert self.schedule is not None
        loads: list[list[float]] = solved["loads"]
        # Windows of one rank and step share the time that they take together.
        units = tuple(
            (place, rank, self._units[group].first, self._units[group].last, loads[place][rank] / len(groups))
            for place, step in enumerate(self.schedule.steps)
            for rank, groups in enumerate(step)
            for group in groups
        )
        return Scheduled(
            epoch=epoch, by=solved["by"] or self._session.settings.schedule.scheduler, first_step=first_step,
            units=units, **{name: solved[name] for name in ("predicted_s", "bound_s", "solved_s")},
        )  # fmt: skip

    def _first_stages(self) -> Stages:
        session = self._session
        return Stages(
            session.settings.schedule, self._predicted(), session.world.size, alpha_s=0.0,
            seed=session.settings.train.seed,
        )  # fmt: skip

    def _predicted(self) -> GroupTimes:
        """Return what windows are predicted to take and to save, before any was computed."""
        session, window = self._session, self._session.settings.window
        assert isinstance(session.graph, DynamicGraph), "schedules are for graphs on disk"
        encoder, decided = session.walker.encoder, session.decided
        asked = encoder.asked
        spreads: Spreads = "none"
        if not session.feed.unchanging:
            spreads = "both"
        elif any(norm.kind in ("sym", "both") for norm in asked.norms):
            spreads = "both" if any(norm.kind == "both" for norm in asked.norms) else "in"
        encoding = Encoding(
            sum_widths=tuple(one.width for one in asked.sums if not (one.of_inputs and decided.free)),
            attended=asked.attended, flops=asked.flops, width=asked.width,
            recur_flops=6 * sum(p.numel() for p in session.predictor.parameters()),
        )  # fmt: skip
        changes = changes_of(session.graph, session.split.train_stop, spreads=spreads, hops=max(asked.hops, 1))
        return group_times(
            changes, length=window.length, stride=window.step, encoding=encoding, costs=decided.costs
        )  # fmt: skip


def _agreeing_s(spans: list[tuple[int, float, tuple[Part, ...]]]) -> float:
    """Return what agreeing on gradients takes at the least; the rest of it is waiting for others."""
    taken = [seconds for _, _, parts in spans for name, _, seconds in parts if name == "communicate"]
    return statistics.median(taken) if taken else math.nan
