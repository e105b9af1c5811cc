// Who did what when: rows of blocks along time, to pan and to zoom; and how busy everybody was.
// rows: {label, lanes, blocks: [{start, seconds, lane, color, text, title, rows}]}; marks: {at, text}.
function lanesView(options) {
  const { rows, marks, seconds, name, unitless } = options;
  const pad = { left: 62, right: 8, top: 20, bottom: 22 };
  const most = Math.max(...rows.map((row) => row.lanes));
  const tall = Math.max(most * 9, rows.length > 16 ? 14 : rows.length > 8 ? 22 : rows.length > 4 || most === 1 ? 28 : 38);
  const height = pad.top + pad.bottom + rows.length * (tall + 5);
  let view = [0, seconds], width = 600, held = null;
  const canvas = svg("svg", { class: "lanes", role: "img", tabindex: "0", "aria-label": name, "data-lanes": name });
  const shown = (value) => unitless ? digits(value, 3) : write("seconds", value);

  function set(from, to) {
    const size = Math.max(seconds * 1e-4, Math.min(seconds, to - from));
    const start = Math.max(0, Math.min(seconds - size, from));
    view = [start, start + size];
    draw();
  }
  function zoom(factor, middle) {
    const centre = middle === undefined ? (view[0] + view[1]) / 2 : middle;
    set(centre - (centre - view[0]) * factor, centre + (view[1] - centre) * factor);
  }
  function draw() {
    const inner = width - pad.left - pad.right;
    const px = (value) => pad.left + (value - view[0]) / (view[1] - view[0]) * inner;
    fill(canvas, { viewBox: `0 0 ${width} ${height}`, height });
    canvas.dataset.view = view.join(",");
    canvas.replaceChildren();
    const clip = "clip-" + lineChart.count++;
    canvas.append(svg("clipPath", { id: clip }, svg("rect", { x: pad.left, y: 0, width: inner, height })));
    for (const value of ticks(view[0], view[1], Math.max(2, Math.floor(inner / 90)))) {
      canvas.append(svg("line", { class: "grid", x1: px(value), x2: px(value), y1: pad.top, y2: height - pad.bottom }), svg("text", { x: px(value), y: height - 6, "text-anchor": "middle", text: shown(value) }));
    }
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    let free = -Infinity;
    for (const mark of marks) {
      const x = px(mark.at);
      if (x < pad.left - 0.5 || x > width) continue;
      inside.append(svg("line", { class: "cross", x1: x, x2: x, y1: pad.top - 4, y2: height - pad.bottom }));
      if (x > free) { inside.append(svg("text", { x: x + 3, y: pad.top - 7, text: mark.text })); free = x + mark.text.length * 6.5 + 10; }
    }
    rows.forEach((row, at) => {
      const y = pad.top + at * (tall + 5) + 2, each = tall / row.lanes;
      canvas.append(svg("text", { x: pad.left - 8, y: y + tall / 2 + 4, "text-anchor": "end", text: row.label }));
      for (const block of row.blocks) {
        if (block.start + block.seconds < view[0] || block.start > view[1]) continue;
        const x = px(block.start), size = Math.max(0.4, px(block.start + block.seconds) - x);
        inside.append(svg("rect", { class: "block", x, y: y + block.lane * each, width: size, height: Math.max(1, each - (row.lanes > 1 ? 1 : 0)), rx: size > 6 ? 2 : 0, style: `fill:${block.color}` + (block.opacity ? `;fill-opacity:${block.opacity}` : ""),
          onpointermove: (event) => { if (held === null) showTip(event, block.title, block.rows); }, onpointerleave: hideTip }));
        const from = Math.max(x, pad.left), room = Math.min(x + size, width - pad.right) - from;
        if (block.text && room > block.text.length * 6.4 + 6 && each > 12) inside.append(svg("text", { x: from + room / 2, y: y + block.lane * each + each / 2 + 4, "text-anchor": "middle", style: "pointer-events:none;fill:" + (block.ink || "var(--ink)"), text: block.text }));
      }
    });
    canvas.append(inside);
  }
  const toTime = (event) => { const box = canvas.getBoundingClientRect(); return view[0] + ((event.clientX - box.left) * width / box.width - pad.left) / (width - pad.left - pad.right) * (view[1] - view[0]); };
  const fingers = new Map();
  let spread = null;
  fill(canvas, {
    onpointerdown: (event) => {
      fingers.set(event.pointerId, event.clientX);
      canvas.setPointerCapture(event.pointerId);
      held = { x: event.clientX, view: [...view] };
      canvas.classList.add("held");
      if (fingers.size === 2) { const [a, b] = [...fingers.values()]; spread = { size: Math.abs(a - b) || 1, view: [...view] }; }
    },
    onpointermove: (event) => {
      if (!fingers.has(event.pointerId)) return;
      fingers.set(event.pointerId, event.clientX);
      if (fingers.size === 2 && spread) {
        const [a, b] = [...fingers.values()], factor = spread.size / (Math.abs(a - b) || 1), middle = (spread.view[0] + spread.view[1]) / 2;
        set(middle - (middle - spread.view[0]) * factor, middle + (spread.view[1] - middle) * factor);
      } else if (Math.abs(event.clientX - held.x) > 2) {
        hideTip();
        const by = (held.x - event.clientX) / (canvas.getBoundingClientRect().width - pad.left - pad.right) * (held.view[1] - held.view[0]);
        set(held.view[0] + by, held.view[1] + by);
      }
    },
    onpointerup: (event) => { fingers.delete(event.pointerId); held = null; spread = null; canvas.classList.remove("held"); },
    onpointercancel: (event) => { fingers.delete(event.pointerId); held = null; spread = null; canvas.classList.remove("held"); },
    onpointerleave: hideTip,
    ondblclick: (event) => zoom(0.4, toTime(event)),
    onkeydown: (event) => {
      const size = view[1] - view[0];
      const acts = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => set(view[0] - size / 5, view[1] - size / 5), ArrowRight: () => set(view[0] + size / 5, view[1] + size / 5), Escape: () => set(0, seconds) };
      if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
    },
  });
  // With ctrl (or a pinch on a touchpad) the wheel zooms; else the page scrolls as always.
  canvas.addEventListener("wheel", (event) => {
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.ctrlKey) { event.preventDefault(); const by = event.deltaX / width * (view[1] - view[0]); set(view[0] + by, view[1] + by); }
    else if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(event.deltaY * 0.004), toTime(event)); }
  }, { passive: false });
  onWidth(canvas, (now) => { width = now; draw(); });
  const tools = [["+", "zoom in", () => zoom(0.5)], ["−", "zoom out", () => zoom(2)], ["all", "show all", () => set(0, seconds)]].map(([text, label, act]) => el("button", { type: "button", text, title: label, "aria-label": label, onclick: act }));
  return { node: canvas, tools };
}

