// Time travel: the store shows a past step while the live state goes on. tests/prove/views.py compares it with folds.

import assert from "node:assert/strict";
import test from "node:test";
import { delta, filled, frame, head, i32, pastFrame, row, slowHost, soon, u32 } from "../tests/store_messages.mjs";
import { packToken, unpackToken } from "./wire.js";

const names = (store) => [...store.sequences.values()].map((seq) => `${seq.name} ${seq.status}`);

test("a past step is asked for and shown, and the newest one goes on behind it", async () => {
  const host = slowHost(),
    told = [],
    store = filled({ ...host, ask: host.ask, select: (_, cursor) => told.push(cursor) });
  let changes = 0;
  store.subscribe(() => changes++);
  store.lookAt(0);
  assert.deepEqual([store.cursor, store.isPast, store.isLoading, store.shownStep], [0, true, true, 1]);
  assert.deepEqual(host.asked[0].slice(0, 3), ["frame", 0, 0]);
  store.receive(delta());
  assert.deepEqual([store.shownStep, store.liveStep, store.step], [2, 2, 3], "until it comes the newest is shown");
  host.asked[0][3](pastFrame());
  await soon();
  assert.deepEqual([store.isPast, store.isLoading, store.shownStep, store.liveStep], [true, false, 0, 2]);
  assert.deepEqual([store.step, store.event, store.time, store.waiting, store.running], [1, 10, 0.25, [1], [0]]);
  assert.deepEqual([...store.words], [3, 0, 0, 1, 0, 2]);
  assert.deepEqual(names(store), ["a prefill", "b waiting"]);
  assert.deepEqual(store.owners(5).map(([seq, index]) => [seq.name, index]), [["a", 1]]);
  assert.deepEqual([...store.written], [0, 5]);
  store.receive(delta({ seq: 3, step: 4, steps: i32(...head(3, 0)), entries: i32() }));
  assert.deepEqual([store.shownStep, store.liveStep, [...store.words][0]], [0, 3, 3], "the past stays");
  assert.deepEqual(store.columns.map((c) => c.step), [1, 2, 3], "all columns that are kept");
  store.lookAt(-1);
  assert.deepEqual([store.step, store.isPast, [...store.words][0], names(store).length], [4, false, 5, 3]);
  assert.deepEqual(told, [0, -1]);
  assert.equal(changes, 5);
});

test("what is asked for is the last place of a cursor that moves, one question at a time", async () => {
  const host = slowHost(),
    store = filled(host);
  for (const step of [0, 7, 6, 5]) {
    store.lookAt(step);
    await soon();
    assert.equal(host.asked.length, 1);
  }
  host.asked[0][3](pastFrame());
  await soon();
  assert.equal(store.shownStep, 0, "better than nothing while the rest is on its way");
  assert.ok(store.isLoading);
  assert.equal(host.asked.length, 1, "the next question waits its turn");
  host.timers.shift()[0]();
  await soon();
  assert.deepEqual(host.asked.map((asked) => asked[2]), [0, 5]);
  host.clock += 1000;
  for (const step of [6, 5]) store.lookAt(step);
  await soon();
  assert.equal(host.asked.length, 2, "also when it takes long");
  store.lookAt(0);
  assert.ok(!store.isLoading, "step 0 is still here");
  host.asked[1][3](pastFrame({ step: 6 }));
  await soon();
  assert.equal(store.shownStep, 0, "an answer that nobody waits for any more is kept, not shown");
  store.lookAt(5);
  assert.deepEqual([store.shownStep, store.isLoading, host.asked.length], [5, false, 2]);
});

test("an answer that comes when the newest is followed again is not shown", async () => {
  const host = slowHost(),
    store = filled(host);
  store.lookAt(0);
  store.lookAt(-1);
  host.asked[0][3](pastFrame());
  await soon();
  assert.deepEqual([store.step, store.isPast, host.asked.length], [2, false, 1]);
});

