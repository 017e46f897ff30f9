// Asks for what follows from the options whenever one changes, and draws it.
"use strict";
(() => {
  const PATIENCE_MS = 3000, RANGE_MS = 120, REASONS_MS = 350, WORKING_MS = 400;
  const COLUMNS = {
    gains: ["change", "throughput", "same placement", "per batch", "placement"],
    fixes: ["options", "", "per batch", "placement"],
  };
  const { defaults } = JSON.parse(document.getElementById("state").textContent);
  const page = crypto.randomUUID ? crypto.randomUUID() : String(Math.random()).slice(2);
  const runs = { A: document.getElementById("run-A"), B: document.getElementById("run-B") };
  const live = document.getElementById("live");
  const copies = { A: {}, B: {} };
  const asking = { numbers: null, later: [] };

  const shownRuns = () => (runs.B.hidden ? ["A"] : ["A", "B"]);
  const controlsOf = (name) => [...runs[name].querySelectorAll("[data-option]")];
  const sizesOf = (name) => [...runs[name].querySelectorAll("[data-size]")];

  function valueOf(control) {
    return control.type === "checkbox" ? String(control.checked) : control.value.trim();
  }

  function setValue(control, value) {
    if (control.type === "checkbox") control.checked = value === "true";
    else control.value = value;
  }

  // What must be stated, and what is not as by default; a list is stated once for each of its words.
  function statedOptions(name) {
    const pairs = [];
    for (const control of controlsOf(name)) {
      const option = control.dataset.option, value = valueOf(control);
      if (control.dataset.kind === "list") {
        for (const word of value.split(/\s+/)) if (word) pairs.push([option, word]);
      } else if (value !== "" || defaults[option] !== "") {
        pairs.push([option, value]);
      }
    }
    for (const size of sizesOf(name)) if (size.value !== "") pairs.push(["changes", `${size.dataset.size}=${size.value}`]);
    return pairs;
  }

  function queryOf(names) {
    const query = new URLSearchParams();
    names.forEach((name, place) => {
      for (const [option, value] of statedOptions(name)) query.append(place ? `b.${option}` : option, value);
    });
    return query.toString();
  }

  function restore(search) {
    const stated = { A: new Map(), B: new Map() };
    for (const [key, value] of new URLSearchParams(search)) {
      const name = key.startsWith("b.") ? "B" : "A", option = key.replace(/^b\./, "");
      stated[name].set(option, [...(stated[name].get(option) ?? []), value]);
    }
    if (stated.B.size) showSecond(true, false);
    for (const name of ["A", "B"]) if (stated[name].size) setOptions(name, stated[name]);
  }

  function setOptions(name, options) {
    const changes = new Map();
    const words = [];
    for (const change of options.get("changes") ?? []) {
      const [key, value] = [change.split("=")[0], change.slice(change.indexOf("=") + 1)];
      if (sizesOf(name).some((size) => size.dataset.size === key)) changes.set(key, value);
      else words.push(change);
    }
    for (const size of sizesOf(name)) size.value = changes.get(size.dataset.size) ?? "";
    for (const control of controlsOf(name)) {
      const option = control.dataset.option;
      if (control.dataset.kind === "list") control.value = words.join(" ");
      else setValue(control, options.get(option)?.at(-1) ?? defaults[option]);
    }
  }

  function showSecond(shown, copied = true) {
    if (shown && copied) {
      const options = new Map();
      for (const [option, value] of statedOptions("A")) options.set(option, [...(options.get(option) ?? []), value]);
      setOptions("B", options);
    }
    runs.B.hidden = !shown;
    document.getElementById("runs").classList.toggle("two", shown);
    for (const pair of document.querySelectorAll("#reasons .pair")) pair.classList.toggle("two-pair", shown);
    const button = document.getElementById("compare");
    button.setAttribute("aria-pressed", String(shown));
    button.textContent = shown ? "Show one run only" : "Compare with a second run";
  }

  function element(kind, text, className) {
    const made = document.createElement(kind);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function tableOf(kind, rows) {
    const columns = COLUMNS[kind];
    const table = element("table"), head = table.createTHead().insertRow();
    table.className = kind === "gains" ? "tight" : "cards";
    columns.forEach((column, at) => head.append(element("th", column, at && column ? "number" : "")));
    const body = table.createTBody();
    for (const cells of rows) {
      const row = body.insertRow();
      cells.forEach((cell, at) => {
        const made = row.insertCell();
        made.textContent = cell;
        made.dataset.label = columns[at];
        if (at && columns[at]) made.className = "number";
      });
    }
    return table;
  }

  function markDifferences() {
    for (const [own, other] of [...zip(controlsOf("A"), controlsOf("B")), ...zip(sizesOf("A"), sizesOf("B"))]) {
      const differs = !runs.B.hidden && valueOf(own) !== valueOf(other);
      for (const control of [own, other]) control.parentElement.classList.toggle("differs", differs);
    }
  }

  const zip = (left, right) => left.map((one, at) => [one, right[at]]);

  function problem(name, reason) {
    const place = runs[name].querySelector(".problem");
    place.hidden = !reason;
    place.textContent = reason ?? "";
    runs[name].classList.toggle("stale", Boolean(reason));
  }

  function showNumbers(name, design) {
    const place = runs[name];
    problem(name, design.reason);
    place.querySelector(".range").textContent = "";
    if (design.reason) return;
    copies[name] = design.copies;
    place.querySelector(".headline").textContent = design.headline;
    place.querySelector(".headline").title = design.title;
    place.querySelector(".warnings").replaceChildren(...design.warnings.map((words) => element("li", words)));
    const facts = design.facts.flatMap(([fact, words]) => [element("dt", fact), element("dd", words)]);
    place.querySelector(".facts").replaceChildren(...facts);
    for (const size of sizesOf(name)) size.placeholder = Number(design.sizes[size.dataset.size].toPrecision(12)).toString();
    place.querySelector(".copied").hidden = true;
  }

  function pairOf(id, answer, fill) {
    const parts = answer.designs.map((design, at) => {
      const part = element("div");
      if (answer.designs.length > 1) part.append(element("h3", `Run ${"AB"[at]}`));
      if (design.reason) part.append(element("p", design.reason, "note"));
      else fill(part, design, "AB"[at]);
      return part;
    });
    document.querySelector(`#${id} .pair`).replaceChildren(...parts);
  }

  function showRange(answer) {
    pairOf("timelines", answer, (part, design, name) => {
      runs[name].querySelector(".range").textContent = design.range;
      for (const dt of runs[name].querySelectorAll(".facts dt")) {
        if (dt.textContent === "time per batch") dt.nextElementSibling.textContent = design.time;
      }
      const drawing = element("div", undefined, "gantt");
      // Text in it is escaped where it is written.
      drawing.innerHTML = design.timeline || "<p class=\"note\">Nothing fits, so nothing runs.</p>";
      drawing.tabIndex = 0;
      drawing.setAttribute("role", "region");
      drawing.setAttribute("aria-label", "Timeline of a batch");
      part.append(drawing);
    });
  }

  function showReasons(answer) {
    pairOf("reasons", answer, (part, design) => {
      part.append(...design.sentences.map((sentence) => element("p", sentence)));
      for (const kind of ["gains", "fixes"]) if (design[kind].length) part.append(tableOf(kind, design[kind]));
    });
  }

  async function answerTo(kind, query, signal) {
    const answer = await fetch(`/ask/${kind}/${page}?${query}`, { signal });
    const body = await answer.json();
    if (answer.status === 409) throw new DOMException(body.reason, "AbortError");
    if (!answer.ok) throw new Error(body.reason);
    return body;
  }

  function later(query) {
    const cancel = new AbortController();
    const steps = [["range", RANGE_MS, showRange], ["reasons", REASONS_MS, showReasons]];
    for (const [kind, pause, show] of steps) {
      asking.later.push(
        setTimeout(async () => {
          const begun = performance.now();
          try {
            show(await answerTo(kind, query, cancel.signal));
            document.body.dataset[`${kind}Ms`] = (performance.now() - begun).toFixed(1);
          } catch (error) {
            if (error.name !== "AbortError") live.textContent = error.message;
          }
        }, pause),
      );
    }
    asking.cancel = cancel;
  }

  function forgetLater() {
    asking.later.forEach(clearTimeout);
    asking.later = [];
    asking.cancel?.abort();
  }

  async function refresh() {
    markDifferences();
    forgetLater();
    const now = performance.now();
    // One question at a time, the newest next; one that takes long is given up.
    if (asking.numbers && now - asking.numbers.begun < PATIENCE_MS) {
      asking.numbers.again = true;
      setTimeout(() => asking.numbers?.again && refresh(), PATIENCE_MS);
      return;
    }
    asking.numbers?.cancel.abort();
    const own = { begun: now, again: false, cancel: new AbortController() };
    asking.numbers = own;
    const names = shownRuns(), query = queryOf(names);
    const working = setTimeout(() => { live.textContent = "working; a model that is new here is captured first"; }, WORKING_MS);
    try {
      const answer = await answerTo("numbers", query, own.cancel.signal);
      if (asking.numbers !== own) return;
      live.textContent = "";
      answer.designs.forEach((design, at) => showNumbers(names[at], design));
      document.getElementById("comparison").textContent = answer.comparison;
      await Promise.all(Object.entries(answer.figures).map(([kind, figure]) => Figures.draw(document.getElementById(`plot-${kind}`), figure)));
      history.replaceState(null, "", `?${query}`);
      document.body.dataset.numbersMs = (performance.now() - now).toFixed(1);
      if (!own.again) later(query);
    } catch (error) {
      if (asking.numbers !== own || error.name === "AbortError") return;
      live.textContent = "";
      for (const name of names) problem(name, error.message);
    } finally {
      clearTimeout(working);
      if (asking.numbers === own) {
        asking.numbers = null;
        if (own.again) refresh();
      }
    }
  }

  async function copy(name, kind) {
    const link = `${location.origin}/?${queryOf([name])}`;
    const text = kind === "link" ? link : (copies[name][kind] ?? "");
    const shown = runs[name].querySelector(".copied");
    shown.hidden = false;
    shown.value = text;
    shown.focus();
    shown.select();
    try {
      await navigator.clipboard.writeText(text);
      live.textContent = `${kind} of run ${name} copied`;
    } catch {
      live.textContent = "the browser does not let this page copy: the text is selected below";
    }
  }

  document.getElementById("compare").addEventListener("click", () => {
    showSecond(runs.B.hidden);
    refresh();
  });
  document.getElementById("reset").addEventListener("click", () => {
    showSecond(false);
    setOptions("A", new Map());
    refresh();
  });
  for (const name of ["A", "B"]) {
    runs[name].addEventListener("submit", (event) => event.preventDefault());
    // A number counts while it is typed, anything else when it is chosen or complete.
    runs[name].addEventListener("input", (event) => {
      if (event.target.type === "number") refresh();
    });
    runs[name].addEventListener("change", (event) => {
      if (event.target.type !== "number") refresh();
    });
    runs[name].addEventListener("click", (event) => {
      const button = event.target.closest("[data-copy]");
      if (button) copy(name, button.dataset.copy);
    });
  }
  restore(location.search);
  refresh();
})();
