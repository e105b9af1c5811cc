"""What a person sees of a run: a line that lives on a terminal, lines in a log, and a table at the end."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from timeloom.records import (
    Deviated,
    EpochEnded,
    Evaluated,
    Record,
    Resumed,
    Scheduled,
    Started,
    Stepped,
    Traffic,
    Tuned,
    Warned,
    as_json,
)

if TYPE_CHECKING:
    from timeloom.train.runs import Show

_SECONDS_BETWEEN_LINES = 5.0
_LESS_IS_BETTER = ("mse", "mae")
_WAYS = ("sent_bytes", "received_bytes")


@contextmanager
def telling(*, quiet: bool, as_lines: bool) -> Iterator[Show]:
    """Give a function that shows records: as JSON lines on stdout, on a terminal, or as lines on stderr."""
    if as_lines:
        yield _json_line
    elif quiet:
        yield _nothing
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(stderr=True, highlight=False), transient=True, refresh_per_second=8) as live:
            yield _Told(
                write=live.console.print, update=lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"))
            )
    else:
        yield _Told(write=_line, update=None)


def _json_line(record: Record) -> None:
    sys.stdout.write(json.dumps(as_json(record)) + "\n")
    sys.stdout.flush()


def _nothing(record: Record) -> None:
    pass


def _line(text: str) -> None:
    sys.stderr.write(text + "\n")


class _Told:
    """Turns records into lines: the newest state of affairs, and what is worth a line of its own."""

    def __init__(self, *, write: Any, update: Any) -> None:
        self._write, self._update = write, update
        self._began, self._last = time.monotonic(), -math.inf
        self._epoch: EpochEnded | None = None
        self._updates = self._steps = self._epochs = self._now = 0
        self._nodes = self._edges = 0
        self._seconds, self._score, self._off = 0.0, "", ""

    def __call__(self, record: Record) -> None:
        if isinstance(record, Started):
            self._updates, self._epochs = (int(record.derived[name]) for name in ("updates an epoch", "epochs at most"))
            self._write(f"{record.graph}: {record.num_parameters:,} parameters")
            for name, value in record.derived.items():
                self._write(f"  {name:24} {value}")
        elif isinstance(record, Resumed):
            self._now = record.epoch
            self._write(f"resumed from {record.checkpoint}: epoch {record.epoch}, step {record.step}")
        elif isinstance(record, Stepped):
            self._stepped(record)
        elif isinstance(record, EpochEnded):
            self._epoch, self._steps, self._now = record, 0, record.epoch + 1
        elif isinstance(record, Tuned):
            self._write(
                f"tuned in {len(record.trials)} trials: flare.full={record.full} flare.decayed={record.decayed} "
                f"flare.alpha={record.alpha:g}"
            )
        elif isinstance(record, Scheduled):
            self._write(
                f"a schedule by {record.by} from epoch {record.epoch} on: {record.predicted_s:.3g} s an epoch "
                f"predicted, no schedule takes less than {record.bound_s:.3g} s; found in {record.solved_s:.3g} s"
            )
        elif isinstance(record, Warned):
            self._write(record.sentence)
        elif isinstance(record, Deviated):
            self._off = f"  {record.what} is off by {record.deviation:.1e}"
        elif isinstance(record, Evaluated) and record.split in ("val", "live"):
            self._validated(record)

    def _stepped(self, record: Stepped) -> None:
        self._steps += 1
        self._nodes, self._edges = self._nodes + record.nodes, self._edges + record.edges
        self._seconds += record.seconds
        if self._update is not None:
            place = f"epoch {self._now + 1}/{self._epochs}  step {self._steps}/{self._updates}"
            self._update(f"{place}  loss {record.loss:.4f}{self._score}  {self._speed()}{self._left()}")

    def _left(self) -> str:
        """Return how long it will take yet, if it goes on like the last epoch and nothing stops it early."""
        if self._epoch is None:
            return ""
        epochs = self._epochs - self._now - self._steps / max(self._updates, 1)
        return f"  < {max(epochs, 0.0) * self._epoch.seconds + 1:.0f} s left"

    def _speed(self) -> str:
        seconds = max(self._seconds, 1e-9)
        return f"{self._nodes / seconds / 1e6:.2f} M nodes/s {self._edges / seconds / 1e6:.2f} M edges/s"

    def _validated(self, record: Evaluated) -> None:
        name, value = next(iter(record.scores.items()))
        loss = math.nan if self._epoch is None else self._epoch.loss
        self._score = f"  {record.split} {name} {value:.4f}"
        now = time.monotonic()
        if now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        what = "snapshot" if record.split == "live" else "epoch"
        state = f"loss {loss:.4f}{self._score}{self._off}"
        self._write(f"{what} {record.epoch}  {state}  {self._speed()}  {now - self._began:.0f} s")


def table_of(record: Evaluated) -> list[str]:
    """Return the scores of a model beside those of the baselines, and by how much it beats them."""
    rows = {"model": record.scores, **record.baselines}
    lines = [f"{record.split}:"]
    names = list(record.scores)
    width = max(12, *(len(name) for name in rows))
    for at in range(0, len(names), 6):
        part = names[at : at + 6]
        lines.append("  " + " " * width + "".join(f"{name:>{max(11, len(name) + 2)}}" for name in part))
        lines += [
            f"  {who:{width}}" + "".join(_cell(scores.get(name, math.nan), name) for name in part)
            for who, scores in rows.items()
        ]
    return [*lines, *_margins(record)]


def traffic_of(by_rank: Mapping[int, Sequence[Traffic]]) -> list[str]:
    """Return what every rank sent, received and waited for in a whole run; nothing of one that was alone."""
    if not by_rank:
        return []
    lines = ["ranks:", "  rank        sent    received      waited       peak"]
    for rank, records in sorted(by_rank.items()):
        sent, received = (sum(sum(getattr(one, way).values()) for one in records) for way in _WAYS)
        waited = sum(sum(one.waited_s.values()) for one in records)
        peak = max(one.peak_bytes for one in records)
        lines.append(f"  {rank:4}{_size(sent):>12}{_size(received):>12}{waited:>10.2f} s{_size(peak):>11}")
    return lines


def _size(num_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def _cell(value: float, name: str) -> str:
    return f"{value:>{max(11, len(name) + 2)}.4f}"


def _margins(record: Evaluated) -> list[str]:
    """Return by how much the model is better or worse than each baseline, by the first metric."""
    name = next(iter(record.scores))
    mine, less = record.scores[name], name.rpartition(".")[2].startswith(_LESS_IS_BETTER)
    lines = []
    for who, scores in record.baselines.items():
        other = scores[name]
        if math.isnan(mine) or math.isnan(other) or other == 0:
            continue
        gain = (other - mine) / other if less else (mine - other) / other
        lines.append(f"  {name}: {abs(gain):.1%} {'better' if gain > 0 else 'WORSE'} than {who}")
    return lines
