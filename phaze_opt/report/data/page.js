// Draws the plots of a study, sorts its trials, and asks for its new state while it is looked at.
"use strict";
(() => {
  const OFTEN_MS = 2000;
  const order = { column: null, down: false };
  const unfolded = new Set();
  let selected = null;

  function draw(figures) {
    for (const [kind, figure] of Object.entries(figures)) {
      const place = document.getElementById(`plot-${kind}`);
      if (place) Figures.draw(place, figure).then(() => follow(place)).then(() => mark(place));
    }
  }

  // A click on a trial in a plot selects it; its number is the custom data of its points.
  function follow(place) {
    if (place.dataset.follows) return;
    place.dataset.follows = "yes";
    place.on("plotly_click", ({ points }) => {
      const number = points.find((point) => Number.isInteger(point.customdata))?.customdata;
      if (number !== undefined) select(number === selected ? null : number);
    });
  }

  // Draws the selected trial once more, above all others, wherever a plot has it.
  function mark(place) {
    const own = place.data.findIndex((trace) => trace.uid === "selected");
    const trace = selected === null ? undefined : place.data.find((one) => one.customdata?.includes(selected));
    const done = own < 0 ? Promise.resolve() : Plotly.deleteTraces(place, own);
    if (!trace) return done;
    const kept = trace.customdata.flatMap((number, at) => (number === selected ? [at] : []));
    const [x, y] = [kept.map((at) => trace.x[at]), kept.map((at) => trace.y[at])];
    const ring = { color: "rgba(0,0,0,0)", size: 14, line: { color: "#222222", width: 3 } };
    const line = { color: "#222222", width: 3 };
    const mode = kept.length > 1 ? "lines+markers" : "markers";
    const made = { type: "scatter", mode, x, y, uid: "selected", name: `trial ${selected}`, showlegend: false, marker: ring, line, hoverinfo: "skip" };
    return done.then(() => Plotly.addTraces(place, made));
  }

  function select(number) {
    selected = number;
    for (const place of document.querySelectorAll(".figure")) if (place.data) mark(place);
    markRow();
  }

  function markRow() {
    for (const row of document.querySelectorAll("#trials tbody tr")) {
      const own = selected !== null && row.dataset.trial === String(selected);
      row.classList.toggle("selected", own);
      if (own && row.hidden) unfold(row.dataset.tie, true);
    }
  }

  // Lines that are as good as the one above them are folded under it.
  function unfold(tie, open) {
    unfolded[open ? "add" : "delete"](tie);
    for (const row of document.querySelectorAll(`tr[data-tie="${tie}"]`)) {
      if (!row.querySelector(".ties")) row.hidden = !open;
    }
    document.querySelector(`[data-ties="${tie}"]`)?.setAttribute("aria-expanded", String(open));
  }

  // A cell of thousands, of products (4×128×128) or of words.
  function key(row) {
    const text = row.cells[order.column].textContent.replaceAll(",", "");
    const numbers = text.split("×").map(Number);
    return text !== "" && numbers.every(Number.isFinite) ? numbers.reduce((a, b) => a * b) : text;
  }

  function sort() {
    const table = document.getElementById("trials");
    if (order.column === null || !table) return;
    const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
    const isNumber = (value) => typeof value === "number";
    rows.sort(([a], [b]) => {
      // What has no number stands last in either direction.
      if (isNumber(a) !== isNumber(b)) return isNumber(a) ? -1 : 1;
      const less = isNumber(a) ? a - b : a.localeCompare(b);
      return order.down ? -less : less;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
    [...table.tHead.rows[0].cells].forEach((cell, at) => {
      if (at !== order.column) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    });
  }

  document.addEventListener("click", (event) => {
    const ties = event.target.closest(".ties");
    if (ties) return unfold(ties.dataset.ties, ties.getAttribute("aria-expanded") !== "true");
    const row = event.target.closest("#trials tbody tr");
    if (row && !event.target.closest("a")) {
      const number = Number(row.dataset.trial);
      return select(number === selected ? null : number);
    }
    const header = event.target.closest(".sortable th");
    if (!header) return;
    order.down = order.column === header.cellIndex && !order.down;
    order.column = header.cellIndex;
    sort();
  });

  function show(state) {
    const open = [...document.querySelectorAll("details[open]")].map((one) => one.id);
    for (const [id, html] of Object.entries(state.sections)) document.getElementById(id).innerHTML = html;
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const tie of unfolded) unfold(tie, true);
    sort();
    markRow();
    draw(state.figures);
  }

  const state = JSON.parse(document.getElementById("state").textContent);
  draw(state.figures);
  if (!state.address) return;

  const live = document.getElementById("live");
  let known = state.key;
  async function ask() {
    try {
      const answer = await fetch(`${state.address}?key=${encodeURIComponent(known)}`);
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.reason);
      if (body.sections) show(body);
      known = body.key;
      live.textContent = body.running ? "running" : "";
    } catch (error) {
      live.textContent = `not up to date: ${error.message}`;
    }
    setTimeout(ask, OFTEN_MS);
  }
  ask();
})();
