// What the slot and the memory view say, before they draw. tests/test_slot_view.py evaluates every formula.

import assert from "node:assert/strict";
import test from "node:test";
import {
  arithmetic,
  byteWords,
  fragmentWords,
  ledgerLines,
  needWords,
  percentWords,
  poolParts,
  verdict,
} from "./memory_words.js";
import { batchWords, groupWords, lineCells, paddingCells, sumCells, tokenCells } from "./slot_words.js";
import { packToken } from "./wire.js";

const HOSTILE = "</b>\u202eevil\n";
const group = {
  row: 1,
  seq_id: 3,
  name: HOSTILE,
  is_prefill: true,
  samples: false,
  start: 32,
  count: 9,
  first: 5,
  begin: 4,
  ids: [7, null],
  texts: ["\u202ex", null],
  blocks: [8, 8],
  slots: [132, 133],
};
const told = {
  block_size: 16,
  num_rows: 2,
  num_tokens: 14,
  num_pads: 2,
  pads_rows: true,
  graph_size: 4,
  width: 3,
  most_blocks: 24,
  hidden_rows: 1,
  hidden_tokens: 1200,
};
const says = (cells) => cells.map((cell) => cell.says);

test("a token: each number with its formula, and what a click selects", () => {
  const cells = tokenCells(group, 1, 16);
  assert.deepEqual(says(cells), [
    "position 37 of request </b>‹202e›evil↵: its id was not known on the host yet",
    "input_ids[10] is filled in on the device",
    "positions[10] = 32 computed before + 5 in this row before it = 37",
    "logical block 2 = 37 // 16",
    "block_tables[1][2] = 8: it holds positions 32 to 47",
    "slot 133 = block_table[2] (8) * 16 + 37 % 16 (5)",
  ]);
  assert.deepEqual(cells[5].pick, ["token", packToken(3, 37)]);
  assert.deepEqual(cells[4].pick, ["block", 8]);
  const [text, id] = tokenCells(group, 0, 16);
  assert.deepEqual([text.value, id.value, id.says], ["‹202e›x", 7, "input_ids[9] = 7"]);
  assert.equal(tokenCells({ ...group, texts: [null, null] }, 0, 16)[0].value, "7", "without a tokenizer: the id");
  const shown = (text) => tokenCells({ ...group, texts: [text, null] }, 0, 16)[0].value;
  assert.deepEqual(["", " ", "   ", " a", "\n", "\t"].map(shown), ["‹token 7›", "␣", "␣␣␣", " a", "↵", "⇥"]);
  assert.ok([...Array(128).keys()].every((code) => shown(String.fromCharCode(code)).trim()), "no cell is blank");
  assert.equal(tokenCells({ ...group, name: "2" }, 0, 16)[0].says, "token 9 of the batch: position 36 of request 2");
});

test("a row of the arrays, and the end of the last", () => {
  const line = { row: 2, seq_id: 3, name: "a", start: 32, count: 5, context: 37, num_blocks: 2, table: [8, 4] };
  const cells = lineCells({ ...line, cu: [12, 50, 7, 20] }, told);
  assert.deepEqual(says(cells), [
    "cu_seqlens_q[2] = 5 + 7 = 12",
    "cu_seqlens_k[2] = 30 + 20 = 50",
    "context_lens[2] = 32 cached or computed + 5 now = 37",
    "block_tables[2][0] = 8: it holds positions 0 to 15",
    "block_tables[2][1] = 4: it holds positions 16 to 31",
    "block_tables[2][2] = -1: ceil(37 / 16) = 2 blocks in use",
  ]);
  assert.equal(sumCells(0, [0, 0, 0, 0])[0].says, "cu_seqlens_q[0] = 0: before the first row there is nothing");
});

test("padding: rows in a decode graph, tokens of no row in a prefill graph", () => {
  const row = paddingCells(told, 1);
  assert.equal(row[5].says, "slot_mapping[15] = -1: its key and value are not stored");
  assert.equal(row[0].says, "row 3 is padding: the graph has 4 rows");
  assert.deepEqual([row[4].value, row[5].value, row[5].pick], [-1, -1, null]);
  const token = paddingCells({ ...told, pads_rows: false, graph_size: 16 }, 0);
  assert.equal(token[0].says, "token 14 is padding and belongs to no row: the graph has 16 tokens");
  const line = { row: 2, seq_id: -1, name: "", start: 0, count: 1, context: 0, num_blocks: 0, table: [] };
  const cells = lineCells({ ...line, cu: [14, 50, 9, 37] }, told);
  assert.deepEqual(
    cells.slice(2).map((cell) => cell.value),
    [0, -1, -1, -1],
  );
  assert.equal(cells[3].says, "block_tables[2][0] = -1: a row of padding has none");
});

