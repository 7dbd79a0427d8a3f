// Where the block view puts its cells and how it draws one, the same in the view and in its legend.

import { CACHED, FREE, SHARED, USED } from "./wire.js";
import { box, mix, stripes } from "./paint.js";
import { clamp } from "./words.js";

const BLOCKS_HEIGHT = 300,
  COLUMNS = [8, 16, 24, 32, 48, 64];
/** Cells narrower than this are drawn as an image. */
export const DENSE = 13;

/** Columns, rows and cell size for `n` blocks; a cell of a large pool may be smaller than a pixel. */
export function blockLayout(n, width, height = BLOCKS_HEIGHT) {
  for (const columns of COLUMNS) {
    const w = Math.floor(width / columns),
      h = clamp(Math.round(w * 0.6), 18, 34),
      rows = Math.ceil(n / columns);
    if (w >= DENSE && rows * h <= height) return { n, columns, rows, w, h };
  }
  for (let size = DENSE - 1; size >= 1; size--) {
    const columns = Math.max(1, Math.floor(width / size)),
      rows = Math.ceil(n / columns);
    if (rows * size <= height) return { n, columns, rows, w: size, h: size };
  }
  const columns = Math.ceil(Math.sqrt((n * width) / height)),
    rows = Math.ceil(n / columns);
  return { n, columns, rows, w: width / columns, h: height / rows };
}

/** The block under a point, or -1. */
export function blockAt({ n, columns, w, h }, x, y) {
  const column = Math.floor(x / w),
    row = Math.floor(y / h),
    block = row * columns + column;
  return column >= 0 && column < columns && row >= 0 && block < n ? block : -1;
}

/** Draw one block; fill: 0 to 1. */
export function paintBlock(g, t, x, y, w, h, { state, fill = 0, isWritten = false }) {
  const r = Math.min(5, w / 4, h / 4);
  if (state === FREE) box(g, x, y, w, h, r, t.free);
  else if (state === CACHED)
    box(g, x, y, w, h, r, stripes(t, mix(t.cached, t.bg, 0.1), mix(t.cached, t.bg, 0.62), { step: 6, width: 2 }));
  else {
    const color = state === SHARED ? t.shared : t.used;
    box(g, x, y, w, h, r, mix(color, t.bg, 0.68));
    g.save();
    g.beginPath();
    g.rect(x, y, w * fill, h);
    g.clip();
    box(
      g,
      x,
      y,
      w,
      h,
      r,
      state === SHARED ? stripes(t, mix(color, t.bg, 0.25), color, { step: 5, width: 1.4, down: true }) : color,
    );
    g.restore();
  }
  if (!isWritten) return;
  const side = Math.min(10, w * 0.4, h * 0.5);
  g.save();
  g.beginPath();
  g.roundRect(x, y, w, h, r);
  g.clip();
  g.beginPath();
  g.moveTo(x + w, y);
  g.lineTo(x + w, y + side + 1);
  g.lineTo(x + w - side - 1, y);
  g.fillStyle = t.fg;
  g.fill();
  g.restore();
}

/** Entries of the legend: word, meaning, look. */
export const BLOCK_LEGEND = [
  ["free", "holds nothing that can be hit", { state: FREE }],
  ["cached", "nobody holds it, but its tokens can still be hit by a prompt that begins like them", { state: CACHED }],
  ["used", "held by one sequence; filled as far as its tokens go", { state: USED, fill: 0.6 }],
  ["shared", "held by several sequences", { state: SHARED, fill: 1 }],
  ["written in this step", "the newest step stored keys and values in it", { state: FREE, isWritten: true }],
];
