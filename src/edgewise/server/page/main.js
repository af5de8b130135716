// The page: a text goes in, its translation and the reasons come out.

import { openAlternatives, startAlternatives } from "./alternatives.js";
import { ask, askJson, Latest, objects, Refusal, sleep } from "./api.js";
import { copies } from "./clipboard.js";
import { ExplanationPanel } from "./explanation.js";
import { announce, showError } from "./notices.js";
import { curlCommand } from "./request.js";
import { TablesPanel } from "./tables.js";
import { startTheme } from "./theme.js";
import { Translation } from "./translation.js";

const EXAMPLE = "Yesterday the old man saw the dog.";
const TYPING = 250; // milliseconds without a key before a text is sent

const [pair, source, count, took, about, curl, copyTranslation] = [
  "pair",
  "source",
  "count",
  "took",
  "about",
  "curl",
  "copy-translation",
].map((id) => document.getElementById(id));

const stream = new Latest("translation");
const explanation = new ExplanationPanel();
const tables = new TablesPanel();
const translation = new Translation({
  onPoint: point,
  onLeave: () => explanation.leave(),
  onOpen: open,
});
let models = [];
let model = null;
let limit = Infinity;
let selected = 0; // the sentence that is explained

startTheme();
startAlternatives();
copies(copyTranslation, () => translation.text);
copies(document.getElementById("copy-curl"), () => curl.textContent);
source.addEventListener("input", () => translate(TYPING));
pair.addEventListener("change", () => useModel(models[pair.value]));
document.getElementById("example").addEventListener("click", () => {
  source.value = EXAMPLE;
  selected = 0;
  source.focus();
  translate(0);
});
new Latest("start").run(start);

async function start(signal) {
  const [languages, served] = await Promise.all(
    ["/languages", "/models"].map((path) => askJson(path, { about: "start", signal })),
  );
  const names = new Map(languages.map(({ code, name }) => [code, name]));
  limit = served.characters;
  const samePair = (one, other) => one.source === other.source && one.target === other.target;
  models = served.models.map((own) => ({
    ...own,
    names: { source: names.get(own.source), target: names.get(own.target) },
    alone: served.models.filter((other) => samePair(own, other)).length === 1,
  }));
  pair.replaceChildren(...models.map((own, index) => new Option(pairName(own), index)));
  if (models.length > 0) useModel(models[0]);
  else showError("start", "The server has no model.");
}

function pairName({ names, name, alone }) {
  const languages = `${names.source} → ${names.target}`;
  return alone ? languages : `${languages} (${name})`;
}

function useModel(chosen) {
  model = chosen;
  about.textContent = [
    `${model.encoder_layers} + ${model.decoder_layers} layers`,
    `${model.heads} heads`,
    model.max_distance === null ? "no relative positions" : `relative positions to ±${model.max_distance}`,
  ].join(" · ");
  document.getElementById("source-language").textContent = model.names.source;
  document.getElementById("target-language").textContent = model.names.target;
  source.lang = model.source;
  translation.language(model.target);
  translation.clear();
  explanation.model(model, languagesAsked(), model.names);
  tables.model(model);
  translate(0);
}

/** What every request says of languages; the model's name only where they leave it open. */
function languagesAsked() {
  const languages = { source: model.source, target: model.target };
  return model.alone ? languages : { ...languages, model: model.name };
}

function translate(delay) {
  if (!model) return;
  const text = source.value;
  const body = { q: text, ...languagesAsked() };
  curl.textContent = curlCommand(location.origin, { ...body, q: text || EXAMPLE });
  const length = [...text].length; // as the server counts: an emoji is one
  count.textContent = `${length.toLocaleString("en")} / ${limit.toLocaleString("en")}`;
  count.classList.toggle("over", length > limit);
  stream.run(async (signal) => {
    if (text.trim() === "") {
      translation.clear();
      finish(0);
      return;
    }
    if (length > limit) {
      throw new Refusal(`A text may have at most ${limit.toLocaleString("en")} characters.`);
    }
    await sleep(delay, signal);
    const began = performance.now();
    translation.begin();
    const response = await ask("/translate/stream", { about: "translation", body, signal });
    let entries = 0;
    for await (const line of objects(response)) {
      if (signal.aborted) return;
      if (line.error) {
        // What has come is true as far as it goes.
        finish(entries);
        throw new Refusal(line.error);
      }
      translation.put(entries, line);
      entries += 1;
    }
    finish(entries);
    took.textContent = `${((performance.now() - began) / 1000).toFixed(2)} s`;
    announce(translation.text);
  }, (sentence) => {
    if (translation.pending) finish(0);
    showError("translation", sentence);
  });
}

function finish(entries) {
  translation.end(entries);
  took.textContent = "";
  copyTranslation.disabled = translation.text === "";
  explain(selected < translation.count ? selected : 0);
}

function explain(index) {
  selected = index;
  translation.mark(translation.count > 1 ? index : -1);
  explanation.show(index < translation.count ? translation.sentence(index) : null);
}

function point(index, word) {
  if (index !== selected) explain(index);
  explanation.point(word);
}

function open(index, word, button) {
  const { source: sentence, translation: current } = translation.sentence(index);
  explanation.choose(word);
  openAlternatives(button, {
    languages: languagesAsked(),
    source: sentence,
    translation: current,
    word,
    onChoose: (text) => {
      translation.choose(index, text);
      announce(translation.text);
      explain(index);
      explanation.choose(word);
      translation.focus(index, word);
    },
  });
}