test("groups and batches in words", () => {
  assert.deepEqual(groupWords(group), [
    "row 1",
    "prefill of 9 tokens from position 32",
    "not the last chunk",
    "7 not shown",
  ]);
  assert.deepEqual(groupWords({ ...group, is_prefill: false, samples: true, count: 2 }), [
    "row 1",
    "decode at position 32",
  ]);
  assert.deepEqual(batchWords(told), [
    "14 tokens in 2 rows",
    "2 rows of padding",
    "1 row not shown",
    "1,200 tokens not shown",
  ]);
  assert.deepEqual(batchWords({ ...told, num_rows: 0 }), ["Nothing ran in this step."]);
});

test("bytes, shares and the parts of the pool", () => {
  assert.deepEqual([1, 1023, 1024, 1835008, 2 ** 37].map(byteWords), [
    "1 byte",
    "1,023 bytes",
    "1.0 KiB",
    "1.8 MiB",
    "128 GiB",
  ]);
  assert.deepEqual(
    [
      [0, 9],
      [9, 9],
      [1, 100000],
      [99999, 100000],
      [1, 3],
      [0, 0],
    ].map((pair) => percentWords(...pair)),
    ["0 %", "100 %", "0.1 %", "99.9 %", "33.3 %", "0 %"],
  );
  assert.deepEqual(
    poolParts([4, 3, 2, 1]).map(([name, n]) => [name, n]),
    [
      ["used", 2],
      ["shared", 1],
      ["cached", 3],
      ["free", 4],
    ],
  );
  assert.equal(
    fragmentWords({ slots: 32, held: 20, due: 4, unused: 8 }, 16),
    "2 blocks in use * 16 = 32 slots for 20 tokens held; 8 (25.0 %) lie unused at the ends",
  );
  assert.equal(fragmentWords({ slots: 0, held: 0, due: 0, unused: 0 }, 16), "No block is in use.");
});

test("the ledger: what was measured, and the arithmetic a step a line", () => {
  const from =
    "0.9 of 1,000 bytes, less 100 of weights and 50 for a step; 900 are free: 750 bytes available / 64 a block = 11";
  const ledger = {
    device: HOSTILE,
    weights: 100,
    pool: 704,
    num_blocks: 11,
    block_bytes: 64,
    total: 1000,
    graphs: null,
  };
  assert.deepEqual(ledgerLines(ledger), [
    ["weights", 100, "of the model"],
    ["KV pool", 704, "11 blocks * 64 bytes"],
    ["device", 1000, "</b>‹202e›evil↵"],
  ]);
  assert.deepEqual(ledgerLines({ ...ledger, num_ranks: 2 })[0], ["weights", 100, "rank 0 of 2; each has its share"]);
  assert.deepEqual(arithmetic({ ...ledger, num_blocks_from: from }), [
    "0.9 of 1,000 bytes, less 100 of weights and 50 for a step",
    "900 are free",
    "750 bytes available / 64 a block = 11",
    "pool = 11 blocks * 64 bytes = 704 bytes",
  ]);
});

test("one more sequence: fits, fits by eviction, must wait, never fits", () => {
  const limits = { blockSize: 16, numBlocks: 100, maxNumSeqs: 4 },
    need = { length: 1000, blocks: 63, free: 70, evicted: 0, waiting: 0, running: 1 };
  const kinds = [{}, { evicted: 5 }, { free: 60 }, { blocks: 101, free: 60 }].map((more) => ({ ...need, ...more }));
  assert.deepEqual(
    kinds.map((each) => verdict(each, 100)),
    ["fits", "evicts", "waits", "never"],
  );
  assert.deepEqual(
    kinds.map((each) => needWords(each, limits)[1]),
    [
      "Fits now, without eviction: 70 blocks can be had.",
      "Fits now, with eviction: 5 cached blocks would be forgotten.",
      "Does not fit now: 60 blocks can be had, 3 too few, until others end.",
      "Never fits: the pool has 100 blocks.",
    ],
  );
  assert.equal(needWords(need, limits)[0], "ceil(1,000 / 16) = 63 blocks, 8 slots of the last one unused.");
  assert.deepEqual(needWords({ ...need, waiting: 1, running: 4 }, limits).slice(2), [
    "All 4 places of running sequences are taken.",
    "1 request waits already.",
    "A prefix that is cached needs fewer.",
  ]);
});
