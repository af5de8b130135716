// A matrix as a picture on a canvas, with a readout of the cell under the pointer or the arrow keys.

import { onThemeChange } from "./theme.js";

const LABEL = 96; // pixels that the longest label may have
const GAP = 6;
const FONT = "12px system-ui, sans-serif";

export class HeatMap {
  #canvas = document.createElement("canvas");
  #readout = document.createElement("p");
  #scale = document.createElement("p");
  #drawing = null;
  #cursor = null; // [row, column]

  /** diverging: colours of two kinds around 0; else one from 0 on. */
  constructor(title, { diverging }) {
    this.title = title;
    this.diverging = diverging;
    this.element = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.append(this.#canvas);
    this.#scale.className = `scale ${diverging ? "diverging" : "sequential"}`;
    this.#readout.className = "note readout";
    this.#readout.setAttribute("aria-live", "polite");
    this.#canvas.role = "img";
    this.#canvas.tabIndex = 0;
    this.element.append(caption, scroll, this.#scale, this.#readout);
    this.#canvas.addEventListener("pointermove", (event) => this.#point(this.#cellAt(event)));
    this.#canvas.addEventListener("pointerleave", () => this.#point(null));
    this.#canvas.addEventListener("keydown", (event) => this.#move(event));
    onThemeChange(() => this.#draw());
  }

  /**
   * values[row][column], null for a cell that is blank; labels of rows and columns, "" for none;
   * describe(row, column): the cell in words; cell: [width, height] in pixels.
   */
  show({ values, rows, columns, describe, cell, turned }) {
    const numbers = values.flat().filter((value) => value !== null);
    const [least, most] = numbers.reduce(
      ([low, high], value) => [Math.min(low, value), Math.max(high, value)],
      [Infinity, -Infinity],
    );
    const reach = this.diverging ? Math.max(Math.abs(least), Math.abs(most), 1e-9) : 1;
    this.#drawing = { values, rows, columns, describe, cell, turned, reach };
    this.#cursor = null;
    this.#readout.textContent = "";
    const ends = this.diverging ? [`−${reach.toFixed(2)}`, reach.toFixed(2)] : ["0", "1"];
    this.#scale.replaceChildren(ends[0], document.createElement("i"), ends[1]);
    this.#canvas.setAttribute(
      "aria-label",
      `${this.title}: ${values.length} rows, ${values[0].length} columns, ` +
        `from ${least.toFixed(2)} to ${most.toFixed(2)}`,
    );
    this.#draw();
  }

  #draw() {
    if (!this.#drawing) return;
    const { values, rows, columns, cell: [width, height], turned } = this.#drawing;
    const context = this.#canvas.getContext("2d");
    context.font = FONT;
    const widthOf = (label) => context.measureText(label).width;
    const widest = (labels) => Math.min(LABEL, Math.max(...labels.map(widthOf)));
    const left = Math.ceil(widest(rows)) + GAP;
    const top = (turned ? Math.ceil(widest(columns)) : 12) + GAP;
    // A label in the middle of the last column stands out to the right.
    const size = [left + width * columns.length + GAP + 6, top + height * rows.length + 2];
    this.#drawing.origin = [left, top];
    this.#canvas.dataset.grid = [left, top, width, height]; // where the cells are, for tests
    this.#resize(context, size);

    const colours = palette();
    values.forEach((row, i) =>
      row.forEach((value, j) => {
        // A blank cell must not look like one with 0.
        context.fillStyle =
          value === null ? colours.line : colours.of(value / this.#drawing.reach, this.diverging);
        context.fillRect(left + j * width, top + i * height, width, height);
      }),
    );
    context.strokeStyle = colours.line;
    context.strokeRect(left - 0.5, top - 0.5, width * columns.length + 1, height * rows.length + 1);
    this.#label(context, colours.muted);
    if (this.#cursor) {
      const [i, j] = this.#cursor;
      context.strokeStyle = colours.ink;
      context.lineWidth = 2;
      context.strokeRect(left + j * width, top + i * height, width, height);
    }
  }

  #resize(context, [width, height]) {
    const ratio = devicePixelRatio;
    this.#canvas.width = width * ratio;
    this.#canvas.height = height * ratio;
    this.#canvas.style.width = `${width}px`;
    this.#canvas.style.height = `${height}px`;
    context.scale(ratio, ratio);
    context.font = FONT;
  }

  #label(context, colour) {
    const { rows, columns, cell: [width, height], turned, origin: [left, top] } = this.#drawing;
    context.fillStyle = colour;
    context.textBaseline = "middle";
    context.textAlign = "right";
    rows.forEach((label, i) => {
      context.fillText(fitted(context, label), left - GAP, top + (i + 0.5) * height);
    });
    columns.forEach((label, j) => {
      context.save();
      context.translate(left + (j + 0.5) * width, top - GAP);
      if (turned) context.rotate(-Math.PI / 2);
      context.textAlign = turned ? "left" : "center";
      context.textBaseline = turned ? "middle" : "bottom";
      context.fillText(fitted(context, label), 0, 0);
      context.restore();
    });
  }

  #cellAt(event) {
    const { values, cell: [width, height], origin: [left, top] } = this.#drawing;
    const i = Math.floor((event.offsetY - top) / height);
    const j = Math.floor((event.offsetX - left) / width);
    return values[i]?.[j] === undefined ? null : [i, j];
  }

  #move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    const { values } = this.#drawing;
    const [i, j] = this.#cursor ?? [-step[0], -step[1]];
    const within = (index, count) => Math.max(0, Math.min(index, count - 1));
    this.#point([within(i + step[0], values.length), within(j + step[1], values[0].length)]);
  }

  #point(cell) {
    if (String(cell) === String(this.#cursor)) return;
    this.#cursor = cell;
    const blank = !cell || this.#drawing.values[cell[0]][cell[1]] === null;
    this.#readout.textContent = blank ? "" : this.#drawing.describe(...cell);
    this.#draw();
  }
}

/** The style's colours, between which those of the cells lie. */
function palette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name);
  const channels = (name) => colour(name).match(/[\d.]+/g).slice(0, 3).map(Number);
  const [none, cold, warm, much] = ["--none", "--cold", "--warm", "--much"].map(channels);
  const between = (to, share) =>
    `rgb(${none.map((from, c) => Math.round(from + (to[c] - from) * share)).join(" ")})`;
  return {
    line: colour("--line"),
    muted: colour("--muted"),
    ink: colour("--ink"),
    of: (share, diverging) => between(!diverging ? much : share < 0 ? cold : warm, Math.abs(share)),
  };
}

function fitted(context, label) {
  if (context.measureText(label).width <= LABEL) return label;
  let length = Math.min(label.length, 32);
  while (context.measureText(`${label.slice(0, length)}…`).width > LABEL) length -= 1;
  return `${label.slice(0, length)}…`;
}
