// The overview, the sections of small tables, and the curves.
function bar(parts, label) {
  const whole = parts.reduce((sum, part) => sum + part, 0) || 1;
  const pieces = parts.map((part, kind) => {
    const piece = make("i", { class: KINDS[kind].name });
    piece.style.width = `${(100 * part) / whole}%`;
    return piece;
  });
  return make("div", { class: "bar", role: "img", "aria-label": label }, ...pieces);
}

function table(columnNames, rows) {
  const cell = (value) => {
    if (value === null || typeof value !== "object") return make("td", { class: String(value).length > 30 ? "wide" : String(value).length > 12 ? "some" : null }, String(value));
    const share = Math.max(0, Math.min(1, value.share));
    return make("td", {}, make("div", { class: "cell" }, value.text, bar([share, 0, 0, 1 - share], percent(share))));
  };
  return make("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": columnNames.join(", ") },
    make("table", {},
      make("thead", {}, make("tr", {}, ...columnNames.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell))))));
}

function addSection(id, title, ...content) {
  const made = make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title` }, title), ...content);
  get("main").append(made);
  return made;
}

function drawOverview() {
  const s = data.summary, share = (part, whole) => (whole ? part / whole : 0);
  const tile = (big, small, ...more) => make("li", {}, make("b", {}, big), make("span", {}, small), ...more);
  const split = (half, whole) => bar([half, 0, whole - half, 0], `${percent(share(half, whole))} in half`);
  get("overview").append(
    make("ul", { class: "tiles" },
      tile(percent(share(s.flopsHalf, s.flops)), `of ${amount(s.flops, "FLOP")} in half`, split(s.flopsHalf, s.flops)),
      tile(amount(s.bytes, "B"), `read and written; ${amount(s.bytesFull, "B")} in float32 (${percent(share(s.bytes, s.bytesFull))})`,
        split(s.bytesHalf, s.bytes)),
      tile(s.operationsHalf.toLocaleString("en"), `of ${s.operations.toLocaleString("en")} operations in half`, split(s.operationsHalf, s.operations)),
      tile(`${s.allowHalf} of ${s.allow}`, "on the allow list in half (dots, convolutions)", split(s.allowHalf, s.allow)),
      tile(s.casts.toLocaleString("en"), "casts inserted")),
    ...data.notes.map((note) => make("p", {}, note)));
  if (data.reasons.length)
    get("overview").append(make("h3", {}, "Rules that keep operations full"),
      table(["rule", "share of bytes", "because", "mostly"],
        data.reasons.map((r) => [r.rule, { text: percent(r.share), share: r.share }, r.words, r.mostly])));
}

function drawSections() {
  for (const one of data.sections) {
    const tables = one.tables.flatMap((t) => [...(t.title ? [make("h3", {}, t.title)] : []), table(t.columns, t.rows)]);
    const made = addSection(one.id, one.title, ...one.lines.map((line) => make("p", {}, line)), ...tables,
      ...(one.code ? [make("pre", { tabindex: 0 }, one.code)] : []),
      ...one.notes.map((note) => make("p", { class: "hint" }, note)));
    get("main").insertBefore(made, get("program"));
  }
  if (data.curves.length) get("main").insertBefore(
    addSection("curves", "Curves", ...data.curves.flatMap(curve)), get("program"));
  if (data.optimizations.length)
    addSection("optimizations", "Optimizations", table(["optimization", "operations", "mostly"],
      data.optimizations.map((r) => [r.name, r.count, r.words])));
  addSection("rules", "Rules", table(["rule", "operations", "meaning"],
    data.rules.map((r) => [r.rule, r.count, r.words])));
}

function curve(c) { // redrawn for each width, so that texts keep their shape
  const tall = 170, left = 66, right = 12, top = 14, bottom = 24, floor = tall - bottom, last = c.steps.length - 1;
  const first = c.steps[0] || 0, span = (c.steps[last] - first) || 1;
  const [low, high] = c.least ? [c.least[1], c.greatest[1]] : [0, 0];
  const scale = c.log ? Math.log : (value) => value;
  const short = (number) => (Number.isInteger(number) && Math.abs(number) < 1e9 ? number.toLocaleString("en") : Math.abs(number) >= 1e6 || (number && Math.abs(number) < 1e-3) ? number.toExponential(2) : String(+number.toPrecision(5)));
  const at = ([step, value]) => `${short(value)} at step ${step}`;
  const summary = [`${c.count.toLocaleString("en")} points`, ...(c.last ? [`last ${at(c.last)}`, `least ${at(c.least)}`, `greatest ${at(c.greatest)}`] : []),
    ...(c.lost ? [`× ${c.lost} not finite`] : []), ...(c.log ? ["logarithmic axis"] : [])].join("; ");
  const status = make("p", { class: "hint", role: "status" }, summary);
  const svg = make("svg", { class: "curve", tabindex: 0, role: "img", "aria-label": `${c.name}: ${summary}` });
  let wide = 0, index = -1, cursor = null;
  const x = (step) => left + ((wide - left - right) * (step - first)) / span;
  const y = (value) => floor - (floor - top) * (high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5);
  const write = (words, x, y, more = {}) => make("text", { x, y, ...more }, words);
  const draw = () => {
    if (wide === svg.clientWidth) return;
    wide = svg.clientWidth;
    let line = "", drawing = false;
    c.values.forEach((value, i) => {
      if (value !== null) line += `${drawing ? "L" : "M"}${x(c.steps[i]).toFixed(1)} ${y(value).toFixed(1)}`;
      drawing = value !== null;
    });
    cursor = make("line", { class: "cursor", y1: top, y2: floor, visibility: "hidden" });
    const lost = c.steps.filter((_, i) => c.values[i] === null);
    svg.replaceChildren(make("line", { class: "axis", x1: left, x2: wide - right, y1: floor, y2: floor }), make("path", { d: line }), cursor,
      ...lost.map((step) => write("×", x(step), floor - 2, { class: "lost", "text-anchor": "middle" })),
      ...(c.least ? [write(short(low), 4, floor), ...(high > low ? [write(short(high), 4, top + 8)] : [])] : []),
      write(`step ${c.steps[0] ?? "(none)"}`, left, tall - 6), write(String(c.steps[last] ?? ""), wide - right, tall - 6, { "text-anchor": "end" }));
  };
  const show = (i) => {
    if (last < 0) return;
    index = Math.max(0, Math.min(last, i));
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(c.steps[index]));
    cursor.setAttribute("visibility", "visible");
    const value = c.values[index];
    status.textContent = `step ${c.steps[index]}: ${value === null ? "not finite" : short(value)} (${summary})`;
  };
  const moves = { ArrowRight: () => index + 1, ArrowLeft: () => index - 1, Home: () => 0, End: () => last };
  svg.addEventListener("pointermove", (event) => {
    const step = first + (span * (event.clientX - svg.getBoundingClientRect().left - left)) / (wide - left - right);
    const i = c.steps.findIndex((s) => s >= step);
    show(i < 0 ? last : i);
  });
  svg.addEventListener("keydown", (event) => {
    if (moves[event.key]) { event.preventDefault(); show(moves[event.key]()); }
  });
  new ResizeObserver(draw).observe(svg);
  return [make("h3", {}, c.name), svg, status];
}