function timeline(run) {
  const choose = el("select", { "aria-label": "which steps" }, ...run.timeline.map((one, at) => el("option", { value: at, text: `steps ${one.first}–${one.last}, epoch ${one.epoch}` })));
  const place = el("div"), tools = el("div", { class: "tools" });
  function show(at) {
    const one = run.timeline[at], starts = new Map();
    const rows = one.rows.map((row) => ({
      label: "rank " + row.rank, lanes: row.lanes,
      blocks: row.spans.map(([phase, lane, start, seconds, step]) => {
        starts.set(step, Math.min(starts.has(step) ? starts.get(step) : Infinity, start));
        return { start, seconds, lane, color: phaseColor(phase), text: DATA.phases[phase], ink: phase === 5 ? "var(--soft)" : phase === 2 || phase === 0 ? "#16191d" : "#fff", title: `rank ${row.rank}, step ${step}`,
          rows: [{ color: phaseColor(phase), label: DATA.phases[phase], value: write("seconds", seconds) }, { label: "from", value: write("seconds", one.origin + start) }] };
      }),
    }));
    const view = lanesView({ rows, marks: [...starts].map(([step, at]) => ({ at, text: "step " + step })), seconds: one.seconds, name: "timeline of " + run.label });
    place.replaceChildren(view.node);
    tools.replaceChildren(...(run.timeline.length > 1 ? [choose] : []), ...view.tools);
  }
  choose.addEventListener("change", () => show(Number(choose.value)));
  // The first steps compile; the middle of a run is what it is like.
  choose.value = String(Math.floor(run.timeline.length / 2));
  show(Number(choose.value));
  return el("div", { class: "sheet" }, el("div", { class: "head" }, el("h3", { text: title(run, "What each rank did") }), tools), place, keys(DATA.phases.map((phase, at) => ({ name: phase, color: phaseColor(at) }))));
}

