// What has changed in a pool: told by the state, found in its rows, counted.

import assert from "node:assert/strict";
import test from "node:test";

import { bandsOf } from "./block_dense.js";
import { poolNumbers } from "./block_modes.js";
import { EngineState } from "./state.js";

const pool = { run: 1, full: true, block_size: 4, num_blocks: 8, max_steps: 4, step: 0, event: 0, time: 0 };

/** A delta that sets these blocks to a word; without blocks all of them. */
function delta(seq, blocks, word = 2) {
  const m = { run: 1, seq, step: seq, event: seq, time: seq, words: Uint16Array.from(blocks ?? Array(8), () => word) };
  return blocks ? { ...m, block_ids: Uint32Array.from(blocks) } : m;
}

test("a state tells what has changed since a message, as far back as it knows", () => {
  const state = EngineState.read({ ...pool, seq: 5, words: new Uint16Array(8) });
  const since = (seq) => state.changedSince(seq)?.map((blocks) => [...blocks]) ?? null;
  assert.deepEqual([since(4), since(5)], [null, []]);
  state.advance(delta(6, [1, 2]));
  state.advance(delta(7, [2, 3]));
  assert.deepEqual([since(5), since(6), since(7)], [[[1, 2], [2, 3]], [[2, 3]], []]);
  state.advance(delta(8, null));
  assert.deepEqual([since(7), since(8)], [null, []]);
  for (let seq = 9; seq < 109; seq++) state.advance(delta(seq, [0]));
  assert.equal(since(8), null, "not all are kept");
  assert.equal(since(100).length, 8);
});

test("neighbouring rows are one band", () => {
  assert.deepEqual(bandsOf(new Set([7, 2, 3, 1, 9])), [[1, 4], [7, 8], [9, 10]]);
  assert.deepEqual(bandsOf(new Set()), []);
});

test("the longest run is found wherever it lies", () => {
  for (let length = 0; length < 40; length++)
    for (const [before, filling] of [[0, 0], [3, 0], [5, 1], [8, 0]]) {
      const words = new Uint16Array(64).fill(2);
      words.fill(filling, before, before + length);
      const found = poolNumbers(words);
      assert.equal(found.longest, length, `${length} from ${before}`);
      assert.equal(found.states[filling], length);
    }
  const whole = new Uint16Array(41).fill(6, 40),
    part = whole.subarray(1); // not at a multiple of 8 bytes
  assert.deepEqual([poolNumbers(whole).longest, poolNumbers(part).longest], [40, 39]);
});
