// The store alone: what messages do to it, and what it tells the views. tests/test_store.py compares it with Python's.

import assert from "node:assert/strict";
import test from "node:test";
import { delta, filled, frame, head, i32, row, u32 } from "../tests/store_messages.mjs";
import { spansOf } from "./spans.js";
import { CACHED, DECODE, FREE, PREEMPTED, SAMPLES, SHARED, USED, blockState, copyAs } from "./wire.js";

test("bytes are copied, wherever they begin", () => {
  const bytes = new Uint8Array([9, 1, 0, 0, 0, 2, 0, 0, 0]);
  const copy = copyAs(Uint32Array, new DataView(bytes.buffer, 1));
  bytes.fill(0);
  assert.deepEqual([...copy], [1, 2]);
  assert.deepEqual([...copyAs(Uint16Array, new Uint8Array([1, 0]).buffer)], [1]);
  assert.equal(copyAs(Int32Array, undefined).length, 0);
});

test("a block's word tells its state", () => {
  assert.deepEqual([0, 1, 2, 3, 4, 5, 100].map(blockState), [FREE, CACHED, USED, USED, SHARED, SHARED, SHARED]);
});

test("a frame is everything", () => {
  const store = filled();
  assert.deepEqual(
    [store.step, store.numBlocks, store.blockSize, store.waiting, store.running],
    [2, 6, 4, [2], [0, 1]],
  );
  assert.deepEqual(
    [...store.sequences.values()].map((s) => [s.name, s.status, s.table]),
    [
      ["a", "decode", [0, 1]],
      ["b", "prefill", [0, 2]],
      ["c", "waiting", []],
    ],
  );
  assert.deepEqual(
    store.owners(0).map(([seq, index]) => [seq.name, index]),
    [
      ["a", 0],
      ["b", 0],
    ],
  );
  assert.deepEqual(store.owners(3), []);
  assert.deepEqual([...store.fills()], [4, 3, 0, 4, 0, 0], "a hashed block is full, also when nobody holds it");
  assert.deepEqual(store.countBlocks(), [2, 1, 2, 1]);
});

test("a delta changes what it names", () => {
  const store = filled();
  assert.equal(store.receive(delta()), "delta");
  assert.deepEqual(store.sequences.get(1).table, [0, 2, 4]);
  assert.deepEqual([...store.words], [5, 2, 3, 1, 2, 0]);
  assert.deepEqual([...store.written], [4]);
  assert.deepEqual(
    store.columns.map((c) => c.step),
    [0, 1, 2],
  );
  assert.deepEqual([...store.columns[2].starts], [4]);
  assert.equal(store.receive(delta()), "stale", "the same again");
});

test("what is told twice changes nothing", () => {
  const store = filled();
  store.receive(delta());
  store.receive(delta({ seq: 3 }));
  assert.deepEqual(store.sequences.get(1).table, [0, 2, 4]);
  assert.deepEqual(
    store.columns.map((c) => c.step),
    [0, 1, 2],
  );
});

test("the past is bounded, and a sequence that is gone is forgotten", () => {
  const store = filled();
  for (let i = 0; i < 5; i++)
    store.receive(
      delta({
        seq: 2 + i,
        rows: i32(),
        tables: u32(),
        steps: i32(...head(2 + i, 0)),
        entries: i32(),
        gone: i === 4 ? [0] : [],
      }),
    );
  assert.deepEqual(
    store.columns.map((c) => c.step),
    [4, 5, 6],
  );
  assert.deepEqual([...store.sequences.keys()], [1, 2]);
});

test("a frame of another run starts over, an older frame is ignored", () => {
  const store = filled();
  assert.equal(store.receive(frame({ seq: 0 })), "stale");
  assert.equal(store.receive(delta({ run: 0 })), "stale");
  assert.equal(
    store.receive(
      frame({
        run: 2,
        seq: 1,
        names: [[5, "x"]],
        rows: i32(...row(5, 0, 0)),
        tables: u32(),
        steps: i32(),
        entries: i32(),
      }),
    ),
    "frame",
  );
  assert.deepEqual([...store.sequences.keys()], [5]);
  assert.equal(store.columns.length, 0);
  assert.equal(store.receive({ ...frame(), version: 2, seq: 9 }), "version");
});

