// The page round the instruments: its colours, the section being read, definitions at a finger, code to copy.

const zh = document.documentElement.lang === "zh";
const words = (chinese, english) => (zh ? chinese : english);
const root = document.documentElement;

// ---- light or dark: the system's until the reader chooses, and again when he chooses what the system has

const system = matchMedia("(prefers-color-scheme: dark)");
const colours = document.querySelector("[data-scheme-switch]");
const dark = () => (root.dataset.scheme ? root.dataset.scheme === "dark" : system.matches);
const nameColours = () => {
  const name = dark() ? colours.dataset.light : colours.dataset.dark;
  colours.title = name;
  colours.setAttribute("aria-label", name);
};
colours.addEventListener("click", () => {
  const wanted = dark() ? "light" : "dark";
  if ((wanted === "dark") === system.matches) delete root.dataset.scheme;
  else root.dataset.scheme = wanted;
  try {
    if (root.dataset.scheme) localStorage.setItem("scheme", wanted);
    else localStorage.removeItem("scheme");
  } catch {
    // storage is forbidden here: the choice lasts as long as the page
  }
  nameColours();
});
system.addEventListener("change", nameColours);
nameColours();

// ---- what is being read: marked in the contents, kept to the line by the language switch

const LINE = 160;
const nameOf = (block) => block.id || block.dataset.panel;
const topOf = (block) => block.getBoundingClientRect().top;
const SECTIONS = ":is(.prose > :is(h2, h3), .prose > hgroup > :is(h2, h3), .chapter-end > section)[id]";
const sections = [...document.querySelectorAll(SECTIONS)];
const blocks = [...document.querySelectorAll(`${SECTIONS}, .prose > :is([data-panel], .evidence[id])`)];

// where one reads: below the head of the page; on the last screen it sinks to its lower edge, past all that is left
const line = () => {
  const left = root.scrollHeight - innerHeight - scrollY;
  return left < innerHeight ? LINE + (innerHeight - LINE) * (1 - left / innerHeight) : LINE;
};

