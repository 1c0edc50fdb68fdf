// The graph by name scope: an icicle. Columns are levels, heights are bytes or FLOPs; a click zooms.
const isFiltered = () => state.search || state.kind !== "" || state.rule;
const matches = (one) => (state.kind === "" || one.kind === +state.kind) && (!state.rule || one.rule === state.rule)
  && state.search.toLowerCase().split(/\s+/).every((word) => one.searched.includes(word));
let shown = []; // the drawn nodes of each column, top to bottom

function patterns() {
  const pattern = (kind, size, ...marks) => make("pattern",
    { id: `${kind}-fill`, width: size, height: size, patternUnits: "userSpaceOnUse" },
    make("rect", { width: size, height: size, class: `${kind}-ink` }), ...marks);
  return make("defs", {}, pattern("half", 8), pattern("other", 8),
    pattern("stored", 6, make("circle", { cx: 3, cy: 3, r: 1.4, class: "gap" })),
    pattern("full", 8, make("path", { d: "M-2 2L2 -2M0 8L8 0M6 10L10 6", class: "gap", "stroke-width": 2 })));
}

const levels = (node) => 1 + Math.max(0, ...node.children.map(levels));

function drawGraph() {
  const graph = get("graph"), wide = graph.clientWidth || 600, tall = graph.clientHeight || 460;
  const count = Math.min(wide < 560 ? 3 : 5, levels(state.zoom)), column = wide / count;
  const kept = new Set();
  if (isFiltered()) for (const one of operations) if (matches(one)) for (let n = one.node; n; n = n.parent) kept.add(n);
  const hadFocus = graph.contains(document.activeElement);
  graph.replaceChildren(patterns());
  shown = Array.from({ length: count }, () => []);
  let hidden = 0;
  const drawNode = (node, depth, top, height) => {
    const most = node.parts.indexOf(Math.max(...node.parts));
    const share = node.size ? node.parts[0] / node.size : 0, left = depth * column;
    const summary = node.operation ? kindText(most) : `${percent(share)} in half, ${measured(node.size, state.measure)}`;
    const group = make("g", { class: KINDS[most].name + (isFiltered() && !kept.has(node) ? " dim" : "") + (node === state.chosen ? " chosen" : ""),
      role: "treeitem", "aria-level": node.level, tabindex: node === state.chosen ? 0 : -1,
      "aria-expanded": node.operation ? null : String(node === state.zoom), "aria-label": `${node.name}: ${summary}`,
      onclick: () => { choose(node); zoom(node); }, onfocus: () => choose(node), onmouseenter: () => describe(node) },
      make("rect", { class: "box", x: left, y: top, width: column - 1, height }));
    let from = top;
    node.parts.forEach((part, kind) => {
      const size = node.size ? (height * part) / node.size : 0;
      if (size > 0.2) group.append(make("rect", { x: left + 1, y: from, width: 9, height: size, fill: `url(#${KINDS[kind].name}-fill)` }));
      from += size;
    });
    const fit = (words) => (words.length * 6.7 > column - 20 ? `${words.slice(0, (column - 26) / 6.7)}…` : words);
    if (height >= 13) group.append(make("text", { x: left + 15, y: top + Math.min(height / 2 + 4, 15) }, fit(node.name)));
    if (height >= 32) group.append(make("text", { x: left + 15, y: top + 29 }, fit(summary)));
    graph.append(group);
    node.drawn = group;
    shown[depth].push(node);
    if (depth + 1 < count) for (const inner of node.children) {
      const part = node.size ? (height * inner.size) / node.size : 0;
      if (part >= 2.5) drawNode(inner, depth + 1, top, part); else hidden += inner.size > 0;
      top += part;
    }
  };
  drawNode(state.zoom, 0, 0, tall);
  if (!shown.flat().includes(state.chosen)) { state.chosen = state.zoom; state.zoom.drawn.setAttribute("tabindex", 0); }
  if (hadFocus) state.chosen.drawn.focus({ preventScroll: true });
  const path = [];
  for (let node = state.zoom; node; node = node.parent) path.unshift(node);
  get("trail").replaceChildren(...path.flatMap((node, i) => [...(i ? ["›"] : []), i === path.length - 1 ? make("b", {}, node.name)
    : make("button", { type: "button", class: "link", onclick: () => zoom(node) }, node.name)]),
    ...(hidden ? [make("span", { class: "hint" }, `(${hidden} smaller ones show when you zoom in)`)] : []));
}

function choose(node) {
  for (const [one, on] of [[state.chosen, false], [node, true]]) if (one.drawn) {
    one.drawn.setAttribute("tabindex", on ? 0 : -1);
    one.drawn.classList.toggle("chosen", on);
  }
  state.chosen = node;
  describe(node);
}

function zoom(node) {
  const target = node.operation ? node.parent : node;
  if (target === state.zoom) return;
  state.zoom = target;
  state.rows = PAGE;
  update();
}

function describe(node) {
  const one = node.operation, rows = [];
  const links = (indices) => make("dd", {}, ...indices.slice(0, 8).flatMap((i) => byIndex.has(i) ? [make("button",
    { type: "button", class: "link", onclick: () => reveal(byIndex.get(i)) }, `${byIndex.get(i).name} #${i}`), " "] : []),
    indices.length > 8 ? `and ${indices.length - 8} more` : "");
  const add = (name, value) => value !== "" && rows.push(make("dt", {}, name), value instanceof Node ? value : make("dd", {}, value));
  if (one) {
    add("precision", kindText(one.kind));
    add("rule", `${one.rule}: ${[words.get(one.rule), one.detail].filter(Boolean).join(": ")}`);
    add("result", one.result); add("reads", one.operands); add("source", one.source); add("scope", one.scope);
    add("FLOPs", amount(one.flops)); add("bytes", `${amount(one.bytes, "B")}; ${amount(one.bytesFull, "B")} in float32`);
    add("runs", one.runs > 1 ? one.runs.toLocaleString("en") : ""); add("casts", one.casts ? String(one.casts) : ""); add("optimizations", one.optimizations);
    add("reads from", one.reads.length ? links(one.reads) : ""); add("read by", readers.has(one.index) ? links(readers.get(one.index)) : "");
  } else {
    const sum = (name, kind) => node.all.reduce((total, o) => total + (kind === undefined || o.kind === kind ? o[name] : 0), 0);
    add("operations", `${sum("count", 0).toLocaleString("en")} of ${node.all.length.toLocaleString("en")} in half`);
    add("FLOPs", sum("flops") ? `${percent(sum("flops", 0) / sum("flops"))} of ${amount(sum("flops"))} in half` : "none");
    add("bytes", `${amount(sum("bytes"), "B")}; ${amount(sum("bytesFull"), "B")} in float32`);
    KINDS.forEach((kind, k) => add(kind.mark + " " + kind.name, sum("bytesFull") ? `${percent(sum("bytesFull", k) / sum("bytesFull"))} of bytes: ${kind.words}` : ""));
    const full = new Map();
    for (const o of node.all) if (o.kind === 2) full.set(o.rule, (full.get(o.rule) || 0) + o.bytesFull);
    add("full by", [...full].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([rule]) => rule).join(", "));
  }
  get("detail").replaceChildren(make("h4", {}, one ? `${one.name} #${one.index}` : node.name), make("dl", {}, ...rows));
}
