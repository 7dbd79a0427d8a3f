// Tokens a second from the columns of the steps, and the numbers of an axis. Knows no DOM and no colour.

import { queueWords } from "./schedule_words.js";
import { PLANNED_AHEAD } from "./wire.js";
import { digits } from "./words.js";

const SMOOTH = 0.5, // seconds of engine time that a rate is the mean of
  PARTS = 16, // of a short run so small a part, that one sees how the rate changed
  PAUSE = 0.25; // seconds between two steps that are a pause

/** Seconds between the ends of two steps, as far as milliseconds tell it. */
const between = (columns, i) => (columns[i].ms - columns[i - 1].ms) / 1000;
const follows = (columns, i) => i > 0 && columns[i].step === columns[i - 1].step + 1;

/** Seconds for which the engine worked on each step. Of steps that overlap, what the one before had not taken. */
export function workOf(columns) {
  return columns.map(({ us, flags }, i) => {
    const work = us / 1e6;
    if (!(flags & PLANNED_AHEAD) || !follows(columns, i)) return work;
    return Math.min(work, Math.max(0, between(columns, i)));
  });
}

/** Before which columns the engine stood still, or steps are missing: [index, seconds, is missing]. */
export function pausesOf(columns, work) {
  const found = [];
  for (let i = 1; i < columns.length; i++) {
    const idle = between(columns, i) - work[i],
      isMissing = !follows(columns, i);
    if (isMissing || idle > PAUSE) found.push([i, Math.max(0, idle), isMissing]);
  }
  return found;
}

/** How many seconds of engine time the rates of so long a run are the mean of. */
export function smoothingOf(total) {
  return Math.min(SMOOTH, total / PARTS);
}

/**
 * The mean rates of the steps up to each one, over at least `seconds` of work, or over its stretch of steps where that
 * is shorter: {prefill, recompute, decode} in tokens a second; steps, span: over how many steps and seconds.
 */
export function ratesOf(columns, work, seconds) {
  const sum = { prefill: 0, recompute: 0, decode: 0 },
    kinds = Object.keys(sum);
  let from = 0,
    span = 0;
  const drop = () => {
    for (const kind of kinds) sum[kind] -= columns[from][kind];
    span -= work[from++];
  };
  return columns.map((column, i) => {
    if (!follows(columns, i)) while (from < i) drop();
    for (const kind of kinds) sum[kind] += column[kind];
    span += work[i];
    while (from < i && span - work[from] >= seconds) drop();
    const rate = (kind) => (span > 1e-9 ? sum[kind] / span : 0);
    return { ...Object.fromEntries(kinds.map((kind) => [kind, rate(kind)])), steps: i - from + 1, span };
  });
}

/** The end of an axis that holds `most`: 1, 2 or 5 times a power of ten. */
export function roundUp(most) {
  if (!(most > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= most * (1 - 1e-9));
}

/** A number that fits beside an axis. */
export function short(n) {
  for (const [size, letter] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ])
    if (n >= size) return `${Number((n / size).toPrecision(3))}${letter}`;
  return String(Number(n.toPrecision(3)));
}

/** Seconds in words, with three digits. */
export function duration(seconds) {
  if (seconds >= 100) return `${digits(Math.round(seconds))} s`;
  if (seconds >= 1) return `${Number(seconds.toPrecision(3))} s`;
  return `${Number((seconds * 1000).toPrecision(3))} ms`;
}

/** A step's rates and queues in words. */
export function rateWords(column, { prefill, recompute, decode, steps, span }) {
  const rate = (n) => `${digits(Math.round(n))} tokens/s`,
    again = recompute > 0 ? ` (${digits(Math.round(recompute))} of them recompute)` : "";
  return [
    `prefill ${rate(prefill + recompute)}${again}`,
    `decode ${rate(decode)}`,
    `rates over ${steps === 1 ? "this step" : `the last ${digits(steps)} steps`} (${duration(span)} of engine time)`,
    `while it ran: ${queueWords(column)}`,
  ];
}
