"""Which worker the settings ask for."""

from __future__ import annotations

from timeloom.train.session import Session
from timeloom.train.whole import WholeWorker
from timeloom.train.worker import Worker


def make_worker(session: Session) -> Worker:
    """Return this rank's worker."""
    return WholeWorker(session)
