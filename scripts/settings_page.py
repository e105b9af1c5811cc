"""Writes docs/settings.md: every setting of a run with its type, its default and what it means, from the sources.

A field's meaning is the string below it or the comment behind it. A test holds the page to the sources.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "settings.md"
SOURCES = (
    ("model", "nn/settings.py", "ModelSettings"), ("task", "graph/tasks.py", "TaskSettings"),
    ("window", "plan/batch/windows.py", "WindowSettings"), ("split", "graph/tasks.py", "SplitSettings"),
    ("inputs", "train/settings.py", "InputSettings"), ("optim", "train/settings.py", "OptimSettings"),
    ("train", "train/settings.py", "TrainSettings"),
    ("reuse", "train/settings.py", "ReuseSettings"), ("live", "train/settings.py", "LiveSettings"),
    ("system", "train/system.py", "SystemSettings"),
    ("system.partition", "plan/partition/choose.py", "PartitionSettings"),
    ("system.partition.online", "plan/partition/online.py", "OnlineSettings"),
    ("system.partition.online.sampling", "plan/partition/weights.py", "SamplingSettings"),
    ("hybrid", "plan/batch/hybrid_settings.py", "HybridSettings"),
    ("hybrid.dqn", "plan/tune/dqn.py", "DqnSettings"),
    ("flare", "plan/batch/flare.py", "FlareSettings"), ("tune", "plan/tune/window.py", "TuneSettings"),
    ("schedule", "plan/schedule/choose.py", "ScheduleSettings"),
    ("distdy", "plan/batch/sample.py", "DistdySettings"), ("world", "train/system.py", "WorldSettings"),
)  # fmt: skip
HEAD = """# Settings

Every setting of a run. In a file given with `--config` they are tables of TOML; on the command line they are
`--set table.key=value`, which comes before the file; in Python they are nested dictionaries:

```toml
[model]
hidden = 64

[train]
epochs = 50
```

```sh
timeloom train mails --task links --config wide.toml --set optim.rate=0.003 --out runs/wide
```

`config.toml` in a run directory holds all of them, so that `timeloom train --config RUN/config.toml --out AGAIN`
repeats a run. An unknown key is an error that names the nearest known one. `none` stands for "not given". This page is
made by `scripts/settings_page.py`.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Return the page."""
    lines = [HEAD]
    for table, file, name in SOURCES:
        source = (ROOT / "src" / "timeloom" / file).read_text(encoding="utf-8")
        lines += [f"## [{table}]", "", "| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `{table}.{key}` | {kind} | {default} | {meaning} |"
            for key, kind, default, meaning in fields(source, name)
        ]
        lines.append("")
    return "\n".join(lines)


def fields(source: str, name: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield key, type, default and meaning of each field of a dataclass."""
    comments = {
        token.start[0]: token.string.removeprefix("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    whole = ast.parse(source).body
    aliases = named_types(whole)
    for node in whole:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("timeloom."):
            path = ROOT / "src" / f"{(node.module or '').replace('.', '/')}.py"
            theirs = named_types(ast.parse(path.read_text(encoding="utf-8")).body) if path.exists() else {}
            aliases |= {one.name: theirs[one.name] for one in node.names if one.name in theirs}
    body = next(node for node in whole if isinstance(node, ast.ClassDef) and node.name == name).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        kind = ast.unparse(node.annotation)
        if kind.endswith("Settings"):
            # A table of its own.
            continue
        text = comments.get(node.lineno, "")
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        yield node.target.id, shown_type(aliases.get(kind, kind)), shown_default(node.value), text.replace("|", "\\|")


def named_types(body: list[ast.stmt]) -> dict[str, str]:
    """Return what the names of a module stand for."""
    return {
        node.targets[0].id: ast.unparse(node.value)
        for node in body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def shown_type(text: str) -> str:
    """Return a type as a person reads it: the words of a Literal, else its name."""
    if text.startswith("Literal["):
        return ", ".join(f"`{word}`" for word in ast.literal_eval(f"[{text[8:-1]}]"))
    known = {
        "str": "text", "TaskName": "text", "int": "whole number", "int | None": "whole number", "float": "number",
        "bool": "true, false", "bool | None": "true, false", "tuple[Negatives, ...]": "list of text",
        "tuple[int, ...]": "list of whole numbers",
        "tuple[float, ...]": "list of numbers", "PartitionSettings": "table",
        "dict[str, int | float | str | bool]": "table",
    }  # fmt: skip
    return known[text]


def shown_default(value: ast.expr | None) -> str:
    """Return a default as TOML."""
    if isinstance(value, ast.Call):
        return ""
    found = None if value is None else ast.literal_eval(value)
    if found is None or found == "":
        return ""
    if isinstance(found, bool):
        return f"`{str(found).lower()}`"
    return f"`{list(found)}`" if isinstance(found, tuple) else f"`{found}`"


if __name__ == "__main__":
    main()
