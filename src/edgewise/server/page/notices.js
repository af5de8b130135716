// Sentences for the reader: what went wrong, by what was asked for, and what has just happened.

const box = document.getElementById("error");
const status = document.getElementById("status");
const errors = new Map();

export function showError(about, sentence) {
  if (errors.get(about) === sentence) return;
  errors.set(about, sentence);
  draw();
}

export function clearError(about) {
  if (errors.delete(about)) draw();
}

/** Read out by screen readers, not seen. */
export function announce(sentence) {
  status.textContent = sentence;
}

function draw() {
  box.replaceChildren(
    ...[...errors.values()].map((sentence) => {
      const paragraph = document.createElement("p");
      paragraph.dir = "auto";
      paragraph.textContent = sentence;
      return paragraph;
    }),
  );
}
