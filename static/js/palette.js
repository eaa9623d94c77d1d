// The palette: a field over the page, and what it finds while one types; the list is that of the search page.

const zh = document.documentElement.lang === "zh";
const words = (chinese, english) => (zh ? chinese : english);
const PAUSE = 60;

let dialog, field, list, address, wanted, waiting;

const make = () => {
  dialog = document.createElement("dialog");
  dialog.className = "palette";
  dialog.setAttribute("aria-label", words("查找", "Find"));
  field = document.createElement("input");
  field.type = "search";
  field.maxLength = 200;
  field.autocomplete = "off";
  field.setAttribute("aria-label", words("查找章节、计算器、框架开关、报告、术语", "Find chapters, calculators, flags, reports, terms"));
  list = document.createElement("div");
  list.className = "palette-list";
  dialog.append(field, list);
  document.body.append(dialog);
  field.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(show, PAUSE);
  });
  dialog.addEventListener("keydown", walk);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("a")) dialog.close();
  });
};

// an answer that comes late does not take away the place that somebody has walked to
const renew = (html) => {
  const at = [...list.querySelectorAll("a")].indexOf(document.activeElement);
  list.innerHTML = html;
  if (at >= 0) ([...list.querySelectorAll("a")][at] ?? field).focus();
};

// the newest question is shown, whichever answer comes last
const show = async () => {
  clearTimeout(waiting);
  const query = field.value.trim();
  if (query === wanted) return;
  wanted = query;
  try {
    const response = await fetch(`${address}/palette?${new URLSearchParams({ q: query })}`);
    const html = await response.text();
    if (wanted === query && response.ok) renew(html);
  } catch {
    wanted = undefined; // the next key asks again
  }
};

const walk = async (event) => {
  const links = [...list.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    const next = at + (event.key === "ArrowDown" ? 1 : -1);
    (next < 0 ? field : (links[next] ?? links.at(-1) ?? field)).focus();
  } else if (event.key === "Escape") {
    event.preventDefault(); // a search field would only empty itself
    dialog.close();
  } else if (event.key === "Enter" && document.activeElement === field) {
    event.preventDefault();
    await show();
    list.querySelector("a")?.click();
  } else if (event.key.length === 1 && at >= 0 && !event.ctrlKey && !event.metaKey) {
    field.focus(); // typing goes on where it was
  }
};

export const open = (search, typed) => {
  if (!dialog) make();
  address = search;
  if (dialog.open) return;
  dialog.showModal();
  field.focus();
  field.select();
  if (typed) field.setRangeText(typed, 0, field.value.length, "end");
  show();
};
