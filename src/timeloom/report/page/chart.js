// A chart of lines: hover for values, drag to zoom in, double click to zoom out.
// series: {name, color, x: [], y: [], faint, dots}; base lines: {name, y}; bands: {from, to, name}.
function lineChart(options) {
  const { series, xLabel, yUnit, xUnit, height = 230, baselines = [], bands = [], zero = false, name } = options;
  const hidden = new Set();
  let log = false, range = null, width = 600, drag = null;
  const canvas = svg("svg", { class: "plot", role: "img", tabindex: "0", "aria-label": name, "data-chart": name });
  const back = el("button", { type: "button", text: "zoom out", style: "display:none", onclick: () => { range = null; draw(); } });
  const positive = series.some((one) => one.y.some((value) => value > 0)) && !series.some((one) => one.y.some((value) => value <= 0 && !missing(value)));
  // A first step that takes hundreds of times as long (compilation) would flatten all others.
  const sizes = series.flatMap((one) => one.y).filter((value) => !missing(value)).sort((a, b) => a - b);
  if (options.log === "wide" && positive && sizes[sizes.length - 1] > 20 * sizes[Math.floor(sizes.length / 2)]) log = true;
  const logButton = options.log && positive ? el("button", { type: "button", text: "log", "aria-pressed": String(log), onclick: () => { log = !log; logButton.setAttribute("aria-pressed", String(log)); draw(); } }) : null;
  const pad = { left: 52, right: 14, top: bands.length ? 22 : 10, bottom: 34 };
  let scale = null;

  function extent() {
    const shown = series.filter((one) => !hidden.has(one.name));
    let xs = [Infinity, -Infinity], ys = [Infinity, -Infinity];
    for (const one of shown) for (const value of one.x) if (!missing(value)) { xs[0] = Math.min(xs[0], value); xs[1] = Math.max(xs[1], value); }
    if (xs[0] > xs[1]) xs = [0, 1];
    if (xs[0] === xs[1]) xs = [xs[0] - 0.5, xs[1] + 0.5];
    if (range) xs = range;
    for (const one of shown) one.x.forEach((x, at) => {
      const y = one.y[at];
      if (!missing(y) && !missing(x) && x >= xs[0] && x <= xs[1] && !(log && y <= 0)) { ys[0] = Math.min(ys[0], y); ys[1] = Math.max(ys[1], y); }
    });
    // Far baselines would flatten the curves: they are drawn when they are near, and named in the legend always.
    const reach = (ys[1] - ys[0]) || Math.abs(ys[1]) || 1;
    for (const one of baselines) if (one.y > ys[0] - 1.2 * reach && one.y < ys[1] + 1.2 * reach && !(log && one.y <= 0)) { ys[0] = Math.min(ys[0], one.y); ys[1] = Math.max(ys[1], one.y); }
    if (ys[0] > ys[1]) ys = log ? [0.1, 1] : [0, 1];
    if (zero && !log) ys[0] = Math.min(0, ys[0]);
    if (ys[0] === ys[1]) ys = log ? [ys[0] / 2, ys[1] * 2] : [ys[0] - Math.abs(ys[0]) * 0.1 - 0.05, ys[1] + Math.abs(ys[1]) * 0.1 + 0.05];
    if (!log) { const room = (ys[1] - ys[0]) * 0.05; ys = [zero && ys[0] === 0 ? 0 : ys[0] - room, ys[1] + room]; }
    return { xs, ys };
  }

  function draw() {
    const { xs, ys } = extent();
    const forY = log ? Math.log10 : (value) => value;
    const inner = { width: width - pad.left - pad.right, height: height - pad.top - pad.bottom };
    const px = (x) => pad.left + (x - xs[0]) / (xs[1] - xs[0]) * inner.width;
    const py = (y) => pad.top + inner.height - (forY(y) - forY(ys[0])) / (forY(ys[1]) - forY(ys[0])) * inner.height;
    scale = { xs, px, py, inner, toX: (at) => xs[0] + (at - pad.left) / inner.width * (xs[1] - xs[0]) };
    fill(canvas, { viewBox: `0 0 ${width} ${height}`, height });
    canvas.replaceChildren();
    const clip = "clip-" + lineChart.count++;
    canvas.append(svg("clipPath", { id: clip }, svg("rect", { x: pad.left - 5, y: 0, width: inner.width + 10, height: height - pad.bottom + 5 })));
    for (const band of bands) {
      const from = Math.max(px(band.from), pad.left), to = Math.min(px(band.to), pad.left + inner.width);
      if (to <= from) continue;
      if (band.shade) canvas.append(svg("rect", { class: "band", x: from, y: pad.top, width: to - from, height: inner.height }));
      if (to - from > 34) canvas.append(svg("text", { x: (from + to) / 2, y: 12, "text-anchor": "middle", text: band.name }));
    }
    for (const value of log ? logTicks(ys[0], ys[1]) : ticks(ys[0], ys[1], Math.max(2, Math.floor(inner.height / 30)))) {
      canvas.append(svg("line", { class: "grid", x1: pad.left, x2: pad.left + inner.width, y1: py(value), y2: py(value) }));
      canvas.append(svg("text", { x: pad.left - 8, y: py(value) + 4, "text-anchor": "end", text: write(yUnit, value) }));
    }
    const whole = !xUnit;
    for (const value of ticks(xs[0], xs[1], Math.max(2, Math.floor(inner.width / 74)))) {
      if (whole && Math.abs(value - Math.round(value)) > 1e-9) continue;
      canvas.append(svg("text", { x: px(value), y: height - pad.bottom + 16, "text-anchor": "middle", text: write(xUnit, value) }));
    }
    canvas.append(svg("line", { class: "axis", x1: pad.left, x2: pad.left + inner.width, y1: height - pad.bottom, y2: height - pad.bottom }));
    canvas.append(svg("text", { x: pad.left + inner.width, y: height - 3, "text-anchor": "end", text: xLabel }));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    const used = [];
    for (const one of baselines) {
      const y = py(one.y);
      if (!(y >= pad.top - 1 && y <= height - pad.bottom + 1)) continue;
      inside.append(svg("line", { class: "base", x1: pad.left, x2: pad.left + inner.width, y1: y, y2: y }));
      if (used.every((other) => Math.abs(other - y) > 12)) { used.push(y); canvas.append(svg("text", { class: "halo", x: pad.left + 4, y: y - 4, text: one.name })); }
    }
    for (const one of series) if (!hidden.has(one.name)) drawCurve(inside, one, px, py);
    canvas.insertBefore(inside, null);
    back.style.display = range ? "" : "none";
    canvas.dataset.range = `${xs[0]},${xs[1]}`;
  }

  // A curve that a later one lies upon (equal runs are equal) is drawn wide, so that both are seen.
  const near = (a, b) => missing(a) ? missing(b) : !missing(b) && Math.abs(a - b) <= 1e-3 * Math.max(Math.abs(a), Math.abs(b));
  const same = (one, other) => one.y.length === other.y.length && one.y.every((value, at) => near(value, other.y[at]) && near(one.x[at], other.x[at]));
  const covered = (one) => series.slice(series.indexOf(one) + 1).some((other) => !hidden.has(other.name) && same(one, other));
  function drawCurve(into, one, px, py) {
    let path = "", pen = false, alone = [];
    one.x.forEach((x, at) => {
      const y = one.y[at];
      if (missing(y) || missing(x) || (log && y <= 0)) { pen = false; return; }
      path += (pen ? "L" : "M") + px(x).toFixed(1) + " " + py(y).toFixed(1);
      const next = one.y[at + 1];
      if (!pen && missing(next)) alone.push(at);
      pen = true;
    });
    into.append(svg("path", { class: "curve" + (one.faint ? " faint" : "") + (covered(one) ? " under" : ""), d: path, style: "stroke:" + one.color }));
    for (const at of alone) into.append(svg("circle", { cx: px(one.x[at]), cy: py(one.y[at]), r: 2.5, style: "fill:" + one.color }));
    if (one.mark !== undefined) {
      const at = one.x.indexOf(one.mark);
      if (at >= 0 && !missing(one.y[at])) into.append(svg("circle", { cx: px(one.x[at]), cy: py(one.y[at]), r: 4, style: `fill:var(--sheet);stroke:${one.color};stroke-width:2` }));
    }
  }

  const at = (event) => (event.clientX - canvas.getBoundingClientRect().left) * width / canvas.getBoundingClientRect().width;
  function nearest(one, x) {
    let best = -1, least = Infinity;
    one.x.forEach((value, place) => { if (!missing(value) && !missing(one.y[place]) && Math.abs(value - x) < least) { least = Math.abs(value - x); best = place; } });
    return best;
  }
  function hover(event) {
    const x = scale.toX(Math.max(pad.left, Math.min(width - pad.right, at(event))));
    const found = series.filter((one) => !hidden.has(one.name)).map((one) => ({ one, place: nearest(one, x) })).filter((entry) => entry.place >= 0);
    canvas.querySelectorAll(".hover").forEach((node) => node.remove());
    if (!found.length) return hideTip();
    const closest = found.reduce((a, b) => Math.abs(a.one.x[a.place] - x) <= Math.abs(b.one.x[b.place] - x) ? a : b);
    const value = closest.one.x[closest.place];
    canvas.append(svg("line", { class: "cross hover", x1: scale.px(value), x2: scale.px(value), y1: pad.top, y2: height - pad.bottom }));
    for (const { one, place } of found) canvas.append(svg("circle", { class: "hover", cx: scale.px(one.x[place]), cy: scale.py(one.y[place]), r: 3.5, style: `fill:${one.color};stroke:var(--sheet);stroke-width:1.5` }));
    showTip(event, xLabel + " " + write(xUnit, value), found.slice(0, 12).map(({ one, place }) => ({ color: one.color, label: one.name, value: write(yUnit, one.y[place]) })));
  }
  function choose(event) {
    const [from, to] = [drag, at(event)].sort((a, b) => a - b).map((value) => Math.max(pad.left, Math.min(width - pad.right, value)));
    canvas.querySelectorAll(".chosen").forEach((node) => node.remove());
    canvas.append(svg("rect", { class: "chosen", x: from, y: pad.top, width: to - from, height: height - pad.top - pad.bottom }));
    return [from, to];
  }
  fill(canvas, {
    onpointerdown: (event) => { drag = at(event); canvas.setPointerCapture(event.pointerId); },
    onpointermove: (event) => { if (drag !== null && Math.abs(at(event) - drag) > 4) choose(event); hover(event); },
    onpointerup: (event) => {
      if (drag !== null && Math.abs(at(event) - drag) > 8) { const [from, to] = choose(event); range = [scale.toX(from), scale.toX(to)]; hideTip(); draw(); }
      drag = null;
      canvas.querySelectorAll(".chosen").forEach((node) => node.remove());
    },
    onpointercancel: () => { drag = null; canvas.querySelectorAll(".chosen").forEach((node) => node.remove()); hideTip(); },
    onpointerleave: () => { canvas.querySelectorAll(".hover").forEach((node) => node.remove()); hideTip(); },
    ondblclick: () => { range = null; draw(); },
    onkeydown: (event) => {
      const { xs } = scale, size = xs[1] - xs[0], middle = (xs[0] + xs[1]) / 2;
      const moves = { "+": [middle - size / 4, middle + size / 4], "-": [middle - size, middle + size], ArrowLeft: [xs[0] - size / 5, xs[1] - size / 5], ArrowRight: [xs[0] + size / 5, xs[1] + size / 5] };
      if (event.key === "Escape") { range = null; draw(); }
      else if (moves[event.key]) { event.preventDefault(); range = moves[event.key]; draw(); }
    },
  });
  const legend = el("div", { class: "legend" });
  const names = series.filter((one, place) => series.findIndex((other) => other.name === one.name) === place);
  if (names.length > 1 || baselines.length || options.legend)
    for (const one of names) {
      const button = el("button", { type: "button", "aria-pressed": "true" }, el("i", { class: "key line", style: "background:" + one.color + (one.faint ? ";opacity:.4" : "") }), el("span", { text: one.name }));
      button.addEventListener("click", () => {
        if (hidden.has(one.name)) hidden.delete(one.name); else hidden.add(one.name);
        button.setAttribute("aria-pressed", String(!hidden.has(one.name)));
        draw();
      });
      legend.append(button);
    }
  for (const one of baselines) legend.append(el("span", {}, el("i", { class: "key dash" }), el("span", { text: `${one.name} ${write(yUnit, one.y)}` })));
  const box = el("div", {}, canvas, legend);
  onWidth(canvas, (now) => { width = now; draw(); });
  return { node: box, tools: [logButton, back].filter(Boolean) };
}
lineChart.count = 0;

