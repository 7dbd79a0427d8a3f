// Whether a kernel is behind the views: one that is busy answers later, one that is gone never. Knows no store.
//
// A model without a kernel tells nobody: `send` throws, or nothing ever comes back. Nothing comes back from a kernel
// that is busy either, for as long as a cell runs: which of both it is, only the front end knows.

const SILENCE = 5_000, // milliseconds without an answer after which something is said
  AT_ONCE = 500, // and where the front end itself says that there is no kernel
  LOOK_AGAIN = 1_000,
  NO_COMM = ".jupyter-widgets-disconnected", // ipywidgets marks views so whose model has no comm
  ENDED = ["dead", "terminating"],
  AT_WORK = ["busy", "starting", "restarting", "autorestarting"];

/** What is said of a kernel that does not answer: before and after the state that is shown. */
const SILENT = {
  gone: ["no kernel answers", "; run the cells again to go on"],
  busy: ["the kernel is busy and has not answered yet", ""],
  silent: ["the kernel has not answered yet, it may be busy or gone", "; if it is gone, run the cells again to go on"],
};

/** Why nothing is heard of a kernel, in words. shown: what that leaves on the page; how: see `pulse`. */
export function silenceWords(how, shown) {
  return how && `${SILENT[how][0]}: ${shown}${SILENT[how][1]}`;
}

/** What the front end says of a model's kernel: "gone", "busy" or "idle"; "" where it does not say. */
function kernelState(model, places) {
  for (const el of places) if (el.closest?.(NO_COMM)) return "gone";
  let kernel;
  try {
    kernel = model.widget_manager?.kernel; // JupyterLab and Notebook have it
  } catch {
    return "";
  }
  if (kernel === undefined) return "";
  if (!kernel || ENDED.includes(kernel.status) || kernel.connectionStatus === "disconnected") return "gone";
  return kernel.status === "idle" ? "idle" : AT_WORK.includes(kernel.status) ? "busy" : "";
}

/**
 * Watch for a kernel's answers: `hear()` at each, `expect()` when something was sent that is answered. say(how) is
 * called with "gone", "busy", "silent" (it may be either) and, once it is heard, "". watch(el): the element of a view,
 * as long as there is one; returns what ends that.
 */
export function pulse(model, say) {
  const places = new Set();
  let heard = 0,
    waits = -1, // how much had been heard when the silence began
    since = 0,
    timer = 0,
    wasIdle = false;

  function look() {
    const state = kernelState(model, places);
    // Between two cells a kernel is idle for a moment.
    if (state === "gone" || (state === "idle" && wasIdle)) return say("gone");
    if (state !== "idle") say(state || "silent");
    wasIdle = state === "idle";
    if (state) timer = setTimeout(look, LOOK_AGAIN);
  }
  return {
    hear() {
      heard += 1;
      clearTimeout(timer);
      say("");
    },
    expect() {
      if (waits !== heard) [waits, since, wasIdle] = [heard, performance.now(), false];
      const rest = since + SILENCE - performance.now();
      clearTimeout(timer);
      timer = setTimeout(look, kernelState(model, places) === "gone" ? AT_ONCE : Math.max(0, rest));
    },
    watch(el) {
      places.add(el);
      return () => {
        places.delete(el);
        if (!places.size) clearTimeout(timer);
      };
    },
  };
}
