// The numbers of the slot view, each with the formula that gives it, from Python's answer. Knows no DOM.

import { packToken } from "./wire.js";
import { count, digits, plain } from "./words.js";

/** A number that is shown: its formula is `name = sum`, and `= value` unless the name says that already. */
function sumNumber(value, name, sum, pick = null, isNamed = false) {
  return { value, pick, says: `${name} = ${sum}${isNamed ? "" : ` = ${value}`}` };
}

/** A number that is there and follows from nothing. */
function plainNumber(value, says, pick = null) {
  return { value, pick, says };
}

/** What a token says; one without a text of its own, as most special tokens, by its id. null: there is no tokenizer. */
function tokenText(text, id) {
  if (text === null || text === undefined) return String(id);
  return plain(text).replace(/^ +$/, (spaces) => "␣".repeat(spaces.length)) || `‹token ${id}›`;
}

/** The cells of the i-th token that is shown of a group: text, id, position, logical block, block, slot. */
export function tokenCells(group, i, size) {
  const place = group.begin + i,
    position = group.start + place,
    at = group.first + place,
    id = group.ids[i];
  const block = group.blocks[i],
    logical = Math.floor(position / size),
    token = ["token", packToken(group.seq_id, position)];
  const who = `position ${position} of request ${plain(group.name)}`,
    isKnown = id !== null;
  const slot = `block_table[${logical}] (${block}) * ${size} + ${position} % ${size} (${position % size})`;
  return [
    plainNumber(
      isKnown ? tokenText(group.texts[i], id) : "?",
      isKnown ? `token ${at} of the batch: ${who}` : `${who}: its id was not known on the host yet`,
      token,
    ),
    plainNumber(
      isKnown ? id : "?",
      isKnown ? `input_ids[${at}] = ${id}` : `input_ids[${at}] is filled in on the device`,
      token,
    ),
    sumNumber(position, `positions[${at}]`, `${group.start} computed before + ${place} in this row before it`, token),
    sumNumber(logical, `logical block ${logical}`, `${position} // ${size}`, token, true),
    plainNumber(block, `block_tables[${group.row}][${logical}] = ${block}: ${blockSpan(logical, size)}`, [
      "block",
      block,
    ]),
    sumNumber(group.slots[i], `slot ${group.slots[i]}`, slot, token, true),
  ];
}

const blockSpan = (logical, size) => `it holds positions ${logical * size} to ${logical * size + size - 1}`;

/** The cells of the i-th token of padding. */
export function paddingCells(told, i) {
  const at = told.num_tokens + i,
    what = told.pads_rows ? `row ${told.num_rows + i} is padding` : `token ${at} is padding and belongs to no row`;
  return [
    plainNumber("padding", `${what}: the graph has ${count(told.graph_size, told.pads_rows ? "row" : "token")}`),
    plainNumber(0, `input_ids[${at}] = 0: ${what}`),
    plainNumber(0, `positions[${at}] = 0: ${what}`),
    plainNumber("", what),
    plainNumber(-1, told.pads_rows ? `block_tables[${told.num_rows + i}][0] = -1: padding has no block` : what),
    plainNumber(-1, `slot_mapping[${at}] = -1: its key and value are not stored`),
  ];
}

/** The cells of a row of the arrays: cu_seqlens_q, cu_seqlens_k, context_lens, then its block table. */
export function lineCells(line, told) {
  const { row, start, count: now, context, num_blocks: numBlocks } = line,
    isPadding = line.seq_id < 0,
    pick = isPadding ? null : ["sequence", line.seq_id];
  const length = isPadding
    ? plainNumber(0, `context_lens[${row}] = 0: a row of padding looks at nothing`)
    : sumNumber(context, `context_lens[${row}]`, `${start} cached or computed + ${now} now`, pick);
  const shown = Math.min(told.width, told.most_blocks),
    size = told.block_size;
  const table = Array.from({ length: shown }, (_, i) => {
    if (i < numBlocks)
      return plainNumber(line.table[i], `block_tables[${row}][${i}] = ${line.table[i]}: ${blockSpan(i, size)}`, [
        "block",
        line.table[i],
      ]);
    const why = isPadding
      ? "a row of padding has none"
      : `ceil(${context} / ${size}) = ${count(numBlocks, "block")} in use`;
    return plainNumber(-1, `block_tables[${row}][${i}] = -1: ${why}`, pick);
  });
  return [...sumCells(row, line.cu, pick), length, ...table];
}

/** cu_seqlens_q[row] and cu_seqlens_k[row]: what was before, and what the row before adds. */
export function sumCells(row, [q, k, tokens, context], pick = null) {
  const cell = (name, value, added) =>
    row
      ? sumNumber(value, `${name}[${row}]`, `${value - added} + ${added}`, pick)
      : plainNumber(0, `${name}[0] = 0: before the first row there is nothing`, pick);
  return [cell("cu_seqlens_q", q, tokens), cell("cu_seqlens_k", k, context)];
}

/** A group's heading. */
export function groupWords({ row, is_prefill: isPrefill, samples, start, count: tokens, slots }) {
  const hidden = tokens - slots.length;
  return [
    `row ${row}`,
    isPrefill
      ? `prefill of ${count(tokens, "token")} from position ${digits(start)}`
      : `decode at position ${digits(start)}`,
    samples ? "" : "not the last chunk",
    hidden ? `${digits(hidden)} not shown` : "",
  ].filter(Boolean);
}

/** The batch in words. */
export function batchWords(told) {
  const { num_rows: rows, num_tokens: tokens, num_pads: pads, hidden_rows: hidden } = told;
  if (!rows) return ["Nothing ran in this step."];
  return [
    `${count(tokens, "token")} in ${count(rows, "row")}`,
    pads ? `${count(pads, told.pads_rows ? "row" : "token")} of padding` : "",
    hidden ? `${count(hidden, "row")} not shown` : "",
    told.hidden_tokens ? `${count(told.hidden_tokens, "token")} not shown` : "",
  ];
}
