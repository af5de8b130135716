// The request of this page as a command for a shell.

// Characters that are not seen, or that turn text around, are written as escapes of JSON.
const UNSEEN = /[\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff]/g;

export function curlCommand(origin, body) {
  const json = JSON.stringify(body).replace(
    UNSEEN,
    (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  return [
    `curl ${quoted(`${origin}/translate`)}`,
    `-H ${quoted("Content-Type: application/json")}`,
    `-d ${quoted(json)}`,
  ].join(" \\\n  ");
}

/** Within single quotes a shell changes nothing; a single quote itself has to stand outside. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}
