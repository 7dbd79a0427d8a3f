// Draws the cells of the block view one by one, where they are large enough for that, and the rings around cells.

import { FREE, SHARED, USED, blockState } from "./wire.js";
import { box } from "./paint.js";
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

/** The logical index of a lit block, at the lower right of its cell. */
function blockBadge(g, t, at, index, right, bottom) {
  if (at.w < 20) return;
  g.font = `700 10px ${t.font}`;
  const text = String(index),
    w = Math.max(13, g.measureText(text).width + 7);
  box(g, right - w - 1, bottom - 14, w, 13, 4, t.accent);
  g.fillStyle = inkOn(t.accent);
  g.textAlign = "center";
  g.fillText(text, right - 1 - w / 2, bottom - 7);
}

/** Large cells. classes: of each block, in `mode`; notes(block, state): at its right; dims: what is not lit fades. */
export function drawBlockCells(g, t, at, store, { mode, classes, lit, dims, notes }) {
  const fills = store.fills(),
    written = new Set(store.written),
    gap = at.w >= 20 ? 4 : 2,
    isNamed = at.w >= 24,
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
    paintBlock(g, t, x + gap / 2, y + gap / 2, w, h, { look, fill, isWritten: written.has(block) });
    g.globalAlpha = 1; // numbers stay readable
    if (isNamed) {
      const isPlain = mode === "state" && state === FREE,
        size = at.w >= 40 ? 11 : 10,
        onState = mode === "state" && state >= USED ? t.over : inkOn(look.color);
      g.font = `${state >= USED ? 600 : 400} ${size}px ${t.font}`;
      g.textAlign = "left";
      g.fillStyle = isPlain || isFaint ? t.muted : look.back && fill * w <= 22 ? t.fg : onState;
      g.fillText(String(block), x + gap / 2 + 5, y + at.h / 2 + 0.5);
      const note = at.w >= 44 && !(isLit && dims) ? notes(block, state) : "";
      if (note) {
        g.font = mode === "age" ? `400 9px ${t.font}` : g.font;
        g.textAlign = "right";
        g.fillStyle = isFaint ? t.muted : look.back && fill <= 0.9 ? t.fg : onState;
        g.fillText(note, x + at.w - gap / 2 - 6, y + at.h / 2 + 0.5);
      }
    }
    if (isLit && lit.get(block) >= 0) blockBadge(g, t, at, lit.get(block), x + at.w - gap / 2, y + at.h - gap / 2);
  }
  for (const [block, index] of lit) if (index >= 0) blockRing(g, at, block, t.accent, 2);
}

/** What a block's note says in a mode: how many hold it, or how long ago it was touched. */
export function blockNote(mode, state, word, age) {
  if (mode === "age") return age === undefined || age === 0xffff ? "" : age ? `−${age}` : "0";
  return state === SHARED ? `×${word >> 1}` : "";
}
