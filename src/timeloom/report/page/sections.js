// The page: which sections there are, and what stands in each.
const RUNS = DATA.runs, MANY = RUNS.length > 1;
const title = (run, text) => MANY ? `${text}: ${run.label}` : text;
const having = (test) => RUNS.map((run, index) => ({ run, index })).filter(({ run }) => test(run));
const main = el("main"), links = el("div", { class: "inner" });

function section(id, name, hint, ...children) {
  main.append(el("section", { id }, el("h2", { text: name }), hint ? el("p", { class: "hint", text: hint }) : null, ...children));
  links.append(el("a", { href: "#" + id, text: name }));
}
const grid = (nodes) => nodes.length ? el("div", { class: nodes.length > 1 ? "side" : "wide" }, ...nodes) : null;

function tableOf(header, rows, options = {}) {
  return el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...header.map((text, at) => el("th", { text, class: options.left && options.left.includes(at) ? "left" : null })))),
    el("tbody", {}, ...rows.map((row) => el("tr", { class: row.model ? "model" : null }, ...row.cells.map((cell, at) => el("td", { text: cell, class: [at === 0 || (options.wrap && options.wrap.includes(at)) ? "wrap" : "", options.left && options.left.includes(at) ? "left" : "", row.best && row.best.includes(at) ? "best" : ""].join(" ").trim() || null })))))));
}

function head() {
  const first = RUNS[0], states = RUNS.map((run) => el("span", { class: "pill " + run.state, text: run.state + (run.reason ? ` (${run.reason})` : "") }));
  const fact = (label, value) => value ? el("span", {}, label + " ", el("b", { text: value })) : null;
  const about = MANY ? [el("span", { text: RUNS.map((run) => run.name).join(", ") })] : [states[0], fact("model", first.model), fact("graph", first.graph), fact("task", first.task), fact("system", first.system)];
  const buttons = el("div", { class: "tools" }, themeButton);
  if (DATA.every_s > 0) buttons.prepend(watchButton());
  document.body.append(el("header", {}, el("div", { class: "inner" }, el("div", { class: "top" }, el("h1", { text: MANY ? `${RUNS.length} runs side by side` : first.name }), buttons), el("div", { class: "about" }, ...about))));
}
// A page of a run that goes on loads itself again, unless it is told to hold still.
function watchButton() {
  let on = true;
  const button = el("button", { type: "button", "aria-pressed": "true", text: `live: every ${DATA.every_s} s`, onclick: () => { on = !on; button.setAttribute("aria-pressed", String(on)); } });
  setInterval(() => { if (on) location.reload(); }, DATA.every_s * 1000);
  return button;
}

function card(one) {
  const kind = one.unit === "score" ? " main" : "";
  const good = one.good === true ? " good" : one.good === false ? " bad" : "";
  return el("div", { class: "card" + kind + good }, el("div", { class: "label", text: one.label }), el("div", { class: "value", text: write(one.unit, one.value) }), el("div", { class: "note", text: one.note }));
}
// One table: the runs, then every baseline that any of them stands beside.
function scores() {
  const chosen = having((run) => run.scores);
  if (!chosen.length) return null;
  const names = [], less = [], rows = [], seen = new Set();
  for (const { run } of chosen) run.scores.names.forEach((name, at) => { if (!names.includes(name)) { names.push(name); less.push(run.scores.less[at]); } });
  const spread = (table, values) => names.map((name) => { const at = table.names.indexOf(name); return at < 0 ? null : values[at]; });
  for (const { run } of chosen) for (const row of run.scores.rows) {
    const values = spread(run.scores, row.values), key = row.who + JSON.stringify(values);
    if (row.model) rows.splice(rows.filter((one) => one.model).length, 0, { model: true, who: MANY ? run.label : "model", values });
    else if (!seen.has(key)) { seen.add(key); rows.push({ model: false, who: row.who, values }); }
  }
  const best = names.map((_, at) => { const values = rows.map((row) => row.values[at]).filter((value) => !missing(value)); return less[at] ? Math.min(...values) : Math.max(...values); });
  return panel("Test scores beside baselines that learn nothing", [], tableOf(["", ...names.map((name, at) => name + (less[at] ? " ↓" : " ↑"))],
    rows.map((row) => ({ model: row.model, cells: [row.who, ...row.values.map((value) => write("score", value))], best: row.values.map((value, at) => value === best[at] ? at + 1 : -1) }))));
}
function summary() {
  const nodes = [];
  if (DATA.comparison) {
    nodes.push(el("div", { class: "sheet" }, tableOf(DATA.comparison.header, DATA.comparison.rows.map((cells) => ({ cells })))));
    for (const note of DATA.comparison.notes) nodes.push(el("p", { class: "missing", style: "margin:6px 2px", text: note }));
  }
  for (const [index, run] of RUNS.entries()) {
    if (MANY) nodes.push(el("div", { class: "about", style: "margin-top:16px" }, el("i", { class: "key", style: "background:" + runColor(index) }), el("b", { text: run.label }), el("span", { class: "pill " + run.state, text: run.state }), el("span", { text: [run.name, run.model, run.graph, run.task].filter((text) => text && text !== run.label).join(" · ") })));
    nodes.push(el("div", { class: "cards" }, ...run.cards.map(card)));
    for (const sentence of run.warnings) nodes.push(el("p", { class: "warning", text: sentence }));
  }
  const table = scores();
  if (table) nodes.push(MANY ? el("div", { style: "margin-top:16px" }, table) : table);
  section("summary", "Summary", null, ...nodes);
}

