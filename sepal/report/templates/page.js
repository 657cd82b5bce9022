"use strict";
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const specs = read("specs");
let data = read("data");
const views = new Map(); // figure → Vega view

const config = {
  background: "transparent",
  font: getComputedStyle(document.body).fontFamily,
  view: { stroke: "transparent" },
  axis: {
    labelColor: "var(--muted)", titleColor: "var(--muted)", titleFontWeight: 500, labelFontSize: 11, titleFontSize: 12,
    domainColor: "var(--line)", tickColor: "var(--line)", gridColor: "var(--line)", gridOpacity: 0.6,
  },
  axisX: { grid: false, labelSeparation: 8, labelFlush: false },
  title: { color: "var(--muted)", fontSize: 12, fontWeight: 500, anchor: "start" },
  legend: { labelColor: "var(--ink)", titleColor: "var(--muted)", titleFontWeight: 500, labelFontSize: 12, symbolType: "square", symbolFillColor: "var(--muted)", symbolStrokeWidth: 0 },
  bar: { discreteBandSize: { band: 0.85 } },
};

function settings() {
  const form = document.querySelector(".controls");
  const chosen = (name) => form.querySelector(`[name="${name}"]:checked`)?.value ?? form.querySelector(`select[name="${name}"]`)?.value;
  const hidden = [...form.querySelectorAll('[name="series"]:not(:checked)')].map((box) => box.value);
  const zero = form.querySelector('[name="zero"]').checked;
  const found = { zero, view: chosen("view"), cell: chosen("cell"), label: chosen("label"), figure: chosen("figure"), hidden };
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== undefined));
}

function apply() {
  const wanted = settings();
  for (const table of document.querySelectorAll("[data-cell]")) {
    table.hidden = wanted.cell !== undefined && table.dataset.cell !== wanted.cell;
  }
  for (const [name, view] of views) {
    for (const parameter of specs[name].parameters) {
      if (parameter in wanted) view.signal(parameter, wanted[parameter]);
    }
    view.runAsync();
  }
}

async function draw() {
  for (const [name, { spec, dataset }] of Object.entries(specs)) {
    const whole = { ...spec, datasets: { ...spec.datasets, [dataset]: data[dataset] } };
    const quiet = 1; // errors alone: a figure whose runs are all hidden is empty, and that is no fault
    const options = { renderer: "svg", actions: false, config, logLevel: quiet,
      tooltip: { theme: "custom", disableDefaultStyle: false } };
    const { view } = await vegaEmbed(document.getElementById(`chart-${name}`), whole, options);
    views.set(name, view);
  }
  apply();
  document.documentElement.dataset.drawn = "yes";
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = (name) => { document.documentElement.dataset.theme = name; };
theme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
});
document.querySelector(".controls").addEventListener("change", apply);

const sorted = {}; // kind of table → column and direction, kept when a live page's tables are replaced
const kinds = [".overview", ".sorted"];
const sort = () => kinds.forEach(sortKind);
function sortKind(kind) {
  if (!sorted[kind]) return;
  const { column, down } = sorted[kind];
  for (const table of document.querySelectorAll(`${kind} table`)) {
    const text = (row) => row.cells[column]?.textContent;
    const value = (row) => (text(row) === "best" ? 0 : parseFloat(text(row)?.replace(/≤\s/, ""))); // NaN: not reached, or no figure; always last
    const order = (a, b) => (down ? b - a : a - b);
    const rows = [...table.tBodies[0].rows].sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      return isNaN(a) - isNaN(b) || (isNaN(a) ? 0 : order(a, b));
    });
    table.tBodies[0].append(...rows);
    [...table.tHead.rows[0].cells].forEach((cell, place) => {
      if (place === column) cell.setAttribute("aria-sort", down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    });
  }
}
document.querySelector("main").addEventListener("click", (event) => {
  const head = event.target.closest(".sort")?.parentElement;
  if (!head) return;
  const column = head.cellIndex, kind = kinds.find((each) => head.closest(each));
  sorted[kind] = { column, down: sorted[kind]?.column === column ? !sorted[kind].down : true };
  sortKind(kind);
});
// Figures that were drawn in a folded part measure their width when it is opened.
let printing = false;
for (const fold of document.querySelectorAll(".fold")) {
  fold.addEventListener("toggle", () => printing || dispatchEvent(new Event("resize")));
}

const PAPER = 690; // pixels: a figure's width on A4 and Letter, whose layout a script cannot measure
let opened = [];
addEventListener("beforeprint", () => {
  printing = true;
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const each of opened) each.open = true;
  for (const view of views.values()) view.width(PAPER).run();
});
addEventListener("afterprint", () => {
  printing = false;
  for (const each of opened) each.open = false;
  dispatchEvent(new Event("resize")); // views with the width of their container measure it again
});

const live = "live" in document.documentElement.dataset;
const WAIT = 2000; // milliseconds between questions to the server

const kind = (row) => [row.label, row.cell, row.view, row.stand_in, row.kind].join("/");
const shape = (rows) => [...Object.keys(rows), ...new Set((rows.curve ?? []).map(kind))].join();

async function refresh() {
  const found = await fetch("data").then((answer) => answer.json()).catch(() => ({ trouble: "no answer" }));
  if (!found.trouble) {
    if (shape(found.data) !== shape(data)) location.reload(); // a figure or a run more
    data = found.data;
    document.getElementById("lead").innerHTML = found.lead;
    for (const part of ["state", "answer", "overview", "tables"]) document.getElementById(part).innerHTML = found[part];
    sort();
    for (const [name, view] of views) view.data(specs[name].dataset, data[specs[name].dataset]);
    apply();
  }
  if (!found.over) setTimeout(refresh, WAIT);
}

draw().then(() => { if (live) setTimeout(refresh, WAIT); });
