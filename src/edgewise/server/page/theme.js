// Light or dark: as the system has it until the button says otherwise.

const KEY = "edgewise-theme";
const root = document.documentElement;
const button = document.getElementById("theme");
const system = matchMedia("(prefers-color-scheme: dark)");

/** Calls `listener` whenever the colours have changed. */
export function onThemeChange(listener) {
  root.addEventListener("theme", listener);
}

export function startTheme() {
  const kept = remembered();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    show();
  });
  system.addEventListener("change", show);
  show();
}

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
}

function show() {
  button.setAttribute("aria-pressed", String(isDark()));
  root.dispatchEvent(new Event("theme"));
}

// Storage is refused in some private windows; the choice then lasts as long as the page.
function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    return;
  }
}
