// A row a sequence, a column a step; above them how each step spent its token budget.

import { PREFILL, RECOMPUTE } from "./wire.js";
import { box, fit, mix, stripes, surface, theme } from "./paint.js";
import { clamp, count, digits, plain, tail } from "./words.js";
import { VIEWS, asking, drawLegend, drawing, keyboardGrid, make, panel, quote, say } from "./kit.js";
import { SCHEDULE_LEGEND, paintCell, paintEnd, paintIdle, paintWaiting } from "./schedule_paint.js";
import { cellWords, columnWidth, scheduleRows, sequenceWords, stepWords, tickEvery } from "./schedule_words.js";

const BAR = 46, AXIS = 18, ROW_HEIGHT = 22, LABEL = 112, SCHEDULE_HEIGHT = 380;

/** Mount the view on a store; returns what removes it. */
export function mountScheduleView(store, el) {
  const canvas = make("canvas"), spacer = make("div", {}, canvas), scroller = make("div", { className: "nvx-scroll" }, spacer);
  const newest = make("button", { className: "nvx-newest", hidden: true, type: "button", title: "Follow the newest step again" }, "newest ⇥");
  const { root, legend, status } = panel("Schedule", scroller, "nvx-schedule");
  root.append(newest);
  el.append(root);
  let rows = [], more = 0, first = 0, steps = 0, cw = 1, head = 0, width = 0, height = 0, t;
  let hover = null; // [row (-1: the budget), column (-1: the label)]
  let follows = true, followsRows = true, leftStep = 0, shown = "", touched = -Infinity;

  const x = (column) => LABEL + column * cw - scroller.scrollLeft;
  const y = (row) => head + row * ROW_HEIGHT - scroller.scrollTop;
  const columnAt = (step) => step - first;

  function layout() {
    ({ rows, more } = scheduleRows(store));
    first = store.columns[0]?.step ?? 0;
    steps = store.columns.length;
    head = BAR + AXIS + 6;
    cw = columnWidth(steps, scroller.clientWidth - LABEL);
    const content = head + Math.max(1, rows.length + (more ? 1 : 0)) * ROW_HEIGHT + 4;
    spacer.style.width = `${LABEL + (steps + 1) * cw}px`;
    spacer.style.height = `${content}px`;
    scroller.style.height = `${Math.min(content, SCHEDULE_HEIGHT) + (scroller.offsetHeight - scroller.clientHeight)}px`;
    if (follows) scroller.scrollLeft = spacer.offsetWidth;
    else scroller.scrollLeft = Math.round((leftStep - first) * cw);
    [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (followsRows) {
      const live = rows.findIndex((seq) => seq.isLive);
      scroller.scrollTop = live < 0 ? content : Math.max(0, live - 2) * ROW_HEIGHT;
    }
    reveal();
    newest.hidden = follows;
  }

  /** Bring the row of a new selection into sight, once. */
  function reveal() {
    const { kind, id } = store.selection, selection = `${kind} ${id}`;
    if (selection === shown) return;
    shown = selection;
    followsRows = kind === "none";
    const lit = store.litSequences(), row = rows.findIndex((seq) => lit.has(seq.id)), tall = height - head;
    if (row >= 0 && (y(row) < head || y(row) + ROW_HEIGHT > height)) scroller.scrollTop = row * ROW_HEIGHT - (tall - ROW_HEIGHT) / 2;
  }

  function draw() {
    t = theme(root);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    layout();
    const g = surface(canvas, width, height), lit = store.litSequences();
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(0, head - 2, width, height);
    g.clip();
    drawRows(g, lit);
    g.restore();
    drawBudget(g);
    drawLegend(legend, SCHEDULE_LEGEND.map(([word, title, paint]) => [word, title, (g2, ...at) => paint(g2, t, ...at)]));
    describe();
    announce();
    Object.assign(root.dataset, { step: store.step, columnWidth: cw, label: LABEL, head, rowHeight: ROW_HEIGHT, first, rows: rows.length });
  }

  function drawRows(g, lit) {
    const from = Math.max(0, Math.floor(scroller.scrollLeft / cw)), to = Math.min(steps, from + Math.ceil(width / cw) + 1);
    const upper = Math.floor(scroller.scrollTop / ROW_HEIGHT), lower = Math.min(rows.length, upper + Math.ceil(height / ROW_HEIGHT) + 1);
    const rowOf = new Map(), gap = cw >= 11 ? 2 : 1;
    const faint = (id) => (lit.size && !lit.has(id) ? 0.3 : 1);
    for (let row = upper; row < lower; row++) {
      rowOf.set(rows[row].id, row);
      if (lit.has(rows[row].id)) box(g, 0, y(row), width, ROW_HEIGHT, 0, mix(t.bg, t.accent, 0.14));
      else if (hover?.[0] === row) box(g, 0, y(row), width, ROW_HEIGHT, 0, mix(t.bg, t.fg, 0.05));
    }
    if (hover?.[1] >= 0) box(g, x(hover[1]), 0, cw, height, 0, mix(t.bg, t.fg, 0.05));
    g.save();
    g.beginPath();
    g.rect(LABEL - 2, 0, width, height);
    g.clip();
    for (let row = upper; row < lower; row++) {
      const seq = rows[row];
      g.globalAlpha = faint(seq.id);
      for (const [a, b, waits] of store.spans(seq, first + steps - 1)) {
        const start = Math.max(from - 1, columnAt(a)), end = Math.min(to, columnAt(b)) + 1;
        if (end > start) (waits ? paintWaiting : paintIdle)(g, t, x(start) + gap / 2, y(row), (end - start) * cw - gap, ROW_HEIGHT);
      }
      if (seq.ended >= first) paintEnd(g, t, seq.status, x(columnAt(seq.ended) + (seq.status === "abort" ? 0 : 1)), y(row), cw, ROW_HEIGHT);
    }
    for (let c = from; c < to; c++) {
      const { seqs, kinds, counts } = store.columns[c];
      for (let i = 0; i < seqs.length; i++) {
        const row = rowOf.get(seqs[i]), kind = kinds[i] & 15;
        if (row === undefined) continue;
        g.globalAlpha = 1;
        box(g, x(c), y(row) + 4, cw, ROW_HEIGHT - 8, 0, lit.has(seqs[i]) ? mix(t.bg, t.accent, 0.14) : t.bg);
        g.globalAlpha = faint(seqs[i]);
        paintCell(g, t, kind, x(c) + gap / 2, y(row) + 3, cw - gap, ROW_HEIGHT - 6, kind === PREFILL || kind === RECOMPUTE ? String(counts[i]) : "");
      }
    }
    g.globalAlpha = 1;
    if (hover?.[0] >= 0 && hover[1] >= 0) {
      g.strokeStyle = t.fg;
      g.lineWidth = 1.5;
      g.strokeRect(x(hover[1]) + 0.5, y(hover[0]) + 2, cw - 1, ROW_HEIGHT - 4);
    }
    g.restore();
    g.textAlign = "left";
    for (let row = upper; row < lower; row++) {
      const seq = rows[row], isLit = lit.has(seq.id);
      g.globalAlpha = isLit || !lit.size ? 1 : 0.55;
      if (isLit) box(g, 0, y(row), 3, ROW_HEIGHT, 0, t.accent);
      const color = { waiting: t.waiting, prefill: t.prefill, decode: t.decode }[seq.status];
      if (color) box(g, 8, y(row) + ROW_HEIGHT / 2 - 3, 6, 6, 3, color);
      g.font = `${isLit ? 600 : 400} 12px ${t.font}`;
      g.fillStyle = seq.isLive || isLit ? t.fg : t.muted;
      g.fillText(fit(g, plain(seq.name), LABEL - 30), 20, y(row) + ROW_HEIGHT / 2 + 0.5);
    }
    g.globalAlpha = 1;
    if (more) {
      g.font = `12px ${t.font}`;
      g.fillStyle = t.muted;
      g.fillText(`and ${count(more, "more request")} waiting`, 20, y(rows.length) + ROW_HEIGHT / 2);
    }
    if (!rows.length) {
      g.font = `12px ${t.font}`;
      g.fillStyle = t.muted;
      g.fillText("no request yet", 20, y(0) + ROW_HEIGHT / 2);
    }
  }

  function drawBudget(g) {
    const from = Math.max(0, Math.floor(scroller.scrollLeft / cw)), to = Math.min(steps, from + Math.ceil(width / cw) + 1);
    const most = Math.max(1, store.maxNumBatchedTokens), gap = cw >= 11 ? 2 : 1, every = tickEvery(cw, String(first + steps).length);
    g.save();
    g.beginPath();
    g.rect(LABEL - 2, 0, width, head);
    g.clip();
    for (let c = from; c < to; c++) {
      const column = store.columns[c], left = x(c) + gap / 2, wide = cw - gap;
      if (hover?.[1] === c) box(g, x(c), 0, cw, head, 0, mix(t.bg, t.fg, 0.05));
      box(g, left, 2, wide, BAR, 2, t.free);
      let base = 2 + BAR;
      for (const [tokens, fill] of [[column.decode, t.decode], [column.prefill, t.prefill],
        [column.recompute, stripes(t, t.preempted, t.prefill, { step: 7, width: 2.4 })]]) {
        if (!tokens) continue;
        const tall = Math.max(2, (tokens / most) * BAR);
        base -= tall;
        box(g, left, Math.max(2, base), wide, tall, 2, fill);
      }
      if (column.step === store.cursor) {
        g.strokeStyle = t.accent;
        g.lineWidth = 2;
        g.strokeRect(x(c), 1, cw, height - 2);
      }
      if (column.step % every === 0 && x(c) + cw / 2 > LABEL + 8) {
        g.font = `${column.step === store.cursor ? 600 : 400} 10px ${t.font}`;
        g.fillStyle = column.step === store.cursor ? t.fg : t.muted;
        g.textAlign = "center";
        g.fillText(String(column.step), x(c) + cw / 2, BAR + AXIS / 2 + 4);
      }
    }
    g.restore();
    g.textAlign = "left";
    g.font = `10px ${t.font}`;
    g.fillStyle = t.muted;
    g.fillText("token budget", 8, 8);
    g.fillText("step", 8, BAR + AXIS / 2 + 4);
    g.textAlign = "right";
    if (store.maxNumBatchedTokens) g.fillText(digits(store.maxNumBatchedTokens), LABEL - 8, 8);
    g.fillText("0", LABEL - 8, BAR - 2);
    box(g, 0, head - 3, width, 1, 0, t.line);
  }

  const answers = asking(store, () => drawn.ask());

  function describe() {
    const chosen = hover ?? (store.selection.kind === "sequence" ? [rows.findIndex((s) => s.id === store.selection.id), -1] : [-1, -1]);
    const seq = rows[chosen[0]], column = store.columns[chosen[1]] ?? (seq ? null : store.columns.at(-1));
    if (seq && column) say(status, [make("b", {}, quote(seq.name, "")), `step ${column.step}`, ...cellWords(store, seq, column)]);
    else if (seq) {
      const told = answers.about("sequence", seq.id);
      say(status, [make("b", {}, quote(seq.name, "")), ...sequenceWords(seq)], told?.prompt ? [quote(tail(told.prompt, 70)), " → ", quote(tail(told.text, 90) || "…")] : null);
    } else if (column) say(status, [make("b", {}, `step ${column.step}`), ...stepWords(column)]);
    else say(status, ["Nothing has run yet."]);
  }

  // Pointer, keyboard, scrolling.
  const cellAt = (event) => {
    const row = Math.floor((event.offsetY - head + scroller.scrollTop) / ROW_HEIGHT), column = Math.floor((event.offsetX - LABEL + scroller.scrollLeft) / cw);
    const inHead = event.offsetY < head, inLabel = event.offsetX < LABEL;
    const cell = [inHead ? -1 : row < rows.length ? row : -1, inLabel || column >= steps ? -1 : column];
    return cell[0] < 0 && cell[1] < 0 ? null : cell;
  };
  const point = (cell) => {
    if (String(cell) !== String(hover)) {
      hover = cell;
      drawn.ask();
    }
  };
  const pick = ([row, column]) => {
    const seq = rows[row], step = store.columns[column]?.step ?? -1;
    const again = seq && store.selection.kind === "sequence" && store.selection.id === seq.id && step === store.cursor;
    store.lookAt(again || (!seq && step === store.cursor) ? -1 : step);
    if (seq) store.select("sequence", seq.id, { toggle: again });
  };
  canvas.addEventListener("pointermove", (event) => point(cellAt(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) pick(cell);
  });
  const announce = keyboardGrid(canvas, "Schedule: a row a sequence, a column a step", {
    cells: () => [rows.length, steps],
    here: () => hover && hover[0] >= 0 ? [hover[0], Math.max(0, hover[1])] : [clamp(rows.findIndex((s) => s.isLive), 0, Infinity), Math.max(0, steps - 1)],
    words: (row, column) => (rows[row] && store.columns[column] ? `${plain(rows[row].name)}, step ${store.columns[column].step}: ${cellWords(store, rows[row], store.columns[column]).join(", ")}` : ""),
    move(row, column) {
      point([row, column]);
      const [cx, cy] = [column * cw, row * ROW_HEIGHT], room = width - LABEL, tall = height - head;
      scroller.scrollLeft = clamp(scroller.scrollLeft, cx + cw - room, cx);
      scroller.scrollTop = clamp(scroller.scrollTop, cy + ROW_HEIGHT - tall, cy);
    },
    pick: (row, column) => pick([row, column]),
    leave() {
      store.lookAt(-1);
      store.select("none", -1);
      point(null);
    },
  });
  // The view scrolls by itself, and the page may clamp it: only what a hand moves ends that.
  for (const kind of ["wheel", "touchmove", "pointerdown", "keydown"]) scroller.addEventListener(kind, () => (touched = performance.now()), { passive: true });
  let [left, top] = [0, 0];
  scroller.addEventListener("scroll", () => {
    if (performance.now() - touched < 1000) {
      if (scroller.scrollLeft !== left) follows = scroller.scrollLeft >= scroller.scrollWidth - scroller.clientWidth - 2;
      if (scroller.scrollTop !== top) followsRows = false;
      leftStep = first + scroller.scrollLeft / cw;
    }
    [left, top] = [scroller.scrollLeft, scroller.scrollTop];
    drawn.ask();
  });
  newest.addEventListener("click", () => {
    follows = followsRows = true;
    drawn.ask();
  });
  const drawn = drawing(root, draw), leave = store.subscribe(drawn.ask);
  return () => {
    leave();
    answers.stop();
    drawn.stop();
    root.remove();
  };
}

VIEWS.schedule_view = mountScheduleView;
