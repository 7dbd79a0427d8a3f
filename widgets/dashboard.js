// Views under each other, and the dashboard: the three that are always there, and a button for each of the others.

import { GRID_MOVES, VIEWS, fail, make } from "./kit.js";

const ALWAYS = ["controls_view", "schedule_view", "block_view"];
const TITLES = {
  why_view: "Why",
  throughput_view: "Throughput",
  prefix_view: "Prefix cache",
  slot_view: "Slots",
  memory_view: "Memory",
};
const OWN_KEYS = new Set([...Object.keys(GRID_MOVES), "Enter", " ", "Escape"]);

/** Mount one view in an element of its own; returns what removes it. A view that can't be mounted says why. */
function mountOne(name, store, parent) {
  const place = make("div", {});
  parent.append(place);
  let remove = () => {};
  try {
    if (!VIEWS[name]) throw new Error(`there is no view named ${name}`);
    remove = VIEWS[name](store, place);
  } catch (error) {
    fail(place, error);
    console.error(error);
  }
  return () => {
    remove();
    place.remove();
  };
}

/**
 * Let what has the focus inside `root` have the keys that move and pick. A notebook has commands on the same keys, and
 * Notebook 7 looks at them on their way down, before any view does; it passes over an element with this attribute.
 */
function keepKeys(root) {
  const before = (event) => {
    const { target, key, ctrlKey, metaKey, altKey, shiftKey } = event;
    if (!root.contains(target)) return;
    const isOwn = OWN_KEYS.has(key) && !ctrlKey && !metaKey && !altKey && !shiftKey;
    target.toggleAttribute("data-lm-suppress-shortcuts", isOwn);
  };
  window.addEventListener("keydown", before, true);
  return () => window.removeEventListener("keydown", before, true);
}

/** Mount views on a store under each other; returns what removes them. */
export function mountViews(names, store, el) {
  const root = make("div", { className: names.length > 1 ? "nvx nvx-dashboard" : "nvx nvx-alone" });
  el.append(root);
  const removes = [keepKeys(root), ...names.map((name) => mountOne(name, store, root))];
  return () => {
    for (const remove of removes) remove();
    root.remove();
  };
}

/** The name of a view for people: "Why", or for one that is not known here its file's: "Queue". */
export function titleOf(name) {
  const word = name.replace(/_view$/, "").replaceAll("_", " ");
  return TITLES[name] ?? word[0].toUpperCase() + word.slice(1);
}

/** The views that the dashboard can show besides, the known ones first. */
export function moreViews() {
  const known = Object.keys(TITLES).filter((name) => name in VIEWS);
  return [...known, ...Object.keys(VIEWS).filter((name) => !ALWAYS.includes(name) && !(name in TITLES))];
}

/**
 * Mount the dashboard; returns what removes it. panels: which further views are open, where all dashboards of one
 * Explorer keep it: `get()`, `set(names)`, `subscribe(call)`.
 */
export function mountDashboard(store, panels, el) {
  const names = moreViews(),
    mounted = new Map(); // name -> what removes the view
  const removeAll = mountViews(ALWAYS, store, el),
    root = el.lastElementChild;
  const bar = make("div", { className: "nvx-toggles", role: "group", "aria-label": "More views" });
  bar.hidden = !names.length;
  const places = make("div", {});
  const toggles = names.map((name) => {
    const button = make("button", { type: "button", "data-view": name }, titleOf(name)),
      place = make("div", { "data-panel": name });
    button.addEventListener("click", () => {
      const now = panels.get();
      panels.set(now.includes(name) ? now.filter((other) => other !== name) : [...now, name]);
    });
    bar.append(button);
    places.append(place);
    return { name, button, place };
  });
  root.append(bar, places);

  function update() {
    const wanted = panels.get();
    for (const { name, button, place } of toggles) {
      const isOpen = wanted.includes(name);
      button.setAttribute("aria-pressed", isOpen);
      if (isOpen && !mounted.has(name)) mounted.set(name, mountOne(name, store, place));
      if (isOpen || !mounted.has(name)) continue;
      mounted.get(name)();
      mounted.delete(name);
    }
  }
  const leave = panels.subscribe(update);
  update();
  return () => {
    leave();
    for (const remove of mounted.values()) remove();
    removeAll();
  };
}
