// When a question that got no answer is asked again. Knows no page.
//
// A kernel that is busy answers nothing, and all that it is asked waits for it. So a question is repeated when
// something is heard again, and until then ever less often.

const FIRST_RETRY = 500, // milliseconds
  LONGEST_RETRY = 30_000,
  SOON = 250; // after something was heard: what was waiting in the kernel comes in a row

/** again: called when it is time to ask. */
export function retries(store, again) {
  let failed = 0,
    resting = null; // about what nothing is asked now
  const end = () => {
    if (resting) store.unanswered.delete(resting.wake);
    resting = null;
  };
  return {
    rests: (about) => resting?.about === about,
    /** No answer came about this. */
    rest(about) {
      end();
      const own = (resting = { about }),
        go = () => {
          if (resting !== own) return;
          end();
          again();
        };
      own.wake = () => store.host.later(go, SOON);
      store.unanswered.add(own.wake);
      const wait = Math.min(FIRST_RETRY * 2 ** failed++, LONGEST_RETRY);
      store.host.later(() => store.isGone || go(), wait);
    },
    /** An answer came. */
    succeed() {
      failed = 0;
      end();
    },
    stop: end,
  };
}
