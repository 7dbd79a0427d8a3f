// A cell a physical KV block: its state, how full it is, what the newest step wrote; the selected sequence in order.

import { BLOCK_STATES, FREE, SHARED, USED, blockState } from "./wire.js";
import { box, mix, rgb, surface, theme } from "./paint.js";
import { count, digits, plain } from "./words.js";
import { BLOCK_LEGEND, DENSE, blockAt, blockLayout, paintBlock } from "./block_paint.js";
import { VIEWS, asking, drawLegend, drawing, keyboardGrid, make, panel, quote, say } from "./kit.js";

/** Mount the view on a store; returns what removes it. */
export function mountBlockView(store, el) {
  const canvas = make("canvas"),
    field = make("div", { className: "nvx-field" }, canvas),
    image = make("canvas");
  const { root, legend, status } = panel("KV blocks", field, "nvx-blocks");
  el.append(root);
  let at = blockLayout(0, 1),
    hover = -1,
    t,
    pixels = null,
    cursor = 0;

  function draw() {
    t = theme(root);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    at = blockLayout(store.numBlocks, Math.max(64, field.clientWidth));
    const g = surface(canvas, at.columns * at.w, Math.max(1, at.rows * at.h)),
      lit = store.litBlocks();
    if (at.w >= DENSE) drawCells(g, lit);
    else drawDense(g, lit);
    if (hover >= 0) ring(g, hover, t.fg, 1.5);
    if (store.selection.kind === "block") ring(g, store.selection.id, t.accent, 3);
    drawLegend(
      legend,
      BLOCK_LEGEND.map(([word, title, look]) => [
        word,
        title,
        (g2, x, y, w, h) => paintBlock(g2, t, x, y + 1, w, h - 2, look),
      ]),
    );
    describe();
    announce();
    Object.assign(root.dataset, {
      step: store.step,
      columns: at.columns,
      cellWidth: at.w,
      cellHeight: at.h,
      blocks: at.n,
    });
  }

  function place(block) {
    return [(block % at.columns) * at.w, Math.floor(block / at.columns) * at.h];
  }

  function ring(g, block, color, width) {
    const [x, y] = place(block),
      [w, h] = [Math.max(at.w, 5), Math.max(at.h, 5)],
      inset = at.w >= DENSE ? 1.5 : -1;
    g.strokeStyle = color;
    g.lineWidth = width;
    g.beginPath();
    g.roundRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset, at.w >= DENSE ? 6 : 0);
    g.stroke();
  }

  function drawCells(g, lit) {
    const dims = store.selection.kind === "sequence" && lit.size,
      fills = store.fills(),
      written = new Set(store.written),
      gap = at.w >= 20 ? 4 : 2,
      isNamed = at.w >= 24;
    g.textBaseline = "middle";
    for (let block = 0; block < at.n; block++) {
      const [x, y] = place(block),
        [w, h] = [at.w - gap, at.h - gap],
        state = blockState(store.words[block]);
      const owners = store.words[block] >> 1,
        isLit = lit.has(block),
        fill = fills[block] / store.blockSize;
      g.globalAlpha = dims && !isLit ? 0.28 : 1;
      paintBlock(g, t, x + gap / 2, y + gap / 2, w, h, { state, fill, isWritten: written.has(block) });
      if (isNamed) {
        const onFill = state >= USED && fill * w > 22,
          size = at.w >= 40 ? 11 : 10;
        g.font = `${state >= USED ? 600 : 400} ${size}px ${t.font}`;
        g.textAlign = "left";
        g.fillStyle = state === FREE ? t.muted : onFill ? t.over : t.fg;
        g.fillText(String(block), x + gap / 2 + 5, y + at.h / 2 + 0.5);
        if (state === SHARED && at.w >= 44 && !(isLit && dims)) {
          g.textAlign = "right";
          g.fillStyle = fill > 0.9 ? t.over : t.fg;
          g.fillText(`×${owners}`, x + at.w - gap / 2 - 6, y + at.h / 2 + 0.5);
        }
      }
      if (isLit && lit.get(block) >= 0) badge(g, lit.get(block), x + at.w - gap / 2, y + at.h - gap / 2);
    }
    g.globalAlpha = 1;
    for (const [block, index] of lit) if (index >= 0) ring(g, block, t.accent, 2);
  }

  /** The logical index of a lit block, at the lower right of its cell. */
  function badge(g, index, right, bottom) {
    if (at.w < 20) return;
    g.font = `700 10px ${t.font}`;
    const text = String(index),
      w = Math.max(13, g.measureText(text).width + 7);
    box(g, right - w - 1, bottom - 14, w, 13, 4, t.accent);
    g.fillStyle = rgb(t.accent).reduce((sum, v) => sum + v) > 420 ? "#000" : "#fff";
    g.textAlign = "center";
    g.fillText(text, right - 1 - w / 2, bottom - 7);
  }

  function drawDense(g, lit) {
    const { n, columns, rows, w } = at,
      dims = store.selection.kind === "sequence" && lit.size;
    if (image.width !== columns || image.height !== rows || !pixels) {
      Object.assign(image, { width: columns, height: rows });
      pixels = image.getContext("2d").createImageData(columns, rows);
    }
    const data = new Uint32Array(pixels.data.buffer),
      words = store.words;
    const code = (color) => {
      const [r, gr, b] = rgb(color);
      return ((255 << 24) | (b << 16) | (gr << 8) | r) >>> 0;
    };
    const colors = [t.free, t.cached, t.used, t.shared].map((c) => code(dims ? mix(c, t.bg, 0.7) : c));
    for (let block = 0; block < n; block++) data[block] = colors[blockState(words[block])];
    data.fill(0, n);
    for (const block of store.written) data[block] = code(t.fg);
    for (const block of lit.keys()) data[block] = code(t.accent);
    image.getContext("2d").putImageData(pixels, 0, 0);
    g.imageSmoothingEnabled = w < 1;
    g.drawImage(image, 0, 0, columns * w, rows * at.h);
    if (w < 4) return;
    for (let c = 1; c <= columns; c++) g.clearRect(c * w - 1, 0, 1, rows * w);
    for (let r = 1; r <= rows; r++) g.clearRect(0, r * w - 1, columns * w, 1);
  }

  const answers = asking(store, () => drawn.ask());

  function words(block) {
    const word = store.words[block],
      state = blockState(word),
      owners = store.owners(block);
    const who = owners.slice(0, 6).map(([seq, index]) => `${plain(seq.name)} (its block ${index})`);
    if (owners.length > 6) who.push(`${owners.length - 6} more`);
    return [
      BLOCK_STATES[state],
      `ref count ${word >> 1}`,
      `${store.fills(block, block + 1)[0]} of ${count(store.blockSize, "token")}`,
      who.length ? `held by ${who.join(", ")}` : "",
      store.written.includes(block) ? `written in step ${store.step - 1}` : "",
    ];
  }

  function describe() {
    const block = hover >= 0 ? hover : store.selection.kind === "block" ? store.selection.id : -1;
    if (block < 0 || block >= store.numBlocks) {
      const [free, cached, used, shared] = store.countBlocks();
      say(
        status,
        store.numBlocks
          ? [
              make("b", {}, count(store.numBlocks, "block")),
              `${count(store.blockSize, "token")} each`,
              `${digits(free)} free, ${digits(cached)} cached, ${digits(used)} used, ${digits(shared)} shared`,
            ]
          : ["No engine yet."],
      );
      return;
    }
    const told = answers.about("block", block),
      parts = [make("b", {}, `block ${block}`), ...words(block)];
    if (told) parts.push(told.hash ? `hash ${told.hash}` : "no hash");
    say(
      status,
      parts,
      told?.text
        ? [quote(told.text)]
        : told && told.text === null
          ? ["its tokens were stored before this view began to watch"]
          : null,
    );
  }

  const point = (block) => {
    if (block === hover) return;
    hover = block;
    if (block >= 0) cursor = block;
    drawn.ask();
  };
  const pick = (block) => block >= 0 && store.select("block", block);
  canvas.addEventListener("pointermove", (event) => point(blockAt(at, event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => pick(blockAt(at, event.offsetX, event.offsetY)));
  const announce = keyboardGrid(canvas, "KV blocks: a cell a physical block", {
    cells: () => [at.rows, at.columns],
    here: () => [Math.floor(cursor / at.columns), cursor % at.columns],
    words: (row, column) => {
      const block = row * at.columns + column;
      return block < at.n ? `block ${block}: ${words(block).filter(Boolean).join(", ")}` : "";
    },
    move: (row, column) => point(Math.min(at.n - 1, row * at.columns + column)),
    pick: (row, column) => pick(Math.min(at.n - 1, row * at.columns + column)),
    leave() {
      store.select("none", -1);
      point(-1);
    },
  });
  const drawn = drawing(root, draw),
    leave = store.subscribe(drawn.ask);
  return () => {
    leave();
    answers.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.block_view = mountBlockView;
