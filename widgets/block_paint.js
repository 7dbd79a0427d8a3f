// Where the block view puts its cells and how it draws one, the same in the view and in its legend.

import { CACHED, FREE, SHARED, USED } from "./wire.js";
import { box, mix, rgb, stripes } from "./paint.js";
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

// Beside its colour a sequence has a pattern: [distance of the stripes, width, downwards].
const OWNER_STRIPES = [null, [6, 1.6], [6, 1.6, true], [11, 4], [11, 4, true], [4, 1.2], [4, 1.2, true], [16, 8]];

/**
 * How a class of a mode looks: {color, back, stripes, pixel}. back: of the part that is not filled, null where that is
 * not told; stripes: {color, step, width, down} over the color, or null; pixel: the color of one that is that small.
 */
export function classLook(t, mode, at) {
  const empty = { color: t.free, back: t.free, stripes: null },
    cached = {
      color: mix(t.cached, t.bg, 0.62),
      back: null,
      pixel: t.cached,
      stripes: { color: mix(t.cached, t.bg, 0.1), step: 6, width: 2 },
    },
    solid = (color) => ({ color, back: mix(color, t.bg, 0.68), stripes: null });
  const dashed = (color, [step, width, down]) => ({
    ...solid(color),
    stripes: { color: mix(color, t.bg, 0.24), step, width, down },
  });
  if (mode === "age") return at ? solid(mix(t.prefill, t.bg, (at - 1) * 0.19)) : empty;
  if (mode === "hash" && at)
    return at === 3 ? cached : at === 2 ? solid(t.decode) : dashed(mix(t.used, t.bg, 0.35), [5, 1.4, true]);
  if (at === FREE) return empty;
  if (at === CACHED) return cached;
  if (mode === "refs") return solid(mix(t.shared, t.bg, (6 - at) * 0.17));
  const shared = { ...dashed(t.shared, [5, 1.4, true]), color: t.shared };
  if (mode === "owner") {
    if (at === 2) return shared;
    const colors = [t.used, t.decode, t.preempted, ...(t.isDark ? OWNERS_DARK : OWNERS_LIGHT)];
    const color = colors[at - 3];
    return OWNER_STRIPES[at - 3] ? dashed(color, OWNER_STRIPES[at - 3]) : solid(color);
  }
  return at === SHARED ? shared : solid(t.used);
}

// None is near to `shared`, which stands for several owners, nor to another: in a large pool the patterns are not seen.
const OWNERS_LIGHT = ["#2266a6", "#8a6fd1", "#9a8a1e", "#5a3a1c", "#3f5b66"],
  OWNERS_DARK = ["#2a5f9e", "#a48fe6", "#b8a83a", "#8a4a2a", "#a9c4cf"];

/** Draw one block, as its look says or else its state; fill: 0 to 1; mark: the most that the corner "written" takes. */
export function paintBlock(
  g,
  t,
  x,
  y,
  w,
  h,
  { state = FREE, look = classLook(t, "state", state), fill = 0, isWritten = false, mark = 10 },
) {
  const r = Math.min(5, w / 4, h / 4),
    part = look.back ? fill : 1;
  if (part < 1) box(g, x, y, w, h, r, look.back);
  if (part > 0) {
    g.save();
    g.beginPath();
    g.rect(x, y, w * part, h);
    g.clip();
    box(g, x, y, w, h, r, look.stripes ? stripes(t, look.stripes.color, look.color, look.stripes) : look.color);
    g.restore();
  }
  if (!isWritten) return;
  const side = Math.min(mark, w * 0.4, h * 0.5);
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

/** How full a block is drawn: only one that somebody holds can be partly filled, and not where colours tell of time. */
export function drawnFill(mode, state, fill) {
  return state >= USED && mode !== "age" ? fill : 1;
}

/** A colour as the number that a pixel of an image is. */
export function pixelOf(color) {
  const [red, green, blue] = rgb(color);
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

/** Black or white, whichever can be read on a colour. */
export function inkOn(color) {
  const [red, green, blue] = rgb(color);
  return 0.3 * red + 0.59 * green + 0.11 * blue > 140 ? "#000" : "#fff";
}
