"""A sample of predictions becomes points, a table of classes, or shares by probability."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report.fake import Fake
from timeloom.records import Predicted
from timeloom.report.figures import draw
from timeloom.report.log import read_log
from timeloom.report.predictions import BINS, MOST_CLASSES, OTHERS, by_probability, confusion_of, shown


def classes(names: tuple[str, ...], truth: list[int], predicted: list[int]) -> Predicted:
    return Predicted(
        split="test", what="class of a node", form="class", classes=names, truth=tuple(map(float, truth)),
        predicted=tuple(map(float, predicted)),
    )  # fmt: skip


def links(truth: list[int], predicted: list[float]) -> Predicted:
    return Predicted(
        split="test", what="probability of a link", form="probability", classes=("not linked", "linked"),
        truth=tuple(map(float, truth)), predicted=tuple(predicted),
    )  # fmt: skip


def test_classes_are_counted_true_by_predicted_and_those_that_never_occur_are_left_out() -> None:
    names, counts = confusion_of(classes(("a", "b", "c", "d"), [0, 0, 0, 3, 3, 1], [0, 0, 3, 3, 0, 1]))
    assert names == ["a", "b", "d"]
    assert counts.tolist() == [[2, 0, 1], [0, 1, 0], [1, 0, 1]]


def test_of_many_classes_the_commonest_are_told_and_the_others_together() -> None:
    many = tuple(f"c{place}" for place in range(40))
    truth = [place for place in range(40) for _ in range(1 + (place >= 29))]
    names, counts = confusion_of(classes(many, truth, truth))
    assert len(names) == MOST_CLASSES
    assert names == [*(f"c{place}" for place in range(29, 40)), OTHERS]
    assert counts.diagonal().tolist() == [2] * 11 + [29]
    assert counts.sum() == len(truth)


def test_probabilities_are_counted_by_bins_and_none_falls_out() -> None:
    counts = by_probability(links([0, 0, 1, 1, 1], [0.0, 0.049, 0.05, 0.999, 1.0]))
    assert counts.shape == (2, BINS)
    assert counts[0].tolist() == [2] + [0] * 19
    assert counts[1].tolist() == [0, 1] + [0] * 17 + [2]


def test_the_page_is_given_what_it_draws_and_how_many_they_are() -> None:
    value = Predicted(split="test", what="x", form="value", classes=(), truth=(1.0, 2.0), predicted=(1.5, 2.5))
    assert shown(value)["truth"] == [1.0, 2.0]
    assert shown(classes(("a", "b"), [0, 1], [0, 0]))["counts"] == [[1, 0], [1, 0]]
    told = shown(links([0, 1], [0.1, 0.9]))
    assert told["names"] == ["not linked", "linked"]
    assert len(told["from"]) == len(told["counts"][0]) == BINS
    assert [shown(one)["count"] for one in (value, links([1], [0.5]))] == [2, 1]


@pytest.mark.parametrize(
    ("form", "label"), [("class", "predicted"), ("probability", "predicted probability of a link")]
)
def test_figures_show_each_form_in_its_own_way(tmp_path: Path, form: str, label: str) -> None:
    log = read_log(Fake(predicts=form).make(tmp_path / "run"))
    (axes,) = draw(log, "predictions").axes
    assert axes.get_xlabel() == label
    told = (
        sum(int(text.get_text()) for text in axes.texts) if form == "class" else by_probability(log.predicted[-1]).sum()
    )
    assert told == len(log.predicted[-1].truth)
