// From pieces to words: pieces as text, and weights summed up.

const BYTE = /^<0x([0-9A-F]{2})>$/;
const SPECIAL = { "<s>": "⟨start⟩", "</s>": "⟨end⟩" };

/** A piece as it is shown: its space seen, a byte that is a letter by itself as that letter. */
export function pieceText(piece) {
  const byte = parseInt(BYTE.exec(piece)?.[1], 16);
  if (byte > 0x20 && byte < 0x7f) return String.fromCharCode(byte);
  return SPECIAL[piece] ?? piece.replaceAll("▁", "␣");
}

/** Words in order: their text, their pieces, and which word of the sentence they are (-1: none). */
export function wordsOf(pieces, ids) {
  const words = [];
  pieces.forEach((piece, index) => {
    const id = ids[index];
    const last = words.at(-1);
    if (last && id >= 0 && last.id === id) last.pieces.push(index);
    else words.push({ id, pieces: [index] });
  });
  for (const word of words) word.text = joined(word.pieces.map((index) => pieces[index]));
  return words;
}

/** [query word][key word]: the sum over a key's pieces, the mean over a query's. */
export function weightsByWord(weights, queries, keys) {
  return queries.map((query) =>
    keys.map((key) => {
      let sum = 0;
      for (const i of query.pieces) for (const j of key.pieces) sum += weights[i][j];
      return sum / query.pieces.length;
    }),
  );
}

/** The mean of the heads' weights. */
export function meanWeights(heads) {
  return heads[0].weights.map((row, i) =>
    row.map((_, j) => heads.reduce((sum, head) => sum + head.weights[i][j], 0) / heads.length),
  );
}

/** Letters that the vocabulary has not are bytes of UTF-8 in it. */
function joined(pieces) {
  if (pieces.length === 1 && pieces[0] in SPECIAL) return SPECIAL[pieces[0]];
  const bytes = pieces.flatMap((piece) => {
    const byte = BYTE.exec(piece);
    return byte ? [parseInt(byte[1], 16)] : [...new TextEncoder().encode(piece)];
  });
  const text = new TextDecoder().decode(new Uint8Array(bytes)).replaceAll("▁", " ").trim();
  return text || "␣";
}
