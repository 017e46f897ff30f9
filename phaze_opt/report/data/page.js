// Draws the plots of a study, sorts its trials, and asks for its new state while it is looked at.
"use strict";
(() => {
  const OFTEN_MS = 2000;
  const options = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const order = { column: null, down: false };

  function draw(figures) {
    for (const [kind, figure] of Object.entries(figures)) {
      const place = document.getElementById(`plot-${kind}`);
      if (place) Plotly.react(place, figure.data, figure.layout, options);
    }
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
    sort();
    draw(state.figures);
  }

  const state = JSON.parse(document.getElementById("state").textContent);
  draw(state.figures);
  if (!state.address) return;

  const live = document.getElementById("live");
  let known = state.key;
  async function follow() {
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
    setTimeout(follow, OFTEN_MS);
  }
  follow();
})();
