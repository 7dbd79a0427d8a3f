// What the views compute before they draw: layout, hit test, words. What they draw is tested in chromium (tests/browser).

import assert from "node:assert/strict";
import test from "node:test";
import { blockAt, blockLayout } from "./block_paint.js";
import "./block_view.js";
import { VIEWS } from "./kit.js";
import { cursorWords } from "./cursor_bar.js";
import { fit } from "./paint.js";
import { scheduleLegend } from "./schedule_paint.js";
import { LABEL } from "./schedule_place.js";
import {
  axisNumbers,
  cellWords,
  columnWidth,
  scheduleRows,
  sequenceWords,
  stepWords,
  tickEvery,
} from "./schedule_words.js";
import { Store } from "./store.js";
import { ADMITTED, DECODE, PREEMPTED, PREFILL, RECOMPUTE, SAMPLES } from "./wire.js";
import { clamp, count, plain, tail } from "./words.js";
import "./controls_view.js";
import "./schedule_view.js";

test("every view is there by its name", () => {
  assert.deepEqual(Object.keys(VIEWS).sort(), ["block_view", "controls_view", "schedule_view"]);
});

test("96 blocks get large cells, and every pool fits its field", () => {
  assert.deepEqual(blockLayout(96, 900), { n: 96, columns: 16, rows: 6, w: 56, h: 34 });
  for (const n of [1, 7, 96, 255, 256, 512, 1000, 4096, 20_000, 200_000, 1_000_000]) {
    for (const width of [300, 640, 900, 1600]) {
      const at = blockLayout(n, width);
      assert.ok(at.columns * at.rows >= n, `${n} in ${width}`);
      assert.ok(at.columns * at.w <= width + 1e-6 && at.rows * at.h <= 301, `${n} in ${width}: ${JSON.stringify(at)}`);
    }
  }
});

test("the block under a point, and none beside the cells", () => {
  const at = blockLayout(90, 900);
  assert.equal(blockAt(at, 56 * 2 + 1, 34 * 3 + 1), 3 * 16 + 2);
  assert.equal(blockAt(at, 56 * 12, 34 * 5 + 1), -1, "after the last block");
  assert.equal(blockAt(at, 899, 1), -1, "right of the last column");
  assert.equal(blockAt(at, -1, 1), -1);
  const tiny = blockLayout(1_000_000, 900);
  assert.equal(
    blockAt(tiny, ((123_456 % tiny.columns) + 0.5) * tiny.w, (Math.floor(123_456 / tiny.columns) + 0.5) * tiny.h),
    123_456,
  );
});

test("columns are as wide as the steps allow", () => {
  assert.equal(columnWidth(3, 800), 28);
  assert.equal(columnWidth(39, 800), 20);
  assert.equal(columnWidth(512, 800), 8);
  assert.equal(tickEvery(28, 2), 1);
  assert.equal(tickEvery(8, 4), 10);
});

const sequence = (id, more = {}) => ({
  id,
  name: `r${id}`,
  status: "decode",
  isLive: true,
  born: 0,
  ended: -1,
  numComputed: 3,
  moves: [[0, false]],
  table: [],
  ...more,
});

test("rows: who ran in the steps at hand, then the head of the queue", () => {
  const store = new Store();
  store.columns = [{ step: 50 }];
  const add = (seq) => store.sequences.set(seq.id, seq);
  add(sequence(0, { isLive: false, ended: 49, status: "stop" }));
  add(sequence(1, { isLive: false, ended: 50, status: "stop" }));
  add(sequence(2));
  for (let id = 3; id < 10_000; id++) add(sequence(id, { status: "waiting", moves: [], numComputed: 0 }));
  const { rows, more } = scheduleRows(store);
  assert.deepEqual(
    rows.slice(0, 3).map((s) => s.id),
    [1, 2, 3],
  );
  assert.equal(rows.length + more, 9_999);
  assert.equal(rows.length, 66);
});

