// The live page: asks its server every two seconds and shows what is new. Texts are only ever set as text.
"use strict";

const POLL = 2000, LAST_ROUNDS = 10, MAX_COLUMNS = 4000, MAX_CLASSES = 6, PACE = 10, MAX_FAILURES = 200, SCALE = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const LISTS = ["rounds", "personalised", "worst", "global", "loss", "up", "down", "seconds", "each", "trained"];
const ACCURACIES = { personalised: ["personalised", "--first"], worst: ["worst tenth", "--second"], global: ["global", "--third"] };
const $ = id => document.getElementById(id);
const shown = { runs: [], bench: false, log: [], chosen: null, other: null, plots: {}, cell: null };

// -- what the address says: the run, the one to compare with, and at first the token -----------------------------------

function address() {
  return new URLSearchParams(location.hash.slice(1));
}

function addressOf(run, other) {
  return "#" + new URLSearchParams(other ? { run, with: other } : { run });
}

const given = address();
if (given.get("token")) {
  sessionStorage.setItem("token", given.get("token"));
  given.delete("token");
  history.replaceState(null, "", "#" + given);
}

async function ask(path) {
  const answer = await fetch(path, { headers: { Authorization: "Bearer " + sessionStorage.getItem("token") } });
  if (answer.ok) return answer.json();
  const type = answer.headers.get("Content-Type") || "";
  throw new Error(type.includes("json") ? (await answer.json()).error : await answer.text());
}

// -- numbers in words -------------------------------------------------------------------------------------------------

const known = value => value !== null && value !== undefined;
const number = (value, digits) => known(value) ? value.toFixed(digits) : "–";
const percent = value => known(value) ? (100 * value).toFixed(1) + " %" : "–";
const points = value => known(value) ? (value >= 0 ? "+" : "−") + Math.abs(100 * value).toFixed(1) : "–";
const unit = (value, of) => known(value) ? value.toFixed(0) + " " + of : "–";
const last = list => list.findLast(known);

function ago(seconds) {
  if (seconds < 100) return seconds.toFixed(0) + " s ago";
  return seconds < 6000 ? (seconds / 60).toFixed(0) + " min ago" : (seconds / 3600).toFixed(1) + " h ago";
}

function span(seconds) {
  if (seconds < 100) return seconds.toFixed(0) + " s";
  return seconds < 6000 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

// -- tables: cells are changed where they are, so that focus and selection stay ----------------------------------------

function fill(id, rows, numeric) {
  const body = $(id).tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((cells, at) => {
    const row = body.rows[at] || body.insertRow();
    row.className = cells.bad ? "bad" : "";
    cells.forEach((cell, column) => {
      let place = row.cells[column];
      if (!place) {
        place = row.appendChild(document.createElement(column ? "td" : "th"));
        if (!column) place.scope = "row";
        if (numeric.includes(column)) place.className = "number";
      }
      if (cell && cell.href) {
        const link = place.firstElementChild || place.appendChild(document.createElement("a"));
        if (link.textContent !== cell.text) link.textContent = cell.text;
        if (link.getAttribute("href") !== cell.href) link.setAttribute("href", cell.href);
        if (cell.current) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      } else if (place.textContent !== String(cell)) place.textContent = String(cell);
    });
  });
  [...$(id).tHead.rows[0].cells].forEach((head, column) => head.classList.toggle("number", numeric.includes(column)));
}

function choices(select, options) {
  const before = select.value;
  if ([...select.options].map(option => option.value).join("\n") === options.map(([value]) => value).join("\n")) return;
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => value === before)) select.value = before;
}

// -- runs ---------------------------------------------------------------------------------------------------------------

function emptyRun(name) {
  return { name, since: "", state: "", about: null, failed: [], ...Object.fromEntries(LISTS.map(list => [list, []])) };
}

