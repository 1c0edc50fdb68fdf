// Draws the JSON in #data. It uses no library, loads nothing, and never inserts text as HTML, since
// users choose the names. One state (zoom, search, sort) drives both graph and table.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const KINDS = [
  { name: "half", mark: "■", words: "half" },
  { name: "stored", mark: "◧", words: "computes full, stores half" },
  { name: "full", mark: "▨", words: "full" },
  { name: "other", mark: "□", words: "no float" },
];
const MEASURES = {
  bytesFull: "bytes in float32", bytes: "bytes as painted", flops: "FLOPs", count: "operations",
};
const PAGE = 200; // how many rows the table adds at a time
const get = (id) => document.getElementById(id);

function make(tag, attributes = {}, ...children) {
  const drawn = ["svg", "g", "rect", "text", "path", "line", "defs", "pattern", "circle"];
  const made = drawn.includes(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes))
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function amount(number, unit = "") {
  for (const [size, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (Math.abs(number) >= size) return `${+(number / size).toPrecision(3)} ${prefix}${unit}`;
  return `${+number.toPrecision(3)} ${unit}`.trim();
}
const percent = (share) => (share > 0 && share < 0.005 ? "<1%" : `${(100 * share).toFixed(share > 0.995 && share < 1 ? 1 : 0)}%`);
const measured = (number, measure) =>
  measure === "count" ? `${number.toLocaleString("en")} operations`
    : measure === "flops" ? amount(number, "FLOP") : amount(number, "B");
const kindText = (kind) => `${KINDS[kind].mark} ${KINDS[kind].words}`;

// ---- the program: operations, and the tree of their name scopes
const columns = data.operations, text = data.texts;
const operations = columns.index.map((index, i) => {
  const one = { index, count: 1, path: data.paths[columns.path[i]].map((part) => text[part]) };
  for (const name of ["name", "result", "rule", "detail", "source", "operands", "optimizations"])
    one[name] = text[columns[name][i]];
  for (const name of ["kind", "runs", "casts", "flops", "bytes", "bytesFull", "reads"])
    one[name] = columns[name][i];
  one.scope = one.path.join("/");
  one.searched = [one.scope, one.name, one.rule, one.detail, one.source, one.result, one.optimizations]
    .join(" ").toLowerCase();
  return one;
});
const words = new Map(data.rules.map((rule) => [rule.rule, rule.words]));
const byIndex = new Map(operations.map((one) => [one.index, one]));
const readers = new Map();
for (const one of operations)
  for (const read of one.reads) readers.set(read, [...(readers.get(read) || []), one.index]);

const newNode = (name, parent, operation = null) =>
  ({ name, parent, operation, level: parent ? parent.level + 1 : 1, children: [], all: [], scopes: new Map() });
const root = newNode(data.title, null);
for (const one of operations) {
  let node = root;
  for (const part of one.path) {
    if (!node.scopes.has(part)) {
      node.scopes.set(part, newNode(part, node));
      node.children.push(node.scopes.get(part));
    }
    node = node.scopes.get(part);
  }
  one.node = newNode(one.name, node, one);
  node.children.push(one.node);
  for (let above = one.node; above; above = above.parent) above.all.push(one);
}
const state = {
  zoom: root, chosen: root, search: "", kind: "", rule: "", measure: "bytesFull",
  sort: 0, down: false, rows: PAGE,
};

function weigh(node) { // computes the area of a node and of its parts by kind
  node.parts = [0, 0, 0, 0];
  for (const one of node.all) node.parts[one.kind] += one[state.measure];
  node.size = node.parts.reduce((sum, part) => sum + part);
  node.children.forEach(weigh);
}
