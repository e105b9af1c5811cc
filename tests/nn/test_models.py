"""Every model equals its equations, in values and gradients; and what its description says of it is true."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.kernels.graphs import edge_list, snapshot_of
from tests.nn import reference
from tests.nn.reference import Choices, Moment
from tests.nn.scenes import KINDS, made, over, scene, settings_of, view_of
from timeloom.kernels.norms import Norm
from timeloom.nn.dcrnn import Dcrnn
from timeloom.nn.layers import Convolution, GraphAttention
from timeloom.nn.model import PerNode, Shared, resume, start
from timeloom.nn.models import MODELS, make_model
from timeloom.nn.sage import SageConvolution
from timeloom.train.localise import WholeView

NAMES = list(MODELS)
NORMED = ["tgcn", "gcn_gru", "tgcn_integrated", "wdgcn", "evolvegcn_o", "evolvegcn_h", "mpnn_lstm"]
NORMS = list(product(("sym", "both", "mean", "sum"), (True, False)))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def pyg() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch_geometric.nn")


def close(left: Tensor, right: Tensor, what: str = "", tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(
        left.detach(), right.detach(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


def loss_of(parts: Sequence[Tensor]) -> Tensor:
    """Return a sum in which every number has a share of its own."""
    rng = torch.Generator().manual_seed(9)
    return torch.stack(
        [(part * torch.randn(part.shape, generator=rng, dtype=torch.float64)).sum() for part in parts]
    ).sum()


def gradients(parts: Sequence[Tensor], of: Sequence[Tensor]) -> list[Tensor]:
    # What is not used has a gradient of 0.
    return list(torch.autograd.grad(loss_of(parts), of, retain_graph=True, materialize_grads=True))


def agree(name: str, moments: Sequence[Moment], choices: Choices, *, hold: bool = True) -> None:
    """Assert that outputs, last state and gradients of all parameters and features are those of the reference."""
    model = made(name, moments[0].x.shape[1], choices)
    weights = {key: value.detach().clone().requires_grad_() for key, value in model.named_parameters()}
    ours = [replace(moment, x=moment.x.clone().requires_grad_()) for moment in moments]
    theirs = [replace(moment, x=moment.x.clone().requires_grad_()) for moment in moments]
    outs, state = over(model, ours, hold=hold)
    expected, last = reference.run(name, weights, theirs, choices, hold=hold)
    for t, (out, exact) in enumerate(zip(outs, expected, strict=True)):
        close(out, exact, f"{name}: output {t}")
    for slot, new, exact in zip(model.memory(), state, last, strict=True):
        close(new, exact, f"{name}: state {slot.name}")
    found = gradients([*outs, *state], [*dict(model.named_parameters()).values(), *(moment.x for moment in ours)])
    right = gradients([*expected, *last], [*weights.values(), *(moment.x for moment in theirs)])
    for key, mine, exact in zip([*weights, *("x" for _ in moments)], found, right, strict=True):
        close(mine, exact, f"{name}: gradient of {key}")


def test_every_model_has_its_equations() -> None:
    assert {*NAMES} == {*reference.STACKED, "mpnn_lstm", "sage_linear", "sage_attention"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_model_equals_its_equations(name: str, kind: str) -> None:
    # With more features than columns a convolution multiplies first.
    agree(name, scene(kind, num_features=3), Choices())
    agree(name, scene(kind, num_features=6, num_snapshots=3), Choices())


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_layers_on_top_of_each_other_equal_their_equations(name: str, layers: int) -> None:
    for kind in ("all of it", "few"):
        agree(name, scene(kind, num_snapshots=4), Choices(layers=layers))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_a_model_whose_absent_nodes_go_on_equals_its_equations(name: str, layers: int) -> None:
    agree(name, scene("all of it"), Choices(layers=layers), hold=False)
    agree(name, scene("few"), Choices(layers=layers), hold=False)


@pytest.mark.parametrize(("norm", "self_loops"), NORMS)
@pytest.mark.parametrize("name", NORMED)
def test_a_model_equals_its_equations_under_every_norm(name: str, norm: str, self_loops: bool) -> None:
    agree(name, scene("all of it", num_snapshots=4), Choices(norm=norm, self_loops=self_loops, layers=2))


@pytest.mark.parametrize(("hops", "walk"), [*product((0, 1, 2, 3), ("pull", "push"))])
def test_dcrnn_equals_its_equations_for_every_walk(hops: int, walk: str) -> None:
    agree("dcrnn", scene("all of it"), Choices(hops=hops, walk=walk))


@pytest.mark.parametrize(("jump", "skip", "batch_norm"), [*product((False, True), repeat=3)])
def test_mpnn_lstm_equals_its_equations_in_every_form(jump: bool, skip: bool, batch_norm: bool) -> None:
    for layers in (1, 2):
        choices = Choices(jump=jump, skip=skip, batch_norm=batch_norm, layers=layers)
        agree("mpnn_lstm", scene("weighted"), choices)


@pytest.mark.parametrize("span", [1, 2, 7])
@pytest.mark.parametrize("name", ["sage_linear", "sage_attention"])
def test_sage_equals_its_equations_for_every_span(name: str, span: int) -> None:
    agree(name, scene("all of it"), Choices(span=span, heads=4))


@pytest.mark.parametrize(("name", "heads"), [*product(("gat_lstm", "sage_attention"), (1, 4))])
def test_attention_equals_its_equations_for_every_number_of_heads(name: str, heads: int) -> None:
    agree(name, scene("all of it"), Choices(heads=heads))


@given(st.sampled_from(NAMES), st.sampled_from(KINDS), st.integers(1, 3), st.integers(1, 5), st.integers(0, 99))
@settings(max_examples=60)
def test_any_model_on_any_history_equals_its_equations(
    name: str, kind: str, layers: int, num_features: int, seed: int
) -> None:
    hidden, hold = (2, False) if seed % 2 else (6, True)
    moments = scene(kind, num_features=num_features, num_snapshots=3, seed=seed)
    agree(name, moments, Choices(layers=layers, hidden=hidden, norm=NORMS[seed % 8][0]), hold=hold)


@pytest.mark.parametrize("name", NAMES)
def test_single_precision_is_near(name: str) -> None:
    model, moments = made(name, 3, Choices(layers=2)), scene("all of it")
    exact, _ = over(model, moments)
    near, _ = over(model.float(), moments)
    for left, right in zip(near, exact, strict=True):
        assert left.dtype == torch.float32
        close(left.double(), right, name, 1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_permuting_the_nodes_permutes_the_outputs(name: str) -> None:
    model, moments = made(name, 3, Choices(layers=2)), scene("all of it")
    order = torch.randperm(7, generator=torch.Generator().manual_seed(4))
    new = torch.argsort(order).tolist()
    permuted = [
        Moment(
            edges=tuple((new[u], new[v], w) for u, v, w in moment.edges),
            alive=tuple(moment.alive[v] for v in order.tolist()),
            x=moment.x[order],
        )
        for moment in moments
    ]
    for left, right in zip(over(model, permuted)[0], over(model, moments)[0], strict=True):
        close(left, right[order], name)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_edges_does_not_matter(name: str) -> None:
    model, moments = made(name, 3, Choices()), scene("all of it")
    backwards = [replace(moment, edges=moment.edges[::-1]) for moment in moments]
    for left, right in zip(over(model, backwards)[0], over(model, moments)[0], strict=True):
        close(left, right, name)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "evolvegcn_o"])
def test_the_order_of_history_changes_the_last_output(name: str, layers: int) -> None:
    """The last snapshot stays where it is, so that only what was before can change its output."""
    model, moments = made(name, 3, Choices(layers=layers)), scene("weighted")
    shuffled = [moments[2], moments[3], moments[0], moments[1], moments[4]]
    assert (over(model, moments)[0][-1] - over(model, shuffled)[0][-1]).abs().max() > 1e-6


@pytest.mark.parametrize("name", ["sage_linear", "sage_attention"])
def test_sage_looks_back_as_far_as_its_span_and_no_farther(name: str) -> None:
    moments = scene("weighted")
    for span in (1, 2, 3):
        model = made(name, 3, Choices(span=span))
        last = over(model, moments)[0][-1]
        close(over(model, moments[5 - span :])[0][-1], last, name)
        if span > 1:
            changed = [replace(moment, x=-moment.x if t == 5 - span else moment.x) for t, moment in enumerate(moments)]
            assert (over(model, changed)[0][-1] - last).abs().max() > 1e-6


def test_the_weight_of_evolvegcn_o_depends_on_the_place_alone() -> None:
    """T10: the chain of weights is the same in all windows, and a snapshot at another place sees another weight."""
    model, moments = made("evolvegcn_o", 3, Choices()), scene("weighted")
    outs, (weight,) = over(model, [moments[0]] * 5)
    assert (outs[0] - outs[1]).abs().max() > 1e-6
    close(over(model, moments)[1][0], weight)
    close(over(model, [*moments[:4][::-1], moments[4]])[0][-1], over(model, moments)[0][-1])


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_saved_and_has_a_gradient(name: str, layers: int) -> None:
    model = made(name, 3, Choices(layers=layers, hidden=6), seed=1)
    outs, _ = over(model, scene("weighted"))
    parameters = dict(model.named_parameters())
    assert {*parameters} <= {*model.state_dict()}
    for slot in model.memory():
        if isinstance(slot, Shared):
            assert any(slot.start is parameter for parameter in parameters.values())
    for key, gradient in zip(parameters, gradients(outs, list(parameters.values())), strict=True):
        assert gradient.abs().max() > 1e-9, f"{key} has no gradient"


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_is_the_model(name: str) -> None:
    first, second = made(name, 3, Choices(layers=2)), made(name, 3, Choices(layers=2), seed=1)
    moments = scene("weighted")
    second.load_state_dict(first.state_dict())
    for left, right in zip(over(first, moments)[0], over(second, moments)[0], strict=True):
        assert torch.equal(left, right)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_remembered_is_what_was_described(name: str) -> None:
    for layers in (1, 3):
        model = made(name, 3, Choices(layers=layers))
        memory, (outs, state) = model.memory(), over(model, scene("weighted"))
        assert len({slot.name for slot in memory}) == len(memory) == len(state)
        assert outs[-1].shape == (7, model.out_size)
        for slot, kept in zip(memory, state, strict=True):
            shape = (7, *slot.shape) if isinstance(slot, PerNode) else slot.start.shape
            assert kept.shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_an_absent_node_gives_0_and_keeps_its_state(name: str) -> None:
    model, moments = made(name, 3, Choices(layers=2)), scene("coming and going")
    for t in range(1, len(moments)):
        before, (outs, after) = over(model, moments[:t])[1], over(model, moments[: t + 1])
        absent = ~torch.tensor(moments[t].alive)
        assert (outs[-1][absent] == 0).all()
        unborn = ~torch.tensor([moment.alive for moment in moments[: t + 1]]).any(0)
        for slot, old, new in zip(model.memory(), before, after, strict=True):
            if isinstance(slot, PerNode):
                assert (new[unborn] == 0).all()
                assert not slot.holds or torch.equal(old[absent], new[absent])


@pytest.mark.parametrize("name", NAMES)
def test_the_features_of_absent_nodes_are_not_read(name: str) -> None:
    model, moments = made(name, 3, Choices(layers=2)), scene("all of it")
    others = [
        replace(moment, x=torch.where(torch.tensor(moment.alive)[:, None], moment.x, moment.x + 100))
        for moment in moments
    ]
    for left, right in zip(over(model, others)[0], over(model, moments)[0], strict=True):
        close(left, right, name)


@pytest.mark.parametrize("name", NAMES)
def test_a_window_that_goes_on_starts_from_the_state_before(name: str) -> None:
    """Per-node state goes on as a constant; a weight starts from the learnt first one (D2.1) and learns there too."""
    model, moments = made(name, 3, Choices(layers=2)), scene("all of it")
    memory, whole = model.memory(), over(model, moments)[0]
    _, kept = over(model, moments[:2])
    carried = resume(memory, kept)
    outs, _ = over(model, moments[2:], state=carried)
    for slot, old, new in zip(memory, kept, carried, strict=True):
        if isinstance(slot, Shared):
            assert new is slot.start
            assert new.requires_grad
        else:
            assert torch.equal(old, new)
            assert not new.requires_grad
    fresh = any(isinstance(slot, Shared) for slot in memory)
    expected = over(model, moments[2:])[0] if fresh else whole[2:]
    for left, right in zip(outs, expected, strict=True):
        close(left, right, name)
    starts = [slot.start for slot in memory if isinstance(slot, Shared)]
    for gradient in gradients(outs, starts) if starts else []:
        assert gradient.abs().max() > 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_the_first_state_is_zero_or_learnt(name: str) -> None:
    memory = made(name, 3, Choices(layers=2)).memory()
    for slot, first in zip(memory, start(memory, 5, torch.zeros(1, dtype=torch.float64)), strict=True):
        if isinstance(slot, PerNode):
            assert first.shape == (5, *slot.shape)
            assert first.dtype == torch.float64
            assert not first.any()
        else:
            assert first is slot.start


def path(num_nodes: int, num_snapshots: int) -> list[Moment]:
    """Return snapshots of the path 0 -> 1 -> 2 and so on, in which every x can be differentiated."""
    edges = tuple((v, v + 1, 1.0) for v in range(num_nodes - 1))
    rng = torch.Generator().manual_seed(3)
    return [
        Moment(
            edges=edges,
            alive=(True,) * num_nodes,
            x=torch.randn(num_nodes, 3, generator=rng, dtype=torch.float64, requires_grad=True),
        )
        for _ in range(num_snapshots)
    ]


def reach(out_H: Tensor, parts: Sequence[Tensor], node: int) -> int:
    """Return the distance of the farthest row of any part that an output depends on (-1: it depends on none)."""
    found = gradients([out_H], parts)
    return max((abs(v - node) for part in found for v in range(len(part)) if part[v].abs().max() > 0), default=-1)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "evolvegcn_h"])
def test_messages_travel_as_far_as_the_model_says(name: str, layers: int) -> None:
    model, moments = made(name, 3, Choices(layers=layers, hidden=8)), path(25, 3)
    middle, xs = 12, [moment.x for moment in moments]
    outs, _ = over(model, moments)
    # The features of this snapshot, and those of the ones before.
    assert reach(outs[-1][middle], xs[-1:], middle) == model.hops
    if name == "evolvegcn_o":
        assert reach(outs[-1][middle], xs[:-1], middle) == -1
    elif model.mixes_states:
        assert reach(outs[-1][middle], xs[:-1], middle) > model.hops
    else:
        assert reach(outs[-1][middle], xs[:-1], middle) == model.hops
    # The states of nodes: its own; below other layers also those of neighbours, but no farther than its features.
    state = tuple(part.detach().requires_grad_() for part in over(model, moments[:2])[1])
    if name != "evolvegcn_o":
        (out,), _ = over(model, moments[2:], state=state)
        stacked = layers - 1 if name in reference.STACKED else 0
        assert reach(out[middle], state, middle) == (model.hops if model.mixes_states else stacked)


@pytest.mark.parametrize("name", NAMES)
def test_only_evolvegcn_h_and_batch_norm_see_all_nodes_at_once(name: str) -> None:
    assert made(name, 3, Choices(layers=2)).sees_all == (name == "evolvegcn_h")
    assert made("mpnn_lstm", 3, Choices(batch_norm=True)).sees_all


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_edges_are_respected_but_by_attention(name: str) -> None:
    model, moments = made(name, 3, Choices()), scene("weighted")
    (u, v, w), *rest = moments[-1].edges
    heavier = [*moments[:-1], replace(moments[-1], edges=((u, v, 3 * w), *rest))]
    moved = (over(model, heavier)[0][-1] - over(model, moments)[0][-1]).abs().max()
    assert moved == 0 if name == "gat_lstm" else moved > 1e-6


@pytest.mark.parametrize("walk", ["pull", "push"])
def test_dcrnn_without_hops_ignores_the_graph(walk: str) -> None:
    moments = scene("weighted")
    emptied = [replace(moment, edges=()) for moment in moments]
    for hops in (0, 1, 2):
        model = made("dcrnn", 3, Choices(hops=hops, walk=walk))
        moved = (over(model, moments)[0][-1] - over(model, emptied)[0][-1]).abs().max()
        assert moved == 0 if hops == 0 else moved > 1e-6


def walks(moment: Moment, hops: int, x_NF: Tensor, walk: str = "pull") -> list[Tensor]:
    """Return what each walk of dcrnn makes of rows: of length 0, then along the edges, then against them."""
    model = made("dcrnn", 3, Choices(hops=hops, walk=walk))
    assert isinstance(model, Dcrnn)
    return list(torch.split(model._diffuse(view_of(moment, 0), x_NF), x_NF.shape[1], 1))


def test_each_walk_of_dcrnn_keeps_constants_where_there_are_edges() -> None:
    ring = tuple((v, (v + 1) % 5, 0.5 + v) for v in range(5))
    chords = ((0, 2, 3.0), (3, 1, 0.1), (0, 2, 2.0), (4, 4, 1.0))
    moment = Moment(edges=ring + chords, alive=(True,) * 5, x=torch.zeros(5, 3, dtype=torch.float64))
    constant = torch.full((5, 2), 3.0, dtype=torch.float64)
    walked = walks(moment, 3, constant)
    assert len(walked) == 7
    for rows in walked:
        close(rows, constant)
    # Push does not, but it keeps the sum.
    for rows in walks(moment, 3, constant, "push"):
        close(rows.sum(0), constant.sum(0))
    assert (walks(moment, 1, constant, "push")[1] - constant).abs().max() > 0.1


def test_a_node_of_degree_0_gets_0_from_a_walk_of_dcrnn() -> None:
    """0 -> 1 -> 2, and 3 alone: only 0 and 1 have a way along the edges, only 1 and 2 one against them."""
    moment = Moment(edges=((0, 1, 2.0), (1, 2, 0.5)), alive=(True,) * 4, x=torch.zeros(4, 3, dtype=torch.float64))
    ones = torch.ones(4, 1, dtype=torch.float64)
    _, along, twice_along, against, twice_against = walks(moment, 2, ones)
    assert along[:, 0].tolist() == [1, 1, 0, 0]
    assert twice_along[:, 0].tolist() == [1, 0, 0, 0]
    assert against[:, 0].tolist() == [0, 1, 1, 0]
    assert twice_against[:, 0].tolist() == [0, 0, 1, 0]
    assert all(torch.isfinite(out).all() for out in over(made("dcrnn", 3, Choices()), [moment] * 3)[0])


def test_fewer_nodes_than_evolvegcn_h_wants_repeat_the_last_and_none_gives_0() -> None:
    model = made("evolvegcn_h", 3, Choices(hidden=4))
    x_NF = torch.tensor([[1.0, 2.0, 3.0], [9.0, 9.0, 9.0], [-1.0, 0.5, 1.0]], dtype=torch.float64)
    moment = Moment(edges=(), alive=(True, False, True), x=x_NF)
    (_, summary) = model.encode(view_of(moment, 0), x_NF)
    assert summary.shape == (3, 4)
    close(summary[:, 1:], summary[:, 1:2].expand(3, 3))
    (_, nothing) = model.encode(view_of(replace(moment, alive=(False,) * 3), 0), x_NF)
    assert not nothing.any()
    same = torch.ones(3, 3, dtype=torch.float64)
    (_, tied) = model.encode(view_of(replace(moment, alive=(True,) * 3, x=same), 0), same)
    close(tied, tied[:, :1].expand(3, 4))


def test_dropout_is_for_training_and_between_layers() -> None:
    model, moments = made("tgcn", 3, Choices(layers=2)), scene("weighted")
    dropping = make_model(3, replace(settings_of("tgcn", Choices(layers=2)), dropout=0.5)).double()
    dropping.load_state_dict(model.state_dict())
    whole = over(model, moments)[0][-1]
    torch.manual_seed(1)
    assert (over(dropping.train(), moments)[0][-1] - whole).abs().max() > 1e-6
    assert torch.equal(over(dropping.eval(), moments)[0][-1], whole)


def with_strangers(moment: Moment) -> Moment:
    """Return a moment of a graph that has three more nodes, which are not there."""
    more = torch.full((3, moment.x.shape[1]), 7.0, dtype=torch.float64)
    return replace(moment, alive=(*moment.alive, False, False, False), x=torch.cat([moment.x, more]))


@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_nodes_that_never_come_change_nothing(name: str, hold: bool) -> None:
    """Else what is predicted today depends on who is born tomorrow (T35)."""
    model, moments = made(name, 3, Choices(layers=2)), scene("all of it")
    more = over(model, [with_strangers(moment) for moment in moments], hold=hold)[0]
    for left, right in zip(more, over(model, moments, hold=hold)[0], strict=True):
        close(left[:7], right, name)


def test_nodes_that_never_come_change_no_batch_norm() -> None:
    model, moments = made("mpnn_lstm", 3, Choices(batch_norm=True)), scene("weighted")
    more = over(model, [with_strangers(moment) for moment in moments])[0]
    close(more[-1][:7], over(model, moments)[0][-1])


def test_weights_of_edges_are_where_the_edges_are() -> None:
    snapshot = snapshot_of(edge_list([(0, 1), (1, 1)], None, [True, True]))
    view = WholeView(snapshot, dtype=torch.float32, device=torch.device("meta"))
    assert view.edge_weight.device == view.edges.order_E.device


def test_convolution_is_torch_geometrics(pyg: Any) -> None:
    for num_in, kind in ((3, "weighted"), (6, "weighted"), (3, "isolated")):
        moment = scene(kind, num_features=num_in)[0]
        view = view_of(moment, 0)
        ours, theirs = Convolution(num_in, 4, Norm("sym")).double(), pyg.GCNConv(num_in, 4).double()
        theirs.lin.weight.data, theirs.bias.data = ours.weight.data.T.contiguous(), torch.randn(4).double()
        ours.bias.data = theirs.bias.data
        close(ours(view, moment.x), theirs(moment.x, view.edge_index, view.edge_weight))


def test_graph_attention_is_torch_geometrics(pyg: Any) -> None:
    moment = scene("isolated")[0]
    view = view_of(moment, 0)
    ours, theirs = GraphAttention(3, 6, 2).double(), pyg.GATConv(3, 3, heads=2).double()
    theirs.lin.weight.data = ours.weight.data.T.contiguous()
    theirs.att_src.data, theirs.att_dst.data = ours.sent.data[None], ours.received.data[None]
    ours.bias.data = theirs.bias.data = torch.randn(6).double()
    close(ours.parts(view, moment.x)[0], theirs(moment.x, view.edge_index))


def test_sage_convolution_is_torch_geometrics(pyg: Any) -> None:
    for num_in in (3, 6):
        moment = scene("isolated", num_features=num_in)[0]
        view = view_of(moment, 0)
        ours, theirs = SageConvolution(num_in, 4).double(), pyg.SAGEConv(num_in, 4, aggr="mean").double()
        theirs.lin_l.weight.data, theirs.lin_r.weight.data = ours.near.data.T.contiguous(), ours.own.data.T.contiguous()
        ours.bias.data = theirs.lin_l.bias.data
        close(ours(view, moment.x), theirs(moment.x, view.edge_index))
