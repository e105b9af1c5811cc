"""What a page is given: everything it draws, already counted and thinned, as plain data for JSON."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import numpy as np

from timeloom.config import flat
from timeloom.errors import BadRun
from timeloom.records import PHASES, Evaluated, GraphFacts, Predicted, Scheduled
from timeloom.report.compare import Comparison, compare, labels_of
from timeloom.report.log import RunLog
from timeloom.report.predictions import shown
from timeloom.report.ranks import busy_grid, excerpts, imbalance, loads, phase_seconds, spent
from timeloom.report.sentences import sentences
from timeloom.report.shrink import Floats, kept_places, short, short_one
from timeloom.report.summary import Summary, best_baseline, how_to_run_again, is_less_better, margin, summarise

MOST_POINTS = 1_000
MOST_CELLS = 6_000
MOST_BINS = 180
MOST_SCHEDULED = 3_000
MOST_TIMED = 1_500


def content_of(logs: list[RunLog], *, every_s: float = 0.0, target_loss: float | None = None) -> dict[str, Any]:
    """Return all that the page of these runs shows; with ``every_s`` it loads itself again so often.

    The table of several runs tells the time to ``target_loss`` (default: the lowest loss that all reached).
    """
    try:
        return _content(logs, every_s, target_loss)
    except (LookupError, TypeError, ValueError, ArithmeticError, MemoryError) as error:
        # Each record can be read, but together they say what no run does; only another hand writes that.
        paths = ", ".join(str(log.path) for log in logs)
        raise BadRun(
            f"the records of {paths} do not fit together ({type(error).__name__}: {str(error)[:80]}): restore them "
            "from a copy"
        ) from error


def _content(logs: list[RunLog], every_s: float, target_loss: float | None) -> dict[str, Any]:
    labels, comparison = labels_of(logs), compare(logs, target_loss=target_loss)
    return {
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "version": metadata.version("timeloom"),
        "every_s": every_s, "phases": list(PHASES),
        "runs": [_run(log, label) for log, label in zip(logs, labels, strict=True)],
        "comparison": _comparison(comparison) if len(logs) > 1 else None, "differences": _differences(logs),
    }  # fmt: skip


def _run(log: RunLog, label: str) -> dict[str, Any]:
    summary = summarise(log)
    return {
        "name": log.name, "label": label, "path": str(log.path), "state": summary.state,
        "reason": log.ended.reason if log.ended else "", "graph": summary.graph, "model": summary.model,
        "task": summary.task, "system": summary.system, "metric": summary.metric,
        "less": is_less_better(summary.metric), "best_epoch": summary.best_epoch, "cards": _cards(log, summary),
        "deviations": _deviations(log), "scores": _scores(summary),
        "warnings": sentences(log),
        "epochs": _epochs(log), "steps": _steps(log), "curves": _curves(log), **_ranks(log), **_traffic(log),
        "schedule": _schedule(log), "facts": [_facts(facts) for facts in log.facts[-1:]],
        "predicted": [shown(found) for found in _last_of_each(log.predicted)],
        "config": log.config_text, "derived": _derived(log), "commands": how_to_run_again(log),
    }  # fmt: skip


def _cards(log: RunLog, found: Summary) -> list[dict[str, Any]]:
    """Return the numbers that stand at the top; what was not told is left out."""
    last = f"of {found.epochs}" + ("" if log.ended is None else f", ended by {log.ended.reason}")
    cards: list[tuple[str, float, str, str]] = [
        ("parameters", found.parameters or math.nan, "count", ""),
        ("ranks", found.ranks, "count", ""),
        ("best epoch", found.best_epoch if found.best_epoch >= 0 else math.nan, "count", last),
        ("time per epoch", found.epoch_seconds, "seconds", "median"),
        ("training time", found.total_seconds or math.nan, "seconds", "without validation"),
        ("edges per second", found.edges_per_second, "count", "median epoch"),
        ("sent per epoch", found.epoch_bytes, "bytes", "all ranks, median"),
        ("waited", found.waited_share, "share", "of all ranks' time"),
        ("imbalance", found.imbalance, "ratio", "most / least load, median step"),
        ("peak memory", found.peak_bytes, "bytes", "of the largest rank"),
    ]
    told = [
        {"label": label, "value": short_one(value) if math.isfinite(value) else "∞", "unit": unit, "note": note}
        for label, value, unit, note in cards
        if not math.isnan(value)
    ]
    return [*_score_card(found), *told]


def _score_card(found: Summary) -> list[dict[str, Any]]:
    if found.test is None or math.isnan(found.score):
        return []
    note, good, other = "on the test part", None, best_baseline(found.test, found.metric)
    if other is not None:
        gain = margin(found.metric, found.score, other[1])
        good = gain > 0
        if not math.isnan(gain):
            note = f"{abs(gain):.1%} {'better' if good else 'worse'} than {other[0]}"
    return [{
        "label": f"test {found.metric}", "value": short_one(found.score), "unit": "score", "note": note, "good": good,
    }]  # fmt: skip


def _scores(found: Summary) -> dict[str, Any] | None:
    if found.test is None:
        return None
    names = list(found.test.scores)
    rows = [{"who": "model", "model": True, "values": [short_one(found.test.scores[name]) for name in names]}]
    rows += [
        {"who": who, "model": False, "values": [short_one(scores.get(name, math.nan)) for name in names]}
        for who, scores in found.test.baselines.items()
    ]
    return {"names": names, "less": [is_less_better(name) for name in names], "rows": rows}


def _epochs(log: RunLog) -> dict[str, Any]:
    seconds = np.array([epoch.seconds for epoch in log.epochs])
    loss = [epoch.loss for epoch in log.epochs]
    keep = kept_places(loss, MOST_POINTS)
    edges = np.array([epoch.edges for epoch in log.epochs], np.float64)
    return {
        "epoch": [log.epochs[place].epoch for place in keep], "loss": short(np.array(loss)[keep]),
        "at": short(np.cumsum(seconds)[keep]), "seconds": short(seconds[keep]),
        "rate": short(np.array([epoch.learning_rate for epoch in log.epochs])[keep]),
        "edges_per_second": short((edges / np.maximum(seconds, 1e-9))[keep]),
    }  # fmt: skip


def _steps(log: RunLog) -> dict[str, Any] | None:
    """Return the curves of the steps; each is thinned by its own extremes."""
    steps = log.steps
    if not steps.step:
        return None
    number = np.array(steps.step)
    curves = {"loss": steps.loss, "grad_norm": steps.grad_norm, "seconds": steps.seconds}
    told = {}
    for name, column in curves.items():
        values = np.array(column)
        keep = kept_places(values, MOST_POINTS)
        told[name] = {"x": number[keep].tolist(), "y": short(values[keep])}
    return told


def _curves(log: RunLog) -> list[dict[str, Any]]:
    """Return every metric of every split that was measured more than once, against epochs and seconds of training."""
    spent_by = {epoch.epoch: total for epoch, total in zip(
        log.epochs, np.cumsum([epoch.seconds for epoch in log.epochs]), strict=True
    )}  # fmt: skip
    told = []
    for split in dict.fromkeys(record.split for record in log.evaluated):
        records = [record for record in log.evaluated if record.split == split]
        if len(records) < 2:
            continue
        told += [_curve(records, name, spent_by) for name in records[0].scores]
    return told


def _deviations(log: RunLog) -> list[dict[str, Any]]:
    """Return how far approximate rows were from exact ones, for each kind of approximation."""
    told = []
    for what in dict.fromkeys(record.what for record in log.deviated):
        records = [record for record in log.deviated if record.what == what]
        values = np.array([record.deviation for record in records])
        keep = kept_places(values, MOST_POINTS)
        told.append({"what": what, "x": [records[place].epoch for place in keep], "y": short(values[keep])})
    return told


def _curve(records: list[Evaluated], name: str, spent_by: dict[int, float]) -> dict[str, Any]:
    values = np.array([record.scores.get(name, math.nan) for record in records])
    keep = kept_places(values, MOST_POINTS)
    known = {who: scores.get(name, math.nan) for who, scores in records[-1].baselines.items()}
    baselines = {who: short_one(value) for who, value in known.items() if math.isfinite(value)}
    return {
        "split": records[0].split, "metric": name, "less": is_less_better(name), "baselines": baselines,
        "epoch": [records[place].epoch for place in keep],
        "at": short([spent_by.get(records[place].epoch, math.nan) for place in keep]), "value": short(values[keep]),
    }  # fmt: skip


def _ranks(log: RunLog) -> dict[str, Any]:
    """Return what spans tell: where time went, single steps, how busy and how even the ranks were."""
    found, ranks = spent(log.parts), log.ranks
    if not len(found):
        return {"time": None, "timeline": [], "heat": None, "imbalance": None}
    bins = max(12, min(MOST_BINS, MOST_CELLS // len(ranks)))
    width, grid = busy_grid(found, ranks, bins)
    steps, load = loads(found, ranks)
    ratio = imbalance(load)
    keep = kept_places(np.where(np.isfinite(ratio), ratio, np.nan), MOST_POINTS)
    return {
        "time": {
            "ranks": ranks, "steps": len(steps), "of": max(len(log.steps.step), len(steps)),
            "seconds": [short(row) for row in phase_seconds(found, ranks)],
        },
        "timeline": excerpts(found, ranks),
        "heat": {"width": short_one(width), "ranks": ranks, "rows": [_percent(row) for row in grid]},
        "imbalance": {
            "x": steps[keep].tolist(), "y": short(ratio[keep]), "most": short(load.max(axis=1)[keep]),
            "mean": short(load.mean(axis=1)[keep]), "idle": int((~np.isfinite(ratio)).sum()), "steps": len(steps),
        } if len(ranks) > 1 else None,
    }  # fmt: skip


def _percent(shares: Floats) -> list[int | None]:
    return [None if math.isnan(share) else round(share * 100) for share in shares.tolist()]


def _traffic(log: RunLog) -> dict[str, Any]:
    if not log.traffic:
        return {"traffic": None, "memory": None}
    kinds = list(dict.fromkeys(kind for record in log.traffic for kind in record.sent_bytes))
    epochs = sorted({record.epoch for record in log.traffic})
    place, ranks = ({value: at for at, value in enumerate(values)} for values in (epochs, log.ranks))
    sent = np.zeros((len(epochs), len(kinds)))
    peak = np.full((len(log.ranks), len(epochs)), np.nan)
    device = np.zeros_like(peak)
    for record in log.traffic:
        rank = ranks[record.rank]
        peak[rank, place[record.epoch]] = record.peak_bytes
        device[rank, place[record.epoch]] = record.peak_device_bytes
        for at, kind in enumerate(kinds):
            sent[place[record.epoch], at] += record.sent_bytes.get(kind, 0)
    keep = kept_places(sent.sum(axis=1), 240)
    return {
        "traffic": {
            "kinds": kinds, "epoch": [epochs[at] for at in keep], "sent": [short(row) for row in sent[keep]],
            "totals": [_total(log, kind) for kind in kinds],
        },
        "memory": {
            "ranks": log.ranks, "epoch": [epochs[at] for at in keep], "peak": [short(row[keep]) for row in peak],
            "device": [short(row[keep]) for row in device] if device.any() else None,
        },
    }  # fmt: skip


def _total(log: RunLog, kind: str) -> dict[str, Any]:
    """Return what a kind of collective came to, over all ranks and epochs."""
    return {
        "kind": kind, "calls": sum(record.calls.get(kind, 0) for record in log.traffic),
        "sent": sum(record.sent_bytes.get(kind, 0) for record in log.traffic),
        "received": sum(record.received_bytes.get(kind, 0) for record in log.traffic),
        "waited": sum(record.waited_s.get(kind, 0.0) for record in log.traffic),
    }  # fmt: skip


def _schedule(log: RunLog) -> dict[str, Any] | None:
    """Return the newest schedule, with what its steps really took where that was told."""
    if not log.scheduled:
        return None
    newest = log.scheduled[-1]
    ranks = sorted({unit[1] for unit in newest.units})
    units = [[*unit[:4], short_one(unit[4])] for unit in newest.units[:MOST_SCHEDULED]]
    return {
        "epoch": newest.epoch, "by": newest.by, "ranks": ranks, "units": units,
        "left_out": len(newest.units) - len(units), "truth": _against_truth(log, newest),
    }  # fmt: skip


def _against_truth(log: RunLog, schedule: Scheduled) -> dict[str, Any] | None:
    """Return what was predicted of each rank in each step, and what it took; of the epoch that was scheduled."""
    found, ranks = spent(log.parts), log.ranks
    if not len(found):
        return None
    steps, load = loads(found, ranks)
    rows = {int(step): row for step, row in zip(steps, load, strict=True)}
    expected: dict[tuple[int, int], float] = {}
    for step, rank, _first, _last, seconds in schedule.units:
        expected[step, rank] = expected.get((step, rank), 0.0) + seconds
    pairs = [
        (seconds, float(rows[schedule.first_step + step][ranks.index(rank)]), rank)
        for (step, rank), seconds in expected.items()
        if schedule.first_step + step in rows and rank in ranks and math.isfinite(seconds)
    ][:MOST_TIMED]
    if not pairs:
        return None
    predicted, truth, who = zip(*pairs, strict=True)
    return {"predicted": short(predicted), "truth": short(truth), "rank": list(who)}


def _facts(facts: GraphFacts) -> dict[str, Any]:
    keep = kept_places(facts.edges, MOST_POINTS)
    return {
        "graph": facts.graph, "nodes": facts.nodes, "snapshots": len(facts.edges), "t": keep.tolist(),
        "edges": short(np.array(facts.edges)[keep]), "active": short(np.array(facts.active)[keep]),
        # The first snapshot has none before it.
        "overlap": [None, *short(np.array(facts.overlap)[keep][1:])],
        "train_stop": facts.train_stop, "val_stop": facts.val_stop,
        "test_stop": facts.test_stop,
    }  # fmt: skip


def _last_of_each(found: list[Predicted]) -> list[Predicted]:
    return list({(one.split, one.what): one for one in found}.values())


def _derived(log: RunLog) -> list[list[str]]:
    if log.started is None:
        return []
    return [[name, str(value)] for name, value in log.started.derived.items()] + [["timeloom", log.started.version]]


def _comparison(found: Comparison) -> dict[str, Any]:
    return {"header": found.header, "rows": found.cells, "notes": found.notes}


def _differences(logs: list[RunLog]) -> list[dict[str, Any]]:
    """Return the settings in which the runs differ."""
    configs = [flat(log.config) for log in logs]
    keys = list(dict.fromkeys(key for config in configs for key in config))
    return [
        {"key": key, "values": [str(config.get(key, "")) for config in configs]}
        for key in keys
        if len({str(config.get(key, "")) for config in configs}) > 1
    ]
