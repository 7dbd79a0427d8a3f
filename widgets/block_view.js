// A cell a physical KV block: its state, holder, age or hash, how full it is; the selected sequence in order.

import { BLOCK_STATES, blockState } from "./wire.js";
import { surface, theme } from "./paint.js";
import { count, digits, plain } from "./words.js";
import { BLOCK_MODES, ageWords, agesOf, blockClasses, classWords, moreOwners, poolNumbers } from "./block_modes.js";
import { DENSE, blockAt, blockLayout, classLook, paintBlock } from "./block_paint.js";
import { DenseBlocks } from "./block_dense.js";
import { blockNote, blockRing, cellRoom, drawBlockCells, orderWords } from "./block_draw.js";
import { VIEWS, answering, asking, drawLegend, drawing, keyboardGrid, make, panel, quote, say } from "./kit.js";

const MOST_NAMED_OWNERS = 6;

/** Mount the view on a store; returns what removes it. */
export function mountBlockView(store, el) {
  const canvas = make("canvas"),
    field = make("div", { className: "nvx-field" }, canvas),
    dense = new DenseBlocks(make("canvas"), canvas);
  const { root, legend, status } = panel("KV blocks", field, "nvx-blocks");
  const select = make(
    "select",
    { className: "nvx-block-mode", "aria-label": "Colour the blocks by" },
    ...Object.entries(BLOCK_MODES).map(([value, word]) => make("option", { value }, `by ${word}`)),
  );
  select.style.cssText = `font: inherit; color: inherit; background: var(--nvx-bg); height: 24px; padding: 0 4px;
    border: 1px solid var(--nvx-line); border-radius: 6px`;
  root.querySelector("h3").after(select);
  el.append(root);
  let at = blockLayout(0, 1),
    hover = -1,
    t,
    cursor = 0,
    told = null, // Python's answer about the ages, and what it came to
    ages = null,
    hasBadges = false, // whether the cells say their logical index
    pool = null; // numbers of the whole pool, and of which moment

  function draw() {
    t = theme(root);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    at = blockLayout(store.numBlocks, Math.max(64, field.clientWidth));
    readAges();
    const mode = select.value,
      lit = store.litBlocks(),
      dims = store.selection.kind === "sequence" && lit.size > 0,
      classes = () => blockClasses(store, mode, ages),
      isChosen = store.selection.kind === "block";
    let g;
    hasBadges = false;
    if (at.w >= DENSE) {
      dense.key = null; // the canvas has other things in it
      g = surface(canvas, at.columns * at.w, Math.max(1, at.rows * at.h));
      const notes = (block, state) => blockNote(mode, state, store.words[block], ages?.[block]),
        room = cellRoom(g, t, at, lit);
      drawBlockCells(g, t, at, store, { mode, classes: classes(), lit, dims, notes, room });
      hasBadges = room.hasBadges;
    } else {
      const rings = hover >= 0 || isChosen;
      g = dense.draw(t, at, store.shown, { key: denseKey(mode, dims), rings, mode, classes, lit, dims });
    }
    if (g && hover >= 0) blockRing(g, at, hover, t.fg, 1.5);
    if (g && isChosen) blockRing(g, at, store.selection.id, t.accent, 3);
    drawWords(mode);
    describe();
    announce();
    Object.assign(root.dataset, {
      step: store.step,
      mode,
      columns: at.columns,
      cellWidth: at.w,
      cellHeight: at.h,
      blocks: at.n,
    });
  }

  /** All that the image of a large pool depends on, beside the words of its blocks and what is lit. */
  function denseKey(mode, dims) {
    const more = mode === "owner" ? store.shown.seq : mode === "age" ? told?.step : "";
    return [mode, more, dims, at.n, at.columns, at.rows, at.w, at.h, t.key, globalThis.devicePixelRatio].join();
  }

  function readAges() {
    const answer = select.value === "age" ? years.get(-1) : null;
    if (answer !== told) [told, ages] = [answer, agesOf(answer, store.numBlocks)];
  }

  /** Who is named in the legend: the selected ones, then the oldest; and the ids of all that could be. */
  function namedOwners() {
    const holds = (seq) => seq?.isLive && seq.table.length > 0,
      found = new Set([...store.litSequences()].map((id) => store.sequences.get(id)).filter(holds));
    const ids = [];
    for (const seq of store.sequences.values()) {
      if (!holds(seq)) continue;
      ids.push(seq.id);
      if (found.size < MOST_NAMED_OWNERS) found.add(seq);
    }
    return [[...found].slice(0, MOST_NAMED_OWNERS), ids];
  }

  function drawWords(mode) {
    const [owners, ids] = mode === "owner" ? namedOwners() : [[], []],
      entries = classWords(mode, owners),
      more = moreOwners(ids, owners.length);
    const all = entries.map(([code, word, title]) => [
      word === undefined ? "" : plain(word).slice(0, 26),
      title,
      (g, x, y, w, h) =>
        paintBlock(g, t, x, y + 1, w, h - 2, { look: classLook(t, mode, code), fill: partOf(mode, code) }),
      `${mode} ${code}`,
    ]);
    if (more) all.push([more, "sequences whose ids differ by 8 look the same", () => {}, "more"]);
    const written = { look: classLook(t, "state", 0), isWritten: true };
    all.push([
      "written in this step",
      "the newest step stored keys and values in it",
      (g, x, y, w, h) => paintBlock(g, t, x, y + 1, w, h - 2, written),
    ]);
    drawLegend(legend, all);
  }

  /** How full a block is drawn in the legend. */
  function partOf(mode, code) {
    return mode === "state" && code === 2 ? 0.6 : 1;
  }

  const answers = asking(store, () => drawn.ask()),
    years = answering(store, "block_view", () => drawn.ask());

  function words(block) {
    const word = store.words[block],
      state = blockState(word),
      owners = store.owners(block);
    const who = owners.slice(0, 6).map(([seq, index]) => `request ${plain(seq.name)} (its block ${index})`);
    if (owners.length > 6) who.push(`${owners.length - 6} more`);
    return [
      BLOCK_STATES[state],
      `ref count ${word >> 1}`,
      `${store.fills(block, block + 1)[0]} of ${count(store.blockSize, "token")}`,
      who.length ? `held by ${who.join(", ")}` : "",
      store.written.includes(block) ? `written in step ${store.step - 1}` : "",
      ageWords(ages, block, told?.num_steps),
    ];
  }

  function describe() {
    const block = hover >= 0 ? hover : store.selection.kind === "block" ? store.selection.id : -1;
    if (block < 0 || block >= store.numBlocks) {
      describePool();
      return;
    }
    const about = answers.about("block", block),
      parts = [make("b", {}, `block ${block}`), ...words(block)];
    if (about) parts.push(about.hash ? `hash ${about.hash}` : "no hash");
    say(
      status,
      parts,
      about?.text
        ? [quote(about.text)]
        : about && about.text === null
          ? ["its tokens were stored before this view began to watch"]
          : null,
    );
  }

  /** The pool in numbers: how much of what there is, how it is broken up, how much of it is shared. */
  function describePool() {
    if (!store.numBlocks) return say(status, ["No engine yet."]);
    const moment = `${store.moment} ${store.live.seq}`;
    if (pool?.moment !== moment) pool = { ...poolNumbers(store.words), moment };
    const [free, cached, used, shared] = pool.states;
    say(status, [
      make("b", {}, count(store.numBlocks, "block")),
      `${count(store.blockSize, "token")} each`,
      `${digits(free)} free, ${digits(cached)} cached, ${digits(used)} used, ${digits(shared)} shared`,
      `longest run that nobody holds: ${digits(pool.longest)}`,
      pool.held ? `${Math.round(100 * pool.sharedPart)}% of the held ones are shared` : "",
      hasBadges ? "" : orderWords(store.litBlocks()),
    ]);
  }

  const point = (block) => {
    if (block === hover) return;
    hover = block;
    drawn.ask();
  };
  /** Bring the keyboard to a block. What only passes below the pointer leaves it where it is. */
  const go = (block) => {
    cursor = block;
    point(block);
  };
  const pick = (block) => block >= 0 && store.select("block", block);
  canvas.addEventListener("pointermove", (event) => point(blockAt(at, event.offsetX, event.offsetY)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => {
    const block = blockAt(at, event.offsetX, event.offsetY);
    if (block >= 0) cursor = block;
    pick(block);
  });
  select.addEventListener("change", () => drawn.ask());
  select.addEventListener("keydown", (event) => event.stopPropagation()); // the notebook has its own arrow keys
  const announce = keyboardGrid(canvas, "KV blocks: a cell a physical block", {
    cells: () => [at.rows, at.columns],
    here: () => [Math.floor(cursor / at.columns), cursor % at.columns],
    words: (row, column) => {
      const block = row * at.columns + column;
      return block < at.n ? `block ${block}: ${words(block).filter(Boolean).join(", ")}` : "";
    },
    move: (row, column) => go(Math.min(at.n - 1, row * at.columns + column)),
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
    years.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.block_view = mountBlockView;
