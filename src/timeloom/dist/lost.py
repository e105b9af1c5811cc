"""Which rank is missing, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from timeloom.dist.fingerprint import Call
from timeloom.dist.transport import Sighting


def behind(call: Call, seen: Sequence[Sighting]) -> list[int]:
    """Return the ranks that a call waits for and that have not begun it."""
    return [rank for rank in range(len(seen)) if not _has_begun(call, rank, seen[rank])]


def describe(call: Call, seen: Sequence[Sighting], silent: set[int], *, limit_s: float | None) -> str:
    """Return who did not come to ``call``; ``limit_s`` is how long it was waited for, None where a rank is gone.

    Ranks that said why they failed come first: the others only miss them.
    """
    failed = [rank for rank, at in enumerate(seen) if at.failure]
    late = [rank for rank in behind(call, seen) if not seen[rank].gave_up]
    gone = [rank for rank in sorted(silent) if not seen[rank].gave_up]
    # Where a connection broke, ranks that still answer are merely on their way.
    missing = [rank for rank in late if limit_s is not None or rank in gone] or gone or late
    if failed:
        told = "; ".join(f"rank {rank} failed at {_place(seen[rank])}: {seen[rank].failure}" for rank in failed)
    elif missing:
        told = "; ".join(_missing(call, rank, seen[rank], silent) for rank in missing)
    else:
        told = f"all ranks have reached {call.label}, but it was not finished: the network may be slow or broken"
    after = f"waited {limit_s:g} s" if limit_s is not None else "the connection was lost"
    return f"{told} ({after})"


def _has_begun(call: Call, rank: int, seen: Sighting) -> bool:
    # Only the peers of a message are waited for, but all ranks of a collective.
    key, count = call.messages.get(rank, (call.group, 0 if call.messages else call.sequence))
    return seen.counts.get(key, 0) >= count


def _missing(call: Call, rank: int, seen: Sighting, silent: set[int]) -> str:
    verb = "was lost in" if _has_begun(call, rank, seen) else "has not reached"
    life = "its process does not answer" if rank in silent else "its process is alive"
    return f"rank {rank} {verb} {call.label} (last seen at {_place(seen)}; {life})"


def _place(seen: Sighting) -> str:
    return seen.label or "its start"
