// What the why and the prefix view list and say, before they draw. tests/browser looks at what they draw.

import assert from "node:assert/strict";
import test from "node:test";
import { stripCells } from "./prefix_paint.js";
import {
  cacheCounts,
  hiddenWords,
  holdWords,
  litPlaces,
  openRuns,
  readRuns,
  runFacts,
  runLine,
  runText,
  treeWords,
} from "./prefix_words.js";
import { partsText } from "./sentence.js";
import { isTold, whyLine, whyMore, whyRows } from "./why_words.js";

const HOSTILE = "</b>\u202eevil\n";
const a = ["sequence", 0, "a"],
  b = ["sequence", 1, HOSTILE];
const answer = {
  summary: [],
  preempted: [{ kind: "preempted", subject: b, what: ["was preempted for ", a, ", which needed"], more: ["x"] }],
  waiting: [{ kind: "free_blocks", subject: b, what: ["waits for 3 free blocks"], more: [a, " holds 4 blocks alone"] }],
  running: [{ kind: "decode", subject: a, what: ["got its token 2"], more: [] }],
  num_waiting: 70,
  num_running: 1,
};

test("parts as text: foreign names show what they hide", () => {
  const parts = ["preempted for ", b, "; ", ["step", 3, "step 3"]];
  assert.equal(partsText(parts), "preempted for </b>‹202e›evil↵; step 3");
});

test("rows: a word for each, and of a preemption whom it was for", () => {
  assert.deepEqual(whyRows(answer, "preempted"), [
    { key: "preempted 1", id: 1, subject: b, word: "preempted", by: a, what: answer.preempted[0].what, more: ["x"] },
  ]);
  const [waits] = whyRows(answer, "waiting");
  assert.deepEqual([waits.key, waits.word, waits.by], ["waiting 1", "blocks", null]);
  const itself = { ...answer, preempted: [{ kind: "gave_way", subject: b, what: ["gave up its blocks"], more: [] }] };
  assert.deepEqual([whyRows(itself, "preempted")[0].word, whyRows(itself, "preempted")[0].by], ["gave way", null]);
});

test("what is not listed is counted, and asked for when it is selected", () => {
  assert.equal(whyMore(answer, "waiting"), 69);
  assert.equal(whyMore(answer, "running"), 0);
  assert.equal(whyMore(answer, "preempted"), 0);
  assert.ok(isTold(answer, 1) && isTold(answer, 0) && !isTold(answer, 40));
  assert.ok(isTold({ ...answer, num_waiting: 1 }, 40), "all are told of: it is not there");
});

test("the status line: the selected request, or how many there are", () => {
  assert.deepEqual(whyLine(answer, -1), ["70 requests waiting", "1 running", "1 preemption in this step"]);
  assert.deepEqual(whyLine(answer, 0), ["a", "got its token 2", ""]);
  assert.equal(whyLine(answer, 1)[0], "</b>‹202e›evil↵");
});

const u32 = (...values) => new DataView(Uint32Array.from(values).buffer);
const u8 = (...values) => new DataView(Uint8Array.from(values).buffer);
const run = (parent, blocks, more = {}) => ({
  parent,
  depth: 0,
  length: blocks.length,
  blocks: u32(...blocks),
  refs: u8(...blocks.map(() => 0)),
  most_refs: 0,
  held: 0,
  hits: 0,
  text: ["one two"],
  step: 3,
  by: [0, "a"],
  is_cut: false,
  is_salted: false,
  hidden_runs: 0,
  hidden_blocks: 0,
  ...more,
});
const told = {
  runs: [run(-1, [4, 5]), run(0, [6]), run(1, [9]), run(0, [7]), run(-1, [8])],
  cached: 6,
  unknown: 0,
  hidden_runs: 0,
  hidden_blocks: 0,
};

test("runs: levels, who has branches, and what a closed one hides", () => {
  const runs = readRuns(told);
  assert.deepEqual(
    runs.map((each) => [each.level, each.behind]),
    [
      [0, 2],
      [1, 1],
      [2, 0],
      [1, 0],
      [0, 0],
    ],
  );
  const firsts = (closed) => openRuns(runs, new Set(closed)).map((each) => each.blocks[0]);
  assert.deepEqual(firsts([]), [4, 6, 9, 7, 8]);
  assert.deepEqual(firsts([6]), [4, 6, 7, 8]);
  assert.deepEqual(firsts([4, 6]), [4, 8]);
  assert.deepEqual(litPlaces(runs[0], new Map([[5, -1]])), [1]);
});

