// The table of operations, and the controls of table and graph: zoom, search, filters, sort.
const COLUMNS = [ // name, sort key, displayed value, class
  ["#", (one) => one.index, String, "number"],
  ["operation", (one) => one.name, null, "code"],
  ["result", (one) => one.result, String, "code"],
  ["precision", (one) => one.kind, kindText, "line"],
  ["rule", (one) => one.rule, String, ""],
  ["reason", (one) => one.detail || words.get(one.rule) || "", String, "wide"],
  ["source", (one) => one.source, String, "code"],
  ["FLOPs", (one) => one.flops, (value) => amount(value), "number"],
  ["bytes", (one) => one.bytes, (value) => amount(value, "B"), "number"],
  ["in float32", (one) => one.bytesFull, (value) => amount(value, "B"), "number"],
  ["optimizations", (one) => one.optimizations, String, ""],
  ["scope", (one) => one.scope, String, "code"],
];

function drawHead() {
  get("operations").tHead.replaceChildren(make("tr", {}, ...COLUMNS.map(([name, , , style], i) => {
    const sorted = state.sort === i ? (state.down ? "descending" : "ascending") : "none";
    return make("th", { scope: "col", "aria-sort": sorted, class: style === "number" ? "number" : null },
      make("button", { type: "button", onclick: () => sortBy(i) }, name + { none: "", ascending: " ▲", descending: " ▼" }[sorted]));
  })));
}

function sortBy(i) { // numbers sort from the greatest
  const number = COLUMNS[i][3] === "number" && i > 0;
  Object.assign(state, { down: state.sort === i ? !state.down : number, sort: i, rows: PAGE });
  drawTable();
  get("operations").tHead.rows[0].cells[i].firstChild.focus({ preventScroll: true });
}

function drawTable() {
  const [, key] = COLUMNS[state.sort], sign = state.down ? -1 : 1;
  const found = state.zoom.all.filter(matches).sort((a, b) => {
    const x = key(a), y = key(b);
    const order = typeof x === "number" ? x - y : x < y ? -1 : +(x > y);
    return sign * order || a.index - b.index;
  });
  drawHead();
  get("operations").tBodies[0].replaceChildren(...found.slice(0, state.rows).map((one) => {
    const cells = COLUMNS.map(([, value, show, style]) => make("td", { class: style }, show ? show(value(one))
      : make("button", { type: "button", class: "link", title: "Show it in the graph", onclick: () => reveal(one) }, one.name)));
    return make("tr", { class: one.node === state.chosen ? "chosen" : null }, ...cells);
  }));
  get("more").hidden = found.length <= state.rows;
  const of = (part, whole) => `${part.length.toLocaleString("en")} of ${whole.length.toLocaleString("en")} operations`;
  const bytes = found.reduce((sum, one) => sum + one.bytes, 0);
  get("found").textContent = (state.zoom === root ? "" : `${of(found, state.zoom.all)} in ${state.zoom.name}, `)
    + `${of(operations.filter(matches), operations)} in all; `
    + `the table shows ${Math.min(found.length, state.rows).toLocaleString("en")}, of ${amount(bytes, "B")}`;
}

function reveal(one) { // shows an operation in the graph even if the search hides it
  state.chosen = one.node;
  state.zoom = one.node.parent;
  update();
  choose(one.node);
  get("trail").scrollIntoView({ block: "nearest" });
}

function update() {
  drawGraph();
  describe(state.chosen);
  drawTable();
}

function keys(event) { // moves in the graph with arrow keys, as in any tree
  const column = shown.findIndex((nodes) => nodes.includes(state.chosen));
  if (column < 0) return;
  const row = shown[column].indexOf(state.chosen), level = shown[column];
  const inner = (shown[column + 1] || []).find((node) => node.parent === state.chosen);
  const to = {
    ArrowDown: level[row + 1], ArrowUp: level[row - 1], Home: level[0], End: level[level.length - 1],
    ArrowRight: inner, ArrowLeft: column > 0 ? state.chosen.parent : null,
  };
  if (event.key in to) {
    if (to[event.key]) { choose(to[event.key]); to[event.key].drawn.focus({ preventScroll: true }); }
  } else if (event.key === "Enter" || event.key === " ") zoom(state.chosen);
  else if (event.key === "Escape" || event.key === "Backspace") {
    if (state.zoom.parent) { const from = state.zoom; zoom(from.parent); choose(from); if (from.drawn) from.drawn.focus({ preventScroll: true }); }
  } else return;
  event.preventDefault();
}

function start() {
  document.title = data.title;
  get("title").textContent = data.title;
  get("about").textContent = data.about;
  get("footer").textContent = `duotone ${data.version}. Bytes are those of operands and results as each operation reads and writes them: an upper bound, since a compiler fuses.`;
  drawOverview();
  drawSections();
  for (const section of document.querySelectorAll("main > section"))
    get("contents").append(make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent));
  for (const kind of KINDS) get("legend").append(make("span", {}, make("i", { class: kind.name }), `${kind.mark} ${kind.words}`));
  const option = (value, words) => make("option", { value }, words);
  get("kind").append(option("", "any"), ...KINDS.map((kind, i) => option(i, `${kind.mark} ${kind.words}`)));
  get("rule").append(option("", "any"), ...data.rules.map((r) => option(r.rule, `${r.rule} (${r.count})`)));
  get("measure").append(...Object.entries(MEASURES).map(([name, words]) => option(name, words)));
  const set = (name, value) => { state[name] = value; state.rows = PAGE; update(); };
  for (const [name, event] of [["search", "input"], ["kind", "change"], ["rule", "change"]])
    get(name).addEventListener(event, () => set(name, get(name).value));
  get("measure").addEventListener("change", () => { state.measure = get("measure").value; weigh(root); update(); });
  get("clear").addEventListener("click", () => {
    for (const name of ["search", "kind", "rule"]) get(name).value = state[name] = "";
    set("zoom", root);
  });
  get("more").addEventListener("click", () => { state.rows += PAGE; drawTable(); });
  get("graph").addEventListener("keydown", keys);
  new ResizeObserver(() => drawGraph()).observe(get("graph"));
  weigh(root);
  update();
}
start();
