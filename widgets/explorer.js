// What anywidget runs: one store for each Explorer model, found by the views in a registry of the page.

import { unfolded, whole } from "./wire.js";
import { Store } from "./store.js";
import { plain } from "./words.js";
import { make } from "./kit.js";
import { pulse } from "./pulse.js";
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

/**
 * Keeps what was mounted when a front end draws an output anew, as JupyterLab does when Python writes its text again:
 * it takes the view's element out of the page and asks for another one. What stood in the old one then moves into the
 * new one as it is, scrolled and focused as it was. `keep(what, el, mount)` returns what removes it.
 */
export function keeper(create = () => make("div", {}), later = setTimeout, frame = requestFrame) {
  const kept = new Set();
  /** An element gets its place in the page some time after it was drawn; only one that had a place can lose it. */
  const watch = (one, el, tries = 100) =>
    later(() => {
      if (el.parentNode) one.placed = el;
      else if (one.el === el && tries) watch(one, el, tries - 1);
    }, 50);
  return (what, el, mount) => {
    let one = [...kept].find((other) => other.what === what && other.placed === other.el && !other.el.parentNode);
    if (one) {
      const { scrolls, focused } = one;
      frame(() => {
        for (const [part, [left, top]] of scrolls) Object.assign(part, { scrollLeft: left, scrollTop: top });
        if (document.activeElement === document.body) focused?.focus({ preventScroll: true });
      });
    } else {
      one = { what, host: create(), scrolls: new Map(), focused: null };
      const { host, scrolls } = one;
      host.addEventListener("scroll", ({ target: t }) => scrolls.set(t, [t.scrollLeft, t.scrollTop]), true);
      host.addEventListener("focusin", ({ target }) => (one.focused = target));
      const forget = () => host.contains(document.activeElement) || (one.focused = null);
      host.addEventListener("focusout", () => later(forget)); // what has moved is back by then
      one.remove = mount(host);
      kept.add(one);
    }
    one.el = el;
    el.append(one.host);
    watch(one, el);
    return () => {
      if (one.el !== el) return; // it has moved on
      kept.delete(one);
      one.remove();
      one.host.remove();
    };
  };
}

const requestFrame = (call) => requestAnimationFrame(call); // looked up when it is called: node has none

/** Tie a store to the Explorer's model. */
export function connect(model) {
  const send = (content) => {
    try {
      model.send(content);
      return true;
    } catch (error) {
      console.warn("nvexplore: no kernel to send to", error);
      setKernel("gone");
      return false;
    }
  };
  const save = (name, value) => {
    model.set(name, value);
    model.save_changes();
  };
  const asked = questions(send);
  let [timer, isTied, isTextAsked] = [0, false, false];
  const tell = () => {
    clearTimeout(timer);
    timer = 0;
    model.set("selection", [store.selection.kind, store.selection.id]);
    model.set("cursor", store.cursor);
    model.save_changes();
  };
  const store = new Store({
    resync: () => send({ type: "resync" }),
    command: (command) => send({ type: "command", command }) && kernel.expect(),
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
    status: (text) => Object.assign(store, { status: text, refused: "" }),
    has_controls: (has) => (store.hasControls = has && !store.isGone),
    events: (events) => (store.events = events),
    breakpoints: (names) => (store.breakpoints = names),
    frame: (frame) => frame && takeFrame(frame),
    cursor: (step) => timer || store.follow(step), // what this page is about to tell is newer
  };

  const say = (trouble) => {
    store.trouble = trouble;
    store.changed();
  };
  /** What Python sends can't be read: say so, and ask once for everything as text, which every front end delivers. */
  const complain = (what) => {
    say(`nvexplore: ${what} in this front end; Python was asked to send it as text`);
    if (!isTextAsked) isTextAsked = send({ type: "resync", text: true });
  };
  const receive = (message) => {
    try {
      store.trouble = "";
      if (store.receive(message) === "version") say("nvexplore: Python has another version; load the page again");
    } catch (error) {
      complain(`what Python sends does not arrive as it was sent (${error.message})`);
    }
  };
  const takeFrame = (told) => {
    const { run, seq } = store.live,
      { frame, missing } = unfolded(told);
    if (missing.length) return complain(`binary data does not arrive (${missing.join(", ")})`);
    if (frame.left_out) {
      if (frame.run === run && frame.seq <= seq) return; // all of it is here already
      send({ type: "resync" });
    }
    receive(frame);
  };
  const takeMessage = (content, buffers) => {
    const message = whole(content, buffers);
    if (!message) complain("binary data does not arrive");
    if (content.type === "answer") asked.answer(message ?? content, message ? undefined : null);
    else if (message) (content.type === "frame" ? takeFrame : receive)(message);
  };

  for (const [name, take] of Object.entries(takes)) {
    const listen = () => {
      if (name === "frame" && isTied) hear();
      take(model.get(name));
      store.changed();
    };
    model.on(`change:${name}`, listen);
    if (model.get(name) !== undefined) listen();
  }
  isTied = true;
  model.on("msg:custom", (content, buffers) => {
    hear();
    if (content.type === "done") store.done(content);
    if (["answer", "delta", "frame"].includes(content.type)) takeMessage(content, buffers);
  });
  const panels = {
    get: () => model.get("panels") ?? [],
    set: (names) => save("panels", names),
    subscribe(call) {
      model.on("change:panels", call);
      return () => model.off("change:panels", call);
    },
  };

  const kernel = pulse(model, setKernel);
  /** Why nothing is heard of the kernel. The buttons of one that is busy stay: it will take what they say. */
  function setKernel(how) {
    if (how === store.kernel) return;
    store.kernel = how;
    store.hasControls = !store.isGone && Boolean(model.get("has_controls"));
    if (store.isGone) store.asked = "";
    store.changed();
  }
  const hear = () => (kernel.hear(), store.hear());
  const ping = () => send({ type: "shown" }) && kernel.expect();
  model.on("comm_live_update", () => setTimeout(ping));

  const keep = keeper();
  /** Mount in an element of a view, below what must be said about all views. */
  function mountIn(what, el, mount) {
    const remove = keep(what, el, (host) => {
      const said = make("div", { className: "nvx-error nvx-warnings", role: "alert" });
      const warn = () => {
        const text = store.warnings.map(plain).join(". ");
        if (!text) said.remove();
        else if (!said.isConnected) host.prepend(said);
        if (said.textContent !== text) said.textContent = text;
      };
      const leave = store.subscribe(warn),
        unmount = mount(host);
      warn();
      return () => {
        leave();
        unmount();
        said.remove();
      };
    });
    const unwatch = kernel.watch(el);
    ping();
    return () => (unwatch(), remove());
  }
  return {
    store,
    mount: (names, el) => mountIn(names.join(), el, (host) => mountViews(names, store, host)),
    views: moreViews,
    mountDashboard: (el) => mountIn("", el, (host) => mountDashboard(store, panels, host)),
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
