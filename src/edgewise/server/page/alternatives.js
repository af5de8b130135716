// The list of other translations that opens at a word.

import { askJson, Latest } from "./api.js";

const popup = document.getElementById("popup");
const list = document.getElementById("alternatives");
const note = document.getElementById("popup-note");
const latest = new Latest("alternatives");
const MOST = 5;
const GAP = 8; // pixels around the popup

let opened = null; // { button, onChoose }

/** Ask for alternatives of the word at `button`; onChoose(text) gets the one that is picked. */
export async function openAlternatives(button, { languages, source, translation, word, onChoose }) {
  // Closed and opened at once, the popup tells of neither.
  opened?.button.setAttribute("aria-expanded", "false");
  popup.hidePopover();
  opened = { button, onChoose };
  button.setAttribute("aria-expanded", "true");
  say("Looking for others …");
  popup.showPopover();
  place();
  await latest.run(async (signal) => {
    const body = { ...languages, q: source, prefix: prefixOf(translation, word), alternatives: MOST };
    const { alternatives } = await askJson("/alternatives", { about: "alternatives", body, signal });
    show(alternatives.map(({ text }) => text), translation, word);
    place();
  }, say);
}

export function startAlternatives() {
  popup.addEventListener("toggle", (event) => {
    if (event.newState !== "closed" || !opened) return;
    latest.cancel();
    opened.button.setAttribute("aria-expanded", "false");
  });
  list.addEventListener("click", (event) => choose(event.target.closest("[role=option]")));
  list.addEventListener("keydown", pressed);
  addEventListener("resize", place);
  addEventListener("scroll", place, { capture: true, passive: true });
}

function pressed(event) {
  const options = [...list.children];
  const here = options.indexOf(document.activeElement);
  const last = options.length - 1;
  const moves = {
    ArrowDown: here === last ? 0 : here + 1,
    ArrowUp: here <= 0 ? last : here - 1,
    Home: 0,
    End: last,
  };
  if (event.key in moves) options[moves[event.key]].focus();
  else if (event.key === "Enter" || event.key === " ") choose(options[here]);
  else if (event.key === "Tab" || event.key === "Escape") close();
  else return;
  event.preventDefault();
}

function close() {
  popup.hidePopover();
  opened.button.focus();
}

function choose(option) {
  if (!option) return;
  const { onChoose } = opened;
  close();
  onChoose(option.dataset.text);
}

function say(sentence) {
  list.hidden = true;
  note.hidden = false;
  note.textContent = sentence;
}

function show(texts, current, word) {
  if (texts.length === 0) {
    say("There are no others for this word.");
    return;
  }
  note.hidden = true;
  list.replaceChildren(...texts.map((text) => option(text, current, word)));
  list.hidden = false;
  list.firstElementChild.focus({ preventScroll: true });
}

function option(text, current, word) {
  const [before, changed, after] = difference(text, current, word);
  const item = document.createElement("li");
  item.role = "option";
  item.tabIndex = -1;
  item.dir = "auto";
  item.dataset.text = text;
  item.lang = opened.button.closest("[lang]").lang;
  item.setAttribute("aria-selected", String(text === current));
  const short = document.createElement("strong");
  short.textContent = changed;
  const whole = document.createElement("span");
  const mark = document.createElement("mark");
  mark.textContent = changed;
  whole.append(before, mark, after);
  item.append(short, whole);
  return item;
}

/** `text` in three: as in `current`, from the chosen word on what differs, as in `current`. */
function difference(text, current, word) {
  const parts = text.split(/(\s+)/);
  const others = current.split(/(\s+)/);
  // Words are the even parts, white space the odd ones.
  const start = Math.min(2 * word, parts.length - 1);
  let end = parts.length;
  let otherEnd = others.length;
  while (end > start + 1 && otherEnd > 2 * word + 1 && parts[end - 1] === others[otherEnd - 1]) {
    end -= 1;
    otherEnd -= 1;
  }
  return [parts.slice(0, start), parts.slice(start, end), parts.slice(end)].map((some) => some.join(""));
}

function prefixOf(translation, word) {
  return translation.split(/(\s+)/).slice(0, 2 * word).join("").trimEnd();
}

/** Below the word, or above it where there is no room below. */
function place() {
  if (!popup.matches(":popover-open")) return;
  const word = opened.button.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = popup;
  const { clientWidth, clientHeight } = document.documentElement;
  const left = Math.max(GAP, Math.min(word.left, clientWidth - width - GAP));
  const above = word.bottom + GAP + height > clientHeight && word.top - GAP - height > 0;
  popup.style.left = `${left + scrollX}px`;
  popup.style.top = `${scrollY + (above ? word.top - GAP - height : word.bottom + GAP)}px`;
}
