// The explanation of one sentence: asked for, and shown by words, by logits, and as a whole.

import { askJson, Latest, sleep } from "./api.js";
import { dim, drawAttention, hideAttention, lightWord, startAttention } from "./attention.js";
import { HeatMap } from "./heatmap.js";
import { fill, numbers } from "./select.js";
import { drawSplit, hideSplit, signed } from "./split.js";
import { meanWeights, pieceText, weightsByWord, wordsOf } from "./words.js";

const [stack, layer, head, piece, note, splitNote, heatmaps] = [
  "stack",
  "layer",
  "head",
  "piece",
  "attention-note",
  "split-note",
  "heatmaps",
].map((id) => document.getElementById(id));
const MEAN = "mean";
const KEPT = 16;
const HOVER = 120; // milliseconds: a pointer on its way across other sentences asks for nothing

export class ExplanationPanel {
  #latest = new Latest("explanation");
  #kept = new Map();
  #model = null;
  #languages = {}; // as requests have them
  #sentence = null;
  #answer = null; // what is shown
  #current = false; // whether it is of #sentence
  #pointed = null; // the word under the pointer
  #chosen = null; // the word that was clicked
  #maps = {
    content: new HeatMap("Content part of the logits", { diverging: true }),
    position: new HeatMap("Position part of the logits", { diverging: true }),
    weights: new HeatMap("Weights", { diverging: false }),
  };

  constructor() {
    heatmaps.append(...Object.values(this.#maps).map((map) => map.element));
    startAttention((word) => this.#select(word));
    stack.addEventListener("change", () => {
      this.#fillLayers();
      this.#load();
    });
    for (const select of [layer, head]) select.addEventListener("change", () => this.#draw());
    piece.addEventListener("change", () => this.#drawSplit());
    this.#blank("A sentence and its translation are needed.");
  }

  model(model, languages, names) {
    this.#model = model;
    this.#languages = languages;
    this.names = names;
    this.#kept.clear();
    this.#fillLayers();
    fill(head, [[MEAN, "mean of heads"], ...numbers(model.heads)], head.value || MEAN);
  }

  /** Explain { source, translation }; null: there is none. */
  show(sentence) {
    this.#sentence = sentence;
    this.#chosen = null;
    this.#load();
  }

  /** The pointer or the focus is at a word of the sentence that is shown. */
  point(word) {
    this.#pointed = word;
    // The queries of the encoder are the source's words.
    if (this.#current && stack.value !== "encoder") lightWord(word);
  }

  leave() {
    this.#pointed = null;
    dim();
  }

  /** A word was chosen: its first piece is the one to split. */
  choose(id) {
    this.#chosen = id;
    if (!this.#current || stack.value === "encoder") return;
    const word = this.#words.query.find((other) => other.id === id);
    if (word) this.#select(word);
  }

  #select(word) {
    piece.value = String(word.pieces[0]);
    this.#drawSplit();
  }

  #fillLayers() {
    const count = stack.value === "encoder" ? this.#model.encoder_layers : this.#model.decoder_layers;
    fill(layer, numbers(count), layer.value || String(Math.max(1, count - 1)));
  }

  async #load() {
    this.#current = false;
    if (!this.#sentence || !this.#model.explained) {
      this.#latest.cancel();
      this.#blank(
        this.#model && !this.#model.explained
          ? "Another engine runs this model, which does not show its attention."
          : "A sentence and its translation are needed.",
      );
      return;
    }
    const { source, translation } = this.#sentence;
    const body = { ...this.#languages, q: source, translation, stack: stack.value };
    const name = JSON.stringify(body);
    await this.#latest.run(async (signal) => {
      if (!this.#kept.has(name)) {
        await sleep(HOVER, signal);
        this.#keep(name, await askJson("/explain", { about: "explanation", body, signal }));
      }
      this.#take(this.#kept.get(name));
      if (this.#chosen !== null) this.choose(this.#chosen);
      if (this.#pointed !== null) this.point(this.#pointed);
    }, (sentence) => this.#blank(sentence));
  }

  #keep(name, answer) {
    this.#kept.set(name, answer);
    if (this.#kept.size > KEPT) this.#kept.delete(this.#kept.keys().next().value);
  }

  #take(answer) {
    this.#answer = answer;
    this.#current = true;
    note.textContent = "";
    fill(piece, answer.queries.map((query, i) => [String(i), pieceText(query)]), "0");
    piece.disabled = false;
    this.#draw();
  }

  #blank(sentence) {
    this.#answer = null;
    note.textContent = sentence;
    splitNote.textContent = "";
    piece.replaceChildren();
    piece.disabled = true;
    hideAttention();
    hideSplit();
    for (const map of Object.values(this.#maps)) map.element.hidden = true;
  }

  get #heads() {
    return this.#answer.layers[Number(layer.value) - 1];
  }

  /** Logits are of a single head: the first, where the mean of the weights is shown. */
  get #single() {
    return head.value === MEAN ? 0 : Number(head.value) - 1;
  }

  get #words() {
    const { queries, query_words, keys, key_words } = this.#answer;
    return { query: wordsOf(queries, query_words), key: wordsOf(keys, key_words) };
  }

  #draw() {
    if (!this.#answer) return;
    const words = this.#words;
    const weights = head.value === MEAN ? meanWeights(this.#heads) : this.#heads[this.#single].weights;
    const query = this.#answer.stack === "encoder" ? "source" : "target";
    const key = this.#answer.stack === "decoder" ? "target" : "source";
    drawAttention({
      words,
      weights: weightsByWord(weights, words.query, words.key),
      names: { query: `${this.names[query]}: looks`, key: `${this.names[key]}: is looked at` },
      languages: { query: this.#model[query], key: this.#model[key] },
    });
    this.#drawSplit();
    this.#drawMaps();
  }

  #drawSplit() {
    const i = Number(piece.value);
    const { content, position, weights } = this.#heads[this.#single];
    drawSplit({
      keys: this.#answer.keys,
      content: content[i],
      position: position?.[i],
      weights: weights[i],
      visible: (j) => this.#visible(i, j),
    });
    splitNote.textContent = [
      head.value === MEAN
        ? "Logits are of one head each; these are of head 1. Choose another under Head."
        : `Head ${this.#single + 1}.`,
      this.#why(position),
    ].join(" ");
  }

  #why(position) {
    if (position) return "Content and position add up to the logit; the softmax of the logits is the weight.";
    if (this.#answer.stack === "cross") return "There are no positions in attention to the source.";
    return "This model has no relative positions in its keys.";
  }

  #drawMaps() {
    const { queries, keys } = this.#answer;
    const [rows, columns] = [queries.map(pieceText), keys.map(pieceText)];
    const side = Math.max(10, Math.min(30, Math.floor(300 / Math.max(rows.length, columns.length))));
    const shorter = side < 13; // labels need 13 pixels: with less, every other is left out
    for (const [name, map] of Object.entries(this.#maps)) {
      const matrix = this.#heads[this.#single][name];
      map.element.hidden = matrix === null;
      if (matrix === null) continue;
      map.show({
        values: matrix.map((row, i) => row.map((value, j) => (this.#visible(i, j) ? value : null))),
        rows: shorter ? rows.map(everyOther) : rows,
        columns: shorter ? columns.map(everyOther) : columns,
        describe: (i, j) =>
          `${rows[i]} → ${columns[j]}: ${map.diverging ? signed(matrix[i][j]) : matrix[i][j].toFixed(3)}`,
        cell: [side, side],
        turned: true,
      });
    }
  }

  /** Within the translation nothing looks at what comes later. */
  #visible(i, j) {
    return this.#answer.stack !== "decoder" || j <= i;
  }
}

function everyOther(label, index) {
  return index % 2 ? "" : label;
}