async function readRun(run) {
  let changed = false, more = true;
  while (more) {
    const got = await ask("api/run?" + new URLSearchParams({ name: run.name, since: run.since }));
    if (got.about) {  // from its beginning, which may have been another one before
      const state = run.state;
      Object.assign(run, emptyRun(run.name), { about: got.about, state });
      changed = true;
    }
    for (const list of LISTS) run[list].push(...got[list]);
    run.failed.push(...got.failed);
    changed = changed || got.rounds.length > 0 || got.state !== run.state;
    Object.assign(run, { since: got.since, state: got.state, error: got.error });
    more = got.more;
  }
  return changed;
}

function lastTest(run) {
  return run ? last(run.each.filter(each => each.length)) || [] : [];
}

function draw() {
  const { chosen: run, other } = shown;
  $("run").hidden = !run || !run.about;
  if ($("run").hidden) return;
  const settings = run.about.settings, total = settings["num-server-rounds"];
  document.title = run.name + " – fedpfl";
  $("run-name").textContent = run.name;
  $("run-state").textContent = `${run.state}, round ${last(run.rounds) || 0} of ${total}: ${settings.method} on ` +
    `${settings.dataset}, model ${settings.model}, ${known(run.about.clients) ? run.about.clients : "?"} clients, seed ` +
    settings.seed;
  $("run-state").className = run.state === "failed" ? "bad" : "";
  $("reason").textContent = run.error || "";
  $("reason").hidden = !run.error;
  drawProgress(run, total);
  $("remarks").replaceChildren(...run.about.remarks.map(remark => {
    const item = document.createElement("li");
    item.textContent = remark;
    return item;
  }));
  drawPlots(run, other);
  drawMatrix(run);
  drawDivision(run.about);
  drawClients(run, other);
  drawRounds(run);
  drawFailures(run);
  drawDownloads(run);
  drawSettings(run, other);
}

// How far a run is, and how long the rest takes at the pace of its last rounds.
function drawProgress(run, total) {
  const done = last(run.rounds) || 0, taken = run.seconds.filter(known), recent = taken.slice(-PACE);
  $("progress").hidden = !done || !total;
  if ($("progress").hidden) return;
  Object.assign($("done"), { max: total, value: done });
  const sum = taken.reduce((so, value) => so + value, 0), pace = recent.reduce((so, value) => so + value, 0) / recent.length;
  const rest = run.state === "running" && recent.length ? `, about ${span(pace * (total - done))} left` : "";
  $("left").textContent = `${done} of ${total} rounds in ${span(sum)}${rest}`;
}

function drawFailures(run) {
  $("failures").hidden = !run.failed.length;
  const rows = run.failed.slice(-MAX_FAILURES).reverse();
  fill("failed", rows.map(([round, client, reason]) => [round, nameOf(run.about, client), reason]), [0]);
}

