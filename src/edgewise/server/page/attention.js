// Two columns of words and lines between them: who looks at whom, and how much.

import { makeStop, roving } from "./roving.js";

const view = document.getElementById("attention");
const box = document.getElementById("rows");
const columns = { key: document.getElementById("keys"), query: document.getElementById("queries") };
const titles = {
  key: document.getElementById("keys-title"),
  query: document.getElementById("queries-title"),
};
const svg = document.getElementById("lines");
const looks = document.getElementById("looks");
const SVG = "http://www.w3.org/2000/svg";
const ROW = 28; // as in style.css
const LEAST = 0.02; // thinner lines are not seen, and a long sentence has thousands
const NAMED = 4;

let shown = null; // { words: { query, key }, weights: [query][key] }

/** onSelect(word): a word among the queries was focused. */
export function startAttention(onSelect) {
  for (const [side, column] of Object.entries(columns)) {
    roving(column, `.${side}`);
    const point = (event) => {
      const row = event.target.closest(`.${side}`);
      if (row) light(side, Number(row.dataset.row));
    };
    column.addEventListener("pointerover", point);
    column.addEventListener("focusin", point);
    column.addEventListener("pointerleave", dim);
    column.addEventListener("focusout", dim);
  }
  columns.query.addEventListener("focusin", (event) => {
    onSelect(shown.words.query[Number(event.target.dataset.row)]);
  });
}

/** words and titles: { query, key }; languages too, as codes. */
export function drawAttention({ words, weights, names, languages }) {
  shown = { words, weights };
  for (const side of ["query", "key"]) {
    titles[side].textContent = names[side];
    columns[side].lang = languages[side];
    columns[side].replaceChildren(...words[side].map((word, row) => button(side, word, row)));
    makeStop(columns[side], `.${side}`);
  }
  const height = ROW * Math.max(words.query.length, words.key.length);
  svg.setAttribute("viewBox", `0 0 100 ${height}`);
  svg.style.height = `${height}px`;
  view.hidden = false;
  dim();
}

export function hideAttention() {
  view.hidden = true;
  looks.textContent = "";
}

/** Show what the word `id` of the sentence looks at. */
export function lightWord(id) {
  const row = shown?.words.query.findIndex((word) => word.id === id) ?? -1;
  if (row < 0) return;
  light("query", row);
  const top = ROW * row;
  if (top < box.scrollTop || top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top - ROW;
}

/** All lines, no word in particular. */
export function dim() {
  if (!shown) return;
  mark(() => null);
  drawLines(() => true);
  looks.textContent = "";
}

function light(side, row) {
  const other = side === "query" ? "key" : "query";
  const weight = (index) => (side === "query" ? shown.weights[row][index] : shown.weights[index][row]);
  mark((ofSide, index) => (ofSide === other ? weight(index) : null));
  columns[side].children[row].classList.add("lit");
  drawLines((query, key) => (side === "query" ? query : key) === row);
  const most = shown.words[other]
    .map((word, index) => ({ text: word.text, weight: weight(index) }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, NAMED)
    .filter((word) => word.weight >= 0.005)
    .map((word) => `${word.text} ${percent(word.weight)}`)
    .join(", ");
  const text = shown.words[side][row].text;
  looks.textContent = side === "query" ? `${text} looks at: ${most}` : `${text} is looked at by: ${most}`;
}

/** Shade rows by weightOf(side, index), and write it beside them; null: neither. */
function mark(weightOf) {
  for (const [side, column] of Object.entries(columns)) {
    [...column.children].forEach((row, index) => {
      const weight = weightOf(side, index);
      row.classList.remove("lit");
      row.style.setProperty("--weight", weight ?? 0);
      row.lastElementChild.textContent = weight === null ? "" : percent(weight);
    });
  }
}

function drawLines(wanted) {
  const lines = [];
  shown.weights.forEach((row, query) =>
    row.forEach((weight, key) => {
      if (weight >= LEAST && wanted(query, key)) lines.push(line(query, key, weight));
    }),
  );
  svg.replaceChildren(...lines);
}

function line(query, key, weight) {
  const path = document.createElementNS(SVG, "path");
  const [from, to] = [ROW * (key + 0.5), ROW * (query + 0.5)];
  path.setAttribute("d", `M0 ${from}C50 ${from} 50 ${to} 100 ${to}`);
  path.setAttribute("opacity", weight.toFixed(3));
  return path;
}

function button(side, word, row) {
  const element = document.createElement("button");
  element.type = "button";
  element.className = side;
  element.dataset.row = row;
  const text = document.createElement("span");
  text.dir = "auto";
  text.textContent = word.text;
  element.title = word.text;
  element.append(text, document.createElement("small"));
  return element;
}

function percent(weight) {
  return `${Math.round(100 * weight)} %`;
}