test("a run in words", () => {
  const long = run(-1, [4, 5, 6], { length: 300, held: 2, most_refs: 3, hits: 12, is_salted: true, depth: 2 });
  assert.deepEqual(runFacts(long), ["300 blocks", "2 held by 3 requests", "12 hits", "salted"]);
  assert.equal(holdWords({ length: 3, held: 3, most_refs: 1 }), "held by 1 request");
  assert.equal(holdWords({ length: 3, held: 3, most_refs: 2 }), "held by 2 requests");
  assert.deepEqual(runFacts(run(-1, [1], { is_cut: true })), ["1 block", "only cached", "cut off"]);
  assert.deepEqual(runLine({ ...readRuns({ runs: [long] })[0], by: [1, HOSTILE] }, 16), [
    "block 4 and the 299 that follow",
    "positions 32 to 4,831",
    "2 held by 3 requests",
    "shared by 12 later requests",
    "filled by request </b>‹202e›evil↵ in step 3",
    "only requests with its salt can hit it",
    "",
  ]);
  assert.equal(runText({ text: ["\u202eab\n"] }), "‹202e›ab↵");
  assert.equal(runText({ text: ["x".repeat(80), "y".repeat(40)] }), `${"x".repeat(60)} … ${"y".repeat(30)}`);
  const hidden = (runs, blocks) => hiddenWords(run(-1, [1], { hidden_runs: runs, hidden_blocks: blocks }));
  assert.equal(hidden(2, 9), "2 smaller runs of 9 blocks behind it not shown");
  assert.equal(hidden(1, 1), "1 smaller run of 1 block behind it not shown");
  assert.equal(hiddenWords(run(-1, [1])), "");
});

test("the tree in words", () => {
  assert.deepEqual(treeWords({ ...told, cached: 0 }, [0, 0]), ["The prefix cache is empty."]);
  const first = (...counts) => treeWords(told, counts)[0];
  assert.equal(first(5, 4), "5 blocks in the prefix cache, 4 of them held");
  assert.equal(first(5, 5), "5 blocks in the prefix cache, all of them held");
  assert.equal(first(5, 0), "5 blocks in the prefix cache, none of them held");
  assert.equal(first(1, 1), "1 block in the prefix cache, held");
  assert.equal(first(1, 0), "1 block in the prefix cache, not held");
  assert.deepEqual(treeWords({ ...told, unknown: 3, hidden_runs: 7, hidden_blocks: 20 }, [1234, 1100]), [
    "1,234 blocks in the prefix cache, 1,100 of them held",
    "7 smaller runs of 20 blocks not shown",
    "3 blocks filled before it was recorded",
  ]);
});

test("what is in the prefix cache, held or not: the hashed blocks among all", () => {
  // free, cached, held and not full, held and hashed, shared and hashed, shared and not hashed
  assert.deepEqual(cacheCounts(Uint16Array.of(0, 1, 2, 3, 5, 4, 65_535)), [4, 3]);
  assert.deepEqual(cacheCounts(new Uint16Array(0)), [0, 0]);
});

test("a strip has a cell a block, and of a long run the most of each part", () => {
  assert.deepEqual(stripCells([2, 1, 0], [1]), [
    { ref: 2, isLit: false },
    { ref: 1, isLit: true },
    { ref: 0, isLit: false },
  ]);
  const long = stripCells([...Array(100).keys()].reverse(), [99], 10);
  assert.equal(long.length, 10);
  assert.deepEqual([long[0].ref, long[9]], [99, { ref: 9, isLit: true }]);
  for (const n of [1, 23, 24, 25, 256]) {
    const cells = stripCells(Array(n).fill(1), [n - 1]);
    assert.equal(cells.length, Math.min(16, n));
    assert.ok(cells.at(-1).isLit && cells.every((cell) => cell.ref === 1));
  }
});
