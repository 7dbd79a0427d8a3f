// A run of cached blocks as a strip of cells, the same in the view and in its legend.

import { box, mix, stripes } from "./paint.js";
import { paintPicture, picture } from "./pictures.js";

const MOST_CELLS = 16;
export const CELL = 7,
  STRIP_HEIGHT = 12;

/**
 * The cells of a strip: {ref, isLit} each, one a block, or of a longer run the most that is in each part of it.
 * refs: of its blocks (of a very long run the first ones). lit: places of lit ones.
 */
export function stripCells(refs, lit, most = MOST_CELLS) {
  const n = Math.min(refs.length, most),
    litSet = new Set(lit);
  return Array.from({ length: n }, (_, cell) => {
    const from = Math.floor((cell * refs.length) / n),
      to = Math.max(from + 1, Math.floor(((cell + 1) * refs.length) / n));
    const part = refs.slice(from, to);
    return { ref: Math.max(...part), isLit: part.some((_, i) => litSet.has(from + i)) };
  });
}

/** Draw one cell: shared by several, held by one, or only cached; crossed where nothing can hit it. */
export function paintRunCell(g, t, x, y, w, h, { ref, isLit = false, isCut = false }) {
  let fill = t.used;
  if (ref > 1) fill = stripes(t, mix(t.shared, t.bg, 0.3), t.shared, { step: 4, width: 1.2, down: true });
  else if (!ref) fill = stripes(t, t.cached, mix(t.cached, t.bg, 0.62), { step: 4, width: 1.4 });
  box(g, x, y, w, h, 1.5, fill);
  g.lineWidth = 1.5;
  if (isCut) {
    g.strokeStyle = t.fg;
    g.beginPath();
    g.moveTo(x + 1, y + 1);
    g.lineTo(x + w - 1, y + h - 1);
    g.stroke();
  }
  if (!isLit) return;
  g.fillStyle = t.accent;
  g.fillRect(x - 0.5, y + h - 4, w + 1, 4);
}

/** The picture of a strip, empty. */
export function stripPicture() {
  return picture(MOST_CELLS * CELL, STRIP_HEIGHT);
}

/** Draw a strip into its picture, unless it looks so already. */
export function paintStrip(el, t, cells, isCut) {
  const look = ["strip", t.key, isCut, ...cells.map(({ ref, isLit }) => `${Math.min(ref, 2)}${isLit ? "+" : ""}`)];
  paintPicture(el, look.join(), (g) =>
    cells.forEach((cell, i) => paintRunCell(g, t, i * CELL, 0, CELL - 1, STRIP_HEIGHT, { ...cell, isCut })),
  );
}

/** Entries of the legend: word, meaning, look. */
export const PREFIX_LEGEND = [
  ["shared", "several requests hold these blocks", { ref: 2 }],
  ["held", "one request holds them", { ref: 1 }],
  ["only cached", "nobody holds them, but a prompt that begins like them can still hit them", { ref: 0 }],
  ["cut off", "what stood before them was evicted: nothing can hit them", { ref: 0, isCut: true }],
];
