// What the views share: the frame around a view, its legend, status line and keyboard, when to draw. Knows no engine.
//
// Text from outside (request ids, prompts, completions) goes into the page as text nodes and through `plain` only.

import { TERM_STYLE, explaining, keepTerm, linked, settleTerms } from "./glossary.js";
import { theme } from "./paint.js";
import { paintPicture, picture } from "./pictures.js";
import { retries } from "./retries.js";
import { takeTurns } from "./turns.js";
import { clamp, plain } from "./words.js";

const GRACE = 400, // milliseconds for which an answer about another step may still be shown
  HEADINGS = ["h3", "h4", "th"]; // what their words mean is explained, see glossary.js

/** Views by name; each *_view.js adds its own, and the Explorer mounts them: `mount(store, element) -> remove()`. */
export const VIEWS = {};

/** An element with properties and children; strings become text nodes, never markup. */
export function make(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name in el && name !== "role") el[name] = value;
    else el.setAttribute(name, value);
  }
  el.append(...(HEADINGS.includes(tag) ? linked(children, { about: props.title }) : children));
  return el;
}

/** `text` as an element that keeps its writing direction to itself. */
export function quote(text, className = "nvx-quote") {
  return make("bdi", { className }, plain(text));
}

/** Milliseconds in which numbers and words need not change again. */
export const READABLE = 100;

let complaints = new Set(); // what the answers say that the view asked for which is being drawn

/**
 * Call `draw` in one of the next frames, however often it is asked for; again when the size or the theme changes. A
 * view that is out of sight draws when it comes into sight. every: at most once in so many milliseconds; READABLE for
 * what consists of text. turns.js says when.
 */
export function drawing(root, draw, every = 0) {
  const drawOrFail = () => {
    try {
      complaints = new Set();
      draw();
      settleTerms(root);
      complain(root, [...complaints]);
    } catch (error) {
      fail(root, error);
      throw error;
    }
  };
  return takeTurns(root, drawOrFail, every);
}

/** Show in a view's place why it can't be drawn. */
export function fail(root, error) {
  root.replaceChildren(
    make("div", { className: "nvx-error", role: "alert" }, `nvexplore: this view failed: ${plain(error)}`),
  );
}

/** Show below a view, which goes on, what Python could not tell it. */
function complain(root, texts) {
  const said = root.querySelector(":scope > .nvx-complaint"),
    text = texts.map(plain).join("; ");
  if (said?.textContent === text) return;
  said?.remove();
  if (text) root.append(make("div", { className: "nvx-error nvx-complaint", role: "alert" }, text));
}

/** A view's frame: title and legend above, `body`, and below a line that says what is pointed at. */
export function panel(title, body, className) {
  const legend = make("div", { className: "nvx-legend" }),
    status = make("div", { className: "nvx-line", role: "status" });
  const head = make("div", { className: "nvx-head" }, make("h3", {}, title), legend),
    root = make("section", { className: `nvx nvx-panel ${className}`, "aria-label": title }, head, body, status);
  root.prepend(make("style", {}, TERM_STYLE));
  explaining(root);
  return { root, legend, status };
}

/**
 * Draw the legend with the same strokes as the view: entries are [word, what it means, paint(g, x, y, w, h), look].
 * look: a text of all that the picture depends on besides the theme; left out: its words.
 */
export function drawLegend(el, entries) {
  if (el.childElementCount !== entries.length)
    el.replaceChildren(...entries.map(() => make("span", {}, picture(14, 14), make("bdi"))));
  el.of ??= Math.random(); // tells its pictures apart from other legends'
  const words = entries.map(([word, title]) => `${word}\t${title}`).join("\n"),
    seen = new Set(), // each term is explained once
    colors = theme(el).key;
  entries.forEach(([word, title, paint, look = `${word} ${title}`], i) => {
    const item = el.children[i];
    if (el.words !== words) {
      item.title = title;
      keepTerm(item.lastChild, ...linked([word], { seen, about: title }));
    }
    paintPicture(item.firstChild, `${el.of} ${colors} ${look}`, paint);
  });
  el.words = words;
}

/** Replace what a status line says: `parts` joined by dots, `more` below them; the same is not announced again. */
export function say(line, parts, more = null) {
  const text = (part) => part?.outerHTML ?? part?.textContent ?? String(part),
    from = [...parts, "", ...(more ?? [])].map(text).join("\n");
  if (line.from === from) return;
  line.from = from;
  const first = make("div", {}),
    seen = new Set(); // each term is explained once
  parts.filter(Boolean).forEach((part, i) => {
    if (i) first.append(make("span", { className: "nvx-dot", "aria-hidden": "true" }, "·"));
    first.append(...linked([part], { seen }));
  });
  const said = make("div", {}, first, ...(more ? [make("div", { className: "nvx-text" }, ...more)] : []));
  const html = said.innerHTML; // as it is written here: later one of its terms can be reached with the Tab key
  if (html !== line.said) keepTerm(line, said);
  line.said = html;
}

