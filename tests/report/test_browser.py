"""In a real browser the page asks nobody for anything, complains of nothing, and answers to hand and eye."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import timeloom
from tests.damaged import write_records
from tests.report.browser import Browser, browsing, needs_browser
from tests.report.fake import Fake
from tests.report.test_page import EVIL, evil_run
from timeloom.records import RunDirectory, as_json, read
from timeloom.report.content import content_of
from timeloom.report.html import page_of
from timeloom.report.log import read_log

pytestmark = needs_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this file."""
    with browsing() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages of one run and of three."""
    folder = tmp_path_factory.mktemp("pages")
    logs = [
        read_log(Fake(epochs=12).make(folder / "two")),
        read_log(Fake(ranks=4, system="flare", predicts="class").make(folder / "four")),
        read_log(Fake(spans=False, ranks=1, system="psg", predicts="probability").make(folder / "plain")),
    ]
    found = {"one": logs[:1], "three": logs}
    for name, shown in found.items():
        (folder / f"{name}.html").write_text(page_of(content_of(shown)))
    return {name: folder / f"{name}.html" for name in found}


@pytest.mark.parametrize("name", ["one", "three"])
@pytest.mark.parametrize("width", [1240, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_a_page_opens_without_an_error_or_a_request(
    browser: Browser, pages: dict[str, Path], name: str, width: int, dark: bool
) -> None:
    browser.errors(), browser.requests()
    browser.open(pages[name], width=width, dark=dark)
    sections = browser.do("[...document.querySelectorAll('section')].map(one => one.id)")
    assert sections == [
        "summary", "learning", "ranks", "traffic", "memory", "schedule", "graph", "predictions", "settings",
    ]  # fmt: skip
    assert browser.errors() == []
    assert browser.requests() == []


def test_an_error_and_a_request_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    page = "<html data-ready=yes><svg><path /></svg><img src='http://127.0.0.1:9/x.png'><script>nothing.here</script></html>"
    (tmp_path / "bad.html").write_text(page)
    browser.errors(), browser.requests()
    browser.open(tmp_path / "bad.html")
    browser.wait("document.readyState === 'complete'")
    assert browser.requests() == ["http://127.0.0.1:9/x.png"]
    assert any("nothing is not defined" in error for error in browser.errors())


def test_the_policy_stops_what_should_not_be_there(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    slipped = "<img src='http://127.0.0.1:9/x.png' onerror='window.hacked=1'><script>window.hacked=1</script></body>"
    (tmp_path / "slipped.html").write_text(pages["one"].read_text().replace("</body>", slipped))
    browser.open(tmp_path / "slipped.html")
    assert browser.do("window.hacked === undefined")
    assert any("Content Security Policy" in error for error in browser.errors())
    browser.requests()


def test_what_a_run_says_is_text(browser: Browser, tmp_path: Path) -> None:
    run = evil_run(tmp_path)
    other = Fake().make(tmp_path / "other")
    for logs in ([read_log(run)], [read_log(run), read_log(other)]):
        (tmp_path / "evil.html").write_text(page_of(content_of(logs)))
        browser.errors()
        browser.open(tmp_path / "evil.html")
        assert browser.do("window.hacked === undefined")
        assert browser.errors() == []
        assert browser.do(f"document.querySelector('.warning').textContent === {json.dumps(EVIL)}")
        assert browser.do("document.querySelectorAll('img, script').length") == 2
    assert "window.hacked=1" in browser.do("document.querySelector('h2 ~ .sheet').textContent")


def test_pointing_at_a_curve_tells_its_values(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    log = read_log(pages["one"].parent / "two")
    assert browser.tip() == ""
    chart = browser.chart("loss")
    browser.move(chart, round(chart.rect["width"]) - 16, 60)
    told = browser.tip()
    assert "epoch 11" in told
    assert f"{log.epochs[-1].loss:.4f}" in told
    browser.move(chart, 54, 60)
    assert f"{log.epochs[0].loss:.3f}" in browser.tip()
    browser.move(browser.find("h1"), 5, 5)
    assert browser.tip() == ""


def test_dragging_over_a_chart_looks_closer_and_a_double_click_comes_back(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["one"])
    chart = browser.chart("loss")
    before = chart.get_attribute("data-range")
    path = "document.querySelector('[data-chart=loss] path.curve').getAttribute('d')"
    drawn = browser.do(path)
    browser.move(chart, 150, 80, drag_to=300)
    low, high = (float(end) for end in chart.get_attribute("data-range").split(","))
    assert 0 < low < high < 11
    assert browser.do(path) != drawn
    browser.double_click(chart)
    assert chart.get_attribute("data-range") == before
    assert browser.do(path) == drawn


def test_curves_can_be_shown_by_time_on_a_log_scale_and_hidden(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["three"])
    sheet = "document.querySelector('[data-chart=loss]').closest('.sheet')"
    button = "[...{}.querySelectorAll('button')].find(one => one.textContent === '{}').click()"
    assert browser.do(f"{sheet}.querySelectorAll('path.curve').length") == 3
    browser.do(button.format(sheet, "flare"))
    assert browser.do(f"{sheet}.querySelectorAll('path.curve').length") == 2
    browser.do(button.format(sheet, "log"))
    assert "0.2" in browser.do(f"{sheet}.querySelector('svg').textContent")
    browser.do(button.format(sheet, "by time"))
    browser.wait(f"{sheet}.querySelector('svg').textContent.includes('training time')")
    high = float(browser.do(f"{sheet}.querySelector('svg').dataset.range").split(",")[1])
    assert high == pytest.approx(
        sum(epoch.seconds for epoch in read_log(pages["three"].parent / "two").epochs), rel=1e-4
    )


def test_of_two_equal_curves_both_are_seen(browser: Browser, tmp_path: Path) -> None:
    logs = [read_log(Fake(seed=seed).make(tmp_path / name)) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    (tmp_path / "page.html").write_text(page_of(content_of(logs)))
    browser.open(tmp_path / "page.html")
    widths = (
        "[...document.querySelectorAll('[data-chart=loss] path.curve')].map(one => getComputedStyle(one).strokeWidth)"
    )
    assert browser.do(widths) == ["6px", "1.8px", "1.8px"]


def test_the_timeline_pans_zooms_and_tells(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    lanes = browser.chart("timeline of two")

    def view() -> tuple[float, float]:
        first, last = lanes.get_attribute("data-view").split(",")
        return float(first), float(last)

    whole = view()
    assert len(lanes.find_elements("css selector", "rect.block")) == 2 * 6 * 7
    lanes.send_keys("+")
    near = view()
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert len(lanes.find_elements("css selector", "rect.block")) < 2 * 6 * 7
    browser.move(lanes, 600, 40, drag_to=400)
    assert view()[0] > near[0]
    assert view()[1] - view()[0] == pytest.approx(near[1] - near[0])
    lanes.send_keys("-")
    assert view() == pytest.approx(whole)
    block = lanes.find_elements("css selector", "rect.block")[1]
    browser.move(block, round(block.rect["width"] / 2), round(block.rect["height"] / 2))
    assert re.search(r"rank 0, step \d+\n.*encode\n?.*ms", browser.tip(), re.DOTALL), browser.tip()
    select = browser.find("select[aria-label='which steps']")
    select.find_elements("css selector", "option")[-1].click()
    browser.wait("document.querySelector('[data-lanes]').textContent.includes('step 72')")


def test_the_wheel_zooms_with_ctrl_alone(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    wheel = (
        "(ctrl => { const lanes = document.querySelector('[data-lanes]'), before = lanes.dataset.view;"
        " const event = new WheelEvent('wheel', {deltaY: -200, ctrlKey: ctrl, cancelable: true, clientX: 600});"
        " const scrolls = lanes.dispatchEvent(event); return [scrolls, lanes.dataset.view !== before]; })"
    )
    assert browser.do(f"{wheel}(false)") == [True, False], "the page scrolls as always"
    assert browser.do(f"{wheel}(true)") == [False, True]


def test_the_heat_map_tells_how_busy_a_rank_was(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"])
    heat = browser.chart("utilisation of two")
    assert len(heat.find_elements("css selector", "rect.cell")) > 200
    browser.move(heat, 300, 30)
    assert re.search(r"rank 1\n.*to.*\n?.*% busy", browser.tip()), browser.tip()


@pytest.mark.parametrize("name", ["bytes of two", "times of two", "predictions of two, test", "time of two"])
def test_other_charts_answer_to_the_pointer_too(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages["one"])
    chart = browser.chart(name)
    # A mark of the chart: the middle of its first coloured shape or of its cloud of points.
    if "of two" in name and name.startswith(("bytes", "time of")):
        mark = chart.find_elements("css selector", "rect")[0]
        browser.move(mark, round(mark.rect["width"] / 2), round(mark.rect["height"] / 2))
        assert "halo" in browser.tip() or "load" in browser.tip()
    else:
        point = browser.do(f"document.querySelector('[data-chart=\"{name}\"] path').getAttribute('d')")
        right, down = (float(number) for number in re.findall(r"[\d.]+", point)[:2])
        browser.move(chart, round(right), round(down))
        assert "measured" in browser.tip() or "truth" in browser.tip()


def test_classes_are_shown_as_a_table_and_links_by_probability(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["three"])
    table = browser.chart("predictions of flare, test")
    assert [cell.text for cell in table.find_elements("css selector", "thead th")][1:-1] == [
        "payment", "savings & loans", "<other>",
    ]  # fmt: skip
    told = [cell.text.replace("·", "0") for cell in table.find_elements("css selector", "tbody td:not(:last-child)")]
    assert sum(map(int, told)) == 400
    bars = browser.chart("predictions of psg, test")
    mark = bars.find_elements("css selector", "rect")[0]
    browser.move(mark, round(mark.rect["width"] / 2), round(mark.rect["height"] / 2))
    assert "not linked" in browser.tip()


def pixels(browser: Browser) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("L"), np.float64)


def test_dark_is_dark_and_light_is_light(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], dark=False)
    assert pixels(browser).mean() > 225
    browser.open(pages["one"], dark=True)
    assert pixels(browser).mean() < 60
    # The button goes before the system's wish.
    browser.find("button.theme").click()
    assert browser.do("document.documentElement.dataset.theme") == "light"
    assert pixels(browser).mean() > 225
    browser.find("button.theme").click()
    browser.find("button.theme").click()
    assert browser.do("document.documentElement.dataset.theme") == "dark"


CONTRAST = """
(() => {
  const part = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = text => text.match(/[\\d.]+/g).map(Number);
  const ground = node => {
    for (let one = node; one; one = one.parentElement) {
      const color = numbers(getComputedStyle(one).backgroundColor);
      if (color.length < 4 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const texts = 'p, h1, h2, h3, td, th, .label, .value, .note, .hint, button, a, code, pre';
  const shown = [...document.querySelectorAll(texts)].filter(node => node.textContent.trim() && node.offsetParent);
  return shown.map(node => {
    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.tagName + '.' + node.className + ': ' + node.textContent.slice(0, 30)];
  }).filter(([ratio]) => ratio < 4.5);
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_from_its_ground(browser: Browser, pages: dict[str, Path], dark: bool) -> None:
    browser.open(pages["three"], dark=dark)
    assert browser.do(CONTRAST) == []


WIDE = """
[...document.querySelectorAll('body *')].filter(
  node => !node.closest('.scroll, nav, pre, .tip, svg') && node.offsetParent
    && node.getBoundingClientRect().right > innerWidth + 0.5
).map(node => node.tagName + '.' + node.className + ': ' + node.textContent.slice(0, 40))
"""
SMALL = """
[...document.querySelectorAll('main p, main td, svg text')].filter(
  node => parseFloat(getComputedStyle(node).fontSize) < 10.5
).length
"""


@pytest.mark.parametrize("name", ["one", "three"])
@pytest.mark.parametrize("width", [400, 320])
def test_on_a_phone_nothing_sticks_out(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width=width)
    assert browser.do("document.documentElement.scrollWidth") <= width
    assert browser.do(WIDE) == []
    assert browser.do(SMALL) == 0


def test_charts_follow_the_width_of_the_window(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], width=1240)
    wide = browser.chart("loss").rect["width"]
    browser.resize(700, 900)
    browser.wait(f"document.querySelector('[data-chart=loss]').getBoundingClientRect().width !== {wide}")
    browser.wait(
        "(c => c.viewBox.baseVal.width === Math.floor(c.getBoundingClientRect().width))"
        "(document.querySelector('[data-chart=loss]'))"
    )


def test_printed_it_is_light_and_has_no_buttons(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["one"], dark=True)
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.do("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.do("getComputedStyle(document.querySelector('h1')).color") == "rgb(22, 25, 29)"
    assert browser.do("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.do("getComputedStyle(document.querySelector('button.theme')).display") == "none"
    printed = browser.driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert len(printed) > 20_000


def test_a_page_of_a_run_that_goes_on_loads_itself_again_unless_held(browser: Browser, tmp_path: Path) -> None:
    run = Fake(ended=False, epochs=2).make(tmp_path / "run")
    page = tmp_path / "page.html"
    page.write_text(page_of(content_of([read_log(run)], every_s=0.5)))
    browser.open(page)
    browser.do("(window.first = true)")
    with RunDirectory.open(run) as directory:
        for record in Fake(epochs=1, seed=3).records()[3:]:
            directory.append(record)
    page.write_text(page_of(content_of([read_log(run)], every_s=0.5)))
    browser.wait("window.first === undefined && document.documentElement.dataset.ready === 'yes'")
    assert "ended" in browser.do("document.querySelector('.pill').textContent")
    button = "[...document.querySelectorAll('button')].find(one => one.textContent.startsWith('live'))"
    browser.do(f"({button}.click(), window.first = true)")
    time.sleep(1.2)
    assert browser.do("window.first === true")


def large_run(path: Path, megabytes: int) -> Path:
    """Make a run of so many megabytes of records, quickly: an epoch's lines over and over, at later times."""
    run = Fake(ranks=8, epochs=1, steps=50, ended=False).make(path)
    told = [as_json(record) for record in read(run)]
    again = [one for one in told if one["kind"] in ("spans", "stepped")]
    bodies, epoch = [json.dumps(one).encode() for one in told], 0
    size = sum(map(len, bodies))
    while size < megabytes * 1_000_000:
        epoch += 1
        moved = [{**one, "epoch": epoch, "step": one["step"] + 50 * epoch} for one in again]
        for one in moved:
            if "began" in one:
                one["began"] += 10.0 * epoch
        bodies += (more := [json.dumps(one).encode() for one in moved])
        size += sum(map(len, more))
    bodies += [json.dumps(as_json(record)).encode() for record in Fake(ranks=8, epochs=1).records()[-4:]]
    write_records(run / "records.jsonl", bodies)
    return run


@pytest.mark.parametrize(("megabytes", "made_s"), [(5, 10.0), pytest.param(100, 90.0, marks=pytest.mark.slow)])
def test_a_page_of_much_opens_in_a_moment(browser: Browser, tmp_path: Path, megabytes: int, made_s: float) -> None:
    run = large_run(tmp_path / "run", megabytes)
    assert (run / "records.jsonl").stat().st_size > megabytes * 1_000_000
    began = time.process_time()
    text = page_of(content_of([read_log(run)]))
    assert time.process_time() - began < made_s
    assert len(text) < 700_000
    (tmp_path / "page.html").write_text(text)
    began = time.monotonic()
    browser.open(tmp_path / "page.html")
    assert time.monotonic() - began < 5.0
    assert browser.errors() == []


@pytest.mark.slow
def test_the_report_of_two_real_ranks_opens_and_answers(browser: Browser, tmp_path: Path) -> None:
    graph = tmp_path / "drift"
    timeloom.synth(timeloom.Drift(num_nodes=200, num_edges=900, num_snapshots=24), graph)
    command = [sys.executable, "-m", "timeloom", "train", str(graph), "--out", str(tmp_path / "run"), "--quiet"]
    command += ["--model", "tgcn", "--task", "degree", "--system", "psg", "--workers", "2"]
    settings = ("train.epochs=6", "train.log_steps=true", "window.state=zero", "window.length=4")
    command += [word for setting in settings for word in ("--set", setting)]
    subprocess.run(command, check=True, capture_output=True)
    log = read_log(tmp_path / "run")
    assert log.ranks == [0, 1]
    (tmp_path / "page.html").write_text(page_of(content_of([log])))
    browser.errors(), browser.requests()
    browser.open(tmp_path / "page.html")
    assert {"ranks", "traffic", "memory", "graph"} <= set(
        browser.do("[...document.querySelectorAll('section')].map(one => one.id)")
    )
    lanes = browser.chart("timeline of run")
    whole = lanes.get_attribute("data-view")
    lanes.send_keys("+")
    assert lanes.get_attribute("data-view") != whole
    browser.move(browser.chart("loss"), 80, 60)
    assert "epoch" in browser.tip()
    assert browser.errors() == []
    assert browser.requests() == []