function curvesOf(key, options) {
  const chosen = having((run) => run.epochs.epoch.length && run.epochs[key]);
  return (byTime) => lineChart({ ...options, xLabel: byTime ? "training time" : "epoch", xUnit: byTime ? "seconds" : null,
    series: chosen.map(({ run, index }) => ({ name: MANY ? run.label : options.short, color: runColor(index), x: byTime ? run.epochs.at : run.epochs.epoch, y: run.epochs[key], mark: byTime || key !== "loss" ? undefined : run.best_epoch })) });
}
function metricChart(split, metric) {
  const chosen = having((run) => run.curves.some((curve) => curve.split === split && curve.metric === metric));
  const curve = (run) => run.curves.find((one) => one.split === split && one.metric === metric);
  const baselines = new Map();
  for (const { run } of chosen) for (const [who, value] of Object.entries(curve(run).baselines)) if (!missing(value)) baselines.set(who + value, { name: who, y: value });
  return (byTime) => lineChart({ name: `${split} ${metric}`, log: true, xLabel: byTime ? "training time" : "epoch", xUnit: byTime ? "seconds" : null, baselines: [...baselines.values()],
    series: chosen.map(({ run, index }) => ({ name: MANY ? run.label : metric, color: runColor(index), x: byTime ? curve(run).at : curve(run).epoch, y: curve(run).value, mark: byTime ? undefined : run.best_epoch })) });
}
function switched(name, make) {
  const place = el("div"), tools = el("div", { class: "tools" });
  let byTime = false;
  const buttons = choice(["by epoch", "by time"], 0, (at) => { byTime = at === 1; show(); });
  function show() { const chart = make(byTime); place.replaceChildren(chart.node); tools.replaceChildren(...buttons, ...chart.tools); }
  show();
  return el("div", { class: "sheet" }, el("div", { class: "head" }, el("h3", { text: name }), tools), place);
}
function learning() {
  const nodes = [];
  if (RUNS.some((run) => run.epochs.epoch.length)) nodes.push(switched("Loss of each epoch", curvesOf("loss", { name: "loss", short: "loss", log: true })));
  const metrics = [...new Set(RUNS.flatMap((run) => run.curves.map((curve) => curve.split + "\n" + curve.metric)))];
  metrics.sort((a, b) => Number(RUNS.some((run) => b.endsWith("\n" + run.metric))) - Number(RUNS.some((run) => a.endsWith("\n" + run.metric))));
  if (metrics.length) {
    const place = el("div");
    const pick = el("select", { "aria-label": "which metric" }, ...metrics.map((key, at) => el("option", { value: at, text: key.replace("\n", " ") })));
    const show = () => { const [split, metric] = metrics[Number(pick.value)].split("\n"); const made = switched(`${split} ${metric}`, metricChart(split, metric)); if (metrics.length > 1) made.querySelector("h3").replaceChildren(pick); place.replaceChildren(made); };
    pick.addEventListener("change", show);
    show();
    nodes.push(place);
  }
  const small = [];
  for (const [key, name, unit] of [["loss", "Loss of each step", "plain"], ["grad_norm", "Norm of the gradient", "plain"], ["seconds", "Time of each step", "seconds"]]) {
    const chosen = having((run) => run.steps && run.steps[key].x.length);
    if (!chosen.length) continue;
    const chart = lineChart({ name: name.toLowerCase(), height: 180, log: key === "seconds" ? "wide" : true, yUnit: unit, xLabel: "step", series: chosen.map(({ run, index }) => ({ name: MANY ? run.label : name.toLowerCase(), color: runColor(index), x: run.steps[key].x, y: run.steps[key].y })) });
    small.push(panel(name, chart.tools, chart.node));
  }
  for (const [key, name, unit] of [["seconds", "Time of each epoch", "seconds"], ["edges_per_second", "Edges per second", "count"], ["rate", "Learning rate", "plain"]]) {
    const chart = curvesOf(key, { name: name.toLowerCase(), short: name.toLowerCase(), height: 180, yUnit: unit, zero: true, log: key === "seconds" ? "wide" : false })(false);
    small.push(panel(name, chart.tools, chart.node));
  }
  const deviated = having((run) => run.deviations.length);
  if (deviated.length) {
    const series = deviated.flatMap(({ run, index }) => run.deviations.map((one, at) => ({ name: MANY ? `${run.label}: ${one.what}` : one.what, color: runColor(index + at), x: one.x, y: one.y })));
    const chart = lineChart({ name: "deviation", height: 180, log: true, xLabel: "epoch", yUnit: "share", legend: true, series });
    small.push(panel("Deviation from exact rows", chart.tools, chart.node));
  }
  if (nodes.length) section("learning", "Learning", "Point at a curve for its values; drag over a stretch to look closer, double click to come back. Dashed lines are baselines that learn nothing; a ring marks the best epoch.", grid(nodes), el("div", { class: "side" }, ...small));
}

