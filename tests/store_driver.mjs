// Plays messages into a Store for tests/test_store.py: a line in, a line out. The store's timers run when it says so.

import { createInterface } from "node:readline";
import { spansOf } from "../widgets/spans.js";
import { Store } from "../widgets/store.js";

const timers = [];
let resyncs = 0;
const store = new Store({ resync: () => resyncs++, later: (call) => timers.push(call) });

/** Binary as a notebook delivers it: a view at an odd offset. */
function unaligned(text) {
  const bytes = Buffer.from(text, "base64"),
    whole = new Uint8Array(bytes.length + 1);
  whole.set(bytes, 1);
  return new DataView(whole.buffer, 1);
}

function told() {
  return {
    step: store.step,
    event: store.event,
    seq: store.seq,
    gaps: store.gaps,
    words: [...store.words],
    written: [...store.written],
    waiting: store.waiting,
    running: store.running,
    sequences: [...store.sequences.values()].map(({ moves, isLive, ...seq }) => seq),
    owners: [...store.words.keys()].map((block) =>
      store
        .owners(block)
        .map(([seq]) => seq.id)
        .sort((a, b) => a - b),
    ),
    fills: [...store.fills()],
    columns: store.columns.map(({ seqs, kinds, starts, counts, ...head }) => ({
      ...head,
      entries: [...seqs].map((id, i) => [id, kinds[i], starts[i], counts[i]]),
    })),
    spans: [...store.sequences.values()].map((seq) => [seq.id, spansOf(seq, store.step - 1)]),
  };
}

for await (const line of createInterface({ input: process.stdin })) {
  const { message, run_timers: runTimers, tell } = JSON.parse(line);
  const before = resyncs;
  let verdict = "";
  if (message) {
    for (const [name, value] of Object.entries(message))
      if (value?.base64 !== undefined) message[name] = unaligned(value.base64);
    verdict = store.receive(message);
  }
  if (runTimers) for (const call of timers.splice(0)) call();
  console.log(JSON.stringify({ verdict, resyncs: resyncs - before, ...(tell ? told() : {}) }));
}
