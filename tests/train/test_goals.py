"""What each task asks of a model's rows, against loops over nodes and edges that were written independently."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.graph.tiny import Edge, LabelKind, TinyGraph, snapshot_of, tiny
from timeloom.errors import BadConfig
from timeloom.graph.tasks import Negatives, Part, Split, SplitSettings, TaskSettings, node_parts, split_by_time
from timeloom.nn.heads import Head, NodeHead
from timeloom.train.feed import Feed
from timeloom.train.goals import make_goal
from timeloom.train.goals.edge_classes import EdgeClassGoal
from timeloom.train.goals.goal import Columns, Draw, Goal, Marks, Seen, balance
from timeloom.train.goals.links import LinkGoal
from timeloom.train.settings import InputSettings

CPU = torch.device("cpu")
SEED = 3
SHARES = SplitSettings(train=0.4, val=0.3)
ALL = Draw(seed=SEED, epoch=0)
PARTS: tuple[Part, ...] = ("train", "val", "test")
SEEDS = range(4)
WIDTH = 5


class Scene:
    """A task on a small graph, with a head and rows that are drawn at random."""

    def __init__(self, graph: TinyGraph, task: TaskSettings) -> None:
        inputs = InputSettings(features="log_degree")
        self.graph, self.task = graph, task
        self.feed = Feed(graph, task, inputs, dtype=torch.float64, device=CPU, cache_bytes=1 << 20)
        self.split: Split = split_by_time(SHARES, len(graph), task.ahead)
        self.feed.measure(self.split.train_stop)
        self.goal: Goal = make_goal(self.feed, task, self.split, SHARES, SEED)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.head: Head = self.goal.head(WIDTH, 0.0).double().eval()

    def seen(self, t: int) -> Seen:
        """Return random rows; nodes born later have rows too, so that a test shows whether they are looked at."""
        rows = np.random.default_rng([7, t]).normal(size=(self.graph.num_nodes, WIDTH))
        born = np.zeros(self.graph.num_nodes, np.bool_)
        for s in range(t + 1):
            born |= self.graph.snapshot(s).alive
        return Seen(t, torch.from_numpy(rows), torch.from_numpy(born))

    def loss(self, t: int, draw: Draw = ALL) -> float | None:
        loss = self.goal.loss(self.head, self.seen(t), draw)
        return None if loss is None else float(loss.total.detach()) / loss.count

    @torch.no_grad()
    def score(self, part: Part, first: int, last: int) -> Marks:
        marks = Marks()
        for t in range(first, last):
            self.goal.score(self.head, self.seen(t), part, marks)
        return marks

    @torch.no_grad()
    def table(self, t: int) -> Columns:
        return self.goal.table(self.head, self.seen(t), None)

    def alive(self, t: int) -> set[int]:
        return set(np.flatnonzero(self.graph.snapshot(t).alive).tolist())

    def born(self, t: int) -> set[int]:
        return set().union(*(self.alive(s) for s in range(t + 1)))

    def out_of(self, t: int, v: int) -> list[float]:
        """Return the numbers that a head of nodes makes of one node's row, one by one."""
        assert isinstance(self.head, NodeHead)
        weight, bias = self.head.linear.weight.tolist(), self.head.linear.bias.tolist()
        row = self.seen(t).out_NH[v].tolist()
        return [
            math.fsum([b, *(w * x for w, x in zip(line, row, strict=True))])
            for line, b in zip(weight, bias, strict=True)
        ]

    @torch.no_grad()
    def pair(self, t: int, u: int, v: int) -> list[float]:
        """Return what a head of pairs says of one pair, asked for alone."""
        assert not isinstance(self.head, NodeHead)
        ends = self.head.ends(self.seen(t).out_NH[[u, v]])
        told: list[float] = self.head.score(ends, torch.tensor([0]), torch.tensor([1]))[0].tolist()
        return told

    def pairs(self, t: int) -> set[tuple[int, int]]:
        """Return the pairs that are linked in a snapshot."""
        return {(edge.source, edge.target) for edge in self.graph.edges(t)}


def same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12, nan_ok=True), name


def mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def nan_to(value: float, other: float) -> float:
    return other if math.isnan(value) else value


# Values


def value_task(name: str, horizon: int, **more: Any) -> TaskSettings:
    return TaskSettings(name=name, horizon=horizon, **more)  # type: ignore[arg-type]


def value_scene(seed: int, task: TaskSettings) -> Scene:
    labels: LabelKind = "value" if task.name == "signal" else "none"
    return Scene(tiny(seed, labels=labels, weighted=task.name == "degree", num_snapshots=10), task)