function ranksSection() {
  const chosen = having((run) => run.time);
  if (!chosen.length) return;
  const parts = DATA.phases.map((name, at) => ({ name, color: phaseColor(at) }));
  const balance = chosen.filter(({ run }) => run.imbalance).flatMap(({ run, index }) => {
    const { x, y, most, mean, idle, steps } = run.imbalance;
    const ratio = lineChart({ name: "imbalance of " + run.label, height: 190, xLabel: "step", yUnit: "ratio", log: true, series: [{ name: "most / least", color: runColor(index), x, y }] });
    const load = lineChart({ name: "load of " + run.label, height: 190, xLabel: "step", yUnit: "seconds", zero: true, log: "wide", series: [{ name: "busiest rank", color: "var(--run-1)", x, y: most }, { name: "mean", color: "var(--run-0)", x, y: mean }] });
    const note = "The longest time of computing over the shortest" + (idle ? `; in ${idle} of ${steps} steps a rank had nothing to do` : "") + ".";
    return [panel(title(run, "Imbalance of each step"), ratio.tools, ratio.node, el("p", { class: "hint under", text: note })), panel(title(run, "Computing time of each step"), load.tools, load.node)];
  });
  const went = chosen.map(({ run }) => panel(title(run, "Where the time went"), [], lyingBars({ name: "time of " + run.label, unit: "seconds", parts, rows: run.time.ranks.map((rank, at) => ({ label: "rank " + rank, values: run.time.seconds[at] })) })));
  const busy = el("p", { class: "hint under", text: "Utilisation: the stronger the colour, the larger the share of the time in which a rank computed or loaded, rather than waited or exchanged; on the right its mean. Blank is time of which nothing was recorded." });
  const some = chosen.filter(({ run }) => run.time.steps < run.time.of).map(({ run }) => `${MANY ? run.label + ": " : ""}${run.time.steps} of ${run.time.of} steps were recorded`);
  const twice = el("p", { class: "hint under", text: (some.length ? some.join("; ") + ". " : "") + "Where the time went: what a rank did at the same time counts twice, such as an exchange behind a computation. The first step, in which kernels are compiled, is left out." });
  section("ranks", "Ranks", "All ranks on one clock. Drag to pan; zoom with + and −, with the keys + − ← →, with ctrl and the wheel, or with two fingers.",
    el("div", { class: "wide" }, ...chosen.map(({ run }) => timeline(run))), el("div", { class: chosen.length > 1 ? "side" : "wide" }, ...chosen.map(({ run }) => heatMap(run))), busy,
    grid(went), twice, balance.length ? el("div", { class: "side" }, ...balance) : null);
}