test("a cell in words", () => {
  const store = new Store(),
    seq = sequence(1, { born: 2, moves: [[3, false]] }),
    by = sequence(2, { name: "big </script>" });
  store.sequences = new Map([
    [1, seq],
    [2, by],
  ]);
  const column = (step, ...entries) => ({
    step,
    seqs: entries.map((e) => e[0]),
    kinds: entries.map((e) => e[1]),
    starts: entries.map((e) => e[2]),
    counts: entries.map((e) => e[3]),
  });
  const words = (...at) => cellWords(store, seq, column(...at)).join("; ");
  assert.equal(
    words(4, [1, PREFILL | ADMITTED, 16, 32]),
    "prefill of 32 tokens (positions 16 to 47, after 16 tokens from the prefix cache, not the last chunk)",
  );
  assert.equal(words(4, [1, RECOMPUTE | SAMPLES, 0, 5]), "recompute of 5 tokens (positions 0 to 4, last chunk)");
  assert.equal(words(4, [2, DECODE, 9, 1], [1, DECODE | SAMPLES, 1234, 1]), "decode of 1 token (position 1234)");
  assert.equal(words(4, [1, PREEMPTED, 2, 40]), "preempted for big </script>: the KV of 40 tokens lost");
  assert.equal(words(4, [1, PREEMPTED, -1, 1]), "preempted: the KV of 1 token lost");
  assert.equal(words(2), "waiting");
  assert.equal(words(4), "resident, not in this batch");
  assert.equal(words(1), "not there yet");
  Object.assign(seq, { ended: 5, status: "length", isLive: false });
  assert.equal(words(5, [1, DECODE | SAMPLES, 7, 1]), "decode of 1 token (position 7); finished (length)");
  assert.equal(words(6), "gone");
  seq.status = "finished"; // as a recording with a gap has it
  assert.equal(words(5), "finished, in a step that is not recorded");
  seq.status = "abort";
  assert.equal(words(5), "aborted");
  seq.status = "error";
  assert.equal(
    words(5, [1, DECODE, 7, 1]),
    "decode of 1 token (position 7); failed (no token could be chosen)",
  );
});

test("a step and a sequence in words", () => {
  const step = { prefill: 64, recompute: 0, decode: 3, budget: 512, free: 1, running: 4, waiting: 2, us: 12_345 };
  assert.deepEqual(stepWords(step), [
    "67 of 512 tokens (64 prefill, 3 decode)",
    "while it ran: 4 running, 2 waiting, 1 block free (cached ones included)",
    "12.3 ms",
  ]);
  const seq = sequence(1, {
    numPrompt: 10,
    numTokens: 14,
    numCached: 4,
    numComputed: 13,
    table: [1, 2],
    numPreemptions: 2,
  });
  assert.deepEqual(sequenceWords(seq), [
    "decode",
    "10 prompt tokens + 4 generated",
    "13 tokens in the KV cache, 4 of them from the prefix cache",
    "2 blocks",
    "preempted 2 times",
  ]);
  const held = (more) => sequenceWords({ ...seq, ...more })[2];
  assert.equal(held({ numCached: 0, numComputed: 0, status: "waiting" }), "0 tokens in the KV cache");
  assert.equal(
    held({ numComputed: 1, numCached: 1, isLive: false, status: "stop" }),
    "had 1 token in the KV cache, 1 of them from the prefix cache",
  );
});

test("no words about a sequence count tokens from the prefix cache as computed", () => {
  const seq = sequence(1, { numPrompt: 30, numTokens: 31, numCached: 16, numComputed: 30 }),
    store = new Store();
  store.sequences = new Map([[1, seq]]);
  for (const entry of [
    [PREEMPTED, -1, 30],
    [PREFILL | ADMITTED, 16, 14],
  ]) {
    const [kinds, starts, counts] = entry.map((n) => [n]);
    const told = [...cellWords(store, seq, { step: 1, seqs: [1], kinds, starts, counts }), ...sequenceWords(seq)];
    assert.doesNotMatch(told.join("; "), /computed/);
  }
});

