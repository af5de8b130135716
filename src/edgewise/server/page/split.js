// Why a piece looks where it looks: each logit in its two parts, and the weight it becomes.

import { pieceText } from "./words.js";

const table = document.getElementById("split");
const box = document.getElementById("split-box");

/** A row for each key that the query may see. */
export function drawSplit({ keys, content, position, weights, visible }) {
  const logits = content.map((part, j) => part + (position ? position[j] : 0));
  const parts = [["Content", content], ...(position ? [["Position", position]] : []), ["Logit", logits]];
  const seen = keys.map((_, j) => j).filter(visible);
  // One scale for all parts, so that bars can be compared and added.
  const scale = Math.max(...parts.flatMap(([, values]) => seen.map((j) => Math.abs(values[j]))), 1e-9);

  const head = document.createElement("thead");
  const names = ["Looked at", ...parts.map(([name]) => name), "Weight"];
  head.append(row(names.map((name) => heading(name, "col"))));
  const body = document.createElement("tbody");
  for (const j of seen) {
    body.append(
      row([
        heading(pieceText(keys[j]), "row"),
        ...parts.map(([, values]) => number(signed(values[j]), values[j] / scale, "diverging")),
        number(weights[j].toFixed(3), weights[j], "sequential"),
      ]),
    );
  }
  table.replaceChildren(head, body);
  box.hidden = false;
}

export function hideSplit() {
  box.hidden = true;
}

export function signed(value) {
  return `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;
}

function row(cells) {
  const element = document.createElement("tr");
  element.append(...cells);
  return element;
}

function heading(text, scope) {
  const element = document.createElement("th");
  element.scope = scope;
  element.dir = "auto";
  element.textContent = text;
  return element;
}

/** A number, and a bar as long as `share` of the most there can be. */
function number(text, share, kind) {
  const cell = document.createElement("td");
  const bar = document.createElement("span");
  bar.className = `meter ${kind}${share < 0 ? " negative" : ""}`;
  bar.style.setProperty("--share", Math.abs(share));
  cell.append(bar, text);
  return cell;
}