function csv(rows) {
  const cell = value => /[",\n]/.test(String(value ?? "")) ? `"${String(value).replaceAll('"', '""')}"` : String(value ?? "");
  return rows.map(row => row.map(cell).join(",")).join("\n") + "\n";
}

// Files are part of their links: a page that may load nothing cannot ask for them.
function drawDownloads(run) {
  const curves = ["personalised", "worst", "global", "loss", "up", "down", "seconds"];
  const rounds = [["round", ...curves], ...run.rounds.map((round, at) => [round, ...curves.map(curve => run[curve][at])])];
  const clients = [["round", "client", "accuracy"], ...tested(run).flatMap(at => run.each[at].map((value, client) => [run.rounds[at], nameOf(run.about, client), value]))];
  for (const [id, rows, what] of [["csv", rounds, "rounds"], ["clients-csv", clients, "clients"]]) {
    $(id).href = "data:text/csv;charset=utf-8," + encodeURIComponent(csv(rows));
    $(id).download = `${run.name}-${what}.csv`;
  }
}

function savePicture(id) {
  const link = document.createElement("a");
  link.href = $(id).querySelector("canvas").toDataURL("image/png");
  link.download = `${shown.chosen.name}-${id}.png`;
  link.click();
}

function drawPlots(run, other) {
  const both = [run, ...(other && other.about ? [other] : [])];
  const lines = { accuracy: [], loss: [], moved: [], seconds: [] };
  both.forEach((of, at) => {
    const name = at ? ", " + of.name : "", dash = at ? [6, 4] : [];
    for (const [curve, [label, colour]] of Object.entries(ACCURACIES))
      if (of[curve].some(known))
        lines.accuracy.push({ label: label + name, colour, dash, of, unit: " %", values: of[curve].map(value => known(value) ? 100 * value : null) });
    let moved = 0;
    const sums = of.up.map((up, round) => (moved += up + of.down[round]) / 1e6);
    for (const [plot, label, unit, values] of [["loss", "loss", "", of.loss], ["moved", "moved", " MB", sums], ["seconds", "took", " s", of.seconds]])
      lines[plot].push({ label: label + name, colour: "--first", dash, of, unit, values });
  });
  for (const [id, curves] of Object.entries(lines)) {
    plot(id, curves);
    $("t-" + id).textContent = curves.length && run.rounds.length
      ? "Last: " + curves.map(curve => `${curve.label} ${number(last(curve.values), id === "loss" ? 3 : 1)}${curve.unit}`).join("; ")
      : "Nothing recorded yet.";
  }
}

function plot(id, curves) {
  const rounds = curves.map(curve => curve.of.rounds).reduce((most, some) => some.length > most.length ? some : most, []);
  // Rounds are counted from 1 without gaps.
  const data = [rounds, ...curves.map(curve => rounds.map((_, at) => curve.values[at] ?? null))];
  const signature = JSON.stringify(curves.map(curve => [curve.label, curve.colour]));
  let drawn = shown.plots[id];
  if (!drawn || drawn.signature !== signature) {
    if (drawn) drawn.chart.destroy();
    const colour = name => () => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--axis"), width: 1 } };
    const series = curves.map(curve => ({
      label: curve.label, stroke: colour(curve.colour), width: 2, dash: curve.dash, spanGaps: true,
      points: { size: 5 }, value: (_, value) => number(value, 3),
    }));
    const options = {
      width: $(id).clientWidth || 300, height: 220, series: [{ label: "round" }, ...series], scales: { x: { time: false } },
      axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...axis, size: 60 }], cursor: { drag: { x: false, y: false } },
      legend: { markers: { dash: (_, at) => at && curves[at - 1].dash.length ? "dashed" : "solid" } },
    };
    drawn = shown.plots[id] = { signature, chart: new uPlot(options, data, $(id)) };
  } else drawn.chart.setData(data);
}

function tested(run) {
  const at = run.rounds.map((_, index) => index).filter(index => run.each[index].length);
  return at.slice(-MAX_COLUMNS);
}

function drawMatrix(run) {
  const columns = tested(run), clients = Math.max(0, ...columns.map(at => run.each[at].length));
  const canvas = $("matrix");
  canvas.closest("figure").hidden = !clients;
  if (!clients) return;
  let least = Infinity, most = -Infinity;
  for (const at of columns) for (const value of run.each[at]) if (known(value)) { least = Math.min(least, value); most = Math.max(most, value); }
  paint(canvas, columns.map(at => run.each[at]), clients, least, most);
  $("least").textContent = percent(least);
  $("most").textContent = percent(most);
  $("axes").textContent = `Clients 0 to ${clients - 1} from top to bottom; rounds ${run.rounds[columns[0]]} to ${run.rounds[columns.at(-1)]} from left to right.`;
  showCell();
}