def value_of(scene: Scene, t: int, v: int) -> float:
    """Return the label of a node, nan where there is none."""
    if t < 0:
        return math.nan
    if scene.task.name == "signal":
        return float(scene.graph.labels.at(t)[v])
    return math.log1p(math.fsum(abs(edge.weight) for edge in scene.graph.edges(t) if edge.target == v))


def known_before(scene: Scene, t: int, v: int) -> float:
    return value_of(scene, t if scene.task.ahead else t - 1, v)


def training_values(scene: Scene) -> tuple[float, float, float]:
    """Return mean and deviation of the targets of training, and the deviation of the changes."""
    targets, changes = list[float](), list[float]()
    for t in range(scene.split.train_stop):
        for v in scene.alive(t):
            target = value_of(scene, t + scene.task.ahead, v)
            targets.append(target)
            changes.append(target - known_before(scene, t, v))
    known, moved = [x for x in targets if x == x], [x for x in changes if x == x]
    return mean(known), float(np.std(known)), float(np.std(moved))


def base_of(scene: Scene, t: int, v: int) -> tuple[float, float]:
    middle, deviation, change = training_values(scene)
    if not (change < deviation if scene.task.residual is None else scene.task.residual):
        return middle, deviation
    return nan_to(known_before(scene, t, v), middle), change


VALUES = [("degree", 1), ("degree", 2), ("signal", 0), ("signal", 1), ("signal", 2)]


@pytest.mark.parametrize("residual", [True, False, None])
@pytest.mark.parametrize(("name", "horizon"), VALUES)
def test_the_loss_of_values_is_of_active_nodes_that_were_born_and_have_a_label(
    name: str, horizon: int, residual: bool | None
) -> None:
    for seed, kind in product(SEEDS, ("mse", "mae")):
        scene = value_scene(seed, value_task(name, horizon, residual=residual, loss=kind))
        for t in range(scene.split.test_stop):
            errors = []
            for v in (scene.alive(t) | scene.alive(t + horizon)) & scene.born(t):
                target = value_of(scene, t + horizon, v)
                if not math.isnan(target):
                    base, scale = base_of(scene, t, v)
                    errors.append(scene.out_of(t, v)[0] - (target - base) / scale)
            expected = mean([error**2 if kind == "mse" else abs(error) for error in errors]) if errors else None
            assert scene.loss(t) == (None if expected is None else pytest.approx(expected, rel=1e-9))


def value_marks(scene: Scene, first: int, last: int, told: Callable[[int, int], float]) -> dict[str, float]:
    """Return the metrics of a predictor, by a loop over snapshots and nodes."""
    errors: dict[str, list[float]] = {"": [], "_all": []}
    for t in range(first, last):
        active = scene.alive(t) | scene.alive(t + scene.task.ahead)
        for v in range(scene.graph.num_nodes):
            target = value_of(scene, t + scene.task.ahead, v)
            if math.isnan(target):
                continue
            errors["_all"].append(told(t, v) - target)
            if v in active:
                errors[""].append(told(t, v) - target)
    return {
        f"{name}{suffix}": mean([change(error) for error in errors[suffix]])
        for suffix in ("", "_all")
        for name, change in (("mse", lambda error: error**2), ("mae", abs))
    }


@pytest.mark.parametrize("residual", [True, False, None])
@pytest.mark.parametrize(("name", "horizon"), VALUES)
def test_values_are_scored_on_active_nodes_and_on_all(name: str, horizon: int, residual: bool | None) -> None:
    for seed, part in product(SEEDS, PARTS):
        scene = value_scene(seed, value_task(name, horizon, residual=residual))

        def told(t: int, v: int, scene: Scene = scene) -> float:
            base, scale = base_of(scene, t, v)
            return base + scale * (scene.out_of(t, v)[0] if v in scene.born(t) else 0.0)

        first, last = scene.split.of(part)
        same(scene.score(part, first, last).means(), value_marks(scene, first, last, told))
        table = scene.table(first)
        assert table["predicted"].tolist() == pytest.approx([told(first, v) for v in range(8)], rel=1e-9)
        known = [known_before(scene, first, v) for v in range(8)]
        assert table["last_known"].tolist() == pytest.approx(known, nan_ok=True)


