// A single view: finds its Explorer in the page, by the key that both models have, and has it mount the view.

const all = (globalThis[Symbol.for("nvexplore.explorers")] ??= new Map());
const WAIT = 100,
  TRIES = 100; // after a page reload the Explorer's model may come later than this one

async function find(model, signal) {
  const key = model.get("key");
  if (!all.has(key))
    model.widget_manager?.get_model?.(model.get("explorer").replace("IPY_MODEL_", ""))?.catch(() => {});
  for (let i = 0; i < TRIES && !all.has(key) && !signal?.aborted; i++)
    await new Promise((next) => setTimeout(next, WAIT));
  return all.get(key);
}

export default {
  async render({ model, el, signal }) {
    const explorer = await find(model, signal);
    if (explorer) return explorer.mount([model.get("view")], el);
    if (!signal?.aborted) el.textContent = "nvexplore: the data of this view is gone; run the cell again.";
  },
};
