// Rates, pauses and words of the throughput view. What it draws is tested in chromium (tests/browser).

import assert from "node:assert/strict";
import test from "node:test";
import { preemptionsOf } from "./schedule_draw.js";
import { marksOf } from "./schedule_paint.js";
import { scheduleRows, shownWords, stepWords } from "./schedule_words.js";
import { Store } from "./store.js";
import { rateColumnAt, RATE_LEFT } from "./throughput_draw.js";
import { duration, pausesOf, rateWords, ratesOf, roundUp, short, smoothingOf, workOf } from "./throughput_rates.js";
import { byProgress, firstWords, noteWords } from "./throughput_table.js";
import { DECODE, EAGER, GRAPH, PLANNED_AHEAD, PREEMPTED } from "./wire.js";

const column = (step, ms, us, more = {}) => ({
  ...{ step, ms, us, flags: 0, prefill: 0, recompute: 0, decode: 0, running: 1, waiting: 0, budget: 64, free: 3 },
  ...more,
});

test("a step's work is its own time; of steps that overlap only what the one before had not taken", () => {
  const ahead = { flags: PLANNED_AHEAD };
  const columns = [column(4, 100, 20_000), column(5, 900, 30_000), column(6, 915, 28_000, ahead)];
  columns.push(column(7, 2000, 25_000, ahead), column(9, 2001, 10_000, ahead));
  assert.deepEqual(workOf(columns), [0.02, 0.03, 0.015, 0.025, 0.01]);
});

test("pauses between single steps and missing steps are found, the engine's own slowness is none", () => {
  const columns = [column(0, 0, 1000), column(1, 2000, 1000), column(2, 5000, 2_990_000), column(5, 5010, 5000)];
  const found = pausesOf(columns, workOf(columns));
  assert.deepEqual(
    found.map(([i, , isMissing]) => [i, isMissing]),
    [
      [1, false],
      [3, true],
    ],
  );
  assert.ok(Math.abs(found[0][1] - 1.999) < 1e-9);
});

test("a rate is the mean over at least the window of work, whatever the pauses", () => {
  const columns = Array.from({ length: 40 }, (_, i) => column(i, i * 60_000, 100_000, { decode: 8 }));
  columns[20].prefill = 500;
  const rates = ratesOf(columns, workOf(columns), 0.5);
  assert.ok(rates.every((rate) => Math.abs(rate.decode - 80) < 1e-6), "a minute between the steps does not count");
  assert.deepEqual([rates[0].steps, rates[3].steps, rates[39].steps], [1, 4, 5]);
  assert.ok(Math.abs(rates[24].prefill - 1000) < 1e-6 && rates[19].prefill === 0 && Math.abs(rates[25].prefill) < 1e-6);
});

test("no rate reaches across missing steps, and a step longer than the window stands alone", () => {
  const columns = [column(0, 0, 1e6, { decode: 5 }), column(3, 9, 2e6, { decode: 6 })];
  columns.push(column(4, 9, 4e6, { decode: 8 }));
  const rates = ratesOf(columns, workOf(columns), 0.5);
  assert.deepEqual(
    rates.map((rate) => [rate.decode, rate.steps]),
    [
      [5, 1],
      [3, 1],
      [2, 1],
    ],
  );
  assert.equal(ratesOf([column(0, 0, 0, { decode: 5 })], [0], 0.5)[0].decode, 0, "no time, no rate");
  assert.deepEqual([smoothingOf(100), smoothingOf(1.6)], [0.5, 0.1]);
});

test("numbers of axes", () => {
  assert.deepEqual([0, 0.7, 1, 1.2, 3, 5.5, 70, 2_000_000].map(roundUp), [1, 1, 1, 2, 5, 10, 100, 2_000_000]);
  assert.equal([0, 2.5, 50, 1500, 20_000, 2_000_000, 5e9].map(short).join(), "0,2.5,50,1.5k,20k,2M,5G");
  assert.deepEqual([0.00012, 0.0123, 1.5, 1234].map(duration), ["0.12 ms", "12.3 ms", "1.5 s", "1,234 s"]);
});

