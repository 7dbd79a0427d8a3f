// Which rows and columns the schedule view has, and what it says about them. Knows no DOM and no colour.

import { ADMITTED, DECODE, EAGER, GRAPH, PLANNED_AHEAD, PREEMPTED, PREFILL, RECOMPUTE, SAMPLES } from "./wire.js";
import { LABEL, columnX, inSight } from "./schedule_place.js";
import { spansOf } from "./spans.js";
import { clamp, count, digits, plain } from "./words.js";

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

/** Every how many columns the axis has a number of so many digits. */
export function tickEvery(width, length) {
  return [1, 2, 5, 10, 20, 50, 100].find((n) => n * width >= length * 7 + 14) ?? 200;
}

/**
 * The numbers of the axis in sight: of the shown step, if it is in sight, always; the others where they leave it room.
 * Each is {text, x of its middle, half of its width}, with `digit` pixels a digit.
 */
export function axisNumbers(at, columns, digit) {
  const [from, to] = inSight(at),
    every = tickEvery(at.cw, String(at.first + at.steps).length);
  const number = (c) => {
    const text = String(columns[c].step);
    return { text, x: columnX(at, c) + at.cw / 2, half: (text.length * digit) / 2 + 3 };
  };
  const isSeen = from <= at.shown && at.shown < to && columnX(at, at.shown) + at.cw > LABEL,
    shown = isSeen && columnX(at, at.shown) < at.width ? number(at.shown) : null,
    others = [];
  if (shown) shown.x = clamp(shown.x, LABEL + shown.half - 2, at.width - shown.half);
  for (let c = from; c < to; c++) {
    const one = columns[c].step % every ? null : number(c);
    if (!one || c === at.shown || one.x <= LABEL + 8) continue;
    if (!shown || Math.abs(one.x - shown.x) >= one.half + shown.half) others.push(one);
  }
  return { shown, others };
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
      words.push(`preempted${cause ? ` for ${plain(cause.name)}` : ""}: the KV of ${count(counts[i], "token")} lost`);
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

/** How many ran and waited in a step, in words. A view of the state after it may have other numbers: say which. */
export function queueWords({ running, waiting }) {
  return `${digits(running)} running, ${digits(waiting)} waiting`;
}

/** How a step spent its budget, and what was left, in words. */
export function stepWords(column) {
  const { prefill, recompute, decode, budget, free, flags } = column,
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
    `while it ran: ${queueWords(column)}, ${count(free, "block")} free (cached ones included)`,
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
  const held = `${count(seq.numComputed, "token")} in the KV cache`,
    cached = seq.numCached ? `, ${digits(seq.numCached)} of them from the prefix cache` : "",
    again = seq.numPreemptions;
  return [
    seq.isLive ? seq.status : endWords(seq.status),
    `${count(seq.numPrompt, "prompt token")} + ${seq.numTokens - seq.numPrompt} generated`,
    `${seq.isLive ? "" : "had "}${held}${cached}`,
    count(seq.table.length, "block"),
    again ? `preempted ${again === 1 ? "once" : `${again} times`}` : "",
  ];
}
