"""What our models compute for every row, roughly: enough to tell which groups take longer, without the models."""

from __future__ import annotations

from timeloom.plan.reuse import Encoding, Spreads

_GATES = {
    "tgcn": 3, "gcn_gru": 3, "tgcn_integrated": 3, "wdgcn": 4, "evolvegcn_o": 0, "evolvegcn_h": 0, "gat_lstm": 4,
    "mpnn_lstm": 8, "dcrnn": 3, "sage_linear": 0, "sage_attention": 0,
}  # fmt: skip
"""The gates of each model's cell; 0: nothing is remembered of a node."""
_ATTENDING = ("gat_lstm", "sage_attention")


def encoding_of(model: str, *, num_features: int, hidden: int, layers: int, hops: int) -> Encoding:
    """Return what a model of this name and these sizes computes; one of a user's own is taken for a T-GCN."""
    gates = _GATES.get(model, 3)
    sums = 2 * hops if model == "dcrnn" else 1
    first = 2 * num_features * hidden * sums
    above = (layers - 1) * 2 * hidden * hidden * (1 + 2 * gates)
    attends = model in _ATTENDING
    return Encoding(
        sum_widths=() if attends else (min(num_features, hidden),) * sums,
        attended=(hidden,) if attends else (),
        flops=max(first, 1),
        width=hidden,
        recur_flops=4 * hidden * hidden * gates + above + 2 * hidden * hidden,
    )


def spreads_of(model: str, norm: str, *, degree_features: bool) -> Spreads:
    """Return which degrees make a node send something else when they change."""
    if degree_features:
        return "both"
    if model in (*_ATTENDING, "sage_linear"):
        return "none"
    if model == "dcrnn":
        return "both"
    return {"sym": "in", "both": "both"}.get(norm, "none")  # type: ignore[return-value]
