// Draws the document of runs: a report holds it, and a live page asks its server for what is new every two seconds.
// Texts are only ever set as text.
"use strict";

const POLL = 2000, LONG = 15, BRIEF = 32, WORDY = 40;
const $ = id => document.getElementById(id);
const shown = { runs: [], log: [], version: "", page: null };

// -- parts of the page: made again only where they have changed, so that focus, place and order stay -----------------------

function make(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) if (known(value) && value !== false) made.setAttribute(key, value === true ? "" : value);
  made.append(...children.filter(known));
  return made;
}

// Makes children of what they show, each as [key, what it shows, function of that].
function fill(parent, parts) {
  const before = new Map([...parent.children].map(one => [one.dataset.key, one]));
  parts.forEach(([key, what, build], at) => {
    const signature = JSON.stringify(what), found = before.get(key);
    const current = found && found.signature === signature ? found : Object.assign(build(what), { signature });
    current.dataset.key = key;
    if (found && found !== current) resume(found, current);
    if (parent.children[at] !== current) parent.insertBefore(current, parent.children[at] || null);
  });
  while (parent.children.length > parts.length) parent.lastElementChild.remove();
}

// Puts a part in another's place, with what its reader has opened, sorted, scrolled and focused.
function resume(before, made) {
  const focusable = part => [...part.querySelectorAll("a, button, input, select, summary, [tabindex]")];
  const focus = focusable(before).indexOf(document.activeElement);
  if (before.open) made.open = true;
  const tables = made.querySelectorAll("table");
  before.querySelectorAll("table").forEach((table, at) => { if (table.order && tables[at]) sort(tables[at], table.order); });
  before.replaceWith(made);
  const boxes = made.querySelectorAll(".scroll");
  before.querySelectorAll(".scroll").forEach((box, at) => { if (boxes[at]) boxes[at].scrollTo(box.scrollLeft, box.scrollTop); });
  if (focus >= 0) focusable(made)[focus]?.focus({ preventScroll: true });
}

// -- numbers in words -------------------------------------------------------------------------------------------------

const known = value => value !== null && value !== undefined;
const unit = (value, of) => known(value) ? value.toFixed(0) + " " + of : "–";

