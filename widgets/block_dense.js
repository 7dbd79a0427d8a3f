// Draws a pool that is too large for cells: an image of one pixel a block. Only what has changed is drawn again.

import { NUM_CLASSES, wordClasses } from "./block_modes.js";
import { classLook, pixelOf } from "./block_paint.js";
import { mix, surface } from "./paint.js";

const SHADES = 16,
  MOST_BANDS = 48;

/** Rows of numbers as bands [first, end], the neighbours joined. */
export function bandsOf(rows) {
  const bands = [];
  for (const row of [...rows].sort((a, b) => a - b)) {
    if (bands.at(-1)?.[1] === row) bands.at(-1)[1] = row + 1;
    else bands.push([row, row + 1]);
  }
  return bands;
}

/** The image of a pool, and the canvas of the view in which it is shown. */
export class DenseBlocks {
  constructor(image, canvas) {
    this.image = image;
    this.canvas = canvas;
    this.key = this.state = null;
    this.seq = -1; // the last message whose changes are in the image
    this.over = []; // blocks that do not have the colour of their class: written now, or lit
    this.hadRings = true;
  }

  /**
   * Draw `state`. key: a text of all that the colours depend on beside its words; rings: whether there are any, which
   * then have to be drawn anew; parts: {mode, classes(), lit, dims}. Returns the context, null if no ring may be drawn.
   */
  draw(t, at, state, { key, rings, ...parts }) {
    const known = this.key === key && this.state === state,
      changed = known ? state.changedSince(this.seq) : null;
    const bands = changed ? this._mend(t, at, state, changed, parts) : this._make(t, at, state, parts);
    Object.assign(this, { key, state, seq: state.seq });
    const isAll = !bands || rings || this.hadRings || bands.length > MOST_BANDS;
    this.hadRings = rings;
    if (isAll) {
      const g = surface(this.canvas, at.columns * at.w, Math.max(1, at.rows * at.h));
      this._show(g, at);
      return g;
    }
    if (bands.length) this._showBands(at, bands);
    return null;
  }

  _showBands(at, bands) {
    const g = this.canvas.getContext("2d"),
      ratio = this.canvas.height / Math.max(1, at.rows * at.h),
      whole = (y, round) => round(y * ratio) / ratio; // an edge within a pixel of the screen would shine through
    g.save();
    g.beginPath();
    for (const [first, end] of bands) {
      const y = whole(first * at.h - 1, Math.floor);
      g.rect(0, y, at.columns * at.w + 1, whole(end * at.h + 1, Math.ceil) - y);
    }
    g.clip();
    g.clearRect(0, 0, at.columns * at.w + 1, at.rows * at.h + 1);
    this._show(g, at);
    g.restore();
  }

  _show(g, { columns, rows, w, h }) {
    g.imageSmoothingEnabled = w < 1;
    g.drawImage(this.image, 0, 0, columns * w, rows * h);
    if (w < 4) return;
    for (let c = 1; c <= columns; c++) g.clearRect(c * w - 1, 0, 1, rows * w);
    for (let r = 1; r <= rows; r++) g.clearRect(0, r * w - 1, columns * w, 1);
  }

  /** Make the image from nothing. */
  _make(t, { n, columns, rows }, state, { mode, classes, lit, dims }) {
    if (this.image.width !== columns || this.image.height !== rows || !this.pixels) {
      Object.assign(this.image, { width: columns, height: rows });
      this.pixels = this.image.getContext("2d").createImageData(columns, rows);
      this.data = new Uint32Array(this.pixels.data.buffer);
    }
    this.colors = new Uint32Array(256);
    for (let at = 0; at < NUM_CLASSES[mode]; at++) {
      const look = classLook(t, mode, at),
        color = look.pixel ?? look.color;
      this.colors[at] = pixelOf(dims ? mix(color, t.bg, 0.7) : color);
    }
    this.classes = classes();
    for (let block = 0; block < n; block++) this.data[block] = this.colors[this.classes[block]];
    this.data.fill(0, n);
    this._overlay(t, n, state, lit);
    this.image.getContext("2d").putImageData(this.pixels, 0, 0);
    return null;
  }

  /** Bring it up to date; returns the bands of rows that have changed. */
  _mend(t, { n, columns }, state, changed, { mode, lit }) {
    const table = wordClasses(mode),
      rows = new Set(),
      before = this.over;
    for (const blocks of table ? changed : [])
      for (const block of blocks) {
        this.classes[block] = table[state.words[block]];
        this.data[block] = this.colors[this.classes[block]];
        rows.add(Math.floor(block / columns));
      }
    for (const block of before) this.data[block] = this.colors[this.classes[block]];
    this._overlay(t, n, state, lit);
    for (const block of before) rows.add(Math.floor(block / columns));
    for (const block of this.over) rows.add(Math.floor(block / columns));
    const bands = bandsOf(rows),
      g = this.image.getContext("2d");
    if (bands.length > MOST_BANDS) g.putImageData(this.pixels, 0, 0);
    else for (const [first, end] of bands) g.putImageData(this.pixels, 0, 0, 0, first, columns, end - first);
    return bands;
  }

  /** What was written now, and a selected sequence's table from its first block to its last: pale to full. */
  _overlay(t, n, state, lit) {
    this.over = [...state.written, ...lit.keys()].filter((block) => block < n);
    const ink = pixelOf(t.fg);
    for (const block of state.written) if (block < n) this.data[block] = ink;
    if (!lit.size) return;
    const order = Array.from({ length: SHADES }, (_, i) =>
      pixelOf(mix(t.accent, t.bg, 0.45 * (1 - (i + 1) / SHADES))),
    );
    for (const [block, index] of lit) {
      const shade = index < 0 ? SHADES - 1 : Math.floor(((index + 1) / lit.size) * (SHADES - 0.01));
      if (block < n) this.data[block] = order[shade] ?? order[SHADES - 1];
    }
  }
}
