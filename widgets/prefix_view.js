// The prefix cache as a tree of runs of blocks, and below it what admitted requests took from it, and why no more.

import { READABLE, VIEWS, answering, drawLegend, drawing, make, panel, say } from "./kit.js";
import { theme } from "./paint.js";
import { MISS_STYLE, admissionList } from "./prefix_miss.js";
import { PREFIX_LEGEND, paintRunCell, paintStrip, stripCells, stripPicture } from "./prefix_paint.js";
import { cacheCounts, hiddenWords, litPlaces, openRuns, readRuns, runFacts, runLine } from "./prefix_words.js";
import { runText, treeWords } from "./prefix_words.js";
import { SENTENCE_STYLE, keepRows, markSelected } from "./sentence.js";
import { unpackToken } from "./wire.js";
import { clamp } from "./words.js";

const PREFIX_STYLE = `
.nvx-prefix-tree { container-type: inline-size; width: 0; min-width: 100%; max-height: 320px; overflow: auto;
  scrollbar-width: thin; }
.nvx-prefix-run { display: flex; align-items: center; gap: 8px; padding: 2px 4px; cursor: pointer;
  border-top: 1px solid var(--nvx-line); }
.nvx-prefix-run:focus { outline: none; }
.nvx-prefix-run:focus-visible { outline: 2px solid var(--nvx-accent); outline-offset: -2px; }
.nvx-prefix-run:hover { background: color-mix(in srgb, var(--nvx-fg) 6%, transparent); }
.nvx-prefix-run[aria-selected="true"] { box-shadow: inset 3px 0 0 var(--nvx-accent);
  background: color-mix(in srgb, var(--nvx-accent) 12%, transparent); }
.nvx-prefix-toggle { flex: none; width: 12px; color: var(--nvx-muted); text-align: center; }
.nvx-prefix-run img { flex: none; }
.nvx-prefix-text { flex: 1 1 auto; min-width: 60px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.nvx-prefix-facts { flex: none; max-width: 50%; margin-left: auto; color: var(--nvx-muted); text-align: end;
  overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
@container (max-width: 520px) {
  .nvx-prefix-run { flex-wrap: wrap; gap: 0 8px; }
  .nvx-prefix-text { order: 1; flex: 1 0 100%; }
  .nvx-prefix-facts { flex: 1 1 0; min-width: 40%; max-width: none; }
}
`;
const MOVES = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity, PageDown: 10, PageUp: -10 },
  INDENT = 14,
  SHARE = 20; // the tree takes no more than one part in so many of the time

