"""How far rows that are computed approximately are from exact ones: measured on one window of every epoch."""

from __future__ import annotations

from collections.abc import Iterator

from timeloom.plan.batch.windows import training_windows
from timeloom.records import Deviated
from timeloom.train.session import Session
from timeloom.train.settings import ReuseSettings


def deviations(session: Session, epoch: int) -> Iterator[Deviated]:
    """Yield the deviation of a window of the training part, another one in every epoch; nothing where all is exact."""
    if session.settings.system.divide == "batches":
        return
    units = training_windows(session.settings.window, session.split.train_stop)
    unit = units[epoch % len(units)]
    with session.computing():
        told = session.walker.encoder.deviation(tuple(range(unit.first, unit.last)))
    if told is not None:
        yield Deviated(epoch=epoch, what=told[0], deviation=told[1])


def exactness_of(reuse: ReuseSettings) -> str:
    """Return in words how exact the rows of snapshots are."""
    return {
        "none": "exact",
        "sym-lazy": f"approximate: sources' scales lag by up to {reuse.lazy_eps:g} of themselves (sym-lazy)",
        "sym-static-src": "approximate: sources' scales are those of their first edges (sym-static-src)",
        "sym-approx": "approximate in training: REAL's Eq. 4 (sym-approx)",
    }[reuse.approximate]
