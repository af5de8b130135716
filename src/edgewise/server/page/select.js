// Choices of a <select>.

/** Options from [value, label] pairs; `value` stays chosen if it is one of them, else the last does. */
export function fill(select, pairs, value) {
  select.replaceChildren(...pairs.map(([own, label]) => new Option(label, own)));
  const values = pairs.map(([own]) => own);
  select.value = values.includes(value) ? value : values.at(-1);
}

/** Pairs for 1 to `count`. */
export function numbers(count) {
  return Array.from({ length: count }, (_, index) => [String(index + 1), String(index + 1)]);
}
