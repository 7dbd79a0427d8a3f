// Binary parts as front ends deliver them: in views, in buffers, as base64, as lists, or not at all.

import assert from "node:assert/strict";
import test from "node:test";
import { runInNewContext } from "node:vm";
import { frame, u16, u32 } from "../tests/store_messages.mjs";
import { bytesOf, copyAs, spread, unfolded, whole } from "./wire.js";

const BYTES = [1, 0, 0, 0, 2, 1, 0, 0];
const odd = new Uint8Array([9, 9, 9, ...BYTES, 9]);
const DELIVERED = {
  "a DataView at an odd offset": new DataView(odd.buffer, 3, 8),
  "a Uint8Array at an odd offset": odd.subarray(3, 11),
  "a typed array of another kind": Uint16Array.of(1, 0, 258, 0),
  "an ArrayBuffer": Uint8Array.from(BYTES).buffer,
  "an ArrayBuffer of another window": runInNewContext(`Uint8Array.from([${BYTES}]).buffer`),
  "a SharedArrayBuffer": (() => {
    const shared = new SharedArrayBuffer(8);
    new Uint8Array(shared).set(BYTES);
    return shared;
  })(),
  base64: Buffer.from(BYTES).toString("base64"),
  "a list of numbers": BYTES,
  "a node Buffer as JSON": JSON.parse(JSON.stringify(Buffer.from(BYTES))),
};

for (const [name, part] of Object.entries(DELIVERED)) {
  test(`${name} is read`, () => {
    const copy = copyAs(Uint32Array, part);
    assert.deepEqual([...copy], [1, 258]);
    assert.notEqual(copy.buffer, part.buffer, "a copy");
    assert.equal(whole({ buffers: ["part"] }, [part]).part.getUint32(4, true), 258);
  });
}

test("what is none is told from what is empty", () => {
  for (const part of [undefined, null, {}, 3, true, "no base64!", { type: "Buffer" }])
    assert.equal(bytesOf(part), null);
  for (const part of ["", [], new ArrayBuffer(0)]) assert.equal(bytesOf(part).length, 0);
  assert.throws(() => copyAs(Uint8Array, {}), /a binary part is not one/);
});

test("parts find their places, also as texts; a part that is missing is noticed", () => {
  const places = [["runs", 1, "blocks"], ["all"]],
    content = { type: "answer", buffers: places, runs: [{}, { blocks: null }], all: null };
  const filled = whole(structuredClone(content), [Uint8Array.of(1), Uint8Array.of(2)]);
  assert.deepEqual([filled.runs[1].blocks.getUint8(0), filled.all.getUint8(0)], [1, 2]);
  const texts = whole({ ...structuredClone(content), texts: ["AQ==", "Ag=="] }, []);
  assert.deepEqual([texts.runs[1].blocks.getUint8(0), texts.all.getUint8(0)], [1, 2]);
  for (const buffers of [undefined, null, [], [Uint8Array.of(1)], [Uint8Array.of(1), {}]])
    assert.equal(whole(structuredClone(content), buffers), null);
  assert.deepEqual(whole({ type: "answer", text: "x" }, undefined), { type: "answer", text: "x" });
});

test("runs are spread out again", () => {
  assert.deepEqual([...spread(Uint16Array, u32(0, 3, 5, 1, 2, 2), 0)], [0, 0, 0, 5, 2, 2]);
  assert.deepEqual([...spread(Uint32Array, u32(7, 3, 0, 2), 1)], [7, 8, 9, 0, 1]);
  const { words, tables, ...rest } = frame();
  const told = { ...rest, word_runs: u32(5, 1, 2, 5), table_runs: u32(0, 2, 0, 1, 2, 1) };
  const { frame: whole_, missing } = unfolded(told);
  assert.deepEqual([...copyAs(Uint16Array, whole_.words)], [5, 2, 2, 2, 2, 2]);
  assert.deepEqual([...copyAs(Uint32Array, whole_.tables)], [0, 1, 0, 2]);
  assert.deepEqual([missing, "words" in told], [[], false], "what the model holds, and a notebook saves, stays small");
});

test("a frame names what did not arrive", () => {
  const { rows, words, ...rest } = frame();
  assert.deepEqual(unfolded({ ...rest, words: {} }).missing, ["rows", "words"]);
  assert.deepEqual(unfolded({ ...rest, run: 0 }).missing, [], "before any engine there is nothing to tell");
  assert.deepEqual(unfolded(frame({ words: u16(0) })).missing, []);
});
