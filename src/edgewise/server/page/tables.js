// The learned vectors of relative positions, as pictures.

import { askJson, Latest } from "./api.js";
import { HeatMap } from "./heatmap.js";
import { fill, numbers } from "./select.js";
import { signed } from "./split.js";

const [stack, layer, head, note, controls, box] = [
  "tables-stack",
  "tables-layer",
  "tables-head",
  "tables-note",
  "tables-controls",
  "tables",
].map((id) => document.getElementById(id));

export class TablesPanel {
  #latest = new Latest("tables");
  #model = null;
  #answer = null;
  #maps = {
    keys: new HeatMap("Added to keys", { diverging: true }),
    values: new HeatMap("Added to values", { diverging: true }),
  };

  constructor() {
    box.append(...Object.values(this.#maps).map((map) => map.element));
    stack.addEventListener("change", () => this.#load());
    layer.addEventListener("change", () => this.#load());
    head.addEventListener("change", () => this.#draw());
  }

  async model(model) {
    this.#model = model;
    const none = model.max_distance === null || !(model.on_keys || model.on_values);
    const without = none || !model.explained;
    controls.hidden = without;
    box.hidden = without;
    if (without) {
      this.#latest.cancel();
      note.textContent = none
        ? "This model has no relative positions."
        : "Another engine runs this model, which does not show its tables.";
      return;
    }
    await this.#load();
  }

  async #load() {
    const { name, encoder_layers, decoder_layers } = this.#model;
    fill(layer, numbers(stack.value === "encoder" ? encoder_layers : decoder_layers), layer.value || "1");
    const asked = new URLSearchParams({ model: name, stack: stack.value, layer: layer.value });
    await this.#latest.run(async (signal) => {
      this.#answer = await askJson(`/tables?${asked}`, { about: "tables", signal });
      const tables = this.#answer.keys ?? this.#answer.values ?? [];
      fill(head, this.#answer.shared ? [["1", "all"]] : numbers(tables.length), head.value || "1");
      this.#draw();
    });
  }

  #draw() {
    if (!this.#answer) return;
    const { distances } = this.#answer;
    const k = this.#model.max_distance;
    // A decoder sees nothing that comes later: it never uses those rows.
    const used = distances
      .map((_, index) => index)
      .filter((index) => stack.value === "encoder" || distances[index] <= 0);
    const columns = used.map((index) => label(distances[index]));
    note.textContent =
      "What a layer adds for each distance from the piece that looks (i) to the piece looked at (j). " +
      `Row: feature. Column: distance j − i; farther than ${k} counts as ${k}.`;
    for (const [name, map] of Object.entries(this.#maps)) {
      const table = this.#answer[name]?.[Number(head.value) - 1];
      map.element.hidden = !table;
      if (!table) continue;
      const features = table[0].map((_, feature) => feature);
      map.show({
        values: features.map((feature) => used.map((index) => table[index][feature])),
        rows: features.map((feature) =>
          feature === 0 || (feature + 1) % 8 === 0 ? String(feature + 1) : "",
        ),
        columns: columns.map((text, at) => (every(k, distances[used[at]]) ? text : "")),
        describe: (feature, at) =>
          `distance ${columns[at]}, feature ${feature + 1}: ${signed(table[used[at]][feature])}`,
        cell: [clamp(440 / used.length, 6, 28), clamp(260 / features.length, 5, 16)],
        turned: false,
      });
    }
  }
}

/** Labels at 0, at ±k, and in the middle where they have room. */
function every(k, distance) {
  const step = k <= 4 ? 1 : k % 4 === 0 ? k / 4 : k;
  return distance % step === 0;
}

function label(distance) {
  return String(distance).replace("-", "−");
}

function clamp(value, least, most) {
  return Math.floor(Math.max(least, Math.min(value, most)));
}