// Newer to later snapshots by hue, so that neighbours in time look alike.
function schedulePicture(run) {
  const plan = run.schedule, ranks = plan.ranks, known = plan.units.every((unit) => !missing(unit[4]));
  const length = (unit) => known ? unit[4] : 1;
  const last = Math.max(...plan.units.map((unit) => unit[3]), 1), first = Math.min(...plan.units.map((unit) => unit[2]), 0);
  const rows = ranks.map((rank) => ({ label: "rank " + rank, lanes: 1, blocks: [] })), marks = [];
  let now = 0;
  for (const step of [...new Set(plan.units.map((unit) => unit[0]))].sort((a, b) => a - b)) {
    marks.push({ at: now, text: "step " + step });
    const ends = ranks.map(() => now);
    for (const unit of plan.units.filter((one) => one[0] === step)) {
      const at = ranks.indexOf(unit[1]), share = (unit[2] - first) / Math.max(1, last - first);
      const name = unit[3] - unit[2] > 1 ? `${unit[2]}–${unit[3] - 1}` : String(unit[2]);
      rows[at].blocks.push({ start: ends[at], seconds: length(unit), lane: 0, color: `hsl(${Math.round(215 - 175 * share)} 58% 64%)`, text: name, ink: "#16191d", title: `rank ${unit[1]}, step ${step}`,
        rows: [{ label: "snapshots", value: name }, { label: "predicted", value: write("seconds", unit[4]) }] });
      ends[at] += length(unit);
    }
    now = Math.max(...ends);
  }
  const view = lanesView({ rows, marks, seconds: now || 1, name: "schedule of " + run.label, unitless: !known });
  const note = (known ? "A block is as long as predicted" : "No times were predicted: every block is one long") + `; blank is waiting for the step's slowest rank. Numbers and hues are snapshots. Found by: ${plan.by}.` + (plan.left_out ? ` ${plan.left_out} later units are left out.` : "");
  return panel(title(run, `Schedule from epoch ${plan.epoch} on`), view.tools, view.node, el("p", { class: "hint under", text: note }));
}

function heatMap(run) {
  const { rows, ranks, width: each } = run.heat, bins = rows[0].length;
  const canvas = svg("svg", { class: "plot", role: "img", "aria-label": "utilisation of " + run.label, "data-chart": "utilisation of " + run.label });
  const tall = ranks.length > 24 ? 8 : ranks.length > 8 ? 14 : 22, left = 62, right = 44, height = ranks.length * (tall + 1) + 26;
  const mean = (row) => { const told = row.filter((value) => value !== null); return told.reduce((sum, value) => sum + value, 0) / Math.max(1, told.length); };
  let width = 600;
  onWidth(canvas, (now) => {
    width = now;
    const size = (width - left - right) / bins;
    fill(canvas, { viewBox: `0 0 ${width} ${height}`, height });
    canvas.replaceChildren();
    rows.forEach((row, at) => {
      const y = at * (tall + 1);
      if (tall > 9 || at % 4 === 0) canvas.append(svg("text", { x: left - 8, y: y + tall / 2 + 4, "text-anchor": "end", text: "rank " + ranks[at] }), svg("text", { x: width - right + 6, y: y + tall / 2 + 4, text: Math.round(mean(row)) + " %" }));
      row.forEach((value, bin) => {
        if (value === null) return;
        canvas.append(svg("rect", { class: "band", x: left + bin * size, y, width: size + 0.3, height: tall }));
        if (value > 0) canvas.append(svg("rect", { class: "cell", x: left + bin * size, y, width: size + 0.3, height: tall, style: `fill:var(--busy);fill-opacity:${(value / 100).toFixed(2)}` }));
      });
    });
    for (const value of ticks(0, bins * each, Math.max(2, Math.floor(width / 110)))) canvas.append(svg("text", { x: left + value / each * size, y: height - 6, "text-anchor": "middle", text: write("seconds", value) }));
  });
  fill(canvas, {
    onpointermove: (event) => {
      const box = canvas.getBoundingClientRect(), bin = Math.floor(((event.clientX - box.left) * width / box.width - left) / ((width - left - right) / bins)), at = Math.floor((event.clientY - box.top) / (tall + 1));
      if (bin < 0 || bin >= bins || at < 0 || at >= rows.length) return hideTip();
      showTip(event, `rank ${ranks[at]}`, [{ label: `${write("seconds", bin * each)} to ${write("seconds", (bin + 1) * each)}`, value: rows[at][bin] === null ? "not recorded" : rows[at][bin] + " % busy" }]);
    },
    onpointerleave: hideTip,
  });
  return panel(title(run, "Utilisation"), [], canvas);
}
