// Which rows and columns the schedule view has, and what it says about them. Knows no DOM and no colour.

import { ADMITTED, DECODE, EAGER, GRAPH, PLANNED_AHEAD, PREEMPTED, PREFILL, RECOMPUTE, SAMPLES } from "./wire.js";
import { spansOf } from "./spans.js";
import { clamp, count, plain } from "./words.js";

const WIDEST = 28,
  NARROWEST = 8,
  MAX_RUN = 512,
  MAX_WAITING = 64;
const DONE = { [PREFILL]: "prefill", [RECOMPUTE]: "recompute", [DECODE]: "decode" };

/** Who gets a row: the sequences that ran in the steps at hand, the newest of them, then the head of the queue. */
export function scheduleRows(store) {
  const first = store.columns[0]?.step ?? 0,
    last = store.columns.at(-1)?.step ?? Infinity,
    ran = [],
    waits = [];
  for (const seq of store.everyone.values()) {
    if ((!seq.isLive && seq.ended < first) || seq.born > last + 1) continue;
    (seq.status === "waiting" && !seq.moves.length ? waits : ran).push(seq);
  }
  const order = (a, b) => a.id - b.id;
  ran.sort(order);
  waits.sort(order);
  return {
    rows: [...ran.slice(-MAX_RUN), ...waits.slice(0, MAX_WAITING)].sort(order),
    more: Math.max(0, waits.length - MAX_WAITING),
  };
}

/** The widest column that lets all steps fit, as far as one may still see it. */
export function columnWidth(steps, room) {
  return clamp(Math.floor(room / (steps + 1)), NARROWEST, WIDEST);
}

/** Every how many columns the axis has a number. */
export function tickEvery(width, digits) {
  return [1, 2, 5, 10, 20, 50, 100].find((n) => n * width >= digits * 7 + 14) ?? 200;
}

/** What a sequence did in a step, in words. */
export function cellWords(store, seq, column) {
  const { step, seqs, kinds, starts, counts } = column,
    words = [];
  for (let i = seqs.indexOf(seq.id); i >= 0; i = seqs.indexOf(seq.id, i + 1)) {
    const kind = kinds[i] & 15,
      end = starts[i] + counts[i];
    if (kind === PREEMPTED) {
      const cause = store.everyone.get(starts[i]);
      words.push(`preempted${cause ? ` for ${plain(cause.name)}` : ""}: ${count(counts[i], "computed token")} lost`);
    } else {
      const range = counts[i] === 1 ? `position ${starts[i]}` : `positions ${starts[i]} to ${end - 1}`;
      const from = kinds[i] & ADMITTED && starts[i] ? `, after ${count(starts[i], "token")} from the prefix cache` : "";
      const chunk = kind === DECODE ? "" : kinds[i] & SAMPLES ? ", last chunk" : ", not the last chunk";
      words.push(`${DONE[kind]} of ${count(counts[i], "token")} (${range}${from}${chunk})`);
    }
  }
  if (!words.length) {
    const span = spansOf(seq, step).find(([from, to]) => from <= step && step <= to);
    if (span) words.push(span[2] ? "waiting" : "resident, not in this batch");
    else if (step < seq.born) words.push("not there yet");
    else if (seq.ended !== step) words.push("gone");
  }
  if (seq.ended === step) words.push(endWords(seq.status));
  return words;
}

/** How a sequence ended, in words. "error": the model gave no number to choose a token by; "finished": nobody saw it. */
function endWords(status) {
  if (status === "abort") return "aborted";
  if (status === "finished") return "finished, in a step that is not recorded";
  return status === "error" ? "failed (no token could be chosen)" : `finished (${status})`;
}

/** How long a step took; of one planned ahead with what that is, since the one before was running for part of it. */
function timeWords({ step, us, flags }) {
  if (!us) return "";
  const milliseconds = `${(us / 1000).toFixed(us < 10_000 ? 2 : 1)} ms`;
  return flags & PLANNED_AHEAD ? `${milliseconds} from plan to end, overlapping step ${step - 1}` : milliseconds;
}

/** How a step spent its budget, and what was left, in words. */
export function stepWords(column) {
  const { prefill, recompute, decode, budget, free, running, waiting, flags } = column,
    used = prefill + recompute + decode;
  const parts = [
    [prefill, "prefill"],
    [recompute, "recompute"],
    [decode, "decode"],
  ]
    .filter(([n]) => n)
    .map(([n, word]) => `${n} ${word}`);
  return [
    `${used} of ${count(budget, "token")}${parts.length ? ` (${parts.join(", ")})` : ""}`,
    `${running} running, ${waiting} waiting`,
    count(free, "free block"),
    timeWords(column),
    flags & PLANNED_AHEAD ? "planned ahead" : "",
    flags & GRAPH ? "one CUDA graph" : flags & EAGER ? "without a CUDA graph" : "",
  ].filter(Boolean);
}

/** How far a sequence is at the step that is shown, in words. */
export function shownWords(store, seq) {
  const then = store.sequences.get(seq.id);
  if (then) return sequenceWords(then);
  return [seq.born > store.shownStep ? `not there yet in step ${store.shownStep}` : `gone in step ${store.shownStep}`];
}

/** How far a sequence is, in words. */
export function sequenceWords(seq) {
  const cached = seq.numCached ? `, ${seq.numCached} from the prefix cache` : "",
    again = seq.numPreemptions;
  return [
    seq.isLive ? seq.status : endWords(seq.status),
    `${count(seq.numPrompt, "prompt token")} + ${seq.numTokens - seq.numPrompt} generated`,
    `${seq.numComputed} computed${cached}`,
    count(seq.table.length, "block"),
    again ? `preempted ${again === 1 ? "once" : `${again} times`}` : "",
  ];
}
