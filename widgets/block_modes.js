// What the colours of the block view mean: a class for each block, and its words. Knows no DOM and no colour.

import { USED, blockState, copyAs } from "./wire.js";
import { digits } from "./words.js";

/** Modes by the value of their option: what the classes of the blocks say. */
export const BLOCK_MODES = { state: "state", owner: "owner", refs: "ref count", age: "age", hash: "content hash" };
/** Classes that each mode has, from 0 on. */
export const NUM_CLASSES = { state: 4, owner: 11, refs: 7, age: 6, hash: 4 };
/** Sequences have one of so many looks, by their id. */
export const OWNER_LOOKS = 8;
const SEVERAL = 2,
  FIRST_OWNER = 3,
  UNKNOWN_AGE = 0xffff;
// The largest value of each class but the last.
const REF_STEPS = [0, 1, 2, 4, 8],
  AGE_STEPS = [0, 3, 15, 63];

/** The look of a sequence: neighbours by id differ, and the same sequence keeps its own. */
export function ownerLook(seqId) {
  return (seqId * 5) % OWNER_LOOKS;
}

const classOf = (value, steps) => {
  const at = steps.findIndex((most) => value <= most);
  return at < 0 ? steps.length : at;
};

/** The ages of `n` blocks from an answer of Python, in steps, null without one. Those it does not tell of are old. */
export function agesOf(told, n) {
  if (!told) return null;
  const ages = new Uint16Array(n).fill(UNKNOWN_AGE),
    values = copyAs(Uint16Array, told.ages);
  copyAs(Uint32Array, told.blocks).forEach((block, i) => (ages[block] = values[i]));
  return ages;
}

/** How long ago a block was written or freed, in words. */
export function ageWords(ages, block, numSteps) {
  if (!ages) return "";
  if (ages[block] === UNKNOWN_AGE) return `not written or freed in the last ${numSteps} steps`;
  if (!ages[block]) return "written or freed in this step";
  return `written or freed ${ages[block]} step${ages[block] === 1 ? "" : "s"} ago`;
}

/** The class of each block, as a byte. State: its state. The others: see `classWords`. */
export function blockClasses(store, mode, ages = null) {
  const found = new Uint8Array(store.numBlocks),
    table = tableOf(mode),
    values = mode === "age" ? ages : store.words;
  if (values) for (let block = 0; block < found.length; block++) found[block] = table[values[block]];
  if (mode === "owner") addOwners(store, found);
  return found;
}

/** The class of a block from its word (`table[word]`) where nothing else has a part in it, else null. */
export function wordClasses(mode) {
  return mode === "age" || mode === "owner" ? null : tableOf(mode);
}

const CLASS_OF = {
  age: (age) => (age === UNKNOWN_AGE ? 0 : classOf(age, AGE_STEPS) + 1),
  refs: (word) => (word < 2 ? word : classOf(word >> 1, REF_STEPS) + 1), // 1: nobody holds it, but it is cached
  hash: (word) => (word < 2 ? 3 * word : 1 + (word & 1)),
};
const classTables = {};

/** The class of each value that a block can have; made once, since a pool may have a million of them. */
function tableOf(mode) {
  return (classTables[mode] ??= Uint8Array.from({ length: 65_536 }, (_, value) => (CLASS_OF[mode] ?? blockState)(value)));
}

/** Where one sequence holds a block, its look; where several do, the class for that. */
function addOwners(store, found) {
  for (let block = 0; block < found.length; block++) if (found[block] >= USED) found[block] = SEVERAL;
  for (const seq of store.sequences.values()) {
    if (!seq.isLive) continue;
    const look = FIRST_OWNER + ownerLook(seq.id);
    for (const block of seq.table) if (blockState(store.words[block]) === USED) found[block] = look;
  }
}

const STATES = [
  ["free", "holds nothing that can be hit"],
  ["cached", "nobody holds it, but its tokens can still be hit by a prompt that begins like them"],
  ["used", "held by one sequence; filled as far as its tokens go"],
  ["shared", "held by several sequences"],
];

/** [class, word, meaning] of what a mode's legend names. owners: sequences to name in the mode "owner". */
export function classWords(mode, owners = []) {
  const plainStates = STATES.slice(0, SEVERAL).map((words, at) => [at, ...words]);
  if (mode === "owner") {
    const look = (seq) => FIRST_OWNER + ownerLook(seq.id),
      of = owners.map((seq) => [look(seq), `request ${seq.name}`, "held by this sequence alone"]);
    return [...plainStates, [SEVERAL, "several", "held by several sequences"], ...of];
  }
  if (mode === "refs") {
    const held = ["2", "3–4", "5–8", "9 and more"].map((word, at) => [at + 3, word, `held by ${word} requests`]);
    return [...plainStates, [2, "1", "held by 1 request"], ...held];
  }
  if (mode === "age") {
    const since = ["1–3 steps", "4–15 steps", "16–63 steps", "64 steps and more"];
    return [
      [1, "0 steps", "written or freed in this step"],
      ...since.map((word, at) => [at + 2, word, `written or freed ${word} ago`]),
      [0, "long ago", "neither written nor freed in the steps that were looked through"],
    ];
  }
  if (mode === "hash")
    return [
      [0, "empty", "holds nothing that can be hit"],
      [1, "not hashed", "held, but not full yet: no other prompt can hit it"],
      [2, "known, held", "full: a prompt that begins like it can share it"],
      [3, "known, cached", "nobody holds it, but a prompt that begins like it can hit it"],
    ];
  return STATES.map((words, at) => [at, ...words]);
}

/** What the legend of the owners (by their ids) ends with, of which it names so many; "" if it leaves no question. */
export function moreOwners(ids, named) {
  const hidden = ids.length - named,
    isRepeated = new Set(ids.map(ownerLook)).size < ids.length;
  return [hidden ? `${digits(hidden)} more` : "", hidden || isRepeated ? `looks repeat every ${OWNER_LOOKS}` : ""]
    .filter(Boolean)
    .join("; ");
}

/** Counts of a pool: [free, cached, used, shared], and the longest run of neighbours that nobody holds. */
export function poolNumbers(words) {
  const n = words.length,
    fours = words.byteOffset % 8 ? [] : new Float64Array(words.buffer, words.byteOffset, n >> 2); // 0: four are free
  let [cached, used, shared, longest] = [0, 0, 0, 0];
  for (let block = 0; block < n; ) {
    const start = block;
    for (; block < n && words[block] < 2; block++) {
      cached += words[block];
      if (block % 4 === 3) while (fours[(block + 1) >> 2] === 0 && !words[block + 4]) block += 4;
    }
    if (block - start > longest) longest = block - start;
    for (; block < n && words[block] > 1; block++) {
      if (words[block] < 4) used++;
      else shared++;
    }
  }
  const held = used + shared,
    states = [words.length - cached - held, cached, used, shared];
  return { states, longest, held, sharedPart: held ? shared / held : 0 };
}
