// One symbol, lit wherever it stands: in formulas, and in the fields, figures, tables and code lines that templates mark
// with the same names. A name is its characters in plain letters, an index after `_`: n_r, α, κ.
//
//   data-symbol="n_r n_rk"   what an element shows
//   data-code="n counts"     what programs call it

const SYMBOL = "math :is(msub, msubsup, mover[accent], mi)";
const plain = (node) => node.textContent.normalize("NFKC").replace(/[^\p{L}\p{N}*⋆]/gu, "");

// the whole symbol around a letter: its index and its accent belong to it
const symbolAt = (node) => {
  let found = node.closest?.(SYMBOL);
  for (let outer = found?.parentElement; outer?.matches("msub, msubsup, mover[accent], mrow") && plain(outer.firstElementChild).length < 3; outer = outer.parentElement) {
    if (outer.matches(SYMBOL)) found = outer;
  }
  return found;
};
const nameOf = (symbol) => {
  const [base, index] = symbol.children;
  if (symbol.localName === "mi") return plain(symbol);
  return symbol.localName === "mover" ? plain(base) + index.textContent.replace("ˆ", "^") : `${plain(base)}_${plain(index)}`;
};

let inFormulas;
const formulas = () => {
  if (!inFormulas) {
    inFormulas = new Map();
    for (const node of document.querySelectorAll(SYMBOL)) {
      if (symbolAt(node) !== node) continue;
      const name = nameOf(node);
      inFormulas.set(name, [...(inFormulas.get(name) ?? []), node]);
    }
  }
  return inFormulas;
};

const marked = (names) => names.flatMap((name) => [...document.querySelectorAll(`[data-symbol~="${CSS.escape(name)}"]`)]);

// the words for it in every program on the page
const inCode = (words) => {
  const ranges = [];
  const one = new RegExp(`(?<![\\w.])(?:${words.map((word) => RegExp.escape?.(word) ?? word).join("|")})(?!\\w)`, "gu");
  for (const code of words.length ? document.querySelectorAll("pre > code") : []) {
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      for (const { 0: word, index } of texts.currentNode.data.matchAll(one)) {
        const range = new Range();
        range.setStart(texts.currentNode, index);
        range.setEnd(texts.currentNode, index + word.length);
        ranges.push(range);
      }
    }
  }
  return ranges;
};

let lit = [];
let shown = [];
const light = (names) => {
  for (const element of lit) element.classList.remove("lit");
  shown = names;
  const there = marked(names);
  lit = [...there, ...names.flatMap((name) => formulas().get(name) ?? [])];
  if (lit.length < 2) lit = [];
  for (const element of lit) element.classList.add("lit");
  const words = [...new Set(there.flatMap((element) => element.dataset.code?.split(" ") ?? []))];
  if (globalThis.Highlight) CSS.highlights.set("symbol", new Highlight(...(lit.length ? inCode(words) : [])));
};

const namesAt = (node) => {
  const symbol = symbolAt(node);
  return symbol ? [nameOf(symbol)] : (node.closest?.("[data-symbol]")?.dataset.symbol.split(" ") ?? []);
};

addEventListener("pointerover", (event) => {
  const names = namesAt(event.target);
  if (names.join() !== shown.join()) light(names);
});
addEventListener("focusin", (event) => light(namesAt(event.target)));
addEventListener("focusout", () => light([]));
addEventListener("state", () => shown.length && light(shown));

// ---- by keyboard: the arrows walk through the symbols of a formula, a live region says what each is

const told = document.createElement("p");
told.className = "visually-hidden";
told.ariaLive = "polite";
document.body.append(told);
const shared = new Set([...document.querySelectorAll("[data-symbol]")].flatMap((element) => element.dataset.symbol.split(" ")));
for (const formula of document.querySelectorAll(".eq")) {
  const symbols = [...formula.querySelectorAll(SYMBOL)].filter((node) => symbolAt(node) === node);
  if (!symbols.some((symbol) => shared.has(nameOf(symbol)))) continue;
  formula.tabIndex = 0;
  formula.role = "group";
  formula.ariaLabel ||= document.documentElement.lang === "zh" ? "公式" : "Formula";
  let at = -1;
  formula.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = Math.min(symbols.length - 1, Math.max(0, at + step));
    symbols[at].scrollIntoView({ block: "nearest", inline: "nearest" });
    const names = [nameOf(symbols[at])];
    light(names);
    told.textContent = `${names[0].replace("_", " ")}. ${marked(names).map((element) => element.querySelector("label")?.textContent ?? "").find(Boolean) ?? ""}`;
  });
}