test("a frame with a shorter past keeps the longer one that is here", () => {
  const store = filled();
  const later = frame({ seq: 5, step: 3, steps: i32(...head(2, 1)), entries: i32(0, DECODE | SAMPLES, 7, 1) });
  store.receive(later);
  assert.deepEqual(
    store.columns.map((c) => c.step),
    [0, 1, 2],
  );
  assert.deepEqual(spansOf(store.sequences.get(1), 2), [
    [0, 0, true],
    [1, 2, false],
  ]);
  store.receive(frame({ seq: 6, step: 9, steps: i32(...head(8, 0)), entries: i32() }));
  assert.deepEqual(
    store.columns.map((c) => c.step),
    [8],
    "what lies between is not known",
  );
});

test("spans tell when a sequence waited", () => {
  const seq = (more) => ({ born: 2, ended: -1, numComputed: 5, status: "decode", moves: [], ...more });
  assert.deepEqual(
    spansOf(
      seq({
        moves: [
          [4, false],
          [7, true],
          [9, false],
        ],
      }),
      10,
    ),
    [
      [2, 3, true],
      [4, 6, false],
      [7, 8, true],
      [9, 10, false],
    ],
  );
  assert.deepEqual(spansOf(seq({}), 10), [[2, 10, false]], "resident since before the first step at hand");
  assert.deepEqual(spansOf(seq({ numComputed: 0, status: "waiting" }), 10), [[2, 10, true]]);
  assert.deepEqual(spansOf(seq({ moves: [[2, false]], ended: 5, status: "stop" }), 10), [[2, 5, false]]);
  assert.deepEqual(
    spansOf(seq({ numComputed: 0, ended: 5, status: "finished" }), 10),
    spansOf(seq({ numComputed: 0, ended: 5, status: "abort" }), 10),
    "when nobody saw how it ended, it had left before too",
  );
  assert.deepEqual(
    spansOf(seq({ numComputed: 0, ended: 5, status: "abort" }), 10),
    [[2, 4, true]],
    "aborted before step 5",
  );
  assert.deepEqual(spansOf(seq({ moves: [[6, true]], numComputed: 0 }), 8), [
    [2, 5, false],
    [6, 8, true],
  ]);
});

test("moves come from the entries", () => {
  const store = filled();
  store.receive(delta({ steps: i32(...head(2, 1)), entries: i32(1, PREEMPTED, 0, 4) }));
  assert.deepEqual(spansOf(store.sequences.get(1), 2), [
    [0, 0, true],
    [1, 1, false],
    [2, 2, true],
  ]);
});

test("a selection lights up its counterpart and reaches the host", () => {
  const told = [],
    store = filled({ select: (selection, cursor) => told.push([selection.kind, selection.id, cursor]) });
  let changes = 0;
  const leave = store.subscribe(() => changes++);
  store.select("block", 0);
  assert.deepEqual([...store.litSequences()], [0, 1]);
  assert.deepEqual([...store.litBlocks()], [[0, -1]]);
  store.select("sequence", 1);
  assert.deepEqual(
    [...store.litBlocks()],
    [
      [0, 0],
      [2, 1],
    ],
  );
  store.select("sequence", 1, { toggle: false });
  store.lookAt(1);
  store.select("sequence", 1);
  assert.deepEqual(told, [
    ["block", 0, -1],
    ["sequence", 1, -1],
    ["sequence", 1, 1],
    ["none", -1, 1],
  ]);
  assert.equal(changes, 4);
  assert.equal(store.litSequences().size + store.litBlocks().size, 0);
  leave();
  store.lookAt(-1);
  assert.equal(changes, 4);
});