function trafficSection() {
  const chosen = having((run) => run.traffic);
  if (!chosen.length) return;
  const nodes = [];
  for (const { run } of chosen) {
    const { kinds, epoch, sent, totals } = run.traffic;
    const parts = kinds.map((name, at) => ({ name, color: runColor(at), values: sent.map((row) => row[at]) }));
    nodes.push(panel(title(run, "Sent in each epoch, all ranks"), [], stackedBars({ x: epoch, parts, xLabel: "epoch", unit: "bytes", name: "bytes of " + run.label })));
    nodes.push(panel(title(run, "By kind, all epochs and ranks"), [], tableOf(["", "calls", "sent", "received", "waited"], totals.map((one) => ({ cells: [one.kind, write("count", one.calls), write("bytes", one.sent), write("bytes", one.received), write("seconds", one.waited)] })))));
  }
  section("traffic", "Traffic", "What must leave and reach each rank, by the purpose of the collective.", el("div", { class: "side" }, ...nodes));
}
function memorySection() {
  const chosen = having((run) => run.memory);
  if (!chosen.length) return;
  section("memory", "Memory", "The most that each rank's process had held by the end of each epoch.", grid(chosen.flatMap(({ run }) => [["Peak memory", run.memory.peak], ["Peak memory of the GPU", run.memory.device]].filter(([, rows]) => rows).map(([name, rows]) => {
    const { epoch, ranks } = run.memory, few = ranks.length <= 8;
    const column = (pick) => epoch.map((_, at) => pick(rows.map((row) => row[at]).filter((value) => !missing(value))));
    const series = few ? ranks.map((rank, at) => ({ name: "rank " + rank, color: runColor(at), x: epoch, y: rows[at] })) : [["most", Math.max, 1], ["least", Math.min, 0]].map(([label, pick, color]) => ({ name: label + " of all ranks", color: runColor(color), x: epoch, y: column((values) => pick(...values)) }));
    const chart = lineChart({ name: name.toLowerCase() + " of " + run.label, height: 200, xLabel: "epoch", yUnit: "bytes", zero: true, series, legend: true });
    return panel(title(run, name), chart.tools, chart.node);
  }))));
}
function scheduleSection() {
  const chosen = having((run) => run.schedule);
  if (!chosen.length) return;
  const nodes = chosen.map(({ run }) => schedulePicture(run));
  const truths = chosen.filter(({ run }) => run.schedule.truth).map(({ run, index }) => panel(title(run, "Predicted and measured time of each rank's step"), [], scatter({ x: run.schedule.truth.predicted, y: run.schedule.truth.truth, xLabel: "predicted", yLabel: "measured", unit: "seconds", color: runColor(index), name: "times of " + run.label })));
  section("schedule", "Schedule", null, el("div", { class: "wide" }, ...nodes), truths.length ? el("div", { class: "half" }, ...truths) : null);
}
function graphSection() {
  const seen = new Set(), nodes = [];
  for (const run of RUNS) for (const facts of run.facts) {
    if (seen.has(facts.graph + facts.snapshots)) continue;
    seen.add(facts.graph + facts.snapshots);
    const bands = [{ from: 0, to: facts.train_stop, name: "train" }, { from: facts.train_stop, to: facts.val_stop, name: "val", shade: true }, { from: facts.val_stop, to: facts.test_stop, name: "test" }];
    const sizes = lineChart({ name: "sizes of " + facts.graph, xLabel: "snapshot", yUnit: "count", zero: true, bands, height: 220, series: [{ name: "edges", color: runColor(0), x: facts.t, y: facts.edges }, { name: "nodes with an edge", color: runColor(1), x: facts.t, y: facts.active }] });
    const overlap = lineChart({ name: "overlap of " + facts.graph, xLabel: "snapshot", yUnit: "share", bands, height: 220, series: [{ name: "overlap", color: runColor(2), x: facts.t, y: facts.overlap }] });
    nodes.push(panel(`${facts.graph}: size of each snapshot`, sizes.tools, sizes.node), panel(`${facts.graph}: overlap with the snapshot before`, overlap.tools, overlap.node));
  }
  if (nodes.length) section("graph", "Graph", "Overlap is the share of the edges of two consecutive snapshots that are in both.", el("div", { class: "side" }, ...nodes));
}
function pointsOf(one, name, index) {
  return [scatter({ x: one.truth, y: one.predicted, xLabel: "truth", yLabel: "predicted", unit: "plain", color: runColor(index), name }), el("p", { class: "hint", text: "On the dashed line a prediction is right." })];
}
function sharesOf(one, name) {
  const parts = one.names.map((label, at) => ({ name: label, color: at ? runColor(0) : "var(--other)", values: one.counts[at] }));
  return [stackedBars({ x: one.from, parts, xLabel: "predicted probability from", unit: "count", name }), el("p", { class: "hint", text: "The better the model, the further apart the two colours lie." })];
}
// A row for each true class: the darker a cell, the larger its share of the row.
function confusionOf(one, name) {
  const cell = (count, sum, right) => el("td", { text: count ? write("count", count) : "·", class: right ? "right" : null, style: `background:color-mix(in srgb, var(${right ? "--good" : "--bad"}) ${sum ? Math.round(34 * count / sum) : 0}%, transparent)` });
  const rows = one.counts.map((row, at) => { const sum = row.reduce((a, b) => a + b, 0); return el("tr", {}, el("th", { text: one.names[at] }), ...row.map((count, place) => cell(count, sum, place === at)), el("td", { text: sum ? write("share", row[at] / sum) : "–" })); });
  const head = el("tr", {}, el("th", { text: "true ↓ predicted →" }), ...one.names.map((label) => el("th", { text: label })), el("th", { text: "right" }));
  return [el("div", { class: "scroll" }, el("table", { class: "confusion", "data-chart": name, "aria-label": name }, el("thead", {}, head), el("tbody", {}, ...rows)))];
}
function predictionSection() {
  const draw = { value: pointsOf, class: confusionOf, probability: sharesOf };
  const nodes = having((run) => run.predicted.length).flatMap(({ run, index }) => run.predicted.map((one) => panel(title(run, `${one.what}, ${one.split}: a sample of ${write("count", one.count)}`), [], ...draw[one.form](one, `predictions of ${run.label}, ${one.split}`, index))));
  if (nodes.length) section("predictions", "Predictions and truth", "A sample, the same for every system and number of ranks, drawn without a look at how good it is.", el("div", { class: "half" }, ...nodes));
}

