// The field's terms in what views say: underlined; pointed at, focused or clicked each is explained beside its words.
//
// What they mean is Python's (nvexplore/explore/glossary.py): assets.py ends the module with a call of `learn`.

export const TERM_STYLE = `
.nvx-panel { position: relative; }
.nvx-term { font-style: inherit; text-decoration: underline dotted color-mix(in srgb, currentColor 55%, transparent);
  text-underline-offset: 3px; cursor: help; border-radius: 2px; }
.nvx-term:hover { text-decoration-color: currentColor; }
.nvx-term:focus { outline: none; }
.nvx-term:focus-visible { outline: 2px solid var(--nvx-accent); outline-offset: 2px; }
.nvx-meaning { position: absolute; left: 14px; right: 14px; z-index: 3; padding: 6px 10px; color: var(--nvx-fg);
  background: var(--nvx-bg); border: 1px solid var(--nvx-accent); border-radius: 6px; overflow-wrap: anywhere;
  box-shadow: 0 2px 8px rgb(0 0 0 / 25%); white-space: normal; }
.nvx-meaning[hidden] { display: none; }
.nvx-legend bdi { white-space: nowrap; }
`;
const MEANINGS = new Map(), // spelling in lower case -> [term, what it means]
  TERM_MOVES = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };
let spellings = null; // finds them in a text, the longest first

/** Take in the terms: [term, what it means, ...other spellings] each. */
export function learn(terms) {
  for (const [term, meaning, ...also] of terms)
    for (const word of [term, ...also]) MEANINGS.set(word.toLowerCase(), [term, meaning]);
  const words = [...MEANINGS.keys()].sort((a, b) => b.length - a.length || (a < b ? -1 : 1));
  const any = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  spellings = new RegExp(`(?<![\\p{L}\\p{N}_-])(${any})s?(?![\\p{L}\\p{N}_-])`, "giu");
}

/** `text` cut where it names terms: strings, and {word, term, meaning}. One in `seen` stays text; new ones join it. */
export function termsIn(text, seen = new Set()) {
  const parts = [];
  let end = 0;
  for (const found of spellings && text ? text.matchAll(spellings) : []) {
    const [term, meaning] = MEANINGS.get(found[1].toLowerCase());
    if (seen.has(term)) continue;
    seen.add(term);
    parts.push(text.slice(end, found.index), { word: found[0], term, meaning });
    end = found.index + found[0].length;
  }
  return [...parts, text.slice(end)].filter((part) => part !== "");
}

/** The longest term that a text names, {word, term, meaning}, if any. */
function longestIn(text) {
  const found = termsIn(text).filter((part) => part.term);
  return found.sort((a, b) => b.word.length - a.word.length)[0];
}

/**
 * Nodes for `children` whose strings name their terms, the first time each. about: what is said of the whole besides;
 * where a single text names no term, it stands for the longest one in there.
 */
export function linked(children, { seen = new Set(), about = "" } = {}) {
  const [only, ...more] = children,
    isWord = typeof only === "string" && !more.length && /\p{L}/u.test(only),
    found = isWord && about && !longestIn(only) ? longestIn(about) : null;
  if (found && !seen.has(found.term)) {
    seen.add(found.term);
    return [termNode({ ...found, word: only }, about)];
  }
  return children.flatMap((child) => {
    if (typeof child !== "string") return [child];
    return termsIn(child, seen).map((part) => (part.term ? termNode(part, about) : part));
  });
}

function termNode({ word, term, meaning }, about) {
  const el = document.createElement("dfn");
  el.className = "nvx-term";
  el.tabIndex = -1; // of a view's terms one is reached with the Tab key, the others from there with the arrows
  el.title = `${about ? `${about}\n` : ""}${term}: ${meaning}`;
  el.dataset.term = term;
  el.textContent = word;
  return el;
}

const termAt = (event) => event.target.closest?.(".nvx-term");

/** Explain the terms inside `root`, a view: in a line below the one that has the focus, above it in a status line. */
export function explaining(root) {
  let line = null,
    shown = null, // the term that is explained
    wasShown = false;
  const hide = () => {
    if (line) line.hidden = true;
    shown?.removeAttribute("data-open");
    shown = null;
  };
  function show(el) {
    if (!line?.isConnected) {
      line = document.createElement("div");
      line.className = "nvx-meaning";
      line.setAttribute("role", "note"); // not live: its words are the title of the term, which is read with it
      root.append(line);
    }
    const term = document.createElement("b"),
      [at, all] = [el.getBoundingClientRect(), root.getBoundingClientRect()],
      isLow = el.closest(".nvx-line") !== null;
    term.textContent = el.dataset.term;
    line.replaceChildren(term, `: ${MEANINGS.get(el.dataset.term.toLowerCase())[1]}`);
    line.style.top = isLow ? "auto" : `${at.bottom - all.top + 4}px`;
    line.style.bottom = isLow ? `${all.bottom - at.top + 4}px` : "auto";
    line.hidden = false;
    shown?.removeAttribute("data-open");
    el.setAttribute("data-open", "");
    shown = el;
  }
  function enter(el) {
    for (const other of root.querySelectorAll('.nvx-term[tabindex="0"]')) other.tabIndex = -1;
    el.tabIndex = 0;
    show(el);
  }
  root.addEventListener("focusin", (event) => (termAt(event) ? enter(termAt(event)) : hide()));
  root.addEventListener("focusout", hide);
  root.addEventListener("pointerdown", (event) => (wasShown = shown !== null && termAt(event) === shown));
  root.addEventListener("click", (event) => {
    const el = termAt(event);
    if (!el || wasShown) hide();
    else show(el);
  });
  root.addEventListener("keydown", (event) => {
    const el = termAt(event);
    if (!el || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = TERM_MOVES[event.key];
    if (by) {
      const all = [...root.querySelectorAll(".nvx-term")].filter((each) => each.getClientRects().length);
      all[Math.max(0, Math.min(all.length - 1, all.indexOf(el) + by))].focus();
    } else if (event.key === "Escape") hide();
    else if (event.key !== "Enter" && event.key !== " ") return;
    else if (shown) hide();
    else show(el);
    event.preventDefault();
    event.stopPropagation(); // the notebook has its own keys
  });
}

/** After a view has drawn: one of its terms can be reached with the Tab key, and what has gone explains nothing. */
export function settleTerms(root) {
  const terms = root.getElementsByClassName("nvx-term");
  if (terms.length && !root.querySelector('.nvx-term[tabindex="0"]')) terms[0].tabIndex = 0;
  const line = root.querySelector(":scope > .nvx-meaning");
  if (line && !line.hidden) line.hidden = !root.querySelector(".nvx-term[data-open]");
}

/** Replace what an element holds; if the focus was on a term in it, it is on the same term again. */
export function keepTerm(el, ...children) {
  const term = el.contains(document.activeElement) ? document.activeElement.dataset.term : undefined;
  el.replaceChildren(...children);
  if (!term) return;
  const again = [...el.querySelectorAll(".nvx-term")].find((each) => each.dataset.term === term);
  again?.focus({ preventScroll: true });
}
