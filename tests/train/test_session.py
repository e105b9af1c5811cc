"""How a run is put together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import timeloom
from timeloom.errors import BadConfig
from timeloom.train.inference import open_untrained
from timeloom.train.session import keyed_torch


@pytest.fixture(scope="module")
def drift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small graph of drifting communities."""
    path = tmp_path_factory.mktemp("session") / "drift"
    timeloom.synth(timeloom.Drift(num_nodes=100, num_edges=400, num_snapshots=12), path)
    return path


def test_a_small_graph_takes_one_thread_and_a_wide_model_takes_more(drift: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        open_untrained(drift, {"model": {"hidden": 4000}})
        assert torch.get_num_threads() == 2
        open_untrained(drift, {})
        assert torch.get_num_threads() == 1
        open_untrained(drift, {"train": {"threads": 2}})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_keyed_draws_leave_the_global_generator_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with keyed_torch(1, 2):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), expected)
    with keyed_torch(1, 2):
        assert torch.equal(torch.rand(3), first)
    with keyed_torch(2, 1):
        assert not torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"train": {"device": "abacus"}}, "is no device"),
        ({"train": {"metric": "mrr"}}, "use one of mse, mae"),
        ({"model": {"name": "tgn"}}, "is unknown: use one of tgcn"),
        ({"task": {"name": "signal"}}, "labels are of kind value"),
        ({"inputs": {"lags": 2}, "task": {"name": "classes"}}, "leave lags out"),
        ({"inputs": {"features": "none"}}, "would be shown nothing"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(
    settings: dict[str, dict[str, object]], sentence: str, drift: Path
) -> None:
    with pytest.raises(BadConfig, match=sentence):
        open_untrained(drift, settings)
