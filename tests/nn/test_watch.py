"""What a model asks of a snapshot is found without changing the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from timeloom.kernels.norms import Norm
from timeloom.nn.model import Memory, Model, Rows, State, View
from timeloom.nn.models import MODELS, make_model
from timeloom.nn.settings import ModelSettings
from timeloom.nn.watch import Asked, Sum, watch

SYM = Norm("sym")


def asked_of(name: str, num_in: int = 8, **choices: object) -> Asked:
    return watch(make_model(num_in, ModelSettings(name=name, hidden=4, heads=2, **choices)), num_in)  # type: ignore[arg-type]


def test_a_convolution_sums_what_is_shorter() -> None:
    assert asked_of("gcn_gru", 8).sums == (Sum(SYM, 4, of_inputs=False),)
    assert asked_of("gcn_gru", 3).sums == (Sum(SYM, 3, of_inputs=True),)
    model = make_model(8, ModelSettings(name="gcn_gru", hidden=4))
    assert watch(model, 8, keeps_sums=True).sums == (Sum(SYM, 8, of_inputs=True),)


def test_products_are_counted_by_row() -> None:
    assert asked_of("gcn_gru", 8).flops == 2 * (8 * 4 + 4 * 12)
    assert asked_of("tgcn", 8).flops == 2 * 8 * 12, "the product of weights is not one of rows"
    assert asked_of("gcn_gru", 8).width == 12


def test_directions_and_hops_are_those_of_the_messages() -> None:
    assert asked_of("dcrnn").directions == (False, True)
    assert asked_of("dcrnn", hops=0).directions == ()
    assert asked_of("gat_lstm").directions == (False,)
    assert asked_of("gat_lstm").attended == (4,)
    assert asked_of("mpnn_lstm", layers=3).hops == 3
    assert [one.of_inputs for one in asked_of("mpnn_lstm", 2, layers=2).sums] == [True, False]


class Own(Model):
    """A model that reads something unusual."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.out_size, self.what = 2, what
        self.weight = nn.Parameter(torch.ones(2, 2))

    def memory(self) -> Memory:
        """Return nothing."""
        return ()

    def encode(self, view: View, x_NF: Tensor) -> Rows:
        """Read it."""
        if self.what == "t":
            return (x_NF * view.t,)
        if self.what == "num_nodes":
            return (x_NF / view.num_nodes,)
        if self.what == "edges":
            return (x_NF + view.edge_index.sum(),)
        if self.what == "weights":
            return (x_NF + view.edge_weight.sum(),)
        if self.what == "mean":
            return x_NF, x_NF.mean(0, keepdim=True)
        return (x_NF,)

    def recur(self, view: View, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Return the rows."""
        return rows[0], state


@pytest.mark.parametrize("what", ["t", "num_nodes", "edges", "weights", "mean"])
def test_who_reads_more_than_rows_sees_snapshots_whole(what: str) -> None:
    assert not watch(Own(what), 2).by_node
    assert watch(Own("nothing"), 2).by_node


@pytest.mark.parametrize("name", MODELS)
def test_watching_changes_nothing(name: str) -> None:
    model = make_model(8, ModelSettings(name=name, hidden=4, heads=2, batch_norm=True, dropout=0.5, layers=2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    drawn = torch.random.get_rng_state()
    for training in (True, False):
        model.train(training)
        watch(model, 8)
        assert model.training == training
    assert torch.equal(drawn, torch.random.get_rng_state())
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_models_that_see_all_at_once_are_not_by_node() -> None:
    whole = {name for name in MODELS if not asked_of(name).by_node}
    assert whole == {"evolvegcn_h"}
    assert not asked_of("mpnn_lstm", batch_norm=True).by_node
