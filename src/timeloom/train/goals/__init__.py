"""What each task asks of the rows that a model gives: a loss, scores, baselines, a table of predictions."""

from __future__ import annotations

from timeloom.graph.tasks import Split, SplitSettings, TaskSettings
from timeloom.train.feed import Feed
from timeloom.train.goals.classes import ClassGoal
from timeloom.train.goals.edge_classes import EdgeClassGoal
from timeloom.train.goals.goal import Goal
from timeloom.train.goals.links import LinkGoal
from timeloom.train.goals.values import ValueGoal


def make_goal(feed: Feed, task: TaskSettings, split: Split, shares: SplitSettings, seed: int) -> Goal:
    """Return what the task asks for."""
    if task.name in ("degree", "signal"):
        return ValueGoal(feed, task)
    if task.name == "classes":
        return ClassGoal(feed, task, split, shares, seed)
    if task.name == "links":
        return LinkGoal(feed, task, split, seed)
    return EdgeClassGoal(feed, task, split, seed)