test("eight past states are kept", async () => {
  const host = slowHost({ ask: async (_, __, step) => (asked.push(step), pastFrame({ step: step + 1 })) }),
    asked = [],
    store = filled(host);
  const visit = async (step) => {
    host.clock += 1000;
    store.lookAt(step);
    await soon();
    assert.equal(store.shownStep, step);
  };
  for (const step of [0, 1, 2, 3, 4, 5, 6, 7, 0, 8, 0, 7]) await visit(step);
  assert.deepEqual(asked, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  await visit(1);
  assert.deepEqual(asked.slice(9), [1], "the one that was looked at least recently had gone");
});

test("what can't be shown is said, and what is shown stays", async () => {
  const text = "step 12 is no longer kept; the oldest is 40",
    cursors = [];
  const answers = [{ error: text }, pastFrame(), null, { error: text }, pastFrame({ run: 9 })];
  const host = slowHost({ ask: async () => answers.shift(), select: (_, cursor) => cursors.push(cursor) }),
    store = filled(host);
  const look = async (step) => {
    host.clock += 1000;
    store.lookAt(step);
    await soon();
    return [store.cursor, store.shownStep, store.notice, store.isLoading];
  };
  assert.deepEqual(await look(12), [-1, 1, text, false]);
  assert.deepEqual(await look(0), [0, 0, "", false]);
  assert.deepEqual(await look(13), [0, 0, "step 13 can't be shown: Python does not answer", false]);
  assert.deepEqual(await look(12), [0, 0, text, false]);
  assert.deepEqual(await look(14), [0, 0, "step 14 is of another engine", false]);
  assert.deepEqual(cursors, [12, -1, 0, 13, 0, 12, 0, 14, 0]);
  assert.equal(answers.length, 0);
});

test("another run ends the past of the one before", async () => {
  const host = slowHost({ ask: async () => pastFrame() }),
    store = filled(host);
  store.lookAt(0);
  await soon();
  store.receive(frame({ run: 2, seq: 5 }));
  assert.deepEqual([store.cursor, store.step, store.run], [-1, 2, 2]);
});

test("a cursor that was there before the first frame is looked at then", async () => {
  const host = slowHost(),
    store = new (filled(host).constructor)(host);
  store.follow(0);
  assert.equal(host.asked.length, 0);
  store.receive(frame());
  assert.equal(host.asked.length, 1);
});

test("a past step knows who had ended by then, and who had moved", async () => {
  const host = slowHost({ ask: async () => pastFrame() }),
    store = filled(host);
  store.receive(delta({ rows: i32(...row(0, 3, 7, { ended: 2 }), ...row(2, 5, 0, { ended: 0 })), tables: u32() }));
  store.lookAt(0);
  await soon();
  assert.deepEqual(names(store), ["a prefill", "b waiting", "c abort"]);
  assert.deepEqual(store.sequences.get(0).moves, [[0, false]]);
  assert.deepEqual(store.sequences.get(1).moves, [], "it was admitted in step 1");
  assert.deepEqual([...store.everyone.values()].map((seq) => seq.status), ["stop", "prefill", "abort"]);
});

test("a step before all columns brings its own, and is asked for again when it has fallen behind them", async () => {
  const around = { steps: i32(...head(0, 1), ...head(1, 0)), entries: i32(0, 17, 0, 6) };
  const answers = [pastFrame(), pastFrame(around), null];
  const host = slowHost({ ask: async () => (host.clock += 1000) && answers.shift() }),
    store = filled(host);
  store.lookAt(0);
  await soon();
  assert.deepEqual(store.columns.map((c) => c.step), [0, 1]);
  for (const seq of [2, 3]) store.receive(delta({ seq, step: seq + 1, rows: i32(), steps: i32(...head(seq, 0)) }));
  await soon();
  assert.deepEqual(store.columns.map((c) => c.step), [0, 1], "those around step 0");
  assert.deepEqual(store.sequences.get(0).moves, [[0, false]]);
  assert.deepEqual([store.shownStep, store.notice, answers.length], [0, "", 1], "and once is enough");
  store.lookAt(-1);
  assert.deepEqual(store.columns.map((c) => c.step), [1, 2, 3]);
});

test("a step that falls behind all columns when Python has it no longer stays as it is", async () => {
  const answers = [pastFrame()];
  let questions = 0;
  const ask = async () => {
    questions++;
    host.clock += 1000;
    return answers.shift() ?? { error: "gone" };
  };
  const host = slowHost({ ask }),
    store = filled(host);
  store.lookAt(0);
  await soon();
  for (const seq of [2, 3, 4]) {
    store.receive(delta({ seq, step: seq + 1, rows: i32(), steps: i32(...head(seq, 0)) }));
    await soon();
  }
  assert.deepEqual([store.cursor, store.shownStep, store.isLoading, store.notice, questions], [0, 0, false, "", 2]);
});

test("a token lights up its sequence and its block", () => {
  const store = filled();
  assert.deepEqual(unpackToken(packToken(1, 5)), [1, 5]);
  assert.deepEqual(unpackToken(packToken(2 ** 30, 2 ** 22 - 1)), [2 ** 30, 2 ** 22 - 1]);
  store.select("token", packToken(1, 5));
  assert.deepEqual([[...store.litSequences()], [...store.litBlocks()]], [[1], [[2, 1]]]);
  store.select("token", packToken(1, 8));
  assert.deepEqual([...store.litBlocks()], [], "not computed yet");
  store.select("token", packToken(9, 0));
  assert.deepEqual([...store.litBlocks()], []);
});
