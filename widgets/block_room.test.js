// What there is room for in the cells of a pool: numbers, badges and corners never cover each other.

import assert from "node:assert/strict";
import test from "node:test";
import { cellRoom, orderWords } from "./block_draw.js";
import { DENSE, blockLayout } from "./block_paint.js";

/** Of a context what measures a text: a digit is 0.556 of its size wide, as in Arial. */
const g = {
  measureText(text) {
    return { width: 0.556 * parseFloat(this.font.split(" ")[1]) * text.length };
  },
};
const t = { font: "Arial" };
const lit = (n) => new Map(Array.from({ length: n }, (_, index) => [index, index]));

/** Where things are in a cell, from its upper left: the number, the badge and the tip of the corner. */
function parts(at, room, index) {
  const [w, h] = [at.w - room.gap, at.h - room.gap],
    number = { right: room.left + 0.556 * room.size * String(at.n - 1).length, top: h / 2 + room.down - 0.36 * room.size };
  const badge = Math.max(13, 5.56 * String(index).length + 7);
  return { w, h, number, bottom: number.top + 0.72 * room.size, badge: { left: w - badge - 1, top: h - 14 } };
}

test("in no pool at any width does a thing in a cell cover another", () => {
  let [badges, named] = [0, 0];
  for (const n of [7, 40, 96, 100, 256, 400, 1000, 1500])
    for (let width = 120; width <= 2600; width += 20) {
      const at = blockLayout(n, width);
      if (at.w < DENSE) continue;
      const room = cellRoom(g, t, at, lit(Math.min(n, 130))),
        { w, h, number, bottom, badge } = parts(at, room, Math.min(n, 130) - 1),
        where = `${n} blocks at ${width}: ${JSON.stringify({ ...at, ...room })}`;
      assert.ok(room.side >= 4, `the corner can be seen: ${where}`);
      if (room.isNamed) {
        named += 1;
        assert.ok(number.right <= w && number.top >= 0 && bottom <= h, `the number is in its cell: ${where}`);
        // The corner's long side runs from its tip at the top to the right edge.
        assert.ok(w - number.right + number.top >= room.side, `no corner on the number: ${where}`);
      }
      if (room.hasBadges) {
        badges += 1;
        assert.ok(room.isNamed && badge.left >= number.right + 2, `no badge on the number: ${where}`);
        assert.ok(badge.top >= room.side, `no badge on the corner: ${where}`);
      }
    }
  assert.ok(badges > 100 && named > 300, `${badges} with badges, ${named} with numbers`);
});

test("badges are for cells with room: those of 96 blocks, not of 400, nor on a phone", () => {
  const has = (n, width, of = 20) => cellRoom(g, t, blockLayout(n, width), lit(of)).hasBadges;
  assert.ok(has(96, 980) && has(40, 1280));
  assert.ok(!has(400, 1280) && !has(40, 330));
  assert.ok(!cellRoom(g, t, blockLayout(96, 980), new Map([[3, -1]])).hasBadges, "a block by itself has no index");
});

test("a table in its logical order, for where there is no room", () => {
  assert.equal(orderWords(new Map([[7, 1], [300, 0], [12, 2]])), "in logical order from 0: 300, 7, 12");
  assert.equal(orderWords(new Map([[7, 5]])), "block 7 is logical block 5");
  assert.match(orderWords(lit(1500)), /^in logical order from 0: 0, 1, .* 7, 1,492 more$/);
  assert.equal(orderWords(new Map([[7, -1]])), "");
  assert.equal(orderWords(new Map()), "");
});
