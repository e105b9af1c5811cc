"""Which worker the settings ask for."""

from __future__ import annotations

from timeloom.train.alltoall import AllToAllWorker
from timeloom.train.flare.worker import FlareWorker
from timeloom.train.hybrid.worker import HybridWorker
from timeloom.train.part import PartWorker
from timeloom.train.pipeline import PipelineWorker
from timeloom.train.relay import RelayWorker
from timeloom.train.sampled.worker import SampledWorker
from timeloom.train.session import Session
from timeloom.train.whole import WholeWorker
from timeloom.train.worker import Worker


def make_worker(session: Session) -> Worker:
    """Return this rank's worker."""
    system = session.settings.system
    if system.divide == "targets":
        return SampledWorker(session)
    if system.unit == "trapezoid":
        return FlareWorker(session)
    if system.divide == "batches":
        return HybridWorker(session)
    if not session.feed.holding.holds_all:
        return PartWorker(session)
    if session.world.size > 1 and system.divide == "time":
        return RelayWorker(session) if system.time == "relay" else AllToAllWorker(session)
    # The live protocol takes one window at a time.
    if system.pipeline and session.settings.train.protocol == "fixed":
        return PipelineWorker(session)
    return WholeWorker(session)