function copyButton(text) {
  const button = el("button", { type: "button", text: "copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); } catch {
      const area = el("textarea", { style: "position:fixed;opacity:0" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1200);
  } });
  return button;
}
function settingsSection() {
  const nodes = [];
  if (DATA.differences.length) nodes.push(panel("In which settings the runs differ", [], tableOf(["setting", ...RUNS.map((run) => run.name)], DATA.differences.map((one) => ({ cells: [one.key, ...one.values] })), { left: RUNS.map((_, at) => at + 1) })));
  for (const run of RUNS) {
    nodes.push(panel(title(run, "How to run it again"), [], ...run.commands.map(([command, what]) => el("div", { class: "command" }, el("div", {}, el("code", { text: command }), el("p", { text: what })), copyButton(command)))));
    const pair = [panel(title(run, "Configuration (config.toml)"), [copyButton(run.config)], el("pre", { text: run.config }))];
    if (run.derived.length) pair.push(panel(title(run, "What followed from it"), [], tableOf(["", ""], run.derived.map((cells) => ({ cells })), { left: [1], wrap: [1] })));
    nodes.push(el("div", { class: "side", style: "margin:0" }, ...pair));
  }
  section("settings", "Settings", null, el("div", { class: "wide" }, ...nodes));
}
// What a page does not show, it says.
function absent() {
  const wanted = [["time", "what each rank did"], ["traffic", "traffic and memory"], ["schedule", "a schedule"], ["steps", "single steps (train.log_steps)"]];
  const gone = wanted.filter(([key]) => !RUNS.some((run) => run[key])).map(([, name]) => name);
  if (!RUNS.some((run) => run.facts.length)) gone.push("the graph's sizes");
  return gone.length ? `Not recorded, so not shown: ${gone.join(", ")}. ` : "";
}

head();
document.body.append(el("nav", { "aria-label": "sections" }, links));
for (const make of [summary, learning, ranksSection, trafficSection, memorySection, scheduleSection, graphSection, predictionSection, settingsSection]) make();
main.append(el("footer", { text: `${absent()}Made by timeloom ${DATA.version} on ${DATA.made}. This file needs no network.` }));
document.body.append(main, tip);
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) links.querySelectorAll("a").forEach((link) => link.classList.toggle("here", link.getAttribute("href") === "#" + entry.target.id));
}, { rootMargin: "-20% 0px -70% 0px" });
main.querySelectorAll("section").forEach((one) => observer.observe(one));
document.documentElement.dataset.ready = "yes";
