// Draws the cells of the block view one by one, where they are large enough for that, and the rings around cells.

import { FREE, SHARED, USED, blockState } from "./wire.js";
import { box } from "./paint.js";
import { digits } from "./words.js";
import { DENSE, classLook, drawnFill, inkOn, paintBlock } from "./block_paint.js";

/** The upper left corner of a block's cell. */
export function blockPlace(at, block) {
  return [(block % at.columns) * at.w, Math.floor(block / at.columns) * at.h];
}

/** A ring around a block's cell. */
export function blockRing(g, at, block, color, width) {
  const [x, y] = blockPlace(at, block),
    [w, h] = [Math.max(at.w, 5), Math.max(at.h, 5)],
    inset = at.w >= DENSE ? 1.5 : -1;
  g.strokeStyle = color;
  g.lineWidth = width;
  g.beginPath();
  g.roundRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset, at.w >= DENSE ? 6 : 0);
  g.stroke();
}

/**
 * What there is room for in the cells of a pool, the same for all: {gap, size, left, down, side, isNamed, hasBadges}.
 * size: of the numbers' font; left, down: from a cell's left edge and its middle to a number; side: of the corner
 * "written", which covers neither number nor badge. lit: blocks with their logical index. g: measures the texts.
 */
export function cellRoom(g, t, at, lit) {
  const isLarge = at.w >= 40,
    [gap, size, left] = [at.w >= 20 ? 4 : 2, isLarge ? 11 : 10, isLarge ? 5 : 3],
    [w, h] = [at.w - gap, at.h - gap],
    down = isLarge ? 0.5 : Math.max(0.5, h / 2 - 5); // a small one's number is at the bottom, below the corner
  g.font = numberFont(t, size);
  const end = left + g.measureText(String(at.n - 1)).width, // of the longest number
    isNamed = at.w >= 24 && end <= w;
  g.font = badgeFont(t);
  const indices = [...lit.values()].filter((index) => index >= 0),
    badge = badgeWidth(g, String(Math.max(0, ...indices)));
  const hasBadges = indices.length > 0 && isNamed && h >= 20 && end + 2 + badge + 1 <= w;
  const above = isNamed ? w - end + h / 2 + down - 0.4 * size : Infinity; // from the corner's tip to the number
  return { gap, size, left, down, isNamed, hasBadges, side: Math.min(10, above, hasBadges ? h - 15 : Infinity) };
}

const numberFont = (t, size, weight = 600) => `${weight} ${size}px ${t.font}`,
  badgeFont = (t) => `700 10px ${t.font}`,
  badgeWidth = (g, text) => Math.max(13, g.measureText(text).width + 7);

/** The logical index of a lit block, at the lower right of its cell. */
function blockBadge(g, t, index, right, bottom) {
  g.font = badgeFont(t);
  const text = String(index),
    w = badgeWidth(g, text);
  box(g, right - w - 1, bottom - 14, w, 13, 4, t.accent);
  g.fillStyle = inkOn(t.accent);
  g.textAlign = "center";
  g.fillText(text, right - 1 - w / 2, bottom - 7);
}

/**
 * Large cells. classes: of each block, in `mode`; notes(block, state): at its right; dims: what is not lit fades;
 * room: see `cellRoom`.
 */
export function drawBlockCells(g, t, at, store, { mode, classes, lit, dims, notes, room }) {
  const fills = store.fills(),
    written = new Set(store.written),
    { gap, size, left, down, side, isNamed, hasBadges } = room,
    looks = new Map();
  g.textBaseline = "middle";
  for (let block = 0; block < at.n; block++) {
    const [x, y] = blockPlace(at, block),
      [w, h] = [at.w - gap, at.h - gap],
      state = blockState(store.words[block]),
      isLit = lit.has(block),
      isFaint = dims && !isLit;
    if (!looks.has(classes[block])) looks.set(classes[block], classLook(t, mode, classes[block]));
    const look = looks.get(classes[block]),
      fill = drawnFill(mode, state, fills[block] / store.blockSize);
    g.globalAlpha = isFaint ? 0.28 : 1;
    paintBlock(g, t, x + gap / 2, y + gap / 2, w, h, { look, fill, isWritten: written.has(block), mark: side });
    g.globalAlpha = 1; // numbers stay readable
    if (isNamed) {
      const isPlain = mode === "state" && state === FREE,
        onState = mode === "state" && state >= USED ? t.over : inkOn(look.color);
      g.font = numberFont(t, size, state >= USED ? 600 : 400);
      g.textAlign = "left";
      g.fillStyle = isPlain || isFaint ? t.muted : look.back && fill * w <= 22 ? t.fg : onState;
      g.fillText(String(block), x + gap / 2 + left, y + at.h / 2 + down);
      const free = w - left - g.measureText(String(block)).width - 9;
      const note = at.w >= 44 && !(isLit && hasBadges) ? notes(block, state) : "";
      if (mode === "age") g.font = numberFont(t, 9, 400);
      if (note && g.measureText(note).width <= free) {
        g.textAlign = "right";
        g.fillStyle = isFaint ? t.muted : look.back && fill <= 0.9 ? t.fg : onState;
        g.fillText(note, x + at.w - gap / 2 - 6, y + at.h / 2 + 0.5);
      }
    }
    if (hasBadges && isLit) blockBadge(g, t, lit.get(block), x + at.w - gap / 2, y + at.h - gap / 2);
  }
  for (const [block, index] of lit) if (index >= 0) blockRing(g, at, block, t.accent, 2);
}

/** What a block's note says in a mode: how many hold it, or how long ago it was touched. */
export function blockNote(mode, state, word, age) {
  if (mode === "age") return age === undefined || age === 0xffff ? "" : age ? `−${age}` : "0";
  return state === SHARED ? `×${word >> 1}` : "";
}

/** Lit blocks in their logical order, for where the cells have no room for it; "" where they have no order. */
export function orderWords(lit, most = 8) {
  const table = [...lit].filter(([, index]) => index >= 0).sort(([, a], [, b]) => a - b);
  if (!table.length) return "";
  const [[first, index]] = table; // of a sequence all are lit, of a token the one that it is in
  if (table.length === 1) return `block ${first} is logical block ${index}`;
  const said = table.slice(0, most).map(([block]) => block),
    more = table.length > most ? `, ${digits(table.length - most)} more` : "";
  return `in logical order from ${index}: ${said.join(", ")}${more}`;
}