test("a step's rates in words", () => {
  const rate = { prefill: 1000.4, recompute: 200, decode: 12_345, steps: 3, span: 0.51 };
  assert.deepEqual(rateWords(column(1, 2, 3, { running: 4, waiting: 1200 }), rate), [
    "prefill 1,200 tokens/s (200 of them recompute)",
    "decode 12,345 tokens/s",
    "rates over the last 3 steps (510 ms of engine time)",
    "while it ran: 4 running, 1,200 waiting",
  ]);
  assert.match(rateWords(column(1, 2, 3), { ...rate, steps: 1 })[2], /^rates over this step \(/);
  const row = { first: null, waited: null, num_tokens: 0, is_live: true };
  assert.equal(firstWords({ ...row, first: 0.25 }), "250 ms");
  assert.equal(firstWords({ ...row, waited: 2 }), "none in 2 s");
  assert.deepEqual([row, { ...row, is_live: false }, { ...row, num_tokens: 3 }].map(firstWords), [
    "none yet",
    "none",
    "not kept",
  ]);
});

test("those that run come first in the table, those that only wait last", () => {
  const row = (id, num_tokens, is_live = true) => ({ id, num_tokens, is_live });
  const rows = [row(9, 0), row(8, 0), row(7, 0), row(6, 3, false), row(5, 2), row(4, 1), row(3, 0, false), row(2, 4)];
  const now = { 9: "waiting", 8: "waiting", 7: "prefill", 6: "stop", 5: "waiting", 4: "decode", 2: "decode" };
  const sequences = new Map(Object.entries(now).map(([id, status]) => [Number(id), { status }]));
  assert.deepEqual(
    byProgress(rows, sequences).map(({ id }) => id),
    [7, 4, 2, 6, 5, 9, 8, 3],
  );
  assert.deepEqual(byProgress([], sequences), []);
});

test("the note under the table says what the times are, and who is not in it", () => {
  assert.equal(noteWords(0), "Engine time: pauses of the engine left out");
  assert.equal(noteWords(1), "Engine time: pauses of the engine left out; 1 other request not shown");
});

test("the step under a point", () => {
  const at = { work: [1, 1, 2], ends: [1, 2, 4], total: 4, width: RATE_LEFT + 10 + 400 };
  const found = [0, RATE_LEFT + 1, RATE_LEFT + 150, RATE_LEFT + 399, RATE_LEFT + 409];
  assert.deepEqual(
    found.map((x) => rateColumnAt(at, x)),
    [-1, 0, 1, 2, 2],
  );
  assert.equal(rateColumnAt({ ...at, ends: [], total: 0 }, 200), -1);
});

test("the schedule keeps its rows when a past step is looked at, and says how things stood then", () => {
  const seq = (id, born, more = {}) => ({
    ...{ id, name: `r${id}`, status: "decode", isLive: true, born, ended: -1, numPrompt: 3, numTokens: 4 },
    ...{ numCached: 0, numComputed: 3, numPreemptions: 0, moves: [[born, false]], table: [] },
    ...more,
  });
  const store = new Store();
  store.live.step = 6;
  store.columns = [0, 1, 2, 3, 4, 5].map((step) => column(step, step, 1000));
  store.sequences = new Map([0, 1, 2].map((id) => [id, seq(id, 2 * id)]));
  store.shown = Object.assign(new Store().live, { step: 3, sequences: new Map([[0, seq(0, 0, { numTokens: 9 })]]) });
  assert.deepEqual(
    scheduleRows(store).rows.map((row) => row.id),
    [0, 1, 2],
  );
  assert.equal(shownWords(store, store.everyone.get(0))[1], "3 prompt tokens + 6 generated");
  assert.deepEqual(shownWords(store, store.everyone.get(2)), ["not there yet in step 2"]);
  assert.deepEqual(shownWords(store, store.everyone.get(1)), ["gone in step 2"]);
  store.columns.splice(2);
  assert.deepEqual(scheduleRows(store).rows.length, 2, "who came after the columns has no row");
});

test("preemptions lead to another sequence that is known", () => {
  const entries = [
    [3, PREEMPTED, 1, 9],
    [4, PREEMPTED, -1, 9],
    [1, DECODE, 7, 1],
  ];
  const [seqs, kinds, starts] = [0, 1, 2].map((k) => entries.map((entry) => entry[k]));
  assert.deepEqual(preemptionsOf({ seqs, kinds, starts }), [[3, 1]]);
});

test("how a step ran is marked where it makes a difference", () => {
  assert.equal(marksOf([column(0, 0, 1, { flags: EAGER })]), 0);
  assert.equal(marksOf([column(0, 0, 1, { flags: EAGER }), column(1, 0, 1, { flags: GRAPH })]), EAGER | GRAPH);
  assert.deepEqual(stepWords(column(7, 0, 1500, { flags: PLANNED_AHEAD | GRAPH })).slice(2), [
    "1.50 ms from plan to end, overlapping step 6",
    "planned ahead",
    "one CUDA graph",
  ]);
});
