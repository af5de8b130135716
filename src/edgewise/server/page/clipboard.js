// Buttons that copy a text and say so.

import { announce } from "./notices.js";

/** `button` copies the text that `text()` returns. */
export function copies(button, text) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const copied = await copy(text());
    button.textContent = copied ? "Copied" : "Not copied";
    announce(copied ? "Copied." : "The browser did not allow copying.");
    setTimeout(() => {
      button.textContent = label;
    }, 1500);
  });
}

async function copy(text) {
  try {
    // There is no clipboard on pages from plain http, other than from this machine.
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}