test("the shown step always has its number, and others only where they leave it room", () => {
  const columns = Array.from({ length: 60 }, (_, i) => ({ step: 100 + i }));
  const at = { cw: 8, first: 100, steps: 60, left: 0, top: 0, height: 200, width: LABEL + 480, rows: [], shown: 31 };
  const put = (more) => axisNumbers({ ...at, ...more }, columns, 7);
  assert.equal(
    put({ shown: -1 }).others.map(({ text }) => text).join(),
    "105,110,115,120,125,130,135,140,145,150,155",
  );
  for (let shown = 0; shown < 60; shown++) {
    const { shown: one, others } = put({ shown });
    assert.equal(one.text, String(100 + shown));
    assert.ok(one.x - one.half >= LABEL - 2 && one.x + one.half <= at.width, `step ${one.text} is cut off`);
    for (const { x, half, text } of others)
      assert.ok(Math.abs(x - one.x) >= half + one.half && text !== one.text, `${text} touches ${one.text}`);
    assert.ok(others.length >= 3);
  }
  assert.equal(put({ left: 8 * 40, shown: 20 }).shown, null, "scrolled out to the left");
  assert.equal(put({ width: LABEL + 80, shown: 20 }).shown, null, "not yet scrolled to");
});

test("the words of the step need no more room in the past than is kept for them while it runs", () => {
  const live = { step: 62, cursor: -1, liveStep: 61, isPast: false, isLoading: false };
  assert.deepEqual(cursorWords(live).slice(0, 2), ["62 steps", ""]);
  assert.deepEqual(cursorWords({ ...live, step: 1, liveStep: 0 }).slice(0, 2), ["1 step", ""]);
  for (const cursor of [0, 9, 30, 60])
    for (const isLoading of [true, false]) {
      const [where, meaning, widest] = cursorWords({ ...live, step: cursor + 1, cursor, isPast: true, isLoading });
      assert.equal(where + meaning, `step ${cursor} of 61 · ${isLoading ? "loading" : "past"}`);
      assert.equal(widest, cursorWords(live)[2]);
      assert.ok((where + meaning).length <= widest.length);
    }
});

test("every mark of the schedule has an entry in its legend", () => {
  const words = scheduleLegend({ columns: [] }).map(([word]) => word);
  assert.deepEqual(words, [
    ...["waiting", "prefill", "recompute", "decode", "idle", "preempted", "finished", "aborted", "unused"],
  ]);
});

test("names that begin alike stay apart when they are cut", () => {
  const g = { measureText: (text) => ({ width: 7 * [...text].length }) };
  assert.deepEqual(
    ["request-number-17", "request-number-18", "r🦜q", "request-num"].map((name) => fit(g, name, 77)),
    ["reque…er-17", "reque…er-18", "r🦜q", "request-num"],
  );
  for (let width = 7; width < 120; width++) assert.ok(g.measureText(fit(g, "a name in all widths", width)).width <= width);
});

test("foreign text is made visible, letters of every script stay", () => {
  assert.equal(plain("a\nb\tc\r\nd"), "a↵b⇥c↵d");
  assert.equal(plain("</script><b>"), "</script><b>");
  assert.equal(plain("x\u202egnp.exe\u0000\u0007"), "x‹202e›gnp.exe‹0000›‹0007›");
  assert.equal(plain("مرحبا 🦜 ünïcödé 漢字"), "مرحبا 🦜 ünïcödé 漢字");
  assert.equal(tail("ab🦜cd", 3), "…🦜cd");
  assert.equal(tail("abc", 3), "abc");
});

test("numbers", () => {
  assert.equal(count(1, "block"), "1 block");
  assert.equal(count(12345, "block"), "12,345 blocks");
  assert.deepEqual([clamp(5, 0, 3), clamp(-1, 0, 3), clamp(2, 0, 3)], [3, 0, 2]);
});
