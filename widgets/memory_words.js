// What the memory view says, from Python's answer and the counts of the blocks. Knows no DOM and no colour.

import { count, digits, plain } from "./words.js";

/** A part of a whole as a percentage; never 0 or 100 unless it is that. */
export function percentWords(part, whole) {
  if (!whole || !part) return "0 %";
  if (part === whole) return "100 %";
  return `${Math.min(99.9, Math.max(0.1, (100 * part) / whole)).toFixed(1)} %`;
}

/** Bytes in the unit in which they can be read. */
export function byteWords(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0,
    size = n;
  while (size >= 1024 && unit < units.length - 1) [unit, size] = [unit + 1, size / 1024];
  return unit ? `${size.toFixed(size < 100 ? 1 : 0)} ${units[unit]}` : count(n, "byte");
}

/** The bar of the pool: [what, blocks, what it means], in the order in which it is drawn. */
export function poolParts([free, cached, used, shared]) {
  return [
    ["used", used, "Blocks that one sequence holds"],
    ["shared", shared, "Blocks that several sequences hold"],
    ["cached", cached, "Blocks that nobody holds, kept for requests with the same prefix until they are needed"],
    ["free", free, "Blocks that nobody holds and that hold nothing"],
  ];
}

/** The bar of the slots of the blocks that are held. */
export function slotParts({ held, due, unused }) {
  return [
    ["tokens held", held, "Slots with the key and value of a token"],
    ["due", due, "Slots for tokens that are known but not computed yet"],
    ["unused", unused, "Slots beyond the last token of a sequence: internal fragmentation"],
  ];
}

/** Internal fragmentation in words. */
export function fragmentWords({ slots, held, unused }, size) {
  if (!slots) return "No block is in use.";
  const sum = `${digits(slots / size)} blocks in use * ${size} = ${digits(slots)} slots`;
  const wasted = `${digits(unused)} (${percentWords(unused, slots)}) lie unused at the ends`;
  return `${sum} for ${count(held, "token")} held; ${wasted}`;
}

/** The lines of the ledger: [name, bytes, note]; what was not measured is left out. */
export function ledgerLines(ledger) {
  const share = ledger.num_ranks > 1 ? `rank 0 of ${ledger.num_ranks}; each has its share` : "of the model";
  return [
    ["weights", ledger.weights, share],
    ["KV pool", ledger.pool, `${digits(ledger.num_blocks)} blocks * ${digits(ledger.block_bytes)} bytes`],
    ["largest step", ledger.step_peak, "on top, for a moment"],
    ["CUDA graphs", ledger.graphs, "captured"],
    ["others", ledger.others, "other engines and programs, when the pool was sized"],
    ["device", ledger.total, plain(ledger.device)],
  ].filter(([, size]) => size !== null && size !== undefined);
}

/** The arithmetic that gave the number of blocks, a step a line. */
export function arithmetic({ num_blocks_from: from, num_blocks: blocks, block_bytes: size, pool }) {
  const steps = plain(from)
    .split(/: |; (?=\d)/)
    .map((step) => step.trim());
  return [...steps, `pool = ${digits(blocks)} blocks * ${digits(size)} bytes = ${digits(pool)} bytes`];
}

/** Whether one more sequence fits: "fits", "evicts", "waits" or "never". */
export function verdict({ blocks, free, evicted }, numBlocks) {
  if (blocks > numBlocks) return "never";
  if (blocks > free) return "waits";
  return evicted ? "evicts" : "fits";
}

/** The same in sentences: what is needed, whether it fits, and what else stands in the way. */
export function needWords(need, { blockSize, numBlocks, maxNumSeqs }) {
  const { length, blocks, free, evicted, waiting, running } = need;
  const spare = blocks * blockSize - length;
  const room = spare ? `, ${count(spare, "slot")} of the last one unused` : "";
  const needs = `ceil(${digits(length)} / ${blockSize}) = ${count(blocks, "block")}${room}.`;
  const says = {
    never: `Never fits: the pool has ${count(numBlocks, "block")}.`,
    waits: `Does not fit now: ${count(free, "block")} can be had, ${digits(blocks - free)} too few, until others end.`,
    evicts: `Fits now, with eviction: ${count(evicted, "cached block")} would be forgotten.`,
    fits: `Fits now, without eviction: ${count(free, "block")} can be had.`,
  }[verdict(need, numBlocks)];
  const others = [];
  if (running >= maxNumSeqs) others.push(`All ${digits(maxNumSeqs)} places of running sequences are taken.`);
  if (waiting) others.push(`${count(waiting, "request")} ${waiting === 1 ? "waits" : "wait"} already.`);
  return [needs, says, ...others, "A prefix that is cached needs fewer."];
}
