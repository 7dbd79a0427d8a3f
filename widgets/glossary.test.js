// Terms are found in what views say: the longest, once each, as whole words. Being shown is tested in chromium.

import assert from "node:assert/strict";
import test from "node:test";
import { learn, linked, termsIn } from "./glossary.js";

const show = (part) => (part.term ? `[${part.word}|${part.term}]` : part),
  found = (text, seen) => termsIn(text, seen).map(show).join("");

test("a page without a glossary says what it says", () => {
  assert.deepEqual(termsIn("a block table"), ["a block table"]);
  assert.deepEqual(termsIn(""), []);
  assert.deepEqual(linked(["a block", 3], { about: "a slot" }), ["a block", 3]);
});

test("the longest term wins, in any case and with a plural s", () => {
  learn([
    ["block", "Room."],
    ["block table", "Which.", "block_tables"],
    ["padding (-1)", "Nothing.", "padding"],
    ["free list", "The queue.", "free", "free block"],
    ["a.c", "A dot."],
  ]);
  assert.equal(found("KV Blocks of a block table"), "KV [Blocks|block] of a [block table|block table]");
  assert.equal(found("block_tables[0] = 3"), "[block_tables|block table][0] = 3");
  assert.equal(found("12 free blocks"), "12 [free blocks|free list]");
  assert.equal(found("free, padding (-1)!"), "[free|free list], [padding (-1)|padding (-1)]!");
});

test("parts of words, of ids and of names are no terms", () => {
  for (const text of ["blocking", "my-block", "block-2", "unblock", "block_size", "blöckblock", "abc"])
    assert.deepEqual(termsIn(text), [text]);
  assert.equal(found("a.c"), "[a.c|a.c]");
});

test("a term is explained once in a line", () => {
  const seen = new Set();
  assert.equal(found("block 3, block 4", seen), "[block|block] 3, block 4");
  assert.equal(found("blocks and padding", seen), "blocks and [padding|padding (-1)]");
  assert.deepEqual([...seen], ["block", "padding (-1)"]);
});