/** Mount the view on a store; returns what removes it. */
export function mountPrefixView(store, el) {
  const tree = make("div", { className: "nvx-prefix-tree", role: "tree", "aria-label": "Cached prefixes" }),
    admissions = admissionList(store);
  const { root, legend, status } = panel("Prefix cache", make("div", {}, tree, admissions.el), "nvx-prefix");
  root.prepend(make("style", {}, SENTENCE_STYLE + MISS_STYLE + PREFIX_STYLE));
  el.append(root);
  const closed = new Set(); // first blocks of the runs whose branches are folded away
  let treeLooks = [], // all that the tree was drawn from
    read = null, // the runs of the newest answer, {told, runs, counts, isLive}
    rows = [], // those in sight
    hover = -1, // first block of the run that is pointed at
    current = -1, // of the run that the keyboard is at
    nextAsk = 0,
    timer = 0;

  const selected = () => {
    const { kind, id } = store.selection;
    return kind === "sequence" ? id : kind === "token" ? unpackToken(id)[0] : -1;
  };

  function row(data) {
    const { first, level, label, text, facts, isOpen } = data;
    const mark = isOpen === null ? "" : isOpen ? "▾" : "▸";
    const item = make(
      "div",
      { className: "nvx-prefix-run", role: "treeitem", tabIndex: -1, "aria-level": level + 1, "aria-label": label },
      make("span", { className: "nvx-prefix-toggle", "aria-hidden": "true" }, mark),
      stripPicture(),
      make("bdi", { className: "nvx-quote nvx-prefix-text" }, text),
      make("span", { className: "nvx-prefix-facts" }, facts),
    );
    if (isOpen !== null) item.setAttribute("aria-expanded", isOpen);
    item.style.paddingLeft = `${4 + Math.min(level, 12) * INDENT}px`;
    item.addEventListener("click", (event) => {
      if (event.target.className === "nvx-prefix-toggle" && isOpen !== null) toggle(first);
      else store.select("block", first);
      go(first);
    });
    item.addEventListener("pointerenter", () => point(first));
    item.addEventListener("pointerleave", () => point(-1));
    item.addEventListener("focus", () => ((current = first), drawn.ask()));
    return item;
  }

  const point = (block) => ((hover = block), drawn.ask());
  function toggle(block) {
    if (!closed.delete(block)) closed.add(block);
    drawn.ask();
  }
  /** Bring the keyboard to a run. */
  function go(block) {
    current = block;
    drawTree();
    tree.querySelector(`[data-key="${block}"]`)?.focus();
  }

  tree.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !rows.length) return;
    const at = Math.max(0, rows.findIndex((run) => run.blocks[0] === current)),
      run = rows[at],
      block = run.blocks[0];
    const by = MOVES[event.key];
    if (by) go(rows[clamp(at + by, 0, rows.length - 1)].blocks[0]);
    else if (event.key === "ArrowRight" && run.behind && closed.has(block)) toggle(block);
    else if (event.key === "ArrowRight" && run.behind) go(rows[at + 1].blocks[0]);
    else if (event.key === "ArrowLeft" && run.behind && !closed.has(block)) toggle(block);
    else if (event.key === "ArrowLeft" && run.parent >= 0) go(read.runs[run.parent].blocks[0]);
    else if (event.key === "Enter" || event.key === " ") store.select("block", block);
    else if (event.key === "Escape") store.select("none", -1);
    else return;
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own arrow keys
  });

  function drawTree() {
    const t = theme(root),
      lit = store.litBlocks();
    // While an engine runs there are draws without news of the tree, and it may have 200 canvases.
    const looks = [read, t, current, [...closed].join(), [...lit].join()];
    if (looks.every((one, i) => one === treeLooks[i])) return;
    treeLooks = looks;
    rows = openRuns(read?.runs ?? [], closed);
    if (!rows.some((run) => run.blocks[0] === current)) current = rows[0]?.blocks[0] ?? -1;
    const items = rows.map((run) => {
      const facts = [...runFacts(run), hiddenWords(run)].filter(Boolean).join(" · "),
        text = runText(run);
      const isOpen = run.behind ? !closed.has(run.blocks[0]) : null;
      const label = `${facts}; text: ${text}`;
      return { key: String(run.blocks[0]), first: run.blocks[0], level: run.level, label, text, facts, isOpen };
    });
    keepRows(tree, items, row);
    rows.forEach((run, i) => {
      const item = tree.children[i],
        places = litPlaces(run, lit);
      item.tabIndex = run.blocks[0] === current ? 0 : -1;
      item.setAttribute("aria-selected", places.length > 0);
      paintStrip(item.querySelector("img"), t, stripCells(run.refs, places), run.is_cut);
    });
  }

  function draw() {
    const t = theme(root),
      id = selected(),
      told = ask(),
      own = id >= 0 ? owns.get(id) : null;
    root.style.colorScheme = t.isDark ? "dark" : "light";
    if (told === null) read = null;
    else if (told && told !== read?.told) {
      read = { told, runs: readRuns(told), counts: cacheCounts(store.words), isLive: store.isLive };
      nextAsk = performance.now() + told.ms * SHARE;
    }
    drawTree();
    drawLegend(
      legend,
      PREFIX_LEGEND.map(([word, title, look]) => [
        word,
        title,
        (g, x, y, w, h) => paintRunCell(g, t, x + 2, y + 1, w - 4, h - 2, look),
      ]),
    );
    if (id >= 0 && own) admissions.draw(own, store.everyone.get(id)?.name ?? `sequence ${id}`);
    else if (id < 0 && told) admissions.draw(told, null);
    markSelected(admissions.el, store.selection);
    describe();
    Object.assign(root.dataset, { step: read?.told.step ?? "", runs: rows.length });
  }

  /**
   * The tree of the moment, null while there is none. While the engine runs, a large one is asked for less often, since
   * it takes its time: undefined until then.
   */
  function ask() {
    const wait = nextAsk - performance.now();
    clearTimeout(timer);
    if (wait <= 0 || !(read?.isLive && store.isLive) || store.status !== "running") return trees.get(-1);
    timer = setTimeout(drawn.ask, wait);
    return undefined;
  }

  function describe() {
    const { kind, id } = store.selection,
      wanted = hover >= 0 ? hover : tree.contains(document.activeElement) ? current : -1;
    let run = rows.find((each) => each.blocks[0] === wanted);
    if (!run && kind === "block") run = rows.find((each) => each.blocks.includes(id));
    if (run) say(status, runLine(run, store.blockSize));
    else if (read) say(status, treeWords(read.told, read.counts));
    else say(status, [store.event ? "…" : "Nothing has run yet."]);
  }

  const drawn = drawing(root, draw, READABLE),
    trees = answering(store, "prefix_view", drawn.ask),
    owns = answering(store, "prefix_view", drawn.ask),
    leave = store.subscribe(drawn.ask);
  tree.addEventListener("focusout", drawn.ask);
  return () => {
    leave();
    trees.stop();
    owns.stop();
    clearTimeout(timer);
    drawn.stop();
    root.remove();
  };
}

VIEWS.prefix_view = mountPrefixView;