function span(seconds) {
  if (seconds < 100) return seconds.toFixed(0) + " s";
  return seconds < 6000 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

// -- a document -----------------------------------------------------------------------------------------------------------

function draw(page) {
  shown.page = page;
  document.title = page.title;
  $("title").textContent = page.title;
  $("made").textContent = page.made;
  fill($("progress"), page.runs.map(run => [run.name, run, progress]));
  const links = [], blocks = [];
  page.sections.forEach((section, at) => {
    const { part, title } = section, key = `${part} ${title}`;
    if (part && part !== page.sections[at - 1]?.part) {
      links.push([`part ${part}`, part, words => make("strong", null, words)]);
      blocks.push([`part ${part}`, part, words => make("h2", { class: "part" }, words)]);
    }
    links.push([key, { at, title }, link]);
    blocks.push([key, at, () => frame(section, at)]);
  });
  fill($("contents"), links);
  fill($("sections"), blocks);
  page.sections.forEach((section, at) => fillSection($(`section-${at}`), section));
}

function link({ at, title }) {
  const made = make("a", { href: `#section-${at}` }, title);
  made.addEventListener("click", event => {
    event.preventDefault();  // a live page's address names its runs
    const heading = $(`heading-${at}`);
    heading.scrollIntoView();
    heading.focus({ preventScroll: true });
  });
  return made;
}

function frame(section, at) {
  const heading = make(section.part ? "h3" : "h2", { id: `heading-${at}`, tabindex: "-1" }, section.title);
  return make("section", { id: `section-${at}`, "aria-labelledby": `heading-${at}` }, heading, make("div"), make("div", { class: "figures" }));
}

function fillSection(element, section) {
  const [, words, figures] = element.children;
  fill(words, [
    ...section.warnings.map((text, at) => [`warning ${at}`, text, text => make("p", { class: "warning" }, text)]),
    ...section.notes.map((text, at) => [`note ${at}`, text, text => make("p", null, text)]),
    ...section.tables.map((table, at) => [`table ${at}`, table, tableOf]),
  ]);
  fill(figures, section.figures.map((figure, at) => [`figure ${at}`, figure, figureOf]));
}

function tableOf({ title, columns, numbers, rows, note, name, csv }) {
  const heads = columns.map((column, at) => make("th", { scope: "col", class: at && numbers[at] ? "number" : null }, make("button", { type: "button" }, column)));
  const body = make("tbody", null, ...rows.map(cells => make("tr", null, ...cells.map((cell, at) => at
    ? make("td", { "data-label": columns[at], class: numbers[at] ? "number" : cell.length > WORDY ? "long" : null }, cell)
    : make("th", { scope: "row", class: cell.length < BRIEF ? "brief" : null }, cell)))));
  const many = columns.length > 3;
  const table = make("table", { class: many ? "many" : null, role: many ? "table" : null }, make("caption", null, title), make("thead", null, make("tr", null, ...heads)), body);
  heads.forEach((head, at) => head.firstChild.addEventListener("click", () => sort(table, { at, down: head.getAttribute("aria-sort") !== "descending" })));
  const parts = [
    make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table: ${title}` }, table),
    make("p", { class: "saved" }, saver("CSV", `${title} as CSV`, `${name}.csv`, "text/csv", () => csv)),
    note ? make("p", { class: "note" }, note) : null,
  ];
  return rows.length > LONG
    ? make("details", null, make("summary", null, `${title} (${rows.length} rows)`), ...parts)
    : make("div", null, ...parts);
}

// Orders rows by a column: numbers by their size, the rest by the letters; what has no value comes last.
function sort(table, order) {
  table.order = order;
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    if (at === order.at) head.setAttribute("aria-sort", order.down ? "descending" : "ascending"); else head.removeAttribute("aria-sort");
  });
  const text = row => row.cells[order.at]?.textContent ?? "", size = row => parseFloat(text(row));
  const rows = [...table.tBodies[0].rows], empty = row => ["", "–"].includes(text(row)), sign = order.down ? -1 : 1;
  const numeric = rows.every(row => empty(row) || !Number.isNaN(size(row)));
  rows.sort((a, b) => empty(a) - empty(b) || sign * (numeric && !empty(a) ? size(a) - size(b) : text(a).localeCompare(text(b))));
  table.tBodies[0].append(...rows);
}

function figureOf({ title, about, svg, width, wide, name, csv }) {
  const picture = document.importNode(new DOMParser().parseFromString(svg, "image/svg+xml").documentElement, true);
  picture.setAttribute("aria-hidden", "true");
  // Narrower than three quarters of its own width its words would not be readable: it scrolls in its box then.
  Object.assign(picture.style, { maxWidth: `${Math.round(1.55 * width)}px`, minWidth: `${Math.round(Math.min(0.75 * width, 1000))}px` });
  return make("figure", { class: wide ? "wide" : null },
    make("figcaption", null, title),
    make("div", { class: "scroll", tabindex: "0", role: "img", "aria-label": about }, picture),
    make("p", { class: "saved" },
      saver("SVG", `${title} as SVG`, `${name}.svg`, "image/svg+xml", () => Object.entries(shown.page.colours).reduce((text, [of, colour]) => text.replaceAll(of, colour), svg)),
      csv ? saver("CSV", `${title} as CSV`, `${name}.csv`, "text/csv", () => csv) : null));
}

function saver(words, label, name, type, content) {
  const button = make("button", { type: "button", "aria-label": label }, words);
  button.addEventListener("click", () => {
    const address = URL.createObjectURL(new Blob([content()], { type })), link = make("a", { href: address, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), POLL);
  });
  return button;
}

// -- a live page: runs -------------------------------------------------------------------------------------------------------

// The address names the runs that are shown, and at first has the token.
const given = new URLSearchParams(location.hash.slice(1));
const chosen = () => new URLSearchParams(location.hash.slice(1)).getAll("run");
const addressOf = names => "#" + new URLSearchParams(names.map(name => ["run", name]));

async function ask(path) {
  const answer = await fetch(path, { headers: { Authorization: "Bearer " + sessionStorage.getItem("token") } });
  if (answer.ok) return answer.json();
  const type = answer.headers.get("Content-Type") || "";
  throw new Error(type.includes("json") ? (await answer.json()).error : await answer.text());
}

// Cells of tables that change all the time are changed where they are.
function cells(id, rows, numeric) {
  const body = $(id).tBodies[0];
  fill(body, rows.map(row => [String(row.key ?? row[0]), { bad: row.bad || false, row }, ({ bad, row }) => make("tr", { class: bad ? "bad" : null },
    ...row.map((cell, at) => make(at ? "td" : "th", { scope: at ? null : "row", class: numeric.includes(at) ? "number" : null }, cell && cell.make ? cell.make() : String(cell))))]));
  [...$(id).tHead.rows[0].cells].forEach((head, at) => head.classList.toggle("number", numeric.includes(at)));
}

function drawRuns() {
  const names = chosen(), by = $("sort").value, words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const listed = shown.runs.filter(run => words.every(word => Object.values(run).some(value => String(value).toLowerCase().includes(word))));
  if (by) listed.sort((a, b) => typeof (a[by] ?? b[by]) === "number" ? (b[by] ?? -1e9) - (a[by] ?? -1e9) : String(a[by] ?? "").localeCompare(String(b[by] ?? "")));
  cells("runs", listed.map(run => Object.assign([
    { name: run.name, current: names.includes(run.name), make: () => make("a", { href: addressOf([run.name]), "aria-current": names.includes(run.name) ? "true" : null }, run.name) },
    { names, make: () => box(run.name, names) }, run.state,
    run.round === undefined ? "–" : `${run.round} of ${run["num-server-rounds"]}`, run.score ?? "–",
    run.method ?? "–", run.dataset ?? "–", run.model ?? "–", run.seed ?? "–",
  ], { key: run.name, bad: ["failed", "unreadable"].includes(run.state) })), [3, 4]);
}

function box(name, names) {
  const made = make("input", { type: "checkbox", "aria-label": `show ${name}` });
  made.checked = names.includes(name);
  made.addEventListener("change", () => { location.hash = addressOf(made.checked ? [...names, name] : names.filter(one => one !== name)); });
  return made;
}

// How far a run is, and how long the rest takes at the pace of its last rounds.
function progress(run) {
  const rest = known(run.left) ? `, about ${span(run.left)} left` : "";
  const bar = make("progress", { max: run.rounds, value: run.round, "aria-label": `Rounds of ${run.name}` });
  const words = `${run.round} of ${run.rounds} rounds in ${span(run.seconds)}${rest}`;
  return make("li", null, `${run.name}: ${run.state}`, bar, make("span", null, words));
}

// -- a live page: a bench -------------------------------------------------------------------------------------------------------

function drawBench(bench) {
  $("headline").textContent = bench.headline;
  const words = new Map(bench.log.map(line => [line.name, line.text]));
  cells("devices", bench.devices.map(device => {
    const since = new Date(Date.now() - 1000 * device.heard).toLocaleTimeString();
    const state = device.state === "silent" && device.heard !== null ? `silent since ${since}` : device.state;
    const heard = device.heard === null ? "not yet" : span(device.heard) + " ago" + (device.state === "offline" ? `, offline since ${since}` : "");
    const row = [device.name, state, unit(device.temperature, "°C"), unit(device.memory, "MiB"), unit(device.power, "mW"), heard, words.get(device.name) || ""];
    return Object.assign(row, { bad: ["silent", "offline"].includes(device.state) });
  }), [2, 3, 4]);
  shown.log = bench.log;
  const names = ["", ...[...words.keys()].filter(Boolean).sort()], before = $("device").value;
  fill($("device"), names.map(name => [name, name, name => make("option", { value: name }, name || "all")]));
  $("device").value = names.includes(before) ? before : "";
  drawLog();
}

function drawLog() {
  const of = $("device").value, lines = shown.log.filter(line => !of || line.name === of).reverse();
  cells("log", lines.map((line, at) => Object.assign([new Date(1000 * line.at).toLocaleTimeString(), line.name, line.text], { key: at })), []);
}

// -- a live page: the loop ------------------------------------------------------------------------------------------------------

async function look() {
  const { runs, folder, bench } = await ask("api/runs");
  shown.runs = runs;
  $("folder").textContent = runs.length ? folder : `There is no run in ${folder} yet.`;
  if (!chosen().length && runs.length) history.replaceState(null, "", addressOf([runs[0].name]));
  drawRuns();
  $("bench").hidden = !bench;
  if (bench) drawBench(await ask("api/bench"));
  // A run that was chosen before its folder was made is listed later.
  const listed = chosen().map(name => runs.find(run => run.name === name)).filter(known);
  if (!listed.length) return "No run yet.";
  const told = await ask("api/page?" + new URLSearchParams([...listed.map(run => ["run", run.name]), ["since", shown.version]]));
  if (told.document) draw(told.document);
  shown.version = told.version;
  return listed.map(run => `${run.name} is ${run.state}.`).join(" ");
}

function say(words, bad = false) {
  // The status is read aloud: only what is new.
  if ($("status").textContent !== words) $("status").textContent = words;
  $("status").className = bad ? "bad" : "";
}

let busy = false;
async function tick() {
  if (busy || document.hidden) return;
  busy = true;
  try {
    say(await look());
  } catch (error) {
    say(error instanceof TypeError ? "The run is over or the page's server has ended: this page is no longer updated." : error.message, true);
  } finally {
    busy = false;
  }
}

function watch() {
  if (given.get("token")) {
    sessionStorage.setItem("token", given.get("token"));
    given.delete("token");
    history.replaceState(null, "", "#" + given);
  }
  $("overview").hidden = false;
  say("Loading …");
  addEventListener("hashchange", () => { drawRuns(); tick(); });
  addEventListener("visibilitychange", tick);
  $("filter").addEventListener("input", drawRuns);
  $("sort").addEventListener("change", drawRuns);
  $("device").addEventListener("change", drawLog);
  setInterval(tick, POLL);
  tick();
}

function report() {
  for (const id of ["overview", "bench", "status"]) $(id).remove();
  draw(JSON.parse($("document").textContent));
}

if ($("document")) report(); else watch();
