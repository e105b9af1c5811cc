"""Which scheduler a run goes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timeloom.errors import BadConfig
from timeloom.plan.schedule.best import best_within
from timeloom.plan.schedule.greedy import dygnex_g, real_g
from timeloom.plan.schedule.ilp import dygnex_l, first_of, real_l
from timeloom.plan.schedule.plain import in_order, pair_consecutive
from timeloom.plan.schedule.schedule import Scheduler

SchedulerName = Literal["best", "real_l", "real_g", "dygnex_l", "dygnex_g", "pair_consecutive", "in_order"]
_TIMES_LIMIT = 2.0  # of the time of an epoch: the solvers' limit (REAL 5.4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """Which rank takes which windows in which step, and when that is decided. For windows that start from zero."""

    scheduler: Literal["best", "real_l", "real_g", "dygnex_l", "dygnex_g", "pair_consecutive", "in_order"] = "in_order"
    """best: our search. real_l, dygnex_l: the papers' integer programs, or the greedy ones where they do not end within
    the time of two epochs. real_g, dygnex_g: greedy. pair_consecutive: neighbours together (REAL's type II). in_order:
    one group a rank and step (PSG)."""
    limit: int = 2
    """The most groups of a rank in a step (REAL 5.1)."""
    plain_epochs: int = 1
    """Epochs in plain order before anything is measured, while caches fill (REAL 3.3, stage I)."""
    profile_epochs: int = 3
    """Epochs that are measured (DyGNeX 5.3: 2 to 5)."""
    search_s: float = 1.0
    """best: how long it searches, at most."""

    def __post_init__(self) -> None:
        for name, least in (("limit", 1), ("plain_epochs", 0), ("profile_epochs", 1)):
            if getattr(self, name) < least:
                raise BadConfig(f"schedule.{name}={getattr(self, name)} is too small: give {least} or more")
        if not self.search_s > 0:
            raise BadConfig(f"schedule.search_s={self.search_s:g} is no time: give more than 0")

    @property
    def needs_times(self) -> bool:
        """Whether the scheduler looks at what groups take."""
        return self.scheduler not in ("in_order", "pair_consecutive")


def scheduler_of(settings: ScheduleSettings, *, epoch_s: float, seed: int) -> Scheduler:
    """Return the scheduler of a run whose epochs take about so long."""
    limit_s = _TIMES_LIMIT * epoch_s
    if settings.scheduler == "best":
        return best_within(min(settings.search_s, limit_s), seed=seed)
    if settings.scheduler == "real_l":
        return first_of(real_l(limit_s=limit_s), real_g, by="real_g")
    if settings.scheduler == "dygnex_l":
        return first_of(dygnex_l(limit_s=limit_s), dygnex_g, by="dygnex_g")
    plain: dict[SchedulerName, Scheduler] = {
        "real_g": real_g, "dygnex_g": dygnex_g, "pair_consecutive": pair_consecutive, "in_order": in_order
    }  # fmt: skip
    return plain[settings.scheduler]