// Draws columns of values, a pixel each, with the colours of SCALE from the least value to the most.
function paint(canvas, columns, rows, least, most) {
  canvas.width = columns.length;
  canvas.height = rows;
  canvas.style.height = Math.min(480, Math.max(80, 6 * rows)) + "px";
  const image = new ImageData(columns.length, rows);
  columns.forEach((column, x) => column.forEach((value, row) => {
    if (!known(value)) return;
    const share = most > least ? (value - least) / (most - least) * (SCALE.length - 1) : SCALE.length - 1;
    const low = Math.min(Math.floor(share), SCALE.length - 2), place = 4 * (row * columns.length + x);
    for (let band = 0; band < 3; band++)
      image.data[place + band] = SCALE[low][band] + (share - low) * (SCALE[low + 1][band] - SCALE[low][band]);
    image.data[place + 3] = 255;
  }));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function drawDivision({ counts, classes }) {
  $("division").closest("figure").hidden = !counts.length;
  if (!counts.length) return;
  const most = counts.reduce((so, row) => Math.max(so, ...row), 0);
  paint($("division"), counts[0].map((_, at) => counts.map(row => row[at])), counts.length, 0, most);
  $("largest").textContent = `${most} samples`;
  const name = at => classes[at] ?? at;
  $("class-axis").textContent = `Clients 0 to ${counts.length - 1} from top to bottom; classes ${name(0)} to ${name(counts[0].length - 1)} from left to right.`;
}

// A client's classes in words, the largest first.
function classesOf(about, client) {
  const found = [...(about.counts[client] || []).entries()].filter(([, count]) => count).sort((a, b) => b[1] - a[1]);
  if (!found.length) return "–";
  const words = found.slice(0, MAX_CLASSES).map(([at, count]) => `${about.classes[at] ?? at}: ${count}`);
  return words.join(", ") + (found.length > MAX_CLASSES ? `, and ${found.length - MAX_CLASSES} more` : "");
}

const nameOf = (about, client) => about.names[client] ? `${client} ${about.names[client]}` : client;

function showCell() {
  const run = shown.chosen, at = run ? tested(run) : [], cell = shown.cell;
  $("cursor").hidden = !cell || !at.length;
  if ($("cursor").hidden) return;
  const clients = $("matrix").height;
  cell.x = Math.max(0, Math.min(cell.x, at.length - 1));
  cell.y = Math.max(0, Math.min(cell.y, clients - 1));
  const index = at[cell.x];
  const words = `client ${nameOf(run.about, cell.y)}, round ${run.rounds[index]}: ${percent(run.each[index][cell.y])}`;
  if ($("cell").textContent !== words) $("cell").textContent = words;
  const { clientWidth: width, clientHeight: height } = $("matrix"), style = $("cursor").style;
  style.left = cell.x * width / at.length + "px";
  style.top = cell.y * height / clients + "px";
  style.width = Math.max(4, width / at.length) + "px";
  style.height = Math.max(4, height / clients) + "px";
}

function drawClients(run, other) {
  // Another run's clients are compared one by one only where they are the same people with the same samples.
  const same = other && other.about && run.about.same && run.about.same === other.about.same;
  const now = lastTest(run), then = same ? lastTest(other) : [], samples = run.about.samples;
  const best = [], trained = [];
  for (const each of run.each) each.forEach((value, client) => { if (known(value)) best[client] = Math.max(best[client] ?? 0, value); });
  for (const round of run.trained) for (const client of round) trained[client] = (trained[client] || 0) + 1;
  const clients = Math.max(samples.length, now.length, trained.length);
  const gains = [], rows = [];
  for (let client = 0; client < clients; client++) {
    const gain = known(now[client]) && known(then[client]) ? now[client] - then[client] : null;
    if (known(gain)) gains.push(gain);
    const [train, test] = samples[client] || [null, null];
    const values = [client, train, test, null, now[client], gain];
    const cells = [nameOf(run.about, client), train ?? "–", test ?? "–", classesOf(run.about, client), percent(now[client]), points(gain), percent(best[client]), trained[client] || 0];
    rows.push(Object.assign(cells, { values }));
  }
  const by = Number($("order").value);
  if (by) rows.sort((a, b) => (b.values[by] ?? -Infinity) - (a.values[by] ?? -Infinity));
  fill("clients", rows, [1, 2, 4, 5, 6, 7]);
  const all = run.about.clients;
  $("clients-note").textContent = all > clients ? `The first ${clients} of ${all} clients.` : "";
  const better = gains.filter(gain => gain > 0).length, worse = gains.filter(gain => gain < 0).length;
  const mean = gains.reduce((sum, gain) => sum + gain, 0) / gains.length;
  $("verdict").textContent = gains.length
    ? `At the last test of each run ${better} of ${gains.length} clients are better than in ${other.name}, ${worse} are worse, ${gains.length - better - worse} are equal; the mean differs by ${points(mean)} points.`
    : other && other.about && !same ? `${other.name} divides the data differently or has other data: its clients are not the ones of this run, and none is compared with another.` : "";
}

function drawRounds(run) {
  const failed = new Map();
  for (const [round] of run.failed) failed.set(round, (failed.get(round) || 0) + 1);
  const at = run.rounds.map((_, index) => index).slice(-LAST_ROUNDS).reverse();
  fill("rounds", at.map(i => [
    run.rounds[i], percent(run.personalised[i]), percent(run.worst[i]), percent(run.global[i]), number(run.loss[i], 3),
    number((run.up[i] + run.down[i]) / 1e6, 2), number(run.seconds[i], 2), failed.get(run.rounds[i]) || 0,
  ]), [1, 2, 3, 4, 5, 6, 7]);
}

function drawSettings(run, other) {
  const mine = run.about.settings, theirs = other && other.about ? other.about.settings : null;
  const keys = [...new Set([...Object.keys(mine), ...Object.keys(theirs || {})])];
  const differ = key => theirs && mine[key] !== theirs[key];
  // Where two runs differ comes first, then what is not the default.
  const changed = new Set(run.about.changed), rank = key => 2 * Boolean(differ(key)) + changed.has(key);
  keys.sort((a, b) => rank(b) - rank(a));
  fill("settings", keys.map(key => {
    const cells = [key, String(mine[key] ?? "–") + (changed.has(key) ? "" : " (default)"), theirs ? String(theirs[key] ?? "–") + (differ(key) ? " (differs)" : "") : "–"];
    return Object.assign(cells, { bad: differ(key) });
  }), []);
}

function drawRuns() {
  const name = address().get("run"), other = address().get("with");
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean), by = $("sort").value;
  const fits = run => words.every(word => Object.values(run).some(value => String(value).toLowerCase().includes(word)));
  const listed = shown.runs.filter(fits);
  if (by) listed.sort((a, b) => typeof (a[by] ?? b[by]) === "number" ? (b[by] ?? -1) - (a[by] ?? -1) : String(a[by] ?? "").localeCompare(String(b[by] ?? "")));
  fill("runs", listed.map(run => Object.assign([
    { text: run.name, href: addressOf(run.name), current: run.name === name }, run.state,
    run.round === undefined ? "–" : `${run.round} of ${run["num-server-rounds"]}`, percent(run.personalised),
    run.method ?? "–", run.dataset ?? "–", run.model ?? "–", run.seed ?? "–",
  ], { bad: run.state === "failed" || run.state === "unreadable" })), [2, 3]);
  choices($("other"), [["", "no other run"], ...shown.runs.filter(run => run.name !== name).map(run => [run.name, run.name])]);
  $("other").value = other || "";
}