let read;
const findSection = () => {
  const found = sections.findLast((section) => topOf(section) < line());
  const block = blocks.findLast((one) => topOf(one) < LINE);
  for (const link of document.querySelectorAll("a[data-alternate]")) link.hash = block ? nameOf(block) : "";
  if (found === read) return;
  read = found;
  for (const link of document.querySelectorAll(".contents a")) {
    if (found && link.hash === "#" + found.id) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
  const current = document.querySelector(".contents-side [aria-current]");
  const list = current?.closest("nav");
  if (list && list.scrollHeight > list.clientHeight) list.scrollTop = current.offsetTop - list.clientHeight / 2;
};
let looking;
addEventListener("scroll", () => (looking ??= requestAnimationFrame(() => ((looking = undefined), findSection()))), { passive: true });

// the same place of the other language: the block, and how far towards the next one
const PLACE = "place";
const after = (block) => topOf(blocks[blocks.indexOf(block) + 1] ?? document.querySelector("footer"));
const keepPlace = () => {
  const block = blocks.findLast((one) => topOf(one) < LINE);
  if (!block) return;
  const share = (LINE - topOf(block)) / (after(block) - topOf(block));
  try {
    sessionStorage.setItem(PLACE, JSON.stringify([nameOf(block), share]));
  } catch {
    // without storage the block itself is the place
  }
};
const takePlace = () => {
  try {
    const [name, share] = JSON.parse(sessionStorage.getItem(PLACE));
    sessionStorage.removeItem(PLACE);
    const block = location.hash === "#" + name && blocks.find((one) => nameOf(one) === name);
    const go = () => scrollBy(0, topOf(block) + share * (after(block) - topOf(block)) - LINE);
    // the browser goes to the anchor first, and late fonts move the text: for a second, or until the reader scrolls
    let until = 0;
    const settle = () => {
      if (performance.now() > until) return;
      go();
      requestAnimationFrame(settle);
    };
    const begin = () => ((until = performance.now() + 1000), settle());
    if (block) addEventListener("load", begin, { once: true });
    for (const kind of ["wheel", "touchstart", "pointerdown", "keydown"]) {
      addEventListener(kind, () => (until = 0), { once: true, passive: true });
    }
  } catch {
    // nothing was kept, or it was not ours
  }
};
for (const link of document.querySelectorAll("a[data-alternate]")) link.addEventListener("click", keepPlace);
if (blocks.length) {
  takePlace();
  findSection();
}

// ---- a term at a finger: its definition as a note that leads on to the glossary; at a pointer the style sheet shows it

let note;
const makeNote = () => {
  const made = document.createElement("div");
  made.className = "term-note";
  made.popover = "auto";
  made.tabIndex = -1;
  made.autofocus = true;
  made.setAttribute("role", "dialog");
  document.body.append(made);
  return made;
};
document.addEventListener("click", (event) => {
  const term = event.target.closest?.(".term");
  const finger = event.pointerType ? event.pointerType !== "mouse" : matchMedia("(hover: none)").matches;
  if (!term || !finger || event.ctrlKey || event.metaKey || !HTMLElement.prototype.showPopover) return;
  event.preventDefault();
  note ??= makeNote();
  const on = document.createElement("a");
  on.href = term.href;
  on.textContent = words("术语表", "Glossary");
  note.setAttribute("aria-label", term.textContent);
  note.replaceChildren(term.getAttribute("aria-description"), " ", on);
  note.showPopover();
  const [place, column, box] = [term, term.closest("p, li, dd, figcaption, td") ?? term, note].map((one) => one.getBoundingClientRect());
  const below = place.bottom + 6;
  note.style.left = `${Math.max(8, Math.min(column.left, innerWidth - box.width - 8)) + scrollX}px`;
  note.style.top = `${(below + box.height < innerHeight ? below : place.top - box.height - 6) + scrollY}px`;
});

// Escape puts a definition away until pointer and focus have left its term
addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  for (const term of document.querySelectorAll(".term:is(:hover, :focus)")) {
    term.classList.add("put-away");
    for (const left of ["pointerleave", "blur"]) term.addEventListener(left, () => term.classList.remove("put-away"), { once: true });
  }
});

// ---- code to copy

const COPIED = 1600;
const addCopies = (place) => {
  for (const code of place.querySelectorAll("pre > code")) {
    if (code.previousElementSibling) continue;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = words("复制", "Copy");
    const corner = document.createElement("span");
    corner.className = "copy-corner";
    corner.append(button);
    code.before(corner);
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = words("已复制", "Copied");
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = words("已选中", "Selected");
      }
      setTimeout(() => (button.textContent = words("复制", "Copy")), COPIED);
    });
  }
};
addCopies(document);
for (const more of document.querySelectorAll("[data-more-body]")) new MutationObserver(() => addCopies(more)).observe(more, { childList: true });

// ---- a folded part that the address names is open

const unfold = () => {
  const named = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const folded = named && named.closest("details");
  if (!folded || folded.open) return;
  folded.open = true;
  named.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();

// ---- figures that show time: the player comes with the first one that is started

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("[data-play]");
  if (button) (await import("./player.js")).start(button);
});

// ---- one palette over everything, at `/` or Ctrl-K or on the link to the search; its script comes when it is asked for

const finder = document.querySelector("[data-palette]");
// what is typed while it comes is not lost
const find = async () => {
  let early = "";
  const keep = (event) => {
    if (event.key.length !== 1 || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    early += event.key;
  };
  addEventListener("keydown", keep, true);
  const { open } = await import(finder.dataset.palette);
  removeEventListener("keydown", keep, true);
  open(finder.href, early);
};
finder.addEventListener("click", (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || finder.ariaCurrent) return;
  event.preventDefault();
  find();
});
addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input:not([type=range], [type=radio], [type=checkbox]), textarea, select, [contenteditable]");
  const asked = (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) || (event.key === "k" && (event.ctrlKey || event.metaKey));
  if (!asked || event.defaultPrevented) return;
  event.preventDefault();
  find();
});
