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

/** The bytes of a DataView, ArrayBuffer or typed array as a typed array of its own (a message's are not aligned). */
export function copyAs(Type, bytes) {
  if (!bytes) return new Type(0);
  const view = ArrayBuffer.isView(bytes) ? bytes : new Uint8Array(bytes);
  return new Type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
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