// -- a bench -------------------------------------------------------------------------------------------------------------

function drawBench(bench) {
  $("headline").textContent = bench.headline;
  const words = new Map(bench.log.map(line => [line.name, line.text]));
  fill("devices", bench.devices.map(device => {
    const since = new Date(Date.now() - 1000 * device.heard).toLocaleTimeString();
    const state = device.state === "silent" && device.heard !== null ? `silent since ${since}` : device.state;
    const heard = device.heard === null ? "not yet" : ago(device.heard) + (device.state === "offline" ? `, offline since ${since}` : "");
    const cells = [device.name, state, unit(device.temperature, "°C"), unit(device.memory, "MiB"), unit(device.power, "mW"), heard, words.get(device.name) || ""];
    return Object.assign(cells, { bad: ["silent", "offline"].includes(device.state) });
  }), [2, 3, 4]);
  shown.log = bench.log;
  choices($("device"), [["", "all"], ...[...words.keys()].sort().map(name => [name, name || "(not an event)"])]);
  drawLog();
}

function drawLog() {
  const of = $("device").value, lines = shown.log.filter(line => !of || line.name === of).reverse();
  fill("log", lines.map(line => [new Date(1000 * line.at).toLocaleTimeString(), line.name, line.text]), []);
}

// -- the loop ------------------------------------------------------------------------------------------------------------

