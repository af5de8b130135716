// Requests: a busy server is asked again, a newer request cancels the one before.

import { busy } from "./busy.js";
import { clearError, showError } from "./notices.js";

const ATTEMPTS = 10;

/** A sentence about why there is no answer; the server's own where it has one. */
export class Refusal extends Error {}

/** The response to a GET, or to a POST of `body`. */
export async function ask(path, { about, body, signal }) {
  for (let attempt = 1; ; attempt += 1) {
    const response = await reach(path, body, signal);
    if (response.ok) {
      clearError(about);
      return response;
    }
    const sentence = await refusal(response);
    if (response.status !== 503 || attempt === ATTEMPTS) throw new Refusal(sentence);
    const seconds = Math.max(1, Number(response.headers.get("Retry-After")) || 1);
    showError(about, `${sentence.replace(/\.?$/, ".")} Trying again in ${seconds} s.`);
    await sleep(1000 * seconds, signal);
  }
}

/** The JSON of such a response. */
export async function askJson(path, options) {
  const response = await ask(path, options);
  return answered(response.json());
}

/** The JSON objects of a response, one a line, as they come. */
export async function* objects(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await answered(reader.read());
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line);
  }
}

export function sleep(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

/** Of jobs that make each other obsolete only the last one goes on. */
export class Latest {
  #about;
  #controller = new AbortController();

  constructor(about) {
    this.#about = about;
  }

  /** Runs job(signal); its errors are shown, unless it was cancelled. */
  async run(job, failed = (sentence) => showError(this.#about, sentence)) {
    this.cancel();
    const controller = new AbortController();
    this.#controller = controller;
    const done = busy();
    try {
      await job(controller.signal);
    } catch (error) {
      if (controller.signal.aborted) return;
      if (!(error instanceof Refusal)) throw error;
      failed(error.message);
    } finally {
      done();
    }
  }

  cancel() {
    this.#controller.abort();
    clearError(this.#about);
  }
}

function reach(path, body, signal) {
  const post = {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  };
  return answered(fetch(path, body === undefined ? { signal } : { ...post, signal }));
}

/** fetch and read() reject with a TypeError when the connection fails. */
async function answered(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof TypeError ? new Refusal("The server does not answer.") : error;
  }
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    if (typeof error === "string") return error;
  } catch {
    // Something between us and the server answered in another format.
  }
  return `The server answered with status ${response.status}.`;
}
