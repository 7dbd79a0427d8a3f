// Messages that are lost, late or told twice: the store keeps, asks and heals.

import assert from "node:assert/strict";
import test from "node:test";
import { delta, filled, frame, head, i32, row, u32 } from "../tests/store_messages.mjs";

test("a delta that does not fit is kept until what is missing has come", () => {
  const asked = [],
    timers = [];
  const store = filled({ resync: () => asked.push(1), later: (call) => timers.push(call) });
  assert.equal(
    store.receive(delta({ seq: 3, step: 4, rows: i32(), tables: u32(), steps: i32(...head(3, 0)), entries: i32() })),
    "gap",
  );
  assert.equal(store.step, 2);
  assert.equal(store.receive(delta()), "delta");
  assert.equal(store.step, 4);
  timers.shift()();
  assert.deepEqual(asked, []);
  assert.equal(timers.length, 0);
});

test("what stays missing is asked for once at a time, and again when no answer comes", () => {
  const asked = [],
    timers = [];
  const store = filled({ resync: () => asked.push(1), later: (call, ms) => timers.push([call, ms]) });
  for (let seq = 3; seq < 200; seq++) store.receive(delta({ seq }));
  assert.equal(timers.length, 1);
  timers.shift()[0]();
  assert.equal(asked.length, 1);
  for (let seq = 200; seq < 300; seq++) store.receive(delta({ seq }));
  assert.equal(timers.length, 1, "the next question waits");
  assert.ok(timers[0][1] >= 1000);
  timers.shift()[0]();
  assert.equal(asked.length, 2);
  store.receive(frame({ seq: 300, step: 9 }));
  timers.shift()[0]();
  assert.equal(asked.length, 2);
  assert.equal(timers.length, 0);
});

test("a block table that builds on another one than is here is a gap", () => {
  const store = filled({ later() {} });
  assert.equal(store.receive(delta({ rows: i32(...row(1, 2, 6, { keep: 3, grown: 1 })) })), "gap");
  assert.equal(store.receive(delta({ rows: i32(...row(7, 2, 6)) })), "gap", "a sequence without a name");
  assert.deepEqual(store.sequences.get(1).table, [0, 2]);
});
