// What anywidget runs: one store for each Explorer model, found by the views in a registry of the page.

import { Store } from "./store.js";
import { VIEWS, fail, make } from "./kit.js";

const EXPLORERS = Symbol.for("nvexplore.explorers");
const DASHBOARD = ["controls_view", "schedule_view", "block_view"];
const LONGEST_ANSWER = 10_000,
  MOST_QUESTIONS = 8;

/** Mount views on a store under each other; returns what removes them. */
export function mountViews(names, store, el) {
  const root = make("div", { className: names.length > 1 ? "nvx nvx-dashboard" : "nvx nvx-alone" });
  el.append(root);
  const removes = names.map((name) => {
    const place = make("div", {});
    root.append(place);
    try {
      if (!VIEWS[name]) throw new Error(`there is no view named ${name}`);
      return VIEWS[name](store, place);
    } catch (error) {
      fail(place, error);
      console.error(error);
      return () => {};
    }
  });
  return () => {
    for (const remove of removes) remove();
    root.remove();
  };
}

/** Questions to Python, by number; the numbers begin with something only this page has. */
function questions(send) {
  const page = Math.random().toString(36).slice(2),
    open = new Map();
  let last = 0;
  return {
    ask(what, id) {
      const number = `${page}-${++last}`;
      return new Promise((resolve) => {
        open.set(number, resolve);
        if (open.size > MOST_QUESTIONS) this.answer({ ask: open.keys().next().value }, null);
        setTimeout(() => this.answer({ ask: number }, null), LONGEST_ANSWER);
        send({ type: "ask", ask: number, what, id });
      });
    },
    answer(content, value = content) {
      open.get(content.ask)?.(value);
      open.delete(content.ask);
    },
  };
}

/** Tie a store to the Explorer's model. */
export function connect(model) {
  const send = (content) => {
    try {
      model.send(content);
    } catch (error) {
      console.warn("nvexplore: no kernel to send to", error);
    }
  };
  const asked = questions(send);
  const store = new Store({
    resync: () => send({ type: "resync" }),
    command: (command) => send({ type: "command", command }),
    ask: (what, id) => asked.ask(what, id),
    select({ kind, id }, cursor) {
      model.set("selection", [kind, id]);
      model.set("cursor", cursor);
      model.save_changes();
    },
  });
  const take = () => {
    const [kind, id] = model.get("selection") ?? ["none", -1];
    store.selection = { kind, id };
    store.cursor = model.get("cursor") ?? -1;
    store.status = model.get("status") ?? "";
    store.hasControls = Boolean(model.get("has_controls"));
    store.changed();
  };
  for (const name of ["selection", "cursor", "status", "has_controls"]) model.on(`change:${name}`, take);
  const frame = () => model.get("frame") && store.receive(model.get("frame"));
  model.on("change:frame", frame);
  model.on("msg:custom", (content, buffers) => {
    if (content.type === "answer") asked.answer(content);
    else if (content.type === "delta") {
      const named = content.buffers.map((name, i) => [name, buffers[i]]);
      store.receive({ ...content, ...Object.fromEntries(named) });
    }
  });
  take();
  frame();
  const mount = (names, el) => {
    send({ type: "shown" });
    return mountViews(names, store, el);
  };
  return { store, mount };
}

export default () => {
  let explorer;
  return {
    initialize({ model, signal }) {
      explorer = connect(model);
      const all = (globalThis[EXPLORERS] ??= new Map()),
        key = model.get("key");
      all.set(key, explorer);
      signal?.addEventListener("abort", () => all.get(key) === explorer && all.delete(key));
    },
    render({ el }) {
      return explorer.mount(DASHBOARD, el);
    },
  };
};
