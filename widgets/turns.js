// Who draws when: all views share the frames of a page, and what is out of sight waits. Knows no engine.

import { forgetThemes } from "./paint.js";

const FRAME_BUDGET = 12, // milliseconds of a frame for drawing; the page needs the rest for input, layout and paint
  NEARLY = "200px"; // so far outside of the page's window a view counts as in sight
const nextFrame = (call) => requestAnimationFrame(call),
  afterwards = (call, ms) => setTimeout(call, ms);

/**
 * The views that have asked to draw, first come first served. A frame goes on with the next one only while it is
 * expected to end within `budget`; the first one always draws. What is left over is marked `data-due` and comes first
 * in the next frame. A view is {root, draw(), isAway(), every}; it draws at most once in `every` milliseconds: what is
 * read and not watched need not change with each frame, which its layout would delay.
 */
export class Turns {
  constructor({ budget = FRAME_BUDGET, frame = nextFrame, later = afterwards, now = () => performance.now() } = {}) {
    Object.assign(this, { budget, frame, later, now });
    this.due = new Set(); // in the order in which they have asked; those that are away stay in it
    this.costs = new WeakMap(); // how many milliseconds a view's last drawing took
    this.drawn = new WeakMap(); // when that was
    this.gone = new WeakSet();
    this.isAsked = this.isLater = false;
  }

  /** Draw a view soon, however often it asks. */
  ask(view) {
    if (this.gone.has(view)) return;
    this.due.add(view);
    if (this.isAsked || this._isAway(view)) return;
    if (this._isEarly(view)) {
      view.root.dataset.due = "";
      return this._askLater();
    }
    this.isAsked = true;
    this.frame(() => this._run());
  }

  /** A view has come into sight: what it has missed is drawn now. */
  came(view) {
    if (this.due.has(view)) this.ask(view);
  }

  /** A view has been removed: it does not draw any more, whatever still asks. */
  drop(view) {
    this.gone.add(view);
    this.due.delete(view);
  }

  /** Draw all that is due at once, in sight or not. */
  all() {
    for (const view of [...this.due]) this._draw(view);
  }

  _askLater() {
    if (this.isLater) return;
    this.isLater = true;
    const waits = [...this.due].filter((view) => this._isEarly(view)).map((view) => this._whenAgain(view) - this.now());
    this.later(
      () => {
        this.isLater = false;
        for (const view of this.due) this.ask(view);
      },
      Math.min(...waits),
    );
  }

  _run() {
    const begin = this.now();
    this.isAsked = false;
    const here = [],
      early = [];
    for (const view of this.due) if (!this._isAway(view)) (this._isEarly(view) ? early : here).push(view);
    for (const view of this.due) delete view.root.dataset.due;
    let numDrawn = 0;
    for (const view of here) {
      const spent = this.now() - begin;
      if (numDrawn && spent + this.costs.get(view) > this.budget) break;
      if (numDrawn && !this.costs.has(view) && spent > this.budget / 2) break;
      numDrawn++;
      if (this.due.has(view)) this._draw(view); // unless another one has removed it
    }
    for (const view of [...here.slice(numDrawn), ...early]) {
      if (!this.due.has(view)) continue;
      view.root.dataset.due = "";
      this.ask(view);
    }
  }

  _draw(view) {
    const begin = this.now();
    this.due.delete(view);
    try {
      view.draw();
    } catch (error) {
      reportError(error); // and the others go on
    }
    this.costs.set(view, this.now() - begin);
    this.drawn.set(view, begin);
  }

  _whenAgain(view) {
    return (this.drawn.get(view) ?? -Infinity) + (view.every ?? 0);
  }

  _isEarly(view) {
    return this.now() < this._whenAgain(view);
  }

  /** The first drawing is made in any case: it gives a view its size. */
  _isAway(view) {
    return this.costs.has(view) && view.isAway();
  }
}

const turns = new Turns(); // of this page
globalThis.addEventListener?.("beforeprint", () => turns.all());

/**
 * Have `draw` called when the view `root` asks for it, at most once in `every` milliseconds, and when its size or the
 * theme has changed: {ask(), stop()}.
 */
export function takeTurns(root, draw, every = 0) {
  const sight = watchSight(root, () => turns.came(view)),
    view = {
      root,
      draw,
      isAway: sight.isAway,
      get every() {
        return isAtKeyboard(root) ? 0 : every; // keys are answered at once
      },
    },
    ask = () => turns.ask(view),
    forget = watchLooks(root, ask);
  ask();
  return {
    ask,
    stop() {
      turns.drop(view);
      sight.stop();
      forget();
    },
  };
}

function isAtKeyboard(root) {
  return root.contains(document.activeElement);
}

/**
 * Watch whether `root` is in sight: not scrolled away, folded away or on a hidden tab. (In a page that is hidden there
 * are no frames at all.) came() is called when it comes into sight. Returns {isAway(), stop()}.
 */
function watchSight(root, came) {
  let isIn = true;
  if (!globalThis.IntersectionObserver) return { isAway: () => false, stop() {} };
  const observer = new IntersectionObserver(
    (entries) => {
      isIn = entries.at(-1).isIntersecting;
      if (isIn) came();
    },
    { rootMargin: NEARLY },
  );
  observer.observe(root);
  return {
    isAway: () => !isIn && !isAtKeyboard(root), // it goes on talking
    stop: () => observer.disconnect(),
  };
}

/** Call `ask` when the size of `root` or the theme has changed; returns what ends that. */
function watchLooks(root, ask) {
  const changed = () => {
    forgetThemes();
    ask();
  };
  const sizes = new ResizeObserver(changed),
    themes = new MutationObserver(changed),
    scheme = matchMedia("(prefers-color-scheme: dark)");
  sizes.observe(root);
  const options = {
    attributes: true,
    attributeFilter: ["class", "style", "data-jp-theme-light", "data-vscode-theme-kind"],
  };
  for (const el of [document.documentElement, document.body]) themes.observe(el, options);
  scheme.addEventListener("change", changed);
  return () => {
    sizes.disconnect();
    themes.disconnect();
    scheme.removeEventListener("change", changed);
  };
}
