"""Which models there are, by the name that a command line gives them."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from timeloom.errors import BadConfig
from timeloom.kernels.norms import Norm
from timeloom.nn import spatial_lstm
from timeloom.nn.dcrnn import Dcrnn
from timeloom.nn.evolvegcn import EvolveGcnH, EvolveGcnO
from timeloom.nn.gcn_gru import GcnGru
from timeloom.nn.model import Model
from timeloom.nn.mpnn_lstm import MpnnLstm
from timeloom.nn.sage import SageAttention, SageLinear
from timeloom.nn.settings import ModelSettings
from timeloom.nn.stack import Stack
from timeloom.nn.tgcn import Tgcn, TgcnIntegrated

Make = Callable[[int, ModelSettings], Model]
"""From the number of input features and the settings to a model."""


def _norm(settings: ModelSettings) -> Norm:
    return Norm(settings.norm, settings.self_loops)


def _stacked(layer: Make) -> Make:
    """Return a maker of so many layers on top of each other."""

    def make(num_in: int, settings: ModelSettings) -> Model:
        layers = [layer(num_in, settings)]
        while len(layers) < settings.layers:
            layers.append(layer(layers[-1].out_size, settings))
        return layers[0] if len(layers) == 1 else Stack(layers, dropout=settings.dropout)

    return make


@dataclass(frozen=True, slots=True)
class Named:
    """A model of ours."""

    make: Make
    about: str


MODELS: dict[str, Named] = {
    "tgcn": Named(
        _stacked(lambda num_in, s: Tgcn(num_in, s.hidden, _norm(s))),
        "T-GCN as in PyTorch Geometric Temporal and DynaHB: a graph convolution for each gate of a GRU",
    ),
    "gcn_gru": Named(
        _stacked(lambda num_in, s: GcnGru(num_in, s.hidden, _norm(s))),
        "a graph convolution, then a GRU: what REAL and DyGNeX call T-GCN",
    ),
    "tgcn_integrated": Named(
        _stacked(lambda num_in, s: TgcnIntegrated(num_in, s.hidden, _norm(s))),
        "T-GCN as in its official code: the gates convolve features and state together",
    ),
    "wdgcn": Named(
        _stacked(lambda num_in, s: spatial_lstm.wdgcn(num_in, s.hidden, _norm(s))),
        "WD-GCN: a graph convolution, then an LSTM",
    ),
    "evolvegcn_o": Named(
        _stacked(lambda num_in, s: EvolveGcnO(num_in, s.hidden, _norm(s))),
        "EvolveGCN-O: the weight of a graph convolution evolves by a GRU",
    ),
    "evolvegcn_h": Named(
        _stacked(lambda num_in, s: EvolveGcnH(num_in, s.hidden, _norm(s))),
        "EvolveGCN-H: ... by a GRU that reads the highest-scoring nodes",
    ),
    "gat_lstm": Named(
        _stacked(lambda num_in, s: spatial_lstm.gat_lstm(num_in, s.hidden, s.heads)),
        "GAT-LSTM: graph attention, then an LSTM",
    ),
    "mpnn_lstm": Named(
        lambda num_in, s: MpnnLstm(num_in, s, _norm(s)), "MPNN-LSTM: graph convolutions, then two LSTMs"
    ),
    "dcrnn": Named(_stacked(Dcrnn), "DCRNN: a GRU whose gates are diffusion convolutions in both directions"),
    "sage_linear": Named(SageLinear, "GraphSAGE, then a linear map of the last few snapshots (DistDy)"),
    "sage_attention": Named(SageAttention, "GraphSAGE, then attention over the last few snapshots (DistDy)"),
}


def make_model(num_in: int, settings: ModelSettings) -> Model:
    """Return the model that the settings name, with weights drawn from torch's generator."""
    if ":" in settings.name:
        return _own_class(settings.name)(num_in, settings)
    if settings.name not in MODELS:
        raise BadConfig(
            f"model {settings.name!r} is unknown: use one of {', '.join(MODELS)}, or FILE.py:Class for one of your own"
        )
    return MODELS[settings.name].make(num_in, settings)


def _own_class(name: str) -> Make:
    """Return the class of a user's file. The file is run, as Python runs any program that its owner starts."""
    file, _, wanted = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise BadConfig(f"model {name!r}: there is no file {path}; write FILE.py:Class")
    spec = importlib.util.spec_from_file_location(f"timeloom_own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise BadConfig(f"model {name!r}: {path} is no Python file; write FILE.py:Class")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their own module up by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, wanted, None)
    if not (isinstance(found, type) and issubclass(found, Model)):
        theirs = [
            name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Model)
        ]  # fmt: skip
        own = [name for name in theirs if name != "Model"]
        raise BadConfig(
            f"model {name!r}: {path} has no class {wanted} that is a timeloom.Model; it has {', '.join(own) or 'none'}"
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise BadConfig(f"model {name!r}: class {wanted} leaves out {missing}; see timeloom.Model")
    return found
