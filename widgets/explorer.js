// What anywidget runs: one store for each Explorer model, found by the views in a registry of the page.

import { Store } from "./store.js";
import { moreViews, mountDashboard, mountViews } from "./dashboard.js";

const EXPLORERS = Symbol.for("nvexplore.explorers");
const LONGEST_ANSWER = 10_000,
  MOST_QUESTIONS = 64,
  CURSOR_EVERY = 100; // a slider that is dragged moves the cursor at each frame; Python hears of it less often

/** Questions to Python, by number; the numbers begin with something only this page has. */
function questions(send) {
  const page = Math.random().toString(36).slice(2),
    open = new Map();
  let last = 0;
  return {
    ask(what, id, step) {
      const number = `${page}-${++last}`;
      return new Promise((resolve) => {
        open.set(number, resolve);
        if (open.size > MOST_QUESTIONS) this.answer({ ask: open.keys().next().value }, null);
        setTimeout(() => this.answer({ ask: number }, null), LONGEST_ANSWER);
        if (!send({ type: "ask", ask: number, what, id, step })) this.answer({ ask: number }, null);
      });
    },
    answer({ ask, type, ...told }, value = told) {
      open.get(ask)?.(value);
      open.delete(ask);
    },
  };
}

/** Put a message's binary parts where they belong: `buffers` names the place of each. */
function whole({ buffers: paths = [], ...content }, buffers) {
  paths.forEach((path, i) => {
    const places = [].concat(path),
      last = places.pop();
    places.reduce((at, name) => at[name], content)[last] = buffers[i];
  });
  return content;
}

/** Tie a store to the Explorer's model. */
export function connect(model) {
  const send = (content) => {
    try {
      model.send(content);
      return true;
    } catch (error) {
      console.warn("nvexplore: no kernel to send to", error);
      return false;
    }
  };
  const save = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const asked = questions(send);
  let timer = 0;
  const tell = () => {
    clearTimeout(timer);
    timer = 0;
    model.set("selection", [store.selection.kind, store.selection.id]);
    model.set("cursor", store.cursor);
    model.save_changes();
  };
  const store = new Store({
    resync: () => send({ type: "resync" }),
    command: (command) => send({ type: "command", command }),
    stopAt: (events) => save("breakpoints", events),
    ask: (what, id, step) => asked.ask(what, id, step),
    select({ kind, id }) {
      const [oldKind, oldId] = model.get("selection") ?? [];
      if (kind !== oldKind || id !== oldId) tell();
      else timer ||= setTimeout(tell, CURSOR_EVERY);
    },
  });
  const takes = {
    selection([kind, id]) {
      store.selection = { kind, id };
    },
    status: (text) => (store.status = text),
    has_controls: (has) => (store.hasControls = has),
    events: (events) => (store.events = events),
    breakpoints: (names) => (store.breakpoints = names),
    frame: (frame) => frame && store.receive(frame),
    cursor: (step) => timer || store.follow(step), // what this page is about to tell is newer
  };
  for (const [name, take] of Object.entries(takes)) {
    const listen = () => {
      take(model.get(name));
      store.changed();
    };
    model.on(`change:${name}`, listen);
    if (model.get(name) !== undefined) listen();
  }
  model.on("msg:custom", (content, buffers) => {
    if (content.type === "answer") asked.answer(whole(content, buffers));
    else if (content.type === "delta") store.receive(whole(content, buffers));
  });
  const panels = {
    get: () => model.get("panels") ?? [],
    set: (names) => save("panels", names),
    subscribe(call) {
      model.on("change:panels", call);
      return () => model.off("change:panels", call);
    },
  };
  const shown = (remove) => {
    send({ type: "shown" });
    return remove;
  };
  return {
    store,
    mount: (names, el) => shown(mountViews(names, store, el)),
    views: moreViews,
    mountDashboard: (el) => shown(mountDashboard(store, panels, el)),
  };
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
      return explorer.mountDashboard(el);
    },
  };
};
