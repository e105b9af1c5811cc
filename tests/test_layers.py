"""Who may import whom, and how long may a file or a function be? The table of docs/architecture.md, held."""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "timeloom"
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60  # the aim is 40 (STYLE)

# A home is a folder of src/timeloom, or a file that lies beside the folders. Anybody may import the common files.
COMMON: dict[str, set[str]] = {
    "errors": set(),
    "cache": set(),
    "disk": set(),
    "records": {"records", "errors", "disk"},
    "config": {"errors"},
    "jit": {"errors", "cache"},
    "parent": set(),
}
FOLDERS: dict[str, set[str]] = {
    "graph": set(),
    "kernels": set(),
    "plan": {"graph"},
    "nn": {"kernels"},
    "dist": {"graph", "plan", "kernels"},
    "systems": {"plan"},
    "train": {"graph", "plan", "nn", "dist", "kernels", "systems"},
    "report": set(),
    "cli": {"__init__", "graph", "plan", "nn", "train", "systems", "report"},
}
MAY_IMPORT: dict[str, set[str]] = {
    **COMMON,
    **{home: {home, *others, *COMMON} for home, others in FOLDERS.items()},
    "__init__": {*COMMON, *FOLDERS},
    "__main__": {"cli", *COMMON},
}
MAY_IMPORT_TORCH = {"kernels", "nn", "dist", "train"}
MAY_IMPORT_LATE = {"cli", "__init__"}
MAY_IMPORT_TORCH_DISTRIBUTED = PurePosixPath("dist/world.py")


@dataclass(frozen=True)
class Source:
    """One file: its path below src/timeloom, and its text."""

    path: PurePosixPath
    text: str

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(ast.parse(self.text, filename=str(self.path))))

    @property
    def home(self) -> str:
        return self.path.parts[0].removesuffix(".py")


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported: ``from torch import nn`` gives torch.nn."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)


def home_of(dotted: str) -> str | None:
    """The home that a dotted name belongs to; None if it is not ours."""
    package, _, rest = dotted.partition(".")
    home = rest.partition(".")[0]
    return None if package != "timeloom" else home if home in MAY_IMPORT else "__init__"


def imports_go_one_way(source: Source) -> Iterator[str]:
    if source.home not in MAY_IMPORT:
        yield f"{source.path}: {source.home} is not in the table of homes; put it into MAY_IMPORT and the docs"
        return
    for line, dotted in imported(source):
        target = home_of(dotted)
        if target is not None and target not in MAY_IMPORT[source.home]:
            what = "the package itself" if target == "__init__" else target
            yield f"{source.path}:{line}: {source.home} may not import {what} ({dotted})"


def torch_is_imported_in_the_data_plane_only(source: Source) -> Iterator[str]:
    for line, dotted in imported(source):
        if dotted.split(".")[0] == "torch" and source.home not in MAY_IMPORT_TORCH:
            yield f"{source.path}:{line}: {dotted} outside {', '.join(sorted(MAY_IMPORT_TORCH))}"


def torch_distributed_is_used_in_the_world_only(source: Source) -> Iterator[str]:
    used = [(node.lineno, ast.unparse(node)) for node in source.nodes if isinstance(node, ast.Attribute)]
    for line, dotted in [*imported(source), *used]:
        if f"{dotted}.".startswith("torch.distributed.") and source.path != MAY_IMPORT_TORCH_DISTRIBUTED:
            yield f"{source.path}:{line}: {dotted} outside {MAY_IMPORT_TORCH_DISTRIBUTED}"


