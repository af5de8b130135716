// One stop of the Tab key for many elements; the arrow keys move between them.

/** Keys in `container` move the focus between its elements that match `selector`. */
export function roving(container, selector) {
  container.addEventListener("keydown", (event) => {
    const items = [...container.querySelectorAll(selector)];
    const here = items.indexOf(event.target.closest(selector));
    const there = next(event.key, here, items.length, getComputedStyle(container).direction);
    if (here < 0 || there === null) return;
    event.preventDefault();
    items[there].focus();
  });
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest(selector);
    if (item) makeStop(container, selector, item);
  });
}

/** The element that Tab stops at; else the first. */
export function makeStop(container, selector, item = container.querySelector(selector)) {
  for (const other of container.querySelectorAll(selector)) other.tabIndex = -1;
  if (item) item.tabIndex = 0;
}

function next(key, here, count, direction) {
  const forward = direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const backward = direction === "rtl" ? "ArrowRight" : "ArrowLeft";
  if (key === "ArrowDown" || key === forward) return Math.min(here + 1, count - 1);
  if (key === "ArrowUp" || key === backward) return Math.max(here - 1, 0);
  if (key === "Home") return 0;
  if (key === "End") return count - 1;
  return null;
}