@pytest.mark.parametrize(("name", "horizon"), VALUES)
def test_baselines_of_values_know_nothing_but_the_past(name: str, horizon: int) -> None:
    for seed, part in product(SEEDS, PARTS):
        scene = value_scene(seed, value_task(name, horizon))
        middle = training_values(scene)[0]

        def last_known(t: int, v: int, scene: Scene = scene, middle: float = middle) -> float:
            values = [known_before(scene, s, v) for s in range(t + 1)]
            known = [value for value in values if not math.isnan(value)]
            return known[-1] if known else middle

        first, last = scene.split.of(part)
        marks = scene.goal.baselines(part, first, last)
        assert list(marks) == ["zero", "mean", "persistence"]
        same(marks["zero"].means(), value_marks(scene, first, last, lambda t, v: 0.0))
        same(marks["mean"].means(), value_marks(scene, first, last, lambda t, v, m=middle: m))  # type: ignore[misc]
        same(marks["persistence"].means(), value_marks(scene, first, last, last_known))


# Classes


def class_scene(seed: int, *, fixed: bool, **more: Any) -> Scene:
    graph = tiny(seed, labels="class", fixed_labels=fixed, num_nodes=10, num_snapshots=10)
    return Scene(graph, TaskSettings(name="classes", **more))


def by_node(scene: Scene) -> bool:
    split = scene.task.node_split
    return split == "nodes" or (split == "auto" and scene.graph.labels.fixed)


def nodes_that_count(scene: Scene, t: int, part: Part) -> dict[int, int]:
    """Return the class of each node that is there, has a class and is of the part."""
    mine = node_parts(scene.graph.num_nodes, SHARES, SEED)[part]
    labels = scene.graph.labels.at(t + scene.task.ahead).tolist()
    return {v: labels[v] for v in scene.alive(t) if labels[v] >= 0 and (mine[v] or not by_node(scene))}


def surprise(numbers: list[float], true: int) -> float:
    """Return the cross entropy of one target."""
    return math.log(math.fsum(math.exp(number) for number in numbers)) - numbers[true]


def weights_of(classes: list[int], count: int) -> list[float]:
    """Return what makes every class that occurs count alike, 1 on average over targets."""
    occurring = len(set(classes))
    return [len(classes) / classes.count(c) / occurring if c in classes else 0.0 for c in range(count)]


def weighted_loss(terms: list[tuple[int, float]], weights: list[float] | None) -> float | None:
    if not terms:
        return None
    if weights is None:
        return mean([loss for _, loss in terms])
    return math.fsum(weights[c] * loss for c, loss in terms) / math.fsum(weights[c] for c, _ in terms)


def class_marks(pairs: list[tuple[int, int]]) -> dict[str, float]:
    """Return the metrics of (true, predicted) classes."""
    f1 = []
    for c in {c for pair in pairs for c in pair}:
        right = sum(pair == (c, c) for pair in pairs)
        f1.append(2.0 * right / sum((true == c) + (told == c) for true, told in pairs))
    return {"accuracy": mean([float(true == told) for true, told in pairs]), "macro_f1": mean(f1)}


CLASSES = [
    (fixed, split, horizon)
    for fixed, split, horizon in product((True, False), ("auto", "time", "nodes"), (0, 1, 2))
    if horizon < 2 or split == "auto"
]