function choose() {
  const name = address().get("run") || (shown.runs[0] || {}).name, other = address().get("with");
  const keep = (run, wanted) => !wanted ? null : run && run.name === wanted ? run : emptyRun(wanted);
  if (name !== (shown.chosen || {}).name) shown.cell = null;
  shown.chosen = keep(shown.chosen, name);
  shown.other = keep(shown.other, other);
}

async function look() {
  const listed = await ask("api/runs");
  Object.assign(shown, { runs: listed.runs, bench: listed.bench });
  $("folder").textContent = listed.runs.length ? listed.folder : `There is no run in ${listed.folder} yet.`;
  if (!address().get("run") && listed.runs.length) history.replaceState(null, "", addressOf(listed.runs[0].name));
  choose();
  drawRuns();
  $("bench").hidden = !listed.bench;
  if (listed.bench) drawBench(await ask("api/bench"));
  const runs = [shown.chosen, shown.other].filter(Boolean);
  let changed = false;
  // A run that was chosen before its folder was made is listed later.
  for (const run of runs) if (shown.runs.some(one => one.name === run.name)) changed = await readRun(run) || changed;
  if (changed || !runs.length) draw();
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
    await look();
    const run = shown.chosen;
    say(run && run.state ? `${run.name} is ${run.state}.` : "No run yet.");
  } catch (error) {
    say(error instanceof TypeError ? "The page's server has ended; this is the last that it told." : error.message, true);
  } finally {
    busy = false;
  }
}

function redraw() {
  for (const { chart } of Object.values(shown.plots)) chart.destroy();
  shown.plots = {};
  draw();
}

addEventListener("hashchange", async () => { choose(); drawRuns(); await tick(); draw(); $("run-name").focus(); });
addEventListener("visibilitychange", tick);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new ResizeObserver(() => {
  for (const [id, { chart }] of Object.entries(shown.plots)) chart.setSize({ width: $(id).clientWidth, height: 220 });
  showCell();
}).observe($("accuracy"));
$("other").addEventListener("change", () => { location.hash = addressOf(shown.chosen.name, $("other").value); });
$("order").addEventListener("change", draw);
$("filter").addEventListener("input", drawRuns);
$("sort").addEventListener("change", drawRuns);
for (const button of document.querySelectorAll("button[data-picture]")) button.addEventListener("click", () => savePicture(button.dataset.picture));
$("device").addEventListener("change", drawLog);
$("matrix").addEventListener("pointermove", event => {
  const box = $("matrix").getBoundingClientRect(), { width, height } = $("matrix");
  shown.cell = { x: Math.floor((event.clientX - box.left) / box.width * width), y: Math.floor((event.clientY - box.top) / box.height * height) };
  showCell();
});
$("matrix").addEventListener("keydown", event => {
  const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const cell = shown.cell || { x: $("matrix").width - 1 - step[0], y: -step[1] };
  shown.cell = { x: cell.x + step[0], y: cell.y + step[1] };
  showCell();
});
setInterval(tick, POLL);
tick();
