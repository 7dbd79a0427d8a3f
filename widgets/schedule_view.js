// A row a sequence, a column a step; above them how each step spent its token budget.

import { surface, theme } from "./paint.js";
import { clamp, plain, tail } from "./words.js";
import { VIEWS, asking, drawLegend, drawing, keyboardGrid, make, panel, quote, say } from "./kit.js";
import { drawBudget, drawShownNumber } from "./schedule_budget.js";
import { drawMoment, drawRows } from "./schedule_draw.js";
import { scheduleLegend } from "./schedule_paint.js";
import { HEADER, LABEL, ROW_HEIGHT } from "./schedule_place.js";
import { cellWords, columnWidth, scheduleRows, shownWords, stepWords } from "./schedule_words.js";

const SCHEDULE_HEIGHT = 404; // 14 rows

/** Mount the view on a store; returns what removes it. */
export function mountScheduleView(store, el) {
  const canvas = make("canvas"),
    spacer = make("div", {}, canvas),
    scroller = make("div", { className: "nvx-scroll" }, spacer);
  const newest = make(
    "button",
    { className: "nvx-newest", "aria-hidden": true, type: "button", title: "Follow the newest step again" },
    "newest ⇥",
  );
  const { root, legend, status } = panel("Schedule", scroller, "nvx-schedule");
  legend.before(newest);
  el.append(root);
  // What is drawn: rows, columns of `cw` px from step `first` on, the one of the step that is shown, the part in sight,
  // and what is pointed at.
  const at = { rows: [], more: 0, first: 0, steps: 0, shown: -1, cw: 1, width: 0, height: 0, left: 0, top: 0 };
  at.hover = null;
  let follows = true,
    followsRows = true,
    leftStep = 0,
    lookedAt = -1, // the past step that was brought into sight last
    shown = "",
    touched = -Infinity;

  function layout() {
    Object.assign(at, scheduleRows(store));
    at.first = store.columns[0]?.step ?? 0;
    at.steps = store.columns.length;
    at.shown = store.columns.findLastIndex((column) => column.step === store.shownStep);
    at.cw = columnWidth(at.steps, scroller.clientWidth - LABEL);
    turn();
    const content = HEADER + Math.max(1, at.rows.length + (at.more ? 1 : 0)) * ROW_HEIGHT + 4;
    spacer.style.width = `${LABEL + (at.steps + 1) * at.cw}px`;
    spacer.style.height = `${content}px`;
    scroller.style.height = `${Math.min(content, SCHEDULE_HEIGHT) + (scroller.offsetHeight - scroller.clientHeight)}px`;
    scroller.scrollLeft = follows ? spacer.offsetWidth : Math.round((leftStep - at.first) * at.cw);
    if (followsRows) {
      const live = at.rows.findIndex((seq) => store.sequences.get(seq.id)?.isLive);
      scroller.scrollTop = live < 0 ? content : Math.max(0, live - 2) * ROW_HEIGHT;
    }
    reveal();
    Object.assign(at, { width: scroller.clientWidth, height: scroller.clientHeight });
    Object.assign(at, { left: scroller.scrollLeft, top: scroller.scrollTop });
    newest.setAttribute("aria-hidden", follows || scroller.scrollWidth <= scroller.clientWidth + 1);
  }

  /** Bring a past step into sight, once; with the newest one go on to follow. */
  function turn() {
    if (!store.isPast) {
      if (lookedAt >= 0) follows = true;
      lookedAt = -1;
    } else if (store.shownStep === store.cursor && lookedAt !== store.cursor && at.shown >= 0) {
      lookedAt = store.cursor;
      const room = scroller.clientWidth - LABEL,
        x = at.shown * at.cw - scroller.scrollLeft;
      follows = false;
      leftStep = at.first + scroller.scrollLeft / at.cw;
      if (x < 0 || x + at.cw > room) leftStep = at.first + Math.max(0, at.shown - room / at.cw / 2);
    }
  }

  /** Bring the row of a new selection into sight, once. */
  function reveal() {
    const { kind, id } = store.selection;
    if (`${kind} ${id}` === shown) return;
    shown = `${kind} ${id}`;
    followsRows = kind === "none";
    const lit = store.litSequences(),
      row = at.rows.findIndex((seq) => lit.has(seq.id));
    const room = scroller.clientHeight - HEADER - ROW_HEIGHT,
      y = row * ROW_HEIGHT - scroller.scrollTop;
    if (row >= 0 && (y < 0 || y > room)) scroller.scrollTop = row * ROW_HEIGHT - room / 2;
  }

  function draw() {
    const t = theme(root);
    root.style.colorScheme = t.isDark ? "dark" : "light";
    layout();
    const g = surface(canvas, at.width, at.height);
    g.textBaseline = "middle";
    drawRows(g, t, store, at);
    drawBudget(g, t, store, at);
    drawMoment(g, t, store, at);
    drawShownNumber(g, t, store, at);
    drawLegend(
      legend,
      scheduleLegend(store).map(([word, title, paint]) => [word, title, (g2, ...place) => paint(g2, t, ...place)]),
    );
    describe();
    announce();
    const { first, cw, rows } = at;
    const sizes = { first, rows: rows.length, columnWidth: cw, label: LABEL, head: HEADER, rowHeight: ROW_HEIGHT };
    Object.assign(root.dataset, { step: store.step, shown: store.columns[at.shown]?.step ?? "", ...sizes });
  }

  const answers = asking(store, () => drawn.ask());

  function describe() {
    const { kind, id } = store.selection,
      selected = kind === "sequence" ? at.rows.findIndex((seq) => seq.id === id) : -1;
    const [row, c] = at.hover ?? [selected, -1],
      seq = at.rows[row],
      column = store.columns[c] ?? (seq ? null : (store.columns[at.shown] ?? store.columns.at(-1)));
    const name = seq && make("b", {}, quote(seq.name, ""));
    if (seq && column) say(status, [name, `step ${column.step}`, ...cellWords(store, seq, column)]);
    else if (column) say(status, [make("b", {}, `step ${column.step}`), ...stepWords(column)]);
    else if (seq) {
      const told = answers.about("sequence", seq.id);
      const text = told?.prompt && [quote(tail(told.prompt, 70)), " → ", quote(tail(told.text, 90) || "…")];
      say(status, [name, ...shownWords(store, seq)], text);
    } else say(status, ["Nothing has run yet."]);
  }

  // Pointer and keyboard. A cell is [row (-1: the budget), column (-1: the label)].
  const cellAt = ({ offsetX, offsetY }) => {
    const row = Math.floor((offsetY - HEADER + at.top) / ROW_HEIGHT),
      column = Math.floor((offsetX - LABEL + at.left) / at.cw);
    const cell = [
      offsetY < HEADER || row >= at.rows.length ? -1 : row,
      offsetX < LABEL || column >= at.steps ? -1 : column,
    ];
    return cell[0] < 0 && cell[1] < 0 ? null : cell;
  };
  const point = (cell) => {
    if (String(cell) === String(at.hover)) return;
    at.hover = cell;
    drawn.ask();
  };
  const pick = ([row, column]) => {
    const seq = at.rows[row],
      step = store.columns[column]?.step;
    if (step === undefined) return seq && store.select("sequence", seq.id); // its name: the moment stays
    const { kind, id } = store.selection,
      again = step === store.cursor && (!seq || (kind === "sequence" && id === seq.id));
    store.lookAt(again ? -1 : step);
    if (seq) store.select("sequence", seq.id, { toggle: again });
  };
  canvas.addEventListener("pointermove", (event) => point(cellAt(event)));
  canvas.addEventListener("pointerleave", () => point(null));
  canvas.addEventListener("click", (event) => {
    const cell = cellAt(event);
    if (cell) pick(cell);
  });
  const announce = keyboardGrid(canvas, "Schedule: a row a sequence, a column a step", {
    cells: () => [at.rows.length, at.steps],
    here() {
      const [row, column] = at.hover ?? [-1, -1],
        shown = at.shown >= 0 ? at.shown : Math.max(0, at.steps - 1);
      if (row >= 0) return [row, column >= 0 ? column : shown];
      const live = at.rows.findIndex((seq) => seq.isLive);
      return [Math.max(0, live), shown];
    },
    words(row, c) {
      const seq = at.rows[row],
        column = store.columns[c];
      return seq && column
        ? `${plain(seq.name)}, step ${column.step}: ${cellWords(store, seq, column).join(", ")}`
        : "";
    },
    move(row, column) {
      touched = performance.now();
      point([row, column]);
      const x = column * at.cw,
        y = row * ROW_HEIGHT;
      scroller.scrollLeft = clamp(scroller.scrollLeft, x + at.cw - (at.width - LABEL), x);
      scroller.scrollTop = clamp(scroller.scrollTop, y + ROW_HEIGHT - (at.height - HEADER), y);
    },
    pick: (row, column) => pick([row, column]),
    leave() {
      store.lookAt(-1);
      store.select("none", -1);
      point(null);
    },
  });

  // The view scrolls by itself, and the page may clamp it: only what a hand moves ends that.
  for (const kind of ["wheel", "touchmove", "pointerdown"])
    scroller.addEventListener(kind, () => (touched = performance.now()), { passive: true });
  let [left, top] = [0, 0];
  scroller.addEventListener("scroll", () => {
    if (performance.now() - touched < 1000) {
      if (scroller.scrollLeft !== left)
        follows = scroller.scrollLeft >= scroller.scrollWidth - scroller.clientWidth - 2;
      if (scroller.scrollTop !== top) followsRows = false;
      leftStep = at.first + scroller.scrollLeft / at.cw;
    }
    [left, top] = [scroller.scrollLeft, scroller.scrollTop];
    drawn.ask();
  });
  newest.addEventListener("click", () => {
    follows = followsRows = true;
    drawn.ask();
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

VIEWS.schedule_view = mountScheduleView;
