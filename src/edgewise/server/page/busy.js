// Whether anything is asked for or about to be: <html data-state> says so to tests and to the style.

let running = 0;

/** Count a job; the function returned counts it as over. */
export function busy() {
  running += 1;
  show();
  return () => {
    running -= 1;
    show();
  };
}

function show() {
  document.documentElement.dataset.state = running > 0 ? "busy" : "idle";
}
