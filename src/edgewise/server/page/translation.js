// The translation as words that can be pointed at, sentence by sentence.

import { makeStop, roving } from "./roving.js";

const box = document.getElementById("translation");

export class Translation {
  #sentences = []; // { before, source, translation, element }
  // What a reader chose for a sentence stays while the text around it changes.
  #choices = new Map();

  /**
   * onPoint(sentence, word): a word is hovered or focused; onLeave(): no more;
   * onOpen(sentence, word, button): its alternatives are wanted.
   */
  constructor({ onPoint, onLeave, onOpen }) {
    roving(box, ".word");
    const told = (listener) => (event) => {
      const button = event.target.closest(".word");
      if (button) listener(this.#indexOf(button), Number(button.dataset.word), button);
    };
    box.addEventListener("pointerover", told(onPoint));
    box.addEventListener("focusin", told(onPoint));
    box.addEventListener("pointerleave", onLeave);
    box.addEventListener("focusout", onLeave);
    box.addEventListener("click", told(onOpen));
  }

  get text() {
    return box.textContent;
  }

  /** Whether a stream has begun and not ended. */
  get pending() {
    return box.getAttribute("aria-busy") === "true";
  }

  /** How many sentences there are; the last entry may be white space alone. */
  get count() {
    return this.#sentences.filter((sentence) => sentence.source).length;
  }

  sentence(index) {
    return this.#sentences[index];
  }

  language(code) {
    box.lang = code;
  }

  /** All that is shown is out of date until put() brings it anew. */
  begin() {
    box.setAttribute("aria-busy", "true");
    for (const { element } of this.#sentences) element.classList.add("stale");
  }

  /** The sentence at `index`, as the stream has it. */
  put(index, { before, source, translation }) {
    const shown = this.#choices.get(source) ?? translation;
    const old = this.#sentences[index];
    if (old?.before === before && old.source === source && old.translation === shown) {
      old.element.classList.remove("stale");
      return;
    }
    const element = drawn(before, shown);
    if (old) old.element.replaceWith(element);
    else box.append(element);
    this.#sentences[index] = { before, source, translation: shown, element };
  }

  /** There are no more than `count` entries. */
  end(count) {
    for (const { element } of this.#sentences.splice(count)) element.remove();
    if (!box.querySelector(".word[tabindex='0']")) makeStop(box, ".word");
    box.setAttribute("aria-busy", "false");
  }

  clear() {
    this.#choices.clear();
    this.end(0);
  }

  /** A reader prefers `translation`. */
  choose(index, translation) {
    const { before, source } = this.#sentences[index];
    this.#choices.set(source, translation);
    this.put(index, { before, source, translation });
    this.end(this.#sentences.length);
  }

  /** Focus the word of a sentence, or its last one. */
  focus(index, word) {
    const words = this.#sentences[index].element.querySelectorAll(".word");
    words[Math.min(word, words.length - 1)]?.focus();
  }

  mark(index) {
    this.#sentences.forEach(({ element }, other) => {
      element.classList.toggle("selected", other === index);
    });
  }

  #indexOf(button) {
    const element = button.closest(".sentence");
    return this.#sentences.findIndex((sentence) => sentence.element === element);
  }
}

function drawn(before, translation) {
  const element = document.createElement("span");
  element.className = "sentence";
  element.append(before);
  let word = 0;
  for (const part of translation.split(/(\s+)/)) {
    if (part === "" || /^\s/.test(part)) {
      element.append(part);
      continue;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "word";
    button.tabIndex = -1;
    button.dataset.word = word;
    button.setAttribute("aria-haspopup", "listbox");
    button.textContent = part;
    element.append(button);
    word += 1;
  }
  return element;
}
