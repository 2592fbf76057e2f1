// The script of the dashboard: update ages, copy texts, and refresh a page without losing focus, selection or scroll position.
// Texts from ZooKeeper were escaped by the server. Here they are moved as DOM nodes, and no HTML is built from text.
"use strict";
(() => {
const begin = () => {
  // A field with an error. The browser cannot focus it while a theme still hides the page.
  if (document.activeElement === document.body) document.querySelector("#content [autofocus]")?.focus();

  const bar = document.getElementById("zklock-refresh");

  // The rows that the reader sees stay where they are on the screen. Browsers do not see to it in the scrolling box of a theme.
  const topOf = (row) => row.getBoundingClientRect().top;
  const rowsOnScreen = () => [...document.querySelectorAll("#result_list tbody tr")]
    .map((row) => [row, topOf(row)]).filter(([, top]) => top >= 0 && top < innerHeight);
  const keepRows = (change) => {
    const shown = scrollY ? rowsOnScreen() : [];
    const done = change();
    const shifts = shown.filter(([row]) => row.isConnected).map(([row, top]) => topOf(row) - top).sort((a, b) => a - b);
    const top = shifts[shifts.length >> 1];
    if (top) scrollBy({ top, behavior: "instant" });  // also by 0, it would stop a reader who is scrolling
    return done;
  };

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
  const tick = () => {
    if (document.hidden || !bar) return;
    // While ZooKeeper is away, or this site, nobody knows who holds what: only the age of that state goes on.
    const isOld = document.querySelector(".zklock-away, .zklock-stale");
    const part = isOld ? ":is(.zklock-banner, .zklock-strip, #zklock-connection) " : "";
    for (const time of document.querySelectorAll(`${part}time.zklock-age[data-age]`)) {
      if (!began.has(time)) began.set(time, performance.now());
      const passed = (performance.now() - began.get(time)) / 1000;
      if (passed >= 1) {
        const text = format(Number(time.dataset.age) + passed, bar.dataset);
        if (time.textContent !== text) time.textContent = text;
      }
    }
  };
  tick();
  setInterval(() => keepRows(tick), 1000);  // a text that gets longer, or shorter, may have another line

  // --- The filters of the list: Esc closes them.
  document.addEventListener("keydown", (event) => {
    const filters = document.querySelector("#zklock-filters[open]");
    if (event.key !== "Escape" || event.defaultPrevented || !filters) return;
    filters.open = false;
    filters.querySelector("summary").focus();
  });

  // --- Copying.
  const showCopyButtons = () => {
    if (navigator.clipboard) for (const button of document.querySelectorAll("button.zklock-copy[hidden]")) button.hidden = false;
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.zklock-copy");
    if (!button) return;
    const status = button.nextElementSibling;
    await navigator.clipboard.writeText(button.dataset.copy);
    status.textContent = button.dataset.done;
    setTimeout(() => { status.textContent = ""; }, 2000);
  });
  showCopyButtons();

  if (!bar) return;

  // --- Changing the page: only what differs, so that focus and typed texts stay, and screen readers hear only news.
  const update = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType === Node.TEXT_NODE && fresh.nodeType === Node.TEXT_NODE) {
      if (old.data.trim() !== fresh.data.trim()) old.data = fresh.data;
      return;
    }
    // A link or a button that has the focus must not become another one under the reader's finger.
    const isOther = ["id", "href", "value"].some((name) => old.getAttribute?.(name) !== fresh.getAttribute?.(name));
    if (old.nodeName !== fresh.nodeName || isOther || old.nodeName === "TIME") {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (old.nodeName === "TBODY" || old.tBodies?.length > 1 || old.classList.contains("zklock-keyed")) updateRows(old, fresh);
    else updateChildren(old, fresh);
  };
  const updateChildren = (old, fresh) => {
    const mine = [...old.childNodes], theirs = [...fresh.childNodes];
    if (mine.length === theirs.length && mine.every((node, i) => node.nodeName === theirs[i].nodeName)) {
      mine.forEach((node, i) => update(node, theirs[i]));
      return;
    }
    old.replaceChildren(...theirs.map((node) => document.importNode(node, true)));
  };
  // A card has an id. A theme may give each row a body of its own. Rows with the same first link are told apart by their order.
  const keyed = (body) => {
    const count = new Map();
    return new Map([...body.children].map((row) => {
      const name = row.id || row.querySelector("a[href]")?.getAttribute("href") || "";
      count.set(name, (count.get(name) ?? 0) + 1);
      return [`${count.get(name)} ${name}`, row];
    }));
  };
  const updateRows = (old, fresh) => {
    const rows = keyed(old);
    let place = old.firstElementChild;
    for (const [key, row] of keyed(fresh)) {
      const known = rows.get(key);
      if (!known) {
        old.insertBefore(document.importNode(row, true), place);
        continue;
      }
      rows.delete(key);
      if (known === place) place = place.nextElementSibling;
      else old.insertBefore(known, place);
      update(known, row);
    }
    for (const gone of rows.values()) gone.remove();
  };
  const LIVE = ".zklock-live[id], #result_list, .paginator, .object-tools";
  const apply = (page) => {
    const mine = [...document.querySelectorAll(LIVE)], theirs = [...page.querySelectorAll(LIVE)];
    if (!page.getElementById(bar.id)) return false;
    const active = document.activeElement, home = active.closest("[id]")?.id;
    if (mine.length !== theirs.length) location.reload();  // the list was empty and has locks now, or the other way round
    else mine.forEach((part, i) => update(part, theirs[i]));
    if (document.activeElement !== active) {  // it was moved, or replaced
      const same = (element) => element.closest("[id]")?.id === home
        && ["id", "href", "name", "form"].every((name) => element.getAttribute(name) === active.getAttribute(name));
      (active.isConnected ? active : [...document.querySelectorAll(active.tagName)].find(same))?.focus({ preventScroll: true });
    }
    document.title = page.title;
    showCopyButtons();
    return true;
  };

  // --- Refreshing.
  const KEY = "zklock.refresh";
  const interval = document.getElementById("zklock-interval");
  const note = document.getElementById("zklock-note");
  const remembered = (() => { try { return localStorage.getItem(KEY); } catch { return null; } })();
  let running = false, timer = 0, missed = 0;

  const choice = remembered ?? bar.dataset.refresh;
  if ([...interval.options].some((option) => option.value === choice)) interval.value = choice;
  interval.closest("[hidden]").hidden = false;

  const ticked = () => document.querySelector("#changelist-form input.action-select:checked") !== null;
  const typed = () => [...document.querySelectorAll("#content input[type=text], #searchbar")].some((field) => field.value !== field.defaultValue);
  const choosing = () => {
    const active = document.activeElement;
    return active !== null && active !== interval && active.tagName === "SELECT";
  };
  const say = (text) => {
    if (note.textContent !== text) keepRows(() => { note.textContent = text; });
  };

  // After two missed refreshes, or two minutes without one, the whole page says that it is old, since when and why.
  const old = document.getElementById("zklock-old"), oldSince = old.querySelector("time");
  const MOST_AGE = 120000;
  began.set(oldSince, performance.now());
  const onRefreshed = () => {
    missed = 0;
    old.hidden = true;
    document.body.classList.remove("zklock-stale");
    began.set(oldSince, performance.now());
    say("");
  };
  const onOld = (why) => {
    document.body.classList.add("zklock-stale");
    old.querySelector("span").textContent = why;
    if (old.hidden) document.title = `${bar.dataset.oldTitle}: ${document.title}`;
    old.hidden = false;
    tick();
  };
  const onMissed = (why) => {
    missed += 1;
    document.body.classList.add("zklock-stale");
    say(bar.dataset.failedNote);
    if (missed > 1) onOld(why);
  };
  setInterval(() => {
    if (old.hidden && !document.hidden && performance.now() - began.get(oldSince) >= MOST_AGE) keepRows(() => onOld(note.textContent));
  }, 1000);

  const refresh = async () => {
    if (running || document.hidden || interval.value === "0" || choosing()) return;
    if (ticked()) { say(bar.dataset.tickedNote); return; }
    if (typed()) { say(bar.dataset.typedNote); return; }
    running = true;
    try {
      const answer = await fetch(location.href, {
        headers: { "X-ZkLock-Refresh": interval.value }, credentials: "same-origin", redirect: "manual", signal: AbortSignal.timeout(10000),
      });
      if (answer.type === "opaqueredirect") { onMissed(bar.dataset.loginNote); return; }
      if (!answer.ok) { onMissed(bar.dataset.refusedNote); return; }
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      // The user may have ticked a row, or begun to type, in the meantime.
      if (ticked() || typed() || document.hidden) return;
      if (!keepRows(() => apply(page))) { onMissed(bar.dataset.loginNote); return; }
      onRefreshed();
      bar.dispatchEvent(new CustomEvent("zklock:refreshed", { bubbles: true }));
    } catch {
      onMissed(bar.dataset.silentNote);
    } finally {
      running = false;
    }
  };
  const schedule = () => {
    clearInterval(timer);
    const seconds = Number(interval.value);
    if (seconds > 0) timer = setInterval(refresh, seconds * 1000);
  };
  interval.addEventListener("change", () => {
    try { localStorage.setItem(KEY, interval.value); } catch { /* the choice is not remembered */ }
    schedule();
    refresh();
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
  schedule();
};

// The script may be loaded in the head of a page, before the elements exist.
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
else begin();
})();