def imports_stand_at_the_top(source: Source) -> Iterator[str]:
    functions = (node for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    inner = (node for function in functions for node in ast.walk(function))
    late = {node.lineno for node in inner if isinstance(node, ast.Import | ast.ImportFrom)}
    if source.home not in MAY_IMPORT_LATE:
        yield from (f"{source.path}:{line}: an import inside a function" for line in sorted(late))


def imports_are_absolute(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            yield f"{source.path}:{node.lineno}: a relative import; write it from timeloom on"


def parameters_have_names(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.arguments) and node.kwarg is not None:
            yield f"{source.path}:{node.kwarg.lineno}: a **{node.kwarg.arg} parameter; name what it takes"


def files_are_short(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{source.path}: {lines} lines, allowed {MAX_FILE_LINES}"


def functions_are_short(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{source.path}:{node.lineno}: {node.name} has {lines} lines, allowed {MAX_FUNCTION_LINES}"


Rule = Callable[[Source], Iterator[str]]
RULES: list[Rule] = [
    imports_go_one_way,
    torch_is_imported_in_the_data_plane_only,
    torch_distributed_is_used_in_the_world_only,
    imports_stand_at_the_top,
    imports_are_absolute,
    parameters_have_names,
    files_are_short,
    functions_are_short,
]
LATE = "def f() -> None:\n    {}\n"
LONG = "def f() -> None:\n" + "    pass\n" * MAX_FUNCTION_LINES

UNLAWFUL: list[tuple[Rule, str, str]] = [
    (imports_go_one_way, "graph/store.py", "from timeloom.plan.types import Step"),
    (imports_go_one_way, "graph/store.py", "from timeloom import plan"),
    (imports_go_one_way, "graph/store.py", "import timeloom.plan.types as types"),
    (imports_go_one_way, "graph/store.py", "from timeloom import __version__"),
    (imports_go_one_way, "graph/store.py", "import timeloom"),
    (imports_go_one_way, "graph/store.py", "if TYPE_CHECKING:\n    from timeloom.nn.model import Model"),
    (imports_go_one_way, "graph/ingest/csv.py", "from timeloom.cli import main"),
    (imports_go_one_way, "kernels/cells.py", "from timeloom.graph.store import Store"),
    (imports_go_one_way, "plan/cost.py", "from timeloom.train.loop import train"),
    (imports_go_one_way, "nn/layers.py", "from timeloom.graph.store import Store"),
    (imports_go_one_way, "dist/halo.py", "from timeloom.nn.model import Model"),
    (imports_go_one_way, "systems/psg.py", "from timeloom.train.settings import RunSettings"),
    (imports_go_one_way, "systems/real.py", "from timeloom.nn.gcn import Gcn"),
    (imports_go_one_way, "report/html.py", "from timeloom.graph.store import Store"),
    (imports_go_one_way, "cli/train.py", LATE.format("from timeloom.kernels.cells import gru")),
    (imports_go_one_way, "cli/train.py", "from timeloom.dist.world import World"),
    (imports_go_one_way, "errors.py", "from timeloom.config import Config"),
    (imports_go_one_way, "config.py", "from timeloom.graph.store import Store"),
    (imports_go_one_way, "jit.py", "from timeloom.graph.store import Store"),
    (imports_go_one_way, "__main__.py", "from timeloom.train.loop import train"),
    (imports_go_one_way, "helpers/misc.py", ""),
    (imports_go_one_way, "helpers.py", ""),
    (torch_is_imported_in_the_data_plane_only, "graph/store.py", "import torch"),
    (torch_is_imported_in_the_data_plane_only, "plan/cost.py", "from torch import Tensor"),
    (torch_is_imported_in_the_data_plane_only, "cli/train.py", LATE.format("import torch.nn as nn")),
    (torch_distributed_is_used_in_the_world_only, "train/loop.py", "import torch.distributed as dist"),
    (torch_distributed_is_used_in_the_world_only, "dist/halo.py", "from torch import distributed"),
    (torch_distributed_is_used_in_the_world_only, "dist/halo.py", "from torch.distributed import all_reduce"),
    (torch_distributed_is_used_in_the_world_only, "dist/halo.py", "import torch\nok = torch.distributed.is_available"),
    (imports_stand_at_the_top, "graph/store.py", LATE.format("import json")),
    (imports_stand_at_the_top, "graph/__init__.py", LATE.format("from json import loads")),
    (imports_stand_at_the_top, "train/loop.py", "class A:\n    async def f(self) -> None:\n        import json"),
    (imports_are_absolute, "graph/store.py", "from . import delta"),
    (imports_are_absolute, "graph/store.py", "from ..plan.types import Step"),
    (parameters_have_names, "graph/store.py", "def f(**kwargs: int) -> None: ..."),
    (parameters_have_names, "graph/store.py", "class A:\n    async def f(self, *, a: int, **rest: int) -> None: ..."),
    (parameters_have_names, "graph/store.py", "f = lambda **options: options"),
    (files_are_short, "graph/store.py", "\n" * (MAX_FILE_LINES + 1)),
    (functions_are_short, "graph/store.py", LONG),
    (functions_are_short, "cli/train.py", "class A:\n" + "".join(f"    {line}\n" for line in LONG.splitlines())),
]

LAWFUL: list[tuple[str, str]] = [
    ("graph/store.py", "import json\nfrom timeloom.errors import BadStore\nfrom timeloom.graph import delta"),
    ("graph/store.py", "from timeloom.jit import njit\nfrom timeloom import records"),
    ("graph/store.py", "import torchless\nimport timeloomish.plan"),
    ("plan/cost.py", "from timeloom.graph.store import Store\nfrom timeloom.config import Config"),
    ("nn/gcn.py", "import torch\nfrom timeloom.kernels.aggregate import mean"),
    ("dist/world.py", "import torch\nfrom torch import distributed\nbackend = torch.distributed.get_backend"),
    ("train/loop.py", "import torch\nfrom timeloom.dist.world import World\nfrom timeloom.nn.model import Model"),
    ("train/loop.py", "from timeloom.systems import preset_of"),
    ("report/html.py", "from timeloom.records import read"),
    ("cli/train.py", LATE.format("from timeloom.train.loop import train") + "from timeloom import __version__"),
    ("jit.py", "from timeloom.errors import BadConfig\nfrom timeloom.cache import cache_home\nimport numba\n"),
    ("__init__.py", LATE.format("from timeloom.nn.model import Model")),
    ("__main__.py", "from timeloom.cli import main"),
    ("graph/store.py", "def f(*parts: int, a: int) -> None:\n    g(**{'a': a})"),
    ("graph/store.py", "\n" * MAX_FILE_LINES),
    ("graph/store.py", LONG.removesuffix("    pass\n")),
]


def name_of(rule: Rule) -> str:
    return getattr(rule, "__name__", repr(rule))


def sources() -> list[Source]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [Source(PurePosixPath(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")) for path in paths]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_our_sources_keep_the_rule(rule: Rule) -> None:
    read = sources()
    assert read, f"no Python file in {PACKAGE}"
    offenders = [complaint for source in read for complaint in rule(source)]
    assert not offenders, "\n".join(["", *offenders])


@pytest.mark.parametrize(("rule", "path", "text"), UNLAWFUL)
def test_a_breach_is_found_by_its_rule(rule: Rule, path: str, text: str) -> None:
    source = Source(PurePosixPath(path), text)
    complaints = list(rule(source))
    assert complaints
    assert all(complaint.startswith(path) for complaint in complaints)


@pytest.mark.parametrize(("path", "text"), LAWFUL)
def test_what_is_allowed_raises_no_complaint(path: str, text: str) -> None:
    source = Source(PurePosixPath(path), text)
    assert [complaint for rule in RULES for complaint in rule(source)] == []


def test_every_rule_has_a_breach_to_find() -> None:
    assert {name_of(rule) for rule, _, _ in UNLAWFUL} == {name_of(rule) for rule in RULES}
