// Elements, numbers as people read them, the tip under the pointer, light and dark.
// Text of runs is only ever set as text, never as markup.
const SVG = "http://www.w3.org/2000/svg";
const DATA = JSON.parse(document.getElementById("data").textContent);

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "text") node.textContent = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  for (const child of children || []) if (child) node.append(child);
  return node;
}
const el = (name, attributes, ...children) => fill(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => fill(document.createElementNS(SVG, name), attributes, children);

function digits(value, count) {
  if (value === 0) return "0";
  const size = Math.floor(Math.log10(Math.abs(value)));
  if (size < -5) return value.toExponential(Math.max(0, count - 2)).replace("-", "−");
  const text = value.toFixed(Math.max(0, Math.min(8, count - 1 - size)));
  const [whole, part] = text.replace("-", "−").split(".");
  const grouped = whole.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const rest = (part || "").replace(/0+$/, "");
  return rest ? grouped + "." + rest : grouped;
}
const missing = (value) => value === null || value === undefined || Number.isNaN(value);
const WRITE = {
  plain: (value) => digits(value, 4),
  score: (value) => digits(value, 4),
  ratio: (value) => digits(value, 3),
  share: (value) => digits(value * 100, 3) + " %",
  count: (value) => value >= 1e9 ? digits(value / 1e9, 3) + " G" : value >= 1e6 ? digits(value / 1e6, 3) + " M" : value >= 1e4 ? digits(value / 1e3, 3) + " k" : digits(value, 4),
  bytes: (value) => value >= 1e9 ? digits(value / 1e9, 3) + " GB" : value >= 1e6 ? digits(value / 1e6, 3) + " MB" : value >= 1e3 ? digits(value / 1e3, 3) + " kB" : digits(value, 3) + " B",
  seconds: (value) => {
    const size = Math.abs(value);
    if (size === 0) return "0 s";
    if (size < 1e-3) return digits(value * 1e6, 3) + " µs";
    if (size < 1) return digits(value * 1e3, 3) + " ms";
    if (size < 120) return digits(value, 3) + " s";
    return size < 7200 ? digits(value / 60, 3) + " min" : digits(value / 3600, 3) + " h";
  },
};
const write = (unit, value) => missing(value) ? "–" : typeof value === "string" ? value : WRITE[unit || "plain"](value);

// Round steps for an axis: 1, 2 or 5 times a power of ten.
function ticks(low, high, most) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, most);
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= raw * 0.999);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
    for (const part of [1, 2, 5]) {
      const value = part * Math.pow(10, power);
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  return found.length > 7 ? found.filter((value) => Math.abs(Math.log10(value) % 1) < 1e-9) : found;
}

const tip = el("div", { class: "tip", role: "status" });
function showTip(event, title, rows) {
  tip.replaceChildren(el("b", { text: title }));
  for (const row of rows)
    tip.append(el("div", { class: "row" }, el("span", {}, row.color ? el("i", { class: "key", style: "background:" + row.color }) : null, el("span", { text: row.label })), el("span", { text: row.value })));
  const box = tip.getBoundingClientRect();
  const left = event.clientX + 16 + box.width > innerWidth ? event.clientX - box.width - 12 : event.clientX + 16;
  const over = event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 16;
  tip.style.left = Math.max(4, left) + "px";
  tip.style.top = Math.max(4, over) + "px";
  tip.style.visibility = "visible";
}
const hideTip = () => { tip.style.visibility = "hidden"; };

// Call draw(width) now and whenever the width of the node changes.
function onWidth(node, draw) {
  let last = 0;
  new ResizeObserver((entries) => {
    const width = Math.floor(entries[0].contentRect.width);
    if (width > 0 && width !== last) { last = width; draw(width); }
  }).observe(node);
}

const THEMES = ["auto", "light", "dark"];
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
function remembered(name) { try { return localStorage.getItem(name); } catch { return null; } }
function remember(name, value) { try { localStorage.setItem(name, value); } catch { /* a file opened with storage off */ } }
let theme = THEMES.includes(remembered("timeloom-theme")) ? remembered("timeloom-theme") : "auto";
function applyTheme() {
  // Printed it is always light: the style sheet sees to that.
  const dark = theme === "dark" || (theme === "auto" && prefersDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
prefersDark.addEventListener("change", applyTheme);
applyTheme();
const themeButton = el("button", { class: "theme", type: "button", title: "light, dark, or as the system is", text: "theme: " + theme });
themeButton.addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  remember("timeloom-theme", theme);
  themeButton.textContent = "theme: " + theme;
  applyTheme();
});

const runColor = (index) => `var(--run-${index % 8})`;
const phaseColor = (index) => `var(--${DATA.phases[index] || "other"})`;
function panel(title, tools, ...children) {
  return el("div", { class: "sheet" }, el("div", { class: "head" }, el("h3", { text: title }), el("div", { class: "tools" }, ...(tools || []))), ...children);
}
function choice(labels, chosen, change) {
  const buttons = labels.map((label, at) => el("button", { type: "button", text: label, "aria-pressed": String(at === chosen), onclick: () => {
    buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === at)));
    change(at);
  } }));
  return buttons;
}
