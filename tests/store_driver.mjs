// Plays messages into a Store for tests/store_process.py: a line in, a line out. The store's timers run when that says
// so, and what the store asks of Python waits until the answer comes in a line.

import { createHash } from "node:crypto";
import { createInterface } from "node:readline";
import { spansOf } from "../widgets/spans.js";
import { Store } from "../widgets/store.js";

let store,
  timers = [],
  questions = [],
  clock = 0,
  resyncs = 0;

function begin() {
  [timers, questions] = [[], []];
  store = new Store({
    resync: () => resyncs++,
    later: (call) => timers.push(call),
    now: () => (clock += 10_000), // whoever looks at the clock has waited long enough
    ask: (what, id, step) => new Promise((resolve) => questions.push({ what, id, step, resolve })),
  });
}

/** Binary as a notebook delivers it: a view at an odd offset. */
function unaligned(text) {
  const bytes = Buffer.from(text, "base64"),
    whole = new Uint8Array(bytes.length + 1);
  whole.set(bytes, 1);
  return new DataView(whole.buffer, 1);
}

function decoded(message) {
  for (const [name, value] of Object.entries(message))
    if (value?.base64 !== undefined) message[name] = unaligned(value.base64);
  return message;
}

const columns = () =>
  store.columns.map(({ seqs, kinds, starts, counts, ...head }) => ({
    ...head,
    entries: [...seqs].map((id, i) => [id, kinds[i], starts[i], counts[i]]),
  }));

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
    columns: columns(),
    spans: [...store.sequences.values()].map((seq) => [seq.id, spansOf(seq, store.step - 1)]),
  };
}

/** A hash of the shown state; tests/store_process.py makes the same of a fold. */
function digest() {
  const live = [...store.sequences.values()].filter((seq) => seq.isLive).sort((a, b) => a.id - b.id);
  const numbers = [store.step, store.event, store.blockSize, store.numBlocks, store.maxNumSeqs];
  const parts = [
    [...numbers, store.maxNumBatchedTokens, store.waiting, store.running],
    live.map((seq) => [seq.id, seq.name, seq.status, seq.numPrompt, seq.numTokens]),
    live.map((seq) => [seq.numCached, seq.numComputed, seq.numPreemptions, seq.table]),
  ];
  const hash = createHash("sha256").update(JSON.stringify(parts));
  for (const bytes of [Float64Array.of(store.time), store.words, store.written]) hash.update(bytes);
  return hash.digest("hex");
}

function lives() {
  const { cursor, notice, shownStep, liveStep, isPast, isLoading } = store;
  return {
    ...{ cursor, notice, shownStep, liveStep, isPast, isLoading },
    ended: [...store.sequences.values()].filter((seq) => !seq.isLive).map((seq) => [seq.id, seq.status, seq.ended]),
    moves: [...store.sequences.values()].filter((seq) => seq.isLive).map((seq) => [seq.id, seq.born, seq.moves]),
    columns: columns(),
  };
}

begin();
for await (const line of createInterface({ input: process.stdin })) {
  const request = JSON.parse(line),
    before = resyncs;
  if (request.begin) begin();
  const verdicts = (request.messages ?? []).map((message) => store.receive(decoded(message)));
  if (request.run_timers) for (const call of timers.splice(0)) call();
  if (request.look_at !== undefined) store.lookAt(request.look_at);
  if (request.answer) {
    questions.shift().resolve(decoded(request.answer));
    await new Promise(setImmediate);
  }
  const asked = questions.map(({ what, id, step }) => [what, id, step]);
  console.log(
    JSON.stringify({
      ...{ verdicts, asked, resyncs: resyncs - before },
      ...(request.tell ? told() : {}),
      ...(request.digest ? { digest: digest() } : {}),
      ...(request.lives ? lives() : {}),
    }),
  );
}