/** Where the keys lead in a grid: [rows, columns]. */
export const GRID_MOVES = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  PageUp: [-10, 0],
  PageDown: [10, 0],
  Home: [0, -Infinity],
  End: [0, Infinity],
};

/**
 * Make a canvas a grid for keyboard and screen reader. The cell that is pointed at exists as an element inside the
 * canvas, so that it is announced. cells(): [rows, columns]; words(row, column); move(row, column); pick(row, column);
 * here(): [row, column], where the arrows start.
 */
export function keyboardGrid(canvas, label, { cells, words, move, pick, leave, here }) {
  const cell = make("div", { role: "gridcell", id: `nvx-cell-${Math.random().toString(36).slice(2)}` });
  canvas.append(make("div", { role: "row" }, cell));
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "grid");
  canvas.setAttribute("aria-label", label);
  canvas.setAttribute("aria-activedescendant", cell.id);
  const update = () => {
    const [rows, columns] = cells(),
      [row, column] = here();
    canvas.setAttribute("aria-rowcount", rows);
    canvas.setAttribute("aria-colcount", columns);
    cell.setAttribute("aria-rowindex", row + 1);
    cell.setAttribute("aria-colindex", column + 1);
    const text = rows && columns ? words(row, column) : "";
    if (cell.textContent !== text) cell.textContent = text;
  };
  canvas.addEventListener("keydown", (event) => {
    const step = GRID_MOVES[event.key];
    const [row, column] = here(),
      [rows, columns] = cells();
    if (event.ctrlKey || event.metaKey || event.altKey || !rows || !columns) return;
    if (step) move(clamp(row + step[0], 0, rows - 1), clamp(column + step[1], 0, columns - 1));
    else if (event.key === "Enter" || event.key === " ") pick(row, column);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own arrow keys
    update();
  });
  canvas.addEventListener("focus", update);
  return update;
}

/**
 * Answers of Python to a view's own question, `answer` of its class: `get(id)`, called in each draw, gives the newest
 * answer about `id` or null, asks again when what is shown has changed or no answer came (retries.js), and calls `then`
 * when the answer is there. The text of an error is shown below the view.
 */
export function answering(store, name, then) {
  let about,
    told = null, // {answer, moment, isLive}
    of = "", // about whom and when was asked last
    since = 0,
    isAsking = false,
    isOver = false;
  const later = retries(store, then);
  const ask = async (id) => {
    const { moment, isLive } = store,
      key = `${id} ${moment}`,
      late = setTimeout(then, GRACE);
    [isAsking, since] = [true, store.host.now()];
    const answer = await store.ask(name, id);
    clearTimeout(late);
    isAsking = false;
    if (isOver) return;
    if (answer) {
      of = key;
      later.succeed();
    } else later.rest(key);
    if (id === about && answer) told = { answer, moment, isLive };
    then();
  };
  /** What holds for another step is not shown, but for the moment that the answer takes; the newest step may lag. */
  const fits = () =>
    told.moment === store.moment ||
    (told.isLive && store.isLive) ||
    (isAsking && store.host.now() - since < GRACE);
  return {
    get(id) {
      if (id !== about) [about, told, of] = [id, null, ""];
      const key = `${id} ${store.moment}`;
      if (!isAsking && of !== key && !later.rests(key)) ask(id);
      const answer = told && fits() ? told.answer : {};
      if (answer.error) complaints.add(answer.error);
      return answer.error || !Object.keys(answer).length ? null : answer; // {}: there is nothing to tell
    },
    stop() {
      isOver = true;
      later.stop();
    },
  };
}

/** The same about what is pointed at: asked once it has been pointed at for a moment. about(kind, id) is its `get`. */
export function asking(store, then, { wait = 120 } = {}) {
  const answers = {};
  let key = "",
    timer = 0,
    isMeant = false;
  return {
    about(kind, id) {
      if (key !== `${kind} ${id}`) {
        clearTimeout(timer);
        [key, isMeant] = [`${kind} ${id}`, false];
        timer = setTimeout(() => {
          isMeant = true;
          then();
        }, wait);
      }
      return isMeant ? (answers[kind] ??= answering(store, kind, then)).get(id) : null;
    },
    stop() {
      clearTimeout(timer);
      for (const each of Object.values(answers)) each.stop();
    },
  };
}
