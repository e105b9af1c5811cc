"""`timeloom train`, `evaluate`, `predict` and `models`: from a graph to a model, its scores and its predictions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from timeloom.cli.options import GIVEN, WORLD, Set, read_size
from timeloom.cli.show import print_json
from timeloom.cli.show_run import table_of, telling, traffic_of
from timeloom.errors import BadConfig
from timeloom.records import Evaluated, Traffic, as_json, refuse_in_the_way

Json = Annotated[bool, Parameter(help="Print records as JSON, one a line.")]
Quiet = Annotated[bool, Parameter(help="Show no progress.")]
Checkpoint = Annotated[
    str | None, Parameter(name="--checkpoint", help="The checkpoint to take (default: the newest one).")
]
Memory = Annotated[
    str | None,
    Parameter(help="The most memory each rank may take, such as 2GiB; it is checked before the first step."),
]
OtherGraph = Annotated[
    Path | None, Parameter(name="--graph", help="Where the graph is now, or a graph that has grown since.")
]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunFlags:
    """What is trained, and where it goes."""

    model: str | None = None
    """A model of `timeloom models`, or FILE.py:Class for one of your own, whose code is run (default tgcn)."""
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
    system: str | None = None
    """How several ranks share the work: a system of `timeloom systems`."""
    tune: bool = False
    """Let trials choose the windows of [flare] first, as [tune] says (--system flare)."""


@Parameter(name="*", group=WORLD)
@dataclass(frozen=True, slots=True, kw_only=True)
class WorldFlags:
    """Under torchrun or SLURM the same command joins the ranks that they started, and these are left out."""

    workers: int = 1
    """Start so many ranks on this machine."""
    max_restarts: int = 0
    """How often all ranks are started again, from the last checkpoint, where one of them dies."""
    min_workers: int = 0
    """Where one does not come back then, go on with fewer ranks, but not with fewer than these (0: with all)."""
    check_world: bool = False
    """Compare what ranks are about to do together, before every collective (slow)."""

    @property
    def starts_ranks(self) -> bool:
        """Whether this process starts others, and watches them."""
        return self.workers != 1 or self.max_restarts != 0 or self.min_workers != 0


def train(
    graph: Annotated[Path | None, Parameter(help="The graph to train on (default: that of --config).")] = None,
    /,
    *,
    run: RunFlags = RunFlags(),
    world: WorldFlags = WorldFlags(),
    set_: Set = None,
    checkpoint: Checkpoint = None,
    memory: Memory = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Train a model on a graph; test it once, at the end, beside baselines that learn nothing.

    Ctrl-C, SIGTERM and SIGUSR1 save and end with exit code 75; --resume goes on, to the same result to the last bit.

    Examples
    --------
    timeloom train mails --model tgcn --task links --out runs/mails
    timeloom train mails --task degree --set model.hidden=64 --set train.epochs=50 --out runs/wide
    timeloom train --resume runs/mails
    timeloom train mails --system psg --workers 2 --out runs/two
    timeloom train mails --system flare --tune --set tune.budget_bytes=500000000 --out runs/shrunk
    torchrun --nnodes 2 --nproc-per-node 4 --no-python timeloom train mails --system psg --out runs/eight
    """
    from timeloom.config import merge, parse_sets, read_toml
    from timeloom.train import ranks

    more = [] if memory is None else [f"train.memory_bytes={read_size(memory)}"]
    changes = parse_sets([*(set_ or []), *(["world.check=true"] if world.check_world else []), *more])
    if run.resume is not None:
        _refuse_beside_resume(graph, run)
    elif checkpoint is not None:
        raise BadConfig(f"--checkpoint {checkpoint} goes with --resume RUN: a new run has none")
    job = _Job(graph, run, merge({} if run.config is None else read_toml(run.config), changes), checkpoint)
    seat = ranks.here()
    if seat is None and world.starts_ranks:
        job.check(world.workers)
        return as_ranks(world)
    refuse_other_launcher(world, None if seat is None or seat.parent else seat.size)
    with telling(quiet=quiet or (seat is not None and seat.rank > 0), as_lines=json) as show:
        told = job.do(show)
    if not json and (seat is None or seat.rank == 0):
        sys.stdout.write("\n".join([*told, f"{job.out}: records, settings and checkpoints"]) + "\n")
    return 0


