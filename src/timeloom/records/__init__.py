"""What a run leaves behind: the run directory and its records."""

from __future__ import annotations

from timeloom.records.directory import (
    CHECKPOINTS,
    CONFIG,
    RECORDS,
    REPORT,
    RunDirectory,
    is_in_use,
    is_run,
    read,
    read_config,
    refuse_in_the_way,
    stream,
)
from timeloom.records.kinds import (
    PHASES,
    Averaged,
    Batched,
    Deviated,
    Ended,
    EpochEnded,
    Evaluated,
    GraphFacts,
    Placed,
    Predicted,
    Record,
    Resumed,
    Saved,
    Scheduled,
    Spans,
    Started,
    Stepped,
    Traffic,
    Tuned,
    Warned,
)  # fmt: skip
from timeloom.records.wire import as_json, from_json

__all__ = [
    "CHECKPOINTS", "CONFIG", "PHASES", "RECORDS", "REPORT", "Averaged", "Batched", "Deviated", "Ended", "EpochEnded",
    "Evaluated", "GraphFacts", "Placed", "Predicted", "Record", "Resumed", "RunDirectory", "Saved", "Scheduled",
    "Spans", "Started", "Stepped", "Traffic", "Tuned", "Warned", "as_json", "from_json", "is_in_use", "is_run", "read",
    "read_config", "refuse_in_the_way", "stream",
]  # fmt: skip
