// Evaluates every formula that widgets/slot_words.js writes out for the answers on stdin; prints how many there were.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { lineCells, paddingCells, sumCells, tokenCells } from "../widgets/slot_words.js";

/** The value of a sum: "block_table[2] (8) * 16 + 37 % 16 (5)" and "32 cached or computed + 5 now" have one. */
function evaluate(sum) {
  const numbers = sum
    .replace(/[a-z_]+\[\d+\] \((-?\d+)\)/g, "$1") // what is looked up stands in brackets behind it
    .replace(/ \(\d+\)/g, "") // so does what a part comes to
    .replace(/[a-z]+/g, " ");
  assert.match(numbers, /^[\d\s+\-*/%]+$/, sum);
  const [left, right] = numbers.split("//").map((part) => Function(`return ${part}`)());
  return right === undefined ? left : Math.floor(left / right);
}

let formulas = 0;
for (const told of JSON.parse(readFileSync(0, "utf8"))) {
  const cells = [
    ...told.groups.flatMap((group) => group.slots.flatMap((_, i) => tokenCells(group, i, told.block_size))),
    ...Array.from({ length: told.num_pads }, (_, i) => paddingCells(told, i)).flat(),
    ...told.lines.flatMap((line) => lineCells(line, told)),
    ...sumCells(told.total[0], told.total.slice(1)),
  ];
  for (const { value, says } of cells) {
    const [name, ...rest] = says.split(" = "),
      [sum] = rest.join(" = ").split(":");
    if (!rest.length) continue; // words alone
    const parts = sum.split(" = ");
    for (const part of parts) assert.equal(evaluate(part), value, says);
    if (/^(slot|logical block) \d+$/.test(name)) assert.equal(Number(name.split(" ").at(-1)), value, says);
    formulas += 1;
  }
}
process.stdout.write(String(formulas));
