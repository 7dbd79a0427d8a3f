// Draws the cells of the block view: one by one where they are large, else as an image of one pixel a block.

import { FREE, SHARED, USED, blockState } from "./wire.js";
import { box, mix } from "./paint.js";
import { NUM_CLASSES } from "./block_modes.js";
import { DENSE, classLook, drawnFill, inkOn, paintBlock, pixelOf } from "./block_paint.js";

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

/** Pools too large for that: an image that is made again only when `key`, what it depends on, has changed. */
export class DenseBlocks {
  constructor(canvas) {
    this.canvas = canvas;
    this.key = null;
    this.pixels = null;
  }

  draw(g, t, at, key, parts) {
    if (this.key !== key) this._make(t, at, parts());
    this.key = key;
    const { columns, rows, w, h } = at;
    g.imageSmoothingEnabled = w < 1;
    g.drawImage(this.canvas, 0, 0, columns * w, rows * h);
    if (w < 4) return;
    for (let c = 1; c <= columns; c++) g.clearRect(c * w - 1, 0, 1, rows * w);
    for (let r = 1; r <= rows; r++) g.clearRect(0, r * w - 1, columns * w, 1);
  }

  _make(t, { n, columns, rows }, { mode, classes, lit, dims, written }) {
    if (this.canvas.width !== columns || this.canvas.height !== rows || !this.pixels) {
      Object.assign(this.canvas, { width: columns, height: rows });
      this.pixels = this.canvas.getContext("2d").createImageData(columns, rows);
    }
    const data = new Uint32Array(this.pixels.data.buffer),
      colors = new Uint32Array(256),
      shades = 16;
    for (let at = 0; at < NUM_CLASSES[mode]; at++) {
      const look = classLook(t, mode, at),
        color = look.pixel ?? look.color;
      colors[at] = pixelOf(dims ? mix(color, t.bg, 0.7) : color);
    }
    for (let block = 0; block < n; block++) data[block] = colors[classes[block]];
    data.fill(0, n);
    for (const block of written) data[block] = pixelOf(t.fg);
    // A selected sequence's table, from its first block to its last: pale to full.
    const order = Array.from({ length: shades }, (_, i) =>
      pixelOf(mix(t.accent, t.bg, 0.45 * (1 - (i + 1) / shades))),
    );
    for (const [block, index] of lit)
      data[block] = order[index < 0 ? shades - 1 : Math.floor(((index + 1) / lit.size) * (shades - 0.01))] ?? order[15];
    this.canvas.getContext("2d").putImageData(this.pixels, 0, 0);
  }
}

/** What a block's note says in a mode: how many hold it, or how long ago it was touched. */
export function blockNote(mode, state, word, age) {
  if (mode === "age") return age === undefined || age === 0xffff ? "" : age ? `−${age}` : "0";
  return state === SHARED ? `×${word >> 1}` : "";
}
