"""Every exception raised on purpose.

TimeloomError            1   anything below; `exit_code` is what the command ends with
├── BadConfig            2   an option, or a combination of options, that cannot be meant
├── BadInput             3   a source of data that cannot be read as asked
│   └── BadRow           3   ... because of one row: file, line and column are named
├── BadStore             4   a graph on disk that is missing, broken, of another version or in use
│   └── BadRun           4   ... or a run directory
├── TooLarge             5   more memory or disk is needed than was allowed
├── DownloadFailed       6   a file that could not be fetched, or is not the file that was meant
├── Diverged             7   a loss, a gradient or an input that is no number
├── LostRank             8   another rank that does not come: dead, stuck, or out of reach
├── RanksDiffer          9   ranks that are not doing the same thing
└── Interrupted         75   a run that was asked to stop and was saved: go on with --resume

Ctrl-C ends a command with 130, SIGTERM with 143 (docs/reliability.md has the whole table).
"""

from __future__ import annotations

import errno

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class TimeloomError(Exception):
    """The root of the tree. Its text says what was asked, what was found and what to do."""

    exit_code = 1


class BadConfig(TimeloomError):
    """An option, or a combination of options, that cannot be meant."""

    exit_code = 2


class BadInput(TimeloomError):
    """A source of data that cannot be read as asked."""

    exit_code = 3


class BadRow(BadInput):
    """One row that cannot be read as asked."""


class BadStore(TimeloomError):
    """A graph on disk that is missing, broken, of another version or in use."""

    exit_code = 4


class BadRun(BadStore):
    """A run directory that is missing, broken or in use."""


class TooLarge(TimeloomError):
    """More memory or disk is needed than was allowed."""

    exit_code = 5


class DownloadFailed(TimeloomError):
    """A file that could not be fetched, or is not the file that was meant."""

    exit_code = 6


class Diverged(TimeloomError):
    """A loss, a gradient or an input that is no number."""

    exit_code = 7


class LostRank(TimeloomError):
    """Another rank that does not come: dead, stuck, or out of reach."""

    exit_code = 8


class RanksDiffer(TimeloomError):
    """Ranks that are not doing the same thing."""

    exit_code = 9


class Interrupted(TimeloomError):
    """A run that was asked to stop and was saved: go on with --resume."""

    exit_code = 75


def is_disk_full(error: OSError) -> bool:
    """Say whether something could not be written for want of room, of the disk or of a quota."""
    return error.errno in _DISK_FULL
