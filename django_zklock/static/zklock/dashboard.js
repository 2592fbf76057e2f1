// The script of the dashboard: update ages, copy texts, and refresh the list without losing focus, selection or scroll position.
// Texts from ZooKeeper were escaped by the server. Here they are moved as DOM nodes, and no HTML is built from text.
"use strict";
(() => {
const begin = () => {
  // A field with an error. The browser cannot focus it while a theme still hides the page.
  if (document.activeElement === document.body) document.querySelector("#content [autofocus]")?.focus();

  const bar = document.getElementById("zklock-status");

  // --- Ages: counted from when the page got them, as the clock of this machine may differ from the server's.
  const began = new WeakMap();
  const format = (seconds, texts) => {
    const fill = (text, values) => text.replace(/\{([dhms])\}/g, (_, unit) => values[unit]);
    const s = Math.floor(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
    if (d) return fill(texts.days, { d, h: h % 24 });
    if (h) return fill(texts.hours, { h, m: m % 60 });
    if (m) return fill(texts.minutes, { m, s: s % 60 });
    return fill(texts.seconds, { s });
  };
  const texts = bar ? bar.dataset : { seconds: "{s} s", minutes: "{m} min {s} s", hours: "{h} h {m} min", days: "{d} d {h} h" };
  const tick = () => {
    if (document.hidden) return;
    for (const each of document.querySelectorAll("time.zklock-age[data-age]")) {
      if (!began.has(each)) began.set(each, performance.now());
      const passed = (performance.now() - began.get(each)) / 1000;
      if (passed >= 1) {
        const text = format(Number(each.dataset.age) + passed, texts);
        if (each.textContent !== text) each.textContent = text;
      }
    }
  };
  tick();
  setInterval(tick, 1000);

  // --- Copying.
  if (navigator.clipboard) {
    for (const button of document.querySelectorAll("button.zklock-copy")) {
      const label = button.textContent;
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = button.dataset.done;
        setTimeout(() => { button.textContent = label; }, 2000);
      });
    }
  }

  if (!bar) return;

  // --- Refreshing.
  const KEY = "zklock.refresh";
  const interval = document.getElementById("zklock-interval");
  const pause = document.getElementById("zklock-pause");
  const note = document.getElementById("zklock-note");
  const remembered = (() => { try { return localStorage.getItem(KEY); } catch { return null; } })();
  let paused = false, running = false, timer = 0;

  const choice = remembered ?? bar.dataset.refresh;
  if ([...interval.options].some((option) => option.value === choice)) interval.value = choice;
  bar.querySelector(".zklock-controls").hidden = false;

  const ticked = () => document.querySelector("#changelist-form input.action-select:checked") !== null;
  const choosing = () => {
    const active = document.activeElement;
    return active !== null && active !== interval && (active.tagName === "SELECT" || (active.id === "searchbar" && active.value !== active.defaultValue));
  };
  const say = (text) => { if (note.textContent !== text) note.textContent = text; };

  // Replace `old` by `fresh` unless they are equal, so that focus and selection are kept.
  const update = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    const active = document.activeElement;
    const inside = active !== null && old.contains(active);
    const same = (root) => [...root.querySelectorAll("a, button, input, select")].find((each) =>
      each.tagName === active.tagName && each.getAttribute("href") === active.getAttribute("href") &&
      each.getAttribute("name") === active.getAttribute("name") && each.getAttribute("value") === active.getAttribute("value"));
    const next = document.importNode(fresh, true);
    const refocus = inside ? same(next) : undefined;
    old.replaceWith(next);
    if (refocus) refocus.focus({ preventScroll: true });
  };
  const keyOf = (row) => row.querySelector('th a[href], td a[href]')?.getAttribute("href") ?? "";

  const updateRows = (old, fresh) => {
    if (old.tHead && fresh.tHead && old.tHead.textContent !== fresh.tHead.textContent) return false;
    const body = old.tBodies[0], next = fresh.tBodies[0];
    if (!body || !next || old.tBodies.length > 1 || fresh.tBodies.length > 1) return false;
    const rows = new Map([...body.rows].map((row) => [keyOf(row), row]));
    let place = body.firstElementChild;
    for (const row of [...next.rows]) {
      const known = rows.get(keyOf(row));
      if (!known) {
        body.insertBefore(document.importNode(row, true), place);
        continue;
      }
      rows.delete(keyOf(row));
      if (known === place) place = place.nextElementSibling;
      else body.insertBefore(known, place);
      if (known.cells.length !== row.cells.length) update(known, row);
      else [...row.cells].forEach((cell, i) => update(known.cells[i], cell));
    }
    for (const gone of rows.values()) gone.remove();
    return true;
  };

  const apply = (page) => {
    const live = page.getElementById("zklock-live");
    if (!live) return false;
    const mine = document.getElementById("zklock-live");
    // Element by element, so that screen readers announce the summary only when it has changed.
    if (mine.children.length === live.children.length) [...live.children].forEach((each, i) => updateLine(mine.children[i], each));
    else update(mine, live);
    const old = document.getElementById("result_list"), fresh = page.getElementById("result_list");
    if (old && fresh) {
      if (!updateRows(old, fresh)) update(old, fresh);
    } else if (old || fresh) {
      const form = document.getElementById("changelist-form"), other = page.getElementById("changelist-form");
      if (!form || !other) return false;
      location.reload();
      return true;
    }
    for (const selector of [".paginator", ".action-counter"]) {
      const before = document.querySelector(selector), after = page.querySelector(selector);
      if (before && after && selector === ".paginator") update(before, after);
    }
    document.title = page.title;
    return true;
  };
  const updateLine = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.tagName !== fresh.tagName || old.id !== fresh.id) return update(old, fresh);
    if (old.id === "zklock-summary") {
      if (old.textContent.replace(/\s+/g, " ") !== fresh.textContent.replace(/\s+/g, " "))
        old.replaceChildren(...document.importNode(fresh, true).childNodes);
      return;
    }
    update(old, fresh);
  };

  const refresh = async () => {
    if (running || paused || document.hidden || interval.value === "0") return;
    if (ticked()) { say(bar.dataset.tickedNote); return; }
    if (choosing()) return;
    running = true;
    try {
      const answer = await fetch(location.href, {
        headers: { "X-ZkLock-Refresh": "1" }, credentials: "same-origin", redirect: "error", signal: AbortSignal.timeout(10000),
      });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      // The user may have ticked a row or paused in the meantime.
      if (paused || ticked() || document.hidden) return;
      if (!apply(page)) throw new Error("another page");
      say("");
      bar.dispatchEvent(new CustomEvent("zklock:refreshed", { bubbles: true }));
    } catch {
      say(bar.dataset.failedNote);
    } finally {
      running = false;
    }
  };
  const schedule = () => {
    clearInterval(timer);
    const seconds = Number(interval.value);
    if (seconds > 0 && !paused) timer = setInterval(refresh, seconds * 1000);
  };
  interval.addEventListener("change", () => {
    try { localStorage.setItem(KEY, interval.value); } catch { /* the choice is not remembered */ }
    schedule();
  });
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? bar.dataset.pausedLabel : bar.dataset.runningLabel;
    schedule();
    if (!paused) refresh();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  schedule();
};

// The script may be loaded in the head of a page, before the elements exist.
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
else begin();
})();
