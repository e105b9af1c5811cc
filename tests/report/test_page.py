"""A page is one file that holds all it needs, and nothing of a run is ever taken for markup."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import timeloom
from tests.damaged import reseal_records
from tests.report.fake import Fake
from timeloom.errors import BadConfig, BadRun
from timeloom.records import Record, RunDirectory
from timeloom.records.seal import seal_config
from timeloom.report.content import content_of
from timeloom.report.frames import figures_module
from timeloom.report.html import page_of, write_page
from timeloom.report.log import read_log
from timeloom.report.terminal import view_of

PAGE = Path(__file__).resolve().parents[2] / "src/timeloom/report/page"
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>'\"&\u2028<!--"


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.data = ""
        self._in_data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._in_data = ("id", "data") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._in_data = False

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data += data


def parsed(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    return reader


def content(*paths: Path) -> dict[str, Any]:
    return content_of([read_log(path) for path in paths])


def evil_run(path: Path) -> Path:
    name = EVIL.replace("/", "\u2215")
    run = Fake(graph=EVIL, warning=EVIL).make(path / name)
    text = f"graph = {json.dumps(EVIL)}\n[model]\nname = {json.dumps(EVIL)}\n# {EVIL}\n"
    (run / "config.toml").write_bytes(seal_config(text))
    return run


def test_nothing_of_a_run_is_markup(tmp_path: Path) -> None:
    run = evil_run(tmp_path)
    page = page_of(content(run))
    good = page_of(content(Fake().make(tmp_path / "good")))
    assert parsed(page).tags == parsed(good).tags
    assert page.count("<script") == page.count("</script") == 2
    told = json.loads(parsed(page).data)["runs"][0]
    assert told["graph"] == told["warnings"][0] == EVIL
    assert told["name"] == run.name
    assert EVIL in told["config"]


def poisoned(record: Record) -> Record:
    """Return a record of which every name is markup."""

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {f"{key}{EVIL}": spoilt(one) for key, one in value.items()}
        return EVIL if isinstance(value, str) else value

    kept = {"spans": ("parts",), "evaluated": ("split",)}.get(record.kind, ())
    values = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return dataclasses.replace(record, **{name: spoilt(one) for name, one in values.items() if name not in kept})


def test_no_name_in_any_record_is_markup_anywhere(tmp_path: Path) -> None:
    evil = EVIL + "$\\frac$ [/b][red] \x1b[31m"
    run = tmp_path / "run"
    with RunDirectory.create(run, f"graph = {json.dumps(evil)}\n", overwrite=False) as directory:
        for record in Fake(warning=EVIL).records():
            directory.append(poisoned(record))
    log = read_log(run)
    good = page_of(content(Fake(warning="x").make(tmp_path / "good")))
    page = page_of(content_of([log]))
    assert parsed(page).tags == parsed(good).tags
    assert page.count("<script") == page.count("</script") == 2
    shown = timeloom.Run(run)._repr_html_()
    assert "<script" not in shown
    assert "<img" not in shown
    screen = io.StringIO()
    Console(file=screen, width=80).print(view_of(log, "stopped", 80))
    assert "stopped" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()
    assert figures_module().save_all([log], tmp_path / "figures")
    for path in (tmp_path / "figures").glob("*.svg"):
        assert "<script" not in path.read_text()


def test_a_page_asks_for_nothing(tmp_path: Path) -> None:
    reader = parsed(page_of(content(Fake().make(tmp_path / "run"))))
    asked = [value for name, value in reader.attributes if name in ("src", "href", "action", "data")]
    assert asked == ["data:,"]
    assert not {"iframe", "object", "embed", "base", "form", "img"} & set(reader.tags)
    policy = next(value for _, value in reader.attributes if value and "default-src" in value)
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy
    assert "script-src 'sha256-" in policy
    for path in PAGE.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\((?!#)", text), path.name


def test_scripts_set_text_and_never_markup() -> None:
    scripts = list(PAGE.glob("*.js"))
    assert len(scripts) == 4
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttp", text
        )


def test_the_pages_files_are_in_the_wheel() -> None:
    # hatchling takes all files of the package that git does not ignore.
    names = {path.name for path in PAGE.iterdir()}
    assert names == {"page.css", "basics.js", "chart.js", "lanes.js", "sections.js"}


def test_a_page_says_of_a_run_what_its_records_say(tmp_path: Path) -> None:
    told = content(Fake(ranks=3).make(tmp_path / "run"))["runs"][0]
    cards = {card["label"]: card for card in told["cards"]}
    assert cards["ranks"]["value"] == 3
    assert "better than persistence" in cards["test mse"]["note"]
    assert cards["test mse"]["good"] is True
    assert [row["who"] for row in told["scores"]["rows"]] == ["model", "zero", "persistence"]
    assert told["traffic"]["kinds"] == ["grad", "halo", "control"]
    assert told["traffic"]["totals"][1]["sent"] == 8 * (3 * 1_200_000 + 300_000)
    assert told["schedule"]["truth"]["rank"].count(2) == 6
    assert told["facts"][0]["val_stop"] == 50
    assert len(told["predicted"][0]["truth"]) == 400
    assert told["config"].startswith('graph = "/data/drift"')
    assert told["curves"][0]["baselines"] == {"zero": 2.8, "persistence": 0.214}


def test_a_model_that_is_worse_is_called_worse(tmp_path: Path) -> None:
    run = Fake().make(tmp_path / "run")
    good, bad = b'"persistence": {"mse": 0.214', b'"persistence": {"mse": 0.014'
    reseal_records(run, lambda lines: [line.replace(good, bad) for line in lines])
    card = content(run)["runs"][0]["cards"][0]
    assert "worse than persistence" in card["note"]
    assert card["good"] is False


def test_runs_side_by_side_tell_in_what_they_differ(tmp_path: Path) -> None:
    told = content(Fake().make(tmp_path / "a"), Fake(system="psg").make(tmp_path / "b"))
    assert told["differences"] == [{"key": "system.name", "values": ["real", "psg"]}]
    assert [run["label"] for run in told["runs"]] == ["real", "psg"]
    assert [row[0] for row in told["comparison"]["rows"]] == ["real", "psg"]
    assert content(tmp_path / "a")["comparison"] is None


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "run", "", overwrite=False):
        told = content(tmp_path / "run")["runs"][0]
    assert told["state"] == "running"
    assert told["scores"] is None
    assert told["cards"][0]["label"] == "ranks"
    page_of(content(tmp_path / "run"))


@pytest.mark.parametrize(("ranks", "epochs"), [(2, 150), (12, 120)])
def test_a_page_of_many_steps_is_hardly_larger_than_one_of_few(tmp_path: Path, ranks: int, epochs: int) -> None:
    few = page_of(content(Fake(epochs=epochs, steps=10, ranks=ranks).make(tmp_path / "few")))
    many = page_of(content(Fake(epochs=4 * epochs, steps=10, ranks=ranks).make(tmp_path / "many")))
    assert (tmp_path / "many/records.jsonl").stat().st_size > 3.9 * (tmp_path / "few/records.jsonl").stat().st_size
    assert len(many) < 1.35 * len(few)
    assert len(many) < 700_000


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    page = page_of(content(Fake().make(tmp_path / "run")))
    write_page(tmp_path / "out.html", page)
    write_page(tmp_path / "out.html", page + " ")
    assert (tmp_path / "out.html").read_text() == page + " "
    (tmp_path / "mine.html").write_text("<html>mine</html>")
    for path, sentence in ((tmp_path / "mine.html", "did not make"), (tmp_path / "run", "is a folder")):
        with pytest.raises(BadConfig, match=sentence):
            write_page(path, page)
    assert (tmp_path / "mine.html").read_text() == "<html>mine</html>"
    with pytest.raises(BadRun, match="cannot be written"):
        write_page(tmp_path / "none" / "out.html", page)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "out.html", "run"]