// Points against the diagonal on which they would lie if all were right.
function scatter(options) {
  const { x, y, xLabel, yLabel, unit, color, name } = options;
  let height = 300;
  const canvas = svg("svg", { class: "plot square", role: "img", "aria-label": name, "data-chart": name });
  const pad = { left: 56, right: 12, top: 10, bottom: 34 };
  const pairs = x.map((value, at) => [value, y[at]]).filter((pair) => !missing(pair[0]) && !missing(pair[1]));
  let px = null, py = null, width = 400;
  onWidth(canvas, (now) => {
    width = now;
    height = Math.max(240, width * 0.82);
    const all = pairs.flat(), low = Math.min(...all), high = Math.max(...all), room = (high - low || 1) * 0.04;
    const ends = [low - room, high + room];
    px = (value) => pad.left + (value - ends[0]) / (ends[1] - ends[0]) * (width - pad.left - pad.right);
    py = (value) => height - pad.bottom - (value - ends[0]) / (ends[1] - ends[0]) * (height - pad.top - pad.bottom);
    fill(canvas, { viewBox: `0 0 ${width} ${height}`, height });
    canvas.replaceChildren();
    for (const value of ticks(ends[0], ends[1], 5)) {
      canvas.append(svg("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: py(value), y2: py(value) }), svg("line", { class: "grid", y1: pad.top, y2: height - pad.bottom, x1: px(value), x2: px(value) }));
      canvas.append(svg("text", { x: pad.left - 8, y: py(value) + 4, "text-anchor": "end", text: write(unit, value) }), svg("text", { x: px(value), y: height - pad.bottom + 16, "text-anchor": "middle", text: write(unit, value) }));
    }
    canvas.append(svg("line", { class: "base", x1: px(ends[0]), y1: py(ends[0]), x2: px(ends[1]), y2: py(ends[1]) }));
    const path = pairs.map((pair) => `M${px(pair[0]).toFixed(1)} ${py(pair[1]).toFixed(1)}h0`).join("");
    canvas.append(svg("path", { d: path, style: `stroke:${color};stroke-width:5;stroke-linecap:round;stroke-opacity:${pairs.length > 300 ? 0.3 : 0.55}` }));
    canvas.append(svg("text", { x: width - pad.right, y: height - 3, "text-anchor": "end", text: xLabel + " →" }), svg("text", { class: "halo", x: pad.left + 6, y: pad.top + 11, text: "↑ " + yLabel }));
  });
  fill(canvas, {
    onpointermove: (event) => {
      const box = canvas.getBoundingClientRect(), cx = (event.clientX - box.left) * width / box.width, cy = event.clientY - box.top;
      let best = null, least = 400;
      for (const pair of pairs) { const far = (px(pair[0]) - cx) ** 2 + (py(pair[1]) - cy) ** 2; if (far < least) { least = far; best = pair; } }
      if (best) showTip(event, name, [{ label: xLabel, value: write(unit, best[0]) }, { label: yLabel, value: write(unit, best[1]) }]); else hideTip();
    },
    onpointerleave: hideTip,
  });
  return canvas;
}

// Upright bars, parts on top of each other. parts: {name, color, values: []}.
function stackedBars(options) {
  const { x, parts, xLabel, unit, name, height = 210 } = options;
  const canvas = svg("svg", { class: "plot", role: "img", "aria-label": name, "data-chart": name });
  const pad = { left: 58, right: 10, top: 8, bottom: 34 };
  const sums = x.map((_, at) => parts.reduce((sum, part) => sum + (part.values[at] || 0), 0));
  const top = Math.max(...sums, 1e-12) * 1.04;
  let width = 400;
  onWidth(canvas, (now) => {
    width = now;
    const each = (width - pad.left - pad.right) / x.length, tall = height - pad.top - pad.bottom;
    fill(canvas, { viewBox: `0 0 ${width} ${height}`, height });
    canvas.replaceChildren();
    for (const value of ticks(0, top, 4)) {
      const y = height - pad.bottom - value / top * tall;
      canvas.append(svg("line", { class: "grid", x1: pad.left, x2: width - pad.right, y1: y, y2: y }), svg("text", { x: pad.left - 8, y: y + 4, "text-anchor": "end", text: write(unit, value) }));
    }
    const gap = Math.min(3, each * 0.15), every = Math.ceil(44 / each);
    x.forEach((value, at) => {
      let y = height - pad.bottom;
      for (const part of parts) {
        const size = (part.values[at] || 0) / top * tall;
        y -= size;
        if (size > 0) canvas.append(svg("rect", { x: pad.left + at * each + gap / 2, y, width: Math.max(0.5, Math.min(each - gap, 46)), height: size, style: "fill:" + part.color }));
      }
      if (at % every === 0) canvas.append(svg("text", { x: pad.left + at * each + Math.min(each, 46) / 2, y: height - pad.bottom + 16, "text-anchor": "middle", text: write("plain", value) }));
    });
    canvas.append(svg("line", { class: "axis", x1: pad.left, x2: width - pad.right, y1: height - pad.bottom, y2: height - pad.bottom }), svg("text", { x: width - pad.right, y: height - 3, "text-anchor": "end", text: xLabel }));
  });
  fill(canvas, {
    onpointermove: (event) => {
      const box = canvas.getBoundingClientRect(), at = Math.floor(((event.clientX - box.left) * width / box.width - pad.left) / ((width - pad.left - pad.right) / x.length));
      if (at < 0 || at >= x.length) return hideTip();
      showTip(event, `${xLabel} ${write("plain", x[at])}: ${write(unit, sums[at])}`, parts.map((part) => ({ color: part.color, label: part.name, value: write(unit, part.values[at]) })));
    },
    onpointerleave: hideTip,
  });
  return el("div", {}, canvas, keys(parts));
}

// Lying bars, one a row. rows: {label, values: []} with one value for each part.
function lyingBars(options) {
  const { rows, parts, unit, name } = options;
  const canvas = svg("svg", { class: "plot", role: "img", "aria-label": name, "data-chart": name });
  const tall = rows.length > 24 ? 12 : 22, left = 62, right = 56, height = rows.length * (tall + 4) + 6;
  const sums = rows.map((row) => row.values.reduce((sum, value) => sum + (value || 0), 0)), top = Math.max(...sums, 1e-12);
  onWidth(canvas, (width) => {
    fill(canvas, { viewBox: `0 0 ${width} ${height}`, height });
    canvas.replaceChildren();
    rows.forEach((row, at) => {
      const y = at * (tall + 4) + 2;
      let x = left;
      canvas.append(svg("text", { x: left - 8, y: y + tall / 2 + 4, "text-anchor": "end", text: row.label }));
      row.values.forEach((value, place) => {
        const size = (value || 0) / top * (width - left - right);
        if (size <= 0) return;
        canvas.append(svg("rect", { x, y, width: size, height: tall, style: "fill:" + parts[place].color,
          onpointermove: (event) => showTip(event, row.label, [{ color: parts[place].color, label: parts[place].name, value: `${write(unit, value)} (${write("share", value / sums[at])})` }]), onpointerleave: hideTip }));
        x += size;
      });
      canvas.append(svg("text", { x: x + 6, y: y + tall / 2 + 4, text: write(unit, sums[at]) }));
    });
  });
  return el("div", {}, canvas, keys(parts));
}
const keys = (parts) => el("div", { class: "legend" }, ...parts.map((part) => el("span", {}, el("i", { class: "key", style: "background:" + part.color }), el("span", { text: part.name }))));
