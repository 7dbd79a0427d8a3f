// The codes and the layout of the messages, as nvexplore/notebook/timeline.py and messages.py write them.

export const STATUS = ["waiting", "prefill", "decode", "stop", "length", "abort", "error", "finished"];
export const FREE = 0,
  CACHED = 1,
  USED = 2,
  SHARED = 3;
export const BLOCK_STATES = ["free", "cached", "used", "shared"];
export const PREFILL = 1,
  RECOMPUTE = 2,
  DECODE = 3,
  PREEMPTED = 4;
export const ADMITTED = 16,
  SAMPLES = 32;
export const PLANNED_AHEAD = 1,
  GRAPH = 2,
  EAGER = 4;
export const VERSION = 1,
  ROW = 11,
  HEAD = 12; // numbers a sequence's row and a step's head have

/**
 * The bytes of a binary part, however a front end delivers it: a view, an ArrayBuffer, base64, a list of numbers.
 * null: what came is none of these.
 */
export function bytesOf(part) {
  if (ArrayBuffer.isView(part)) return new Uint8Array(part.buffer, part.byteOffset, part.byteLength);
  if (/^\[object (Shared)?ArrayBuffer\]$/.test(Object.prototype.toString.call(part))) return new Uint8Array(part);
  if (typeof part === "string") return decoded(part);
  const numbers = Array.isArray(part) ? part : part?.type === "Buffer" ? part.data : null;
  return Array.isArray(numbers) ? Uint8Array.from(numbers) : null;
}

function decoded(text) {
  try {
    return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  } catch {
    return null; // no base64
  }
}

/** The bytes of a part as a typed array of its own (a message's are not aligned); what is missing is empty. */
export function copyAs(Type, part) {
  if (!part) return new Type(0);
  const view = bytesOf(part);
  if (!view) throw new Error("a binary part is not one");
  return new Type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

/** Values told as runs: [first, length] of each stretch in which a value is the one before it plus `step`. */
export function spread(Type, part, step) {
  const runs = copyAs(Uint32Array, part);
  let size = 0;
  for (let at = 1; at < runs.length; at += 2) size += runs[at];
  const values = new Type(size);
  for (let at = 0, to = 0; at < runs.length; at += 2)
    for (let i = 0; i < runs[at + 1]; i++) values[to++] = runs[at] + i * step;
  return values;
}

const FRAME_PARTS = ["rows", "tables", "words", "written", "waiting", "running", "steps", "entries"];

/** A frame with its runs as what they stand for, and the names of binary parts that did not arrive. */
export function unfolded({ word_runs: words, table_runs: tables, ...told }) {
  const frame = told;
  if (words) frame.words = spread(Uint16Array, words, 0);
  if (tables) frame.tables = spread(Uint32Array, tables, 1);
  // Before any engine there is nothing to tell.
  return { frame, missing: frame.run ? FRAME_PARTS.filter((name) => bytesOf(frame[name]) === null) : [] };
}

/**
 * Put a message's binary parts where they belong: `buffers` names the place of each, and `texts` has them in base64 if
 * Python was asked for that. null: they did not arrive.
 */
export function whole({ buffers: paths = [], texts, ...content }, buffers) {
  const parts = (texts ?? [...(buffers ?? [])]).map(bytesOf);
  if (parts.length < paths.length || parts.includes(null)) return null;
  paths.forEach((path, i) => {
    const places = [].concat(path),
      last = places.pop();
    const { buffer, byteOffset, byteLength } = parts[i];
    places.reduce((at, name) => at[name], content)[last] = new DataView(buffer, byteOffset, byteLength);
  });
  return content;
}

/** The state of a block from its word: ref count * 2 + (1 if its hash is kept). */
export function blockState(word) {
  return word < 2 ? word : word < 4 ? USED : SHARED;
}

// A token is one number too: its sequence and its position, so that a selection is always [kind, id].
const POSITIONS = 2 ** 22;

/** The id of the token at a position of a sequence. */
export function packToken(seqId, position) {
  return seqId * POSITIONS + position;
}

/** [seq_id, position] of a token's id. */
export function unpackToken(id) {
  return [Math.floor(id / POSITIONS), id % POSITIONS];
}