@pytest.mark.parametrize(("fixed", "split", "horizon"), CLASSES)
def test_the_loss_of_classes_is_of_nodes_of_training_that_are_there_and_have_one(
    fixed: bool, split: str, horizon: int
) -> None:
    for seed, weighing in product(SEEDS, ("none", "balanced")):
        scene = class_scene(seed, fixed=fixed, horizon=horizon, node_split=split, class_weights=weighing)
        everything = [nodes_that_count(scene, t, "train") for t in range(scene.split.train_stop)]
        weights = weights_of([c for nodes in everything for c in nodes.values()], 3)
        for t, nodes in enumerate(everything):
            terms = [(c, surprise(scene.out_of(t, v), c)) for v, c in nodes.items()]
            expected = weighted_loss(terms, weights if weighing == "balanced" else None)
            assert scene.loss(t) == (None if expected is None else pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize(("fixed", "split", "horizon"), CLASSES)
def test_classes_are_scored_on_the_nodes_of_the_part(fixed: bool, split: str, horizon: int) -> None:
    for seed, part in product(SEEDS, PARTS):
        scene = class_scene(seed, fixed=fixed, horizon=horizon, node_split=split)
        first, last = scene.split.of(part)
        told = [
            (c, int(np.argmax(scene.out_of(t, v))))
            for t in range(first, last)
            for v, c in nodes_that_count(scene, t, part).items()
        ]
        if told:
            same(scene.score(part, first, last).means(), class_marks(told))


@pytest.mark.parametrize(("fixed", "split", "horizon"), CLASSES)
def test_baselines_of_classes_know_the_past_and_the_nodes_of_training_alone(
    fixed: bool, split: str, horizon: int
) -> None:
    for seed, part in product(SEEDS, PARTS):
        scene = class_scene(seed, fixed=fixed, horizon=horizon, node_split=split)
        first, last = scene.split.of(part)
        trained = [
            c for t in range(scene.split.train_stop) for c in nodes_that_count(scene, t, "train").values()
        ]  # fmt: skip
        prior = max(range(3), key=lambda c: (trained.count(c), -c))
        teachers = node_parts(scene.graph.num_nodes, SHARES, SEED)["train"]
        pairs: dict[str, list[tuple[int, int]]] = {"prior": [], "persistence": []}
        for t in range(first, last):
            for v, true in nodes_that_count(scene, t, part).items():
                newest = t if horizon else t - 1
                past = [int(scene.graph.labels.at(s)[v]) for s in range(newest + 1)]
                known = [c for c in past if c >= 0 and (teachers[v] or not by_node(scene))]
                pairs["prior"].append((true, prior))
                pairs["persistence"].append((true, known[-1] if known else prior))
        marks = scene.goal.baselines(part, first, last)
        assert marks.keys() == pairs.keys()
        for name, told in pairs.items():
            same(marks[name].means(), class_marks(told))


def test_persistence_never_uses_a_class_of_validation_or_test_where_nodes_are_dealt_out() -> None:
    for seed, part in product(SEEDS, PARTS[1:]):
        scene = class_scene(seed, fixed=True)
        first, last = scene.split.of(part)
        marks = scene.goal.baselines(part, first, last)
        same(marks["persistence"].means(), marks["prior"].means())
        other = class_scene(seed, fixed=True)
        hidden = ~node_parts(10, SHARES, SEED)["train"]
        other.graph.labels.at(0)[hidden] = -1
        assert other.goal.baselines("train", 0, 4)["persistence"].means() == (
            scene.goal.baselines("train", 0, 4)["persistence"].means()
        )


def test_the_table_of_classes_has_every_node_and_its_probabilities() -> None:
    scene = class_scene(0, fixed=True)
    table = scene.table(5)
    assert list(table) == ["node", "predicted", "p_red", "p_green", "p_blue"]
    for v in range(10):
        numbers = scene.out_of(5, v)
        shares = [math.exp(-surprise(numbers, c)) for c in range(3)]
        assert [table[f"p_{name}"][v] for name in ("red", "green", "blue")] == pytest.approx(shares, rel=1e-9)
        assert table["predicted"][v] == ("red", "green", "blue")[int(np.argmax(shares))]


# Classes of edges


def edge_scene(seed: int, *, types: bool, **more: Any) -> Scene:
    graph = tiny(seed, weighted=True, num_types=3 if types else 0, num_snapshots=10)
    return Scene(graph, TaskSettings(name="edge_classes", **more))


def edges_to_come(scene: Scene, t: int, kind: str) -> list[tuple[int, int, int]]:
    return [
        (edge.source, edge.target, edge.kind if kind == "type" else int(edge.weight < 0))
        for edge in scene.graph.edges(t)
    ]


EDGE_CLASSES = [(True, "auto", "type"), (True, "sign", "sign"), (False, "auto", "sign")]


@pytest.mark.parametrize(("types", "asked", "kind"), EDGE_CLASSES)
@pytest.mark.parametrize("horizon", [1, 2])
def test_the_loss_of_edge_classes_is_of_all_edges_to_come(types: bool, asked: str, kind: str, horizon: int) -> None:
    for seed, weighing in product(SEEDS, ("none", "balanced")):
        scene = edge_scene(seed, types=types, edge_class=asked, horizon=horizon, class_weights=weighing, most_pairs=3)
        everything = [edges_to_come(scene, t + horizon, kind) for t in range(scene.split.train_stop)]
        weights = weights_of([c for edges in everything for _, _, c in edges], 3 if kind == "type" else 2)
        for t, edges in enumerate(everything):
            terms = [(c, surprise(scene.pair(t, u, v), c)) for u, v, c in edges]
            expected = weighted_loss(terms, weights if weighing == "balanced" else None)
            assert scene.loss(t) == (None if expected is None else pytest.approx(expected, rel=1e-6))


@pytest.mark.parametrize(("types", "asked", "kind"), EDGE_CLASSES)
@pytest.mark.parametrize("horizon", [1, 2])
def test_edge_classes_and_their_baselines_are_what_loops_say(types: bool, asked: str, kind: str, horizon: int) -> None:
    for seed, part in product(SEEDS, PARTS):
        scene = edge_scene(seed, types=types, edge_class=asked, horizon=horizon)
        first, last = scene.split.of(part)
        trained = [c for t in range(scene.split.train_stop) for _, _, c in edges_to_come(scene, t + horizon, kind)]
        prior = max(range(3), key=lambda c: (trained.count(c), -c))
        pairs: dict[str, list[tuple[int, int]]] = {"model": [], "prior": [], "persistence": []}
        known: dict[tuple[int, int], int] = {}
        for t in range(last):
            # Of parallel edges the one of the highest type counts.
            now = sorted(scene.graph.edges(t), key=lambda edge: edge.kind)
            known |= {(e.source, e.target): e.kind if kind == "type" else int(e.weight < 0) for e in now}
            for u, v, true in edges_to_come(scene, t + horizon, kind) if t >= first else []:
                pairs["model"].append((true, int(np.argmax(scene.pair(t, u, v)))))
                pairs["prior"].append((true, prior))
                pairs["persistence"].append((true, known.get((u, v), prior)))
        marks = {"model": scene.score(part, first, last), **scene.goal.baselines(part, first, last)}
        assert marks.keys() == pairs.keys()
        for name, told in pairs.items():
            same(marks[name].means(), class_marks(told))


def test_no_more_edges_are_scored_than_allowed_and_the_seed_draws_them() -> None:
    few, all_of_them = (edge_scene(1, types=True, most_pairs=most) for most in (4, 0))
    counts = []
    for t in range(few.split.test_stop):
        confusion = few.score("test", t, t + 1).confusion
        assert confusion is not None
        edges = len(few.graph.edges(t + 1))
        assert confusion.sum() == min(4, edges)
        again = edge_scene(1, types=True, most_pairs=4).score("test", t, t + 1).confusion
        assert again is not None
        assert np.array_equal(confusion, again)
        whole = all_of_them.score("test", t, t + 1).confusion
        assert whole is not None
        assert whole.sum() == edges
        assert (confusion <= whole).all()
        counts.append(edges)
    assert max(counts) > 4


def test_other_edges_of_the_same_graph_are_scored_in_every_snapshot() -> None:
    edges = [Edge(u, v, 0, 1.0) for u in range(6) for v in range(6)]
    graph = TinyGraph([snapshot_of(t, 6, edges, alive=set()) for t in range(8)])
    scene = Scene(graph, TaskSettings(name="edge_classes", most_pairs=5))

    def scored(seed: int) -> set[tuple[int, ...]]:
        goal = EdgeClassGoal(scene.feed, scene.task, scene.split, seed)
        drawn = [goal._scored(t) for t in range(scene.split.test_stop)]
        assert all(len(set(zip(sources.tolist(), targets.tolist(), strict=True))) == 5 for sources, targets, _ in drawn)
        return {(*sources.tolist(), *targets.tolist()) for sources, targets, _ in drawn}

    assert len(scored(SEED)) == scene.split.test_stop
    assert not scored(SEED) & scored(SEED + 1)


def test_edges_without_types_have_no_type_to_predict() -> None:
    with pytest.raises(
        BadConfig, match=r"task.edge_class=type: the edges of 'tiny' have no types; ingest it with --type"
    ):
        edge_scene(0, types=False, edge_class="type")


# Links


KINDS: tuple[Negatives, ...] = ("random", "historical", "inductive")


def link_scene(seed: int, **more: Any) -> Scene:
    graph = tiny(seed, num_nodes=9, num_snapshots=11, share=0.15)
    return Scene(graph, TaskSettings(name="links", negatives=KINDS, **{"num_negatives": 6, **more}))


def to_come(scene: Scene, t: int) -> set[tuple[int, int]]:
    """Return the pairs linked `horizon` after t, without self loops."""
    return {(u, v) for u, v in scene.pairs(t + scene.task.ahead) if u != v}


def seen_by(scene: Scene, t: int, *, since: int = 0) -> set[tuple[int, int]]:
    return set().union(*(scene.pairs(s) for s in range(since, t + 1)))


@pytest.mark.parametrize("horizon", [1, 2])
@pytest.mark.parametrize("decoder", ["mlp", "dot"])
def test_the_loss_of_links_is_of_all_links_to_come_and_of_pairs_that_are_none(decoder: str, horizon: int) -> None:
    for seed, num in product(SEEDS, (1, 3)):
        scene = link_scene(seed, decoder=decoder, horizon=horizon, train_negatives=num)
        assert not isinstance(scene.head, NodeHead)
        asked: list[tuple[Tensor, Tensor]] = []
        honest = scene.head.score

        def spied(ends: Any, sources: Tensor, targets: Tensor, asked: Any = asked, honest: Any = honest) -> Tensor:
            asked.append((sources, targets))
            told: Tensor = honest(ends, sources, targets)
            return told

        scene.head.score = spied  # type: ignore[method-assign,assignment]
        for t in range(scene.split.test_stop):
            asked.clear()
            loss, positives = scene.loss(t), to_come(scene, t)
            if not positives:
                assert loss is None
                continue
            pairs = list(zip(asked[0][0].tolist(), asked[0][1].tolist(), strict=True))
            assert set(pairs[: len(positives)]) == positives
            led_to = {v for _, v in seen_by(scene, t)} or set(range(9))
            free = {
                u: {v for v in led_to - {u} if (u, v) not in positives} for u, _ in positives
            }  # fmt: skip
            negatives = pairs[len(positives) :]
            assert all(v in free[u] for u, v in negatives)
            assert len(negatives) == num * sum(bool(free[u]) for u, _ in positives)
            terms = [
                math.log1p(math.exp(-score if k < len(positives) else score))
                for k, score in enumerate(scene.pair(t, u, v)[0] for u, v in pairs)
            ]
            assert loss == pytest.approx(mean(terms), rel=1e-9)


def test_training_draws_other_negatives_in_every_epoch_and_the_same_when_it_is_repeated() -> None:
    scene = link_scene(0, train_negatives=4)
    losses = [scene.loss(5, Draw(seed=SEED, epoch=epoch)) for epoch in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    assert scene.loss(5, Draw(seed=SEED + 1, epoch=0)) != losses[0]


def in_training(scene: Scene) -> int:
    """Return the last snapshot that training knows."""
    return scene.split.train_stop + scene.task.ahead - 1


@pytest.mark.parametrize("horizon", [1, 2])
def test_links_are_tried_against_pairs_of_the_same_source_that_are_none(horizon: int) -> None:
    for seed in SEEDS:
        scene = link_scene(seed, horizon=horizon)
        assert isinstance(scene.goal, LinkGoal)
        scene.goal.baselines("test", 0, scene.split.test_stop)
        for t in range(scene.split.test_stop):
            trial, positives, seen = scene.goal._trials[t], to_come(scene, t), seen_by(scene, t)
            tried = list(zip(trial.sources_P.tolist(), trial.targets_P.tolist(), strict=True))
            assert sorted(positives) == tried
            assert trial.new_P.tolist() == [pair not in seen for pair in tried]
            led_to = {v for _, v in seen} or set(range(9))
            since = seen_by(scene, t, since=in_training(scene) + 1) - seen_by(scene, min(t, in_training(scene)))
            for kind, pool in (("random", set[tuple[int, int]]()), ("historical", seen), ("inductive", since)):
                drawn = trial.against[kind]
                assert drawn.targets_PK.shape == (len(tried), 6)
                for (u, _), targets, valid in zip(tried, drawn.targets_PK.tolist(), drawn.valid_PK, strict=True):
                    free = {v for v in led_to - {u} if (u, v) not in positives}
                    own = {v for w, v in pool if w == u and v != u and (u, v) not in positives}
                    allowed = own or free
                    assert valid.tolist() == [bool(allowed)] * 6
                    assert set(targets) <= allowed or not allowed


def ranks_of(
    scene: Scene, t: int, kind: str, told: Callable[[int, int, int], float]
) -> Iterator[tuple[int, int, int, float, list[float]]]:
    """Yield source, target, place, score and the scores of the valid negatives, of the pairs that can be ranked."""
    assert isinstance(scene.goal, LinkGoal)
    trial = scene.goal._trials[t]
    drawn = trial.against[kind]
    for place, (u, v) in enumerate(zip(trial.sources_P.tolist(), trial.targets_P.tolist(), strict=True)):
        rows = zip(drawn.targets_PK[place].tolist(), drawn.valid_PK[place].tolist(), strict=True)
        others = [told(t, u, w) for w, valid in rows if valid]
        if others:
            yield u, v, place, told(t, u, v), others


def rank_of(score: float, others: list[float]) -> float:
    return 1.0 + sum(1.0 if other > score else 0.5 if other == score else 0.0 for other in others)


def link_marks(scene: Scene, first: int, last: int, told: Callable[[int, int, int], float]) -> dict[str, float]:
    """Return all metrics of a predictor of links, by loops."""
    found: dict[str, list[float]] = {name: [] for name in scene.goal.metrics}
    for kind, t in product(KINDS, range(first, last)):
        best: dict[int, tuple[float, list[float]]] = {}
        both: list[tuple[float, bool]] = []
        seen = seen_by(scene, t)
        for u, v, _, score, others in ranks_of(scene, t, kind, told):
            rank = rank_of(score, others)
            found[f"{kind}.mrr"].append(1.0 / rank)
            found[f"{kind}.mrr_{'seen' if (u, v) in seen else 'new'}"].append(1.0 / rank)
            for k in (1, 3, 10):
                found[f"{kind}.hits@{k}"].append(float(rank <= k))
            best[u] = (max(score, best[u][0]), best[u][1]) if u in best else (score, others)
            both += [(score, True), (others[0], False)]
        found[f"{kind}.mrr_source"] += [
            1.0 / (1 + sum(other >= top for other in others)) for top, others in best.values()
        ]
        # Of a snapshot there is one precision and one area; it counts once for each pair.
        count = len(both) // 2
        found[f"{kind}.ap"] += [precision(both)] * count
        found[f"{kind}.auc"] += [area(both)] * count
    return {name: mean(values) for name, values in found.items()}


def precision(both: list[tuple[float, bool]]) -> float:
    total, before = 0.0, 0.0
    positives = sum(positive for _, positive in both)
    for threshold in sorted({score for score, _ in both}, reverse=True):
        chosen = [positive for score, positive in both if score >= threshold]
        recall = sum(chosen) / positives
        total, before = total + (recall - before) * sum(chosen) / len(chosen), recall
    return total


def area(both: list[tuple[float, bool]]) -> float:
    wins = [
        1.0 if one > other else 0.5 if one == other else 0.0
        for one, positive in both if positive
        for other, also in both if not also
    ]  # fmt: skip
    return mean(wins)


@pytest.mark.parametrize("horizon", [1, 2])
def test_links_and_their_baselines_are_scored_as_loops_say(horizon: int) -> None:
    for seed, part in product(SEEDS, PARTS):
        scene = link_scene(seed, horizon=horizon)
        first, last = scene.split.of(part)
        marks = scene.goal.baselines(part, first, last)
        assert list(marks) == ["edgebank", "persistence"]
        scores: dict[tuple[int, int, int], float] = {}

        def told(t: int, u: int, v: int, scene: Scene = scene, scores: Any = scores) -> float:
            if (t, u, v) not in scores:
                scores[t, u, v] = scene.pair(t, u, v)[0]
            return float(scores[t, u, v])

        def bank(t: int, u: int, v: int, scene: Scene = scene) -> float:
            return float((u, v) in seen_by(scene, t))

        def persistence(t: int, u: int, v: int, scene: Scene = scene) -> float:
            return float((u, v) in scene.pairs(t))

        same(scene.score(part, first, last).means(), link_marks(scene, first, last, told))
        same(marks["edgebank"].means(), link_marks(scene, first, last, bank))
        same(marks["persistence"].means(), link_marks(scene, first, last, persistence))


def test_no_more_links_are_tried_than_allowed_and_the_seed_draws_them() -> None:
    def trials(seed: int, most: int, first: int) -> dict[int, list[tuple[int, int]]]:
        scene = link_scene(2, most_pairs=most)
        goal = LinkGoal(scene.feed, scene.task, scene.split, seed)
        goal.baselines("test", first, scene.split.test_stop)
        return {
            t: list(zip(trial.sources_P.tolist(), trial.targets_P.tolist(), strict=True))
            for t, trial in goal._trials.items()
        }

    every, few = trials(SEED, 0, 0), trials(SEED, 3, 0)
    for t, pairs in few.items():
        assert len(pairs) == min(3, len(every[t]))
        assert set(pairs) <= set(every[t])
        assert pairs == sorted(pairs)
    assert trials(SEED, 3, 4) == {t: pairs for t, pairs in few.items() if t >= 4}
    assert trials(SEED + 1, 3, 0) != few


def test_the_table_of_links_has_the_pairs_linked_so_far_the_likeliest_first() -> None:
    scene = link_scene(1)
    table = scene.table(4)
    pairs = list(zip(table["source"].tolist(), table["target"].tolist(), strict=True))
    assert set(pairs) == seen_by(scene, 4)
    assert table["probability"].tolist() == sorted(table["probability"].tolist(), reverse=True)
    for (u, v), told in zip(pairs, table["probability"].tolist(), strict=True):
        assert told == pytest.approx(1.0 / (1.0 + math.exp(-scene.pair(4, u, v)[0])), rel=1e-9)


# Every task


def scenes(seed: int) -> Iterator[Scene]:
    for name, horizon in VALUES:
        yield value_scene(seed, value_task(name, horizon))
    for fixed, horizon in product((True, False), (0, 1)):
        yield class_scene(seed, fixed=fixed, horizon=horizon)
    yield edge_scene(seed, types=True, most_pairs=4)
    yield edge_scene(seed, types=False)
    yield link_scene(seed, most_pairs=4)


def test_scores_do_not_depend_on_how_evaluation_is_cut() -> None:
    for scene in scenes(5):
        last = scene.split.test_stop
        baselines = scene.goal.baselines("test", 0, last)
        baselines["model"] = scene.score("test", 0, last)
        for cut in (1, last // 2):
            pieces = []
            for first, stop in ((cut, last), (0, cut)):
                marks = scene.goal.baselines("test", first, stop)
                pieces.append(marks | {"model": scene.score("test", first, stop)})
            for name, whole in baselines.items():
                joined = Marks()
                for piece in pieces:
                    joined.tally.merge(piece[name].tally)
                    counted = piece[name].confusion
                    if counted is not None:
                        joined.count(counted)
                same(joined.means(), whole.means())


def test_the_metrics_that_a_task_names_are_those_it_gives() -> None:
    for scene in scenes(6):
        first, last = scene.split.of("test")
        told = [*scene.goal.baselines("test", first, last).values(), scene.score("test", first, last)]
        for marks in told:
            assert set(marks.means()) == set(scene.goal.metrics)


def test_some_targets_are_held_out_the_same_in_every_epoch() -> None:
    def drawn(epoch: int, side: Literal["fit", "held"], t: int = 2) -> list[bool]:
        chosen = Draw(seed=1, epoch=epoch, side=side, held_out=0.3).of(400, t)
        assert chosen is not None
        return [bool(one) for one in chosen]

    held = drawn(0, "held")
    assert drawn(1, "held") == held
    assert drawn(1, "fit") == [not one for one in held]
    assert drawn(0, "held", t=3) != held
    assert sum(held) / 400 == pytest.approx(0.3, abs=0.08)
    assert Draw(seed=1, epoch=0).of(400, 2) is None


def test_the_loss_of_a_part_of_the_targets_is_of_these_alone() -> None:
    for scene in scenes(7):
        if isinstance(scene.goal, LinkGoal):
            continue
        for t in range(scene.split.train_stop):
            parts = [scene.loss(t, Draw(seed=1, epoch=0, side=side, held_out=0.5)) for side in ("fit", "held")]
            whole = scene.loss(t)
            told = [part for part in parts if part is not None]
            if whole is None:
                assert not told
                continue
            assert min(told) - 1e-9 <= whole <= max(told) + 1e-9


def test_a_snapshot_with_nothing_to_predict_has_no_loss_and_no_scores() -> None:
    empty = [snapshot_of(t, 4, [], alive=set()) for t in range(8)]
    for task in (TaskSettings(name="degree"), TaskSettings(name="links"), TaskSettings(name="edge_classes")):
        scene = Scene(TinyGraph(empty), task)
        marks = scene.goal.baselines("test", 0, 7)
        assert scene.loss(2) is None
        told = scene.score("test", 0, 7).means()
        assert all(math.isnan(value) for name, value in told.items() if not name.endswith("_all"))
        assert [list(one.means()) for one in marks.values()] == [list(told)] * len(marks)


@pytest.mark.parametrize(
    ("metric", "new", "old", "better"),
    [
        ("mse", 1.0, 2.0, True),
        ("mae_all", 2.0, 1.0, False),
        ("accuracy", 2.0, 1.0, True),
        ("macro_f1", 0.4, 0.5, False),
        ("random.mrr", 0.6, 0.5, True),
        ("random.mrr", 0.5, 0.5, False),
        ("mse", 1.0, 1.0, False),
        ("mse", math.nan, 1.0, False),
        ("mse", 1.0, math.nan, True),
        ("mrr", math.nan, math.nan, False),
    ],
)
def test_errors_fall_and_shares_rise_and_no_number_beats_none(
    metric: str, new: float, old: float, better: bool
) -> None:
    assert value_scene(0, TaskSettings()).goal.is_better(metric, new, old) == better


def test_balanced_weights_make_every_class_that_occurs_count_alike() -> None:
    weights = balance(np.array([6, 0, 2]), 3)
    # A class that is first met after training has a loss, too.
    assert weights.tolist() == pytest.approx([8 / 12, 1.0, 2.0])
    assert balance(np.zeros(2, np.int64), 2).tolist() == [1.0, 1.0]
