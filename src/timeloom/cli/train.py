"""`timeloom train`, `evaluate`, `predict` and `models`: from a graph to a model, its scores and its predictions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from timeloom.cli.options import Set
from timeloom.cli.show import print_json
from timeloom.cli.show_run import table_of, telling
from timeloom.errors import BadConfig
from timeloom.records import Evaluated, as_json

Json = Annotated[bool, Parameter(help="Print records as JSON, one a line.")]
Quiet = Annotated[bool, Parameter(help="Show no progress.")]
Checkpoint = Annotated[
    str | None, Parameter(name="--checkpoint", help="The checkpoint to take (default: the newest one).")
]
OtherGraph = Annotated[
    Path | None, Parameter(name="--graph", help="Where the graph is now, or a graph that has grown since.")
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """What is trained, and where it goes."""

    model: str | None = None
    """A model of `timeloom models`, or FILE.py:Class for one of your own (default tgcn)."""
    task: str | None = None
    """degree | signal | classes | links | edge_classes (default degree)."""
    out: Path | None = None
    """The run directory to make."""
    config: Path | None = None
    """A TOML file of settings; options given here come before it."""
    overwrite: bool = False
    """Replace the run that is there."""
    resume: Path | None = None
    """Go on with this run, as if it had never been interrupted."""


def train(
    graph: Annotated[Path | None, Parameter(help="The graph to train on (default: that of --config).")] = None,
    /,
    *,
    run: RunFlags = RunFlags(),
    set_: Set = None,
    checkpoint: Checkpoint = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a model on a graph; test it once, at the end, beside baselines that learn nothing.

    Ctrl-C and SIGTERM save and end with exit code 75; --resume then goes on, to the same result to the last bit.

    Examples
    --------
    timeloom train mails --model tgcn --task links --out runs/mails
    timeloom train mails --task degree --set model.hidden=64 --set train.epochs=50 --out runs/wide
    timeloom train --resume runs/mails
    """
    from timeloom.config import merge, parse_sets, read_toml
    from timeloom.train import runs

    changes = parse_sets(set_ or [])
    shown: list[Evaluated] = []
    with telling(quiet=quiet, as_lines=json) as show:

        def tell(record: Any) -> None:
            if isinstance(record, Evaluated) and record.split in ("all", "test"):
                shown.append(record)
            show(record)

        if run.resume is not None:
            _refuse_beside_resume(graph, run)
            runs.resume(run.resume, changes, name=checkpoint, show=tell)
            out = run.resume
        else:
            if checkpoint is not None:
                raise BadConfig(f"--checkpoint {checkpoint} goes with --resume RUN: a new run has none")
            whole = merge({} if run.config is None else read_toml(run.config), changes)
            where, out = _graph_and_out(graph, run, whole)
            runs.train(where, out, whole, model=run.model, task=run.task, overwrite=run.overwrite, show=tell)
    if not json:
        lines = [line for record in shown for line in table_of(record)]
        sys.stdout.write("\n".join([*lines, f"{out}: records, settings and checkpoints"]) + "\n")


def _refuse_beside_resume(graph: Path | None, run: RunFlags) -> None:
    given = [
        ("GRAPH", graph),
        ("--model", run.model),
        ("--task", run.task),
        ("--out", run.out),
        ("--config", run.config),
    ]
    names = [name for name, value in given if value is not None]
    if names or run.overwrite:
        raise BadConfig(
            f"{(names or ['--overwrite'])[0]} cannot be given with --resume, which goes on with the settings of "
            f"{run.resume}: leave it out, or start a new run with --out"
        )


def _graph_and_out(graph: Path | None, run: RunFlags, settings: dict[str, Any]) -> tuple[Path, Path]:
    where = settings.get("graph") if graph is None else graph
    if not isinstance(where, str | Path):
        raise BadConfig("a run needs a graph: give its folder, as in 'timeloom train GRAPH --out RUN', or --resume RUN")
    if run.out is None:
        raise BadConfig("a run needs a folder of its own: give --out RUN")
    return Path(where), run.out


def evaluate(
    run: Annotated[Path, Parameter(help="The run to measure.")],
    /,
    *,
    part: Annotated[Literal["test", "val", "train"], Parameter(help="Which part of the split.")] = "test",
    graph: OtherGraph = None,
    checkpoint: Checkpoint = None,
    json: Annotated[bool, Parameter(help="Print the scores as JSON.")] = False,
) -> None:
    """Score the best parameters of a run on a part of its split, beside the baselines.

    Examples
    --------
    timeloom evaluate runs/mails
    """
    from timeloom.train.runs import evaluate as run_evaluate

    found = run_evaluate(run, part, graph=graph, name=checkpoint)
    if json:
        print_json(as_json(found))
    else:
        sys.stdout.write("\n".join(table_of(found)) + "\n")


def predict(
    run: Annotated[Path, Parameter(help="The run to predict with.")],
    /,
    *,
    out: Annotated[Path, Parameter(help="The Parquet file to write.")],
    at: Annotated[int, Parameter(help="The last snapshot that the model sees (-1: the newest).")] = -1,
    pairs: Annotated[
        Path | None, Parameter(help="A Parquet file with columns source and target (default: all pairs linked so far).")
    ] = None,
    overwrite: Annotated[bool, Parameter(help="Replace the file that is there.")] = False,
    graph: OtherGraph = None,
    checkpoint: Checkpoint = None,
) -> None:
    """Write what the best parameters of a run predict after a snapshot: for every node, or for pairs of nodes.

    Examples
    --------
    timeloom predict runs/mails --out next.parquet
    """
    from timeloom.graph.export import read_pairs, write_columns
    from timeloom.train.runs import predict as run_predict

    columns = run_predict(run, at, pairs=None if pairs is None else read_pairs(pairs), graph=graph, name=checkpoint)
    write_columns(out, columns, overwrite=overwrite)
    num_rows = len(next(iter(columns.values())))
    sys.stdout.write(f"{out}: {num_rows:,} rows, columns {', '.join(columns)}\n")


def models() -> None:
    """List the models, by the names that --model takes.

    Examples
    --------
    timeloom models
    """
    from timeloom.nn.models import MODELS

    sys.stdout.write("".join(f"{name:16} {model.about}\n" for name, model in MODELS.items()))
    sys.stdout.write(f"{'FILE.py:Class':16} a model of your own: a class in a file (docs/models.md)\n")