@dataclass(frozen=True, slots=True)
class _Job:
    """What one process, or each of several, is to do."""

    graph: Path | None
    run: RunFlags
    settings: dict[str, Any]
    checkpoint: str | None

    @property
    def out(self) -> Path:
        """The run directory."""
        return self.run.resume or _graph_and_out(self.graph, self.run, self.settings)[1]

    def check(self, workers: int) -> None:
        """Refuse, before any rank starts, what all of them would refuse."""
        from timeloom.graph.dynamic import open_graph
        from timeloom.train import runs
        from timeloom.train.ranks import refuse_impossible

        if self.run.resume is not None:
            settings = runs.changed_settings(self.run.resume, self.settings)
        else:
            where, out = _graph_and_out(self.graph, self.run, self.settings)
            refuse_in_the_way(out, overwrite=self.run.overwrite)
            run = self.run
            settings = runs.settings_for(
                open_graph(where), self.settings, model=run.model, task=run.task, system=run.system
            )  # fmt: skip
            if run.tune:
                runs.refuse_tuning(settings)
        refuse_impossible(settings, workers)

    def do(self, show: Any) -> list[str]:
        """Train; return what there is to tell at the end."""
        from timeloom.train import runs

        shown: list[Evaluated] = []
        moved: dict[int, list[Traffic]] = {}

        def tell(record: Any) -> None:
            if isinstance(record, Evaluated) and record.split in ("all", "test"):
                shown.append(record)
            if isinstance(record, Traffic):
                moved.setdefault(record.rank, []).append(record)
            show(record)

        run = self.run
        if run.resume is not None:
            runs.resume(run.resume, self.settings, name=self.checkpoint, show=tell)
        else:
            where, out = _graph_and_out(self.graph, run, self.settings)
            runs.train(
                where, out, self.settings, model=run.model, task=run.task, system=run.system, overwrite=run.overwrite,
                tune=run.tune, show=tell,
            )  # fmt: skip
        return [line for record in shown for line in table_of(record)] + traffic_of(moved)


def as_ranks(world: WorldFlags) -> int:
    """Run this very command as several ranks; return what it ends with."""
    from timeloom.train.ranks import launch

    command = [sys.executable, "-m", "timeloom", *GIVEN.get()]
    outcome = launch(
        command, workers=world.workers, max_restarts=world.max_restarts, min_workers=world.min_workers
    )  # fmt: skip
    if outcome.told:
        sys.stderr.write(f"timeloom: {outcome.told}\n")
    return outcome.code


def refuse_other_launcher(world: WorldFlags, size: int | None) -> None:
    """Refuse to start ranks where another launcher has; where ours has, there may be fewer than it began with."""
    if size is not None and world.workers not in (1, size):
        raise BadConfig(
            f"--workers {world.workers} starts ranks on this machine, but this process is one of {size} that a "
            "launcher has started: leave --workers out"
        )


def _refuse_beside_resume(graph: Path | None, run: RunFlags) -> None:
    given = [
        ("GRAPH", graph),
        ("--model", run.model),
        ("--task", run.task),
        ("--out", run.out),
        ("--config", run.config),
        ("--system", run.system),
    ]
    names = [name for name, value in given if value is not None]
    names += ["--overwrite"] * run.overwrite + ["--tune"] * run.tune
    if names:
        raise BadConfig(
            f"{names[0]} cannot be given with --resume, which goes on with the settings of "
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
    timeloom evaluate runs/mails --part val --json
    """
    from timeloom.train.inference import evaluate as run_evaluate

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
    timeloom predict runs/mails --at 20 --pairs asked.parquet --out answers.parquet
    timeloom predict runs/mails --graph mails --out next.parquet --overwrite
    """
    from timeloom.graph.export import read_pairs, write_columns
    from timeloom.train.inference import predict as run_predict

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
    sys.stdout.write(
        f"{'FILE.py:Class':16} a model of your own: a class in a file, whose code is run (docs/models.md)\n"
    )
