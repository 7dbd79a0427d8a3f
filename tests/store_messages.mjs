// Small frames and deltas for the tests of widgets/store.js.

import assert from "node:assert/strict";
import { Store } from "../widgets/store.js";
import { ADMITTED, DECODE, PREFILL, SAMPLES } from "../widgets/wire.js";

export const i32 = (...values) => new DataView(Int32Array.from(values).buffer);
export const u32 = (...values) => new DataView(Uint32Array.from(values).buffer);
export const u16 = (...values) => new DataView(Uint16Array.from(values).buffer);

/** A sequence's row: id, status, prompt, tokens, cached, computed, preemptions, born, ended, kept, grown. */
export const row = (id, status, computed, { born = 0, ended = -1, keep = 0, grown = 0 } = {}) => [
  id,
  status,
  6,
  8,
  0,
  computed,
  0,
  born,
  ended,
  keep,
  grown,
];
/** A step's head, with the number of its entries. */
export const head = (step, n) => [step, 4, 0, 2, 16, 3, 2, 1, 1500, 10, 0, n];

export function frame(more = {}) {
  return {
    version: 1,
    full: true,
    run: 1,
    seq: 1,
    step: 2,
    event: 20,
    time: 0.5,
    block_size: 4,
    num_blocks: 6,
    max_num_seqs: 4,
    max_num_batched_tokens: 16,
    max_steps: 3,
    names: [
      [0, "a"],
      [1, "b"],
      [2, "c"],
    ],
    rows: i32(...row(0, 2, 7, { grown: 2 }), ...row(1, 1, 4, { grown: 2 }), ...row(2, 0, 0)),
    tables: u32(0, 1, 0, 2),
    words: u16(5, 2, 2, 1, 0, 0),
    written: u32(1, 2),
    waiting: u32(2),
    running: u32(0, 1),
    steps: i32(...head(0, 1), ...head(1, 2)),
    entries: i32(0, PREFILL | ADMITTED | SAMPLES, 0, 6, 0, 1, DECODE | SAMPLES, PREFILL | ADMITTED, 6, 0, 1, 4),
    ...more,
  };
}

export function delta(more = {}) {
  return {
    version: 1,
    full: false,
    run: 1,
    seq: 2,
    step: 3,
    event: 25,
    time: 0.6,
    names: [],
    gone: [],
    rows: i32(...row(1, 2, 6, { keep: 2, grown: 1 })),
    tables: u32(4),
    block_ids: u32(4, 2),
    words: u16(2, 3),
    written: u32(4),
    steps: i32(...head(2, 1)),
    entries: i32(1, PREFILL | SAMPLES, 4, 2),
    ...more,
  };
}

/** What Python answers about step 0 of `frame()`: one sequence runs, one waits; with the columns around it if asked. */
export function pastFrame(more = {}) {
  return frame({
    seq: 0,
    step: 1,
    event: 10,
    time: 0.25,
    names: [
      [0, "a"],
      [1, "b"],
    ],
    rows: i32(...row(0, 1, 6, { grown: 2 }), ...row(1, 0, 0)),
    tables: u32(0, 5),
    words: u16(3, 0, 0, 1, 0, 2),
    written: u32(0, 5),
    waiting: u32(1),
    running: u32(0),
    steps: i32(),
    entries: i32(),
    ...more,
  });
}

/** A host whose clock stands still and whose questions wait for an answer: asked[i] is [what, id, step, answer]. */
export function slowHost(more = {}) {
  const host = {
    asked: [],
    timers: [],
    clock: 0,
    now: () => host.clock,
    later: (call, ms) => host.timers.push([call, ms]),
    ask: (what, id, step) => new Promise((answer) => host.asked.push([what, id, step, answer])),
    ...more,
  };
  return host;
}

/** Let all promises that can be kept be kept. */
export const soon = () => new Promise(setImmediate);

export function filled(host) {
  const store = new Store(host);
  assert.equal(store.receive(frame()), "frame");
  return store;
}
