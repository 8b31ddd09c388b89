"use strict";
(() => {
  const views = JSON.parse(document.getElementById("views").textContent);
  const chosen = Object.fromEntries(
    ["study", "clock", "target", "over"].map((name) => [name, document.getElementById(name)]));
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  let printing = false;

  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const say = (text) => { document.getElementById("said").textContent = text; };
  const article = () => document.querySelector(`article[data-study="${chosen.study.value}"]`);
  const isHidden = (element) => element.closest("[hidden]") !== null;

  // The view.

  function fill(select, { targets, first }, wanted) {
    select.replaceChildren(...targets.map(([value, text]) => new Option(text, value)));
    select.value = targets.some(([value]) => value === wanted) ? wanted : targets[first][0];
  }

  function show(wanted = {}) {
    const study = chosen.study.value;
    const clocks = all("option", chosen.clock);
    for (const option of clocks) {
      option.hidden = option.disabled = option.dataset.study !== study;
    }
    const own = clocks.filter((option) => !option.disabled);
    const clock = own.find((option) => option.value === (wanted.clock ?? chosen.clock.value)) ?? own[0];
    clock.selected = true;
    fill(chosen.target, views[study][clock.value], wanted.target ?? chosen.target.value);
    for (const element of all("article")) element.hidden = element.dataset.study !== study;
    for (const element of all("[data-clock],[data-over],[data-target]", article())) {
      const { clock, over, target } = element.dataset;
      element.hidden = (clock ?? chosen.clock.value) !== chosen.clock.value
        || (over ?? chosen.over.value) !== chosen.over.value
        || (target ?? chosen.target.value) !== chosen.target.value;
    }
    for (const section of all("section.charts", article())) {
      section.hidden = all("figure,.told", section).every((one) => one.hidden);
    }
    tellAll();
    draw();
  }

  function hiddenMethods() {
    return all(".method", article()).filter((box) => !box.checked).map((box) => box.value);
  }

  function remember() {
    const view = new URLSearchParams();
    for (const [name, select] of Object.entries(chosen)) view.set(name, select.value);
    const off = hiddenMethods();
    if (off.length) view.set("off", JSON.stringify(off));
    history.replaceState(null, "", `#${view}`);
  }

  function recall() {
    const view = new URLSearchParams(location.hash.slice(1));
    for (const name of ["study", "over"]) {
      const value = view.get(name);
      if (all("option", chosen[name]).some((option) => option.value === value)) chosen[name].value = value;
    }
    let off = [];
    try {
      off = JSON.parse(view.get("off") ?? "[]");
    } catch {}
    for (const box of all(".method", article())) box.checked = !(Array.isArray(off) && off.includes(box.value));
    show({ clock: view.get("clock") ?? undefined, target: view.get("target") ?? undefined });
  }

  // Charts. Those on the screen are drawn first, the others when the reader comes near.

  function style(dark) {
    const text = dark ? "#e6e9ee" : "#1b1f24";
    const line = dark ? "#59626d" : "#aab3bf";
    return {
      aria: false, background: null, font: "system-ui, sans-serif", view: { stroke: null },
      axis: { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line,
        titleFontWeight: "normal", labelOverlap: true },
      text: { color: text },
      legend: { labelColor: text, titleColor: text },
    };
  }

  function specOf(figure) {
    return JSON.parse(figure.querySelector("script").textContent);
  }

  function viewOf(spec, dark, options) {
    const ranges = spec.usermeta?.dark;
    if (dark && ranges) (spec.encoding ?? spec.layer[0].encoding).color.scale.range = ranges;
    const compiled = vegaLite.compile(spec, { config: style(dark), logger: vega.logger(vega.Error) }).spec;
    // With its syntax tree an expression needs no eval, which the page's policy forbids.
    const parsed = vega.parse(compiled, null, { ast: true });
    return new vega.View(parsed, { expr: vega.expressionInterpreter, logLevel: vega.Error, ...options });
  }

  function tell(figure) {
    const view = drawn.get(figure);
    if (figure.dataset.switches === undefined) return view;
    return view.signal("hidden", hiddenMethods()).signal("target", chosen.target.value);
  }

  function tellAll() {
    for (const figure of drawn.keys()) if (!isHidden(figure)) tell(figure).run();
  }

  function render(figure) {
    drawn.get(figure)?.finalize();
    const place = figure.querySelector(".plot > div");
    place.replaceChildren();
    const spec = specOf(figure);
    if (spec.params) figure.dataset.switches = "";
    const dark = scheme.matches && !printing;
    drawn.set(figure, viewOf(spec, dark, { renderer: "svg", container: place, hover: false }));
    tell(figure).run();
  }

  // One after another, so that the page answers between two charts.
  const waiting = [];

  function drawNext() {
    const figure = waiting.shift();
    if (!drawn.has(figure) && !isHidden(figure)) render(figure);
    if (waiting.length) setTimeout(drawNext);
  }

  const near = new IntersectionObserver((entries) => {
    const found = entries.filter(({ isIntersecting }) => isIntersecting).map(({ target }) => target);
    if (found.length && !waiting.length) setTimeout(drawNext);
    waiting.push(...found);
  }, { rootMargin: "600px" });

  function draw() {
    for (const figure of all("figure.chart", article())) {
      near.unobserve(figure);
      if (!isHidden(figure)) near.observe(figure);
    }
  }

  function forget(figure) {
    drawn.get(figure).finalize();
    drawn.delete(figure);
  }

  function redraw() {
    for (const figure of [...drawn.keys()]) {
      if (isHidden(figure)) forget(figure);
      else render(figure);
    }
  }

  async function save(button) {
    const figure = button.closest("figure");
    const spec = specOf(figure);
    spec.width = 640;
    spec.title = figure.querySelector("figcaption").textContent;
    if (spec.params) {
      const off = hiddenMethods();
      for (const param of spec.params) param.value = param.name === "hidden" ? off : chosen.target.value;
      const legend = { orient: "bottom", title: null, columns: 3, labelLimit: 220 };
      for (const layer of [spec, ...spec.layer]) {
        for (const channel of ["color", "strokeDash", "shape"]) {
          if (layer.encoding?.[channel]?.scale) layer.encoding[channel].legend = legend;
        }
      }
    }
    spec.background = "white";
    const view = viewOf(spec, false, { renderer: "none" });
    const svg = await view.toSVG();
    view.finalize();
    download(svg, "image/svg+xml", `${button.dataset.name}.svg`);
    say("Saved as SVG");
  }

  function download(text, type, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // Tables.

  // A table that goes on to the right fades there.
  function edge(scroll) {
    const rest = scroll.scrollWidth - scroll.clientWidth;
    scroll.classList.toggle("more", scroll.scrollLeft < rest - 2);
    scroll.classList.toggle("moved", rest > 2 && scroll.scrollLeft >= rest - 2);
  }

  const sized = new ResizeObserver((entries) => { for (const { target } of entries) edge(target); });
  for (const scroll of all(".scroll")) {
    sized.observe(scroll);
    scroll.addEventListener("scroll", () => edge(scroll), { passive: true });
  }

  const number = (text) => (text === "" || Number.isNaN(Number(text)) ? null : Number(text));

  function sort(button) {
    const head = button.closest("th"), table = head.closest("table"), body = table.tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[head.cellIndex].dataset.value ?? row.cells[head.cellIndex].textContent;
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([one], [other]) => {
      if (one === "" || other === "") return (one === "") - (other === "");
      const [a, b] = [number(one), number(other)];
      const order = a !== null && b !== null ? a - b : one.localeCompare(other);
      return up ? order : -order;
    });
    body.append(...rows.map(([, row]) => row));
    say(`Sorted by ${button.textContent}, ${up ? "ascending" : "descending"}`);
  }

  function csv(table) {
    const rule = JSON.parse(document.getElementById("csv").textContent);
    const plain = new RegExp(`^(${rule.number})$`), formula = new RegExp(rule.formula, "g");
    const safe = (text) => (plain.test(text) ? text : text.replace(formula, "$1'$2"));
    const field = (cell) => {
      const text = safe(cell.textContent.trim());
      return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return [...table.rows].map((row) => [...row.cells].map(field).join(",")).join("\n");
  }

  async function copy(button) {
    const text = csv(button.closest("p").previousElementSibling.querySelector("table"));
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy as CSV"; }, 2_000);
    say("Copied as CSV");
  }

  function dataTable(details) {
    if (details.querySelector("table")) return;
    const { data: { values }, encoding = {} } = specOf(details.closest("figure"));
    const [across, up] = [encoding.x?.title, encoding.y?.title];
    const titles = { label: "method", x: across, column: across, y: up, row: up, low: "lowest", high: "highest" };
    const missed = "not reached";
    const rows = values.filter((row) => !["mark", "line"].includes(row.kind))
      .map((row) => (row.open ? { ...row, high: missed } : row)) // a range that ends above the axis
      .flatMap((row) =>
        Array.isArray(row.x) ? row.x.map((x, at) => ({ ...row, x: row.at ?? x, y: row.y[at] ?? missed })) : [row]);
    const names = ["label", "kind", "seed", "row", "column", "part", "first", "lead", "seconds", "x", "y", "low", "high", "start", "end"]
      .filter((name) => rows.some((row) => name in row));
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    for (const name of names) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = titles[name] ?? name;
      head.append(cell);
    }
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      for (const name of names) line.insertCell().textContent = row[name] ?? "";
    }
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", "Data of the chart");
    scroll.append(table);
    details.append(scroll);
  }

  // Events.

  document.querySelector(".controls").addEventListener("change", () => { show(); remember(); });
  document.querySelector(".controls").addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("change", (event) => {
    if (!event.target.matches(".method")) return;
    tellAll();
    remember();
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // its hash would replace the view's
    const answer = all(".answer", article()).find((one) => !isHidden(one));
    answer.tabIndex = -1;
    answer.focus();
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.matches(".sort")) sort(button);
    if (button?.matches(".copy")) copy(button);
    if (button?.matches(".svg")) save(button);
  });
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("details.data") && event.target.open) dataTable(event.target);
  }, true);
  addEventListener("hashchange", recall);
  scheme.addEventListener("change", redraw);
  addEventListener("beforeprint", () => {
    printing = true;
    for (const figure of all("figure.chart", article())) if (!isHidden(figure)) render(figure);
  });
  addEventListener("afterprint", () => { printing = false; redraw(); });
  addEventListener("resize", () => {
    // Vega fits the charts that are shown. It cannot see the width of the others.
    for (const figure of [...drawn.keys()]) if (isHidden(figure)) forget(figure);
  });

  recall();
})();
