// Does something again and again while the page can be seen: at once, then `periodMs` after each end, later and
// later while the coordinator is silent. A hidden page asks nothing.
// SPDX-License-Identifier: Apache-2.0

const MAX_PERIOD_MS = 10_000;
const RETRY_MS = 1000;

// `work(signal)` returns a promise; `false` from it ends the repetition. Returns a function that ends it.
export function repeat(periodMs, work) {
  let timer = 0;
  let control = null;
  let failures = 0;
  let ended = false;

  async function run() {
    timer = 0;
    if (ended || document.hidden || control) return;
    const mine = new AbortController();
    control = mine;
    let delay = periodMs;
    try {
      if ((await work(mine.signal)) === false) return stop();
      failures = 0;
    } catch (error) {
      if (!mine.signal.aborted) {
        if (error.status === undefined) console.error(error);
        failures += 1;
        delay = Math.max(periodMs, Math.min(MAX_PERIOD_MS, RETRY_MS * 2 ** (failures - 1)));
      }
    } finally {
      if (control === mine) control = null;
    }
    if (!ended && !document.hidden && !timer) timer = setTimeout(run, delay);
  }

  function onVisibility() {
    clearTimeout(timer);
    timer = 0;
    if (document.hidden) {
      control?.abort();
      control = null;
    } else {
      failures = 0;
      run();
    }
  }

  function stop() {
    ended = true;
    clearTimeout(timer);
    control?.abort();
    document.removeEventListener("visibilitychange", onVisibility);
  }

  document.addEventListener("visibilitychange", onVisibility);
  run();
  return stop;
}

// Calls `draw` soon, but at most once in `periodMs`.
export function atMostEvery(periodMs, draw) {
  let last = -Infinity;
  let timer = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => {
      timer = 0;
      last = performance.now();
      draw();
    }, Math.max(0, last + periodMs - performance.now()));
  };
}
