// One symbol, lit wherever it stands: in formulas, and in the fields, figures, tables, numbers of the text and code lines
// that stand for it. A name is its letters in plain text, an index after `_`, an accent after the letter: n_r, α, g^.
//
//   data-symbols="n_r n_rk=a rows.*.n=n COUNTS;θ=theta"   of a panel: names in formulas, fields and outputs, names in code
//   data-symbol="n_r"                                     of a part of its figures

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

// what panels say of their symbols
const list = (text = "") => text.split(" ").filter(Boolean);
const path = (places) => new RegExp(`^(?:${places.join("|").replaceAll(".", "\\.").replaceAll("*", "[^.]+")})$`);
const tables = [...document.querySelectorAll("[data-symbols]")].flatMap((panel) =>
  panel.dataset.symbols.split(";").map((entry) => {
    const [names, places, words] = entry.split("=").map(list);
    return { panel, id: panel.dataset.panel, names, places, words, path: path(places) };
  }),
);
const shows = (entry, node) => entry.path.test(node.dataset.field);
const fieldsOf = (entry) => entry.places.map((place) => document.getElementById(`${entry.id}-${place}`)?.closest(".field")).filter(Boolean);
const standFor = (entry) => [
  ...fieldsOf(entry),
  ...[...entry.panel.querySelectorAll("[data-field]")].filter((node) => shows(entry, node)).map((node) => node.closest("td, th") ?? node),
  ...entry.names.flatMap((name) => [...entry.panel.querySelectorAll(`[data-symbol~="${CSS.escape(name)}"]`)]),
  ...[...document.querySelectorAll(`[data-follows="${entry.id}"]`)].filter((node) => shows(entry, node)),
];
const entriesOf = (names) => tables.filter((entry) => entry.names.some((name) => names.includes(name)));

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
  const entries = entriesOf(names);
  lit = [...entries.flatMap(standFor), ...names.flatMap((name) => formulas().get(name) ?? [])];
  if (lit.length < 2) lit = [];
  for (const element of lit) element.classList.add("lit");
  const words = [...new Set(entries.flatMap((entry) => entry.words))];
  if (globalThis.Highlight) CSS.highlights.set("symbol", new Highlight(...(lit.length ? inCode(words) : [])));
};

const namesAt = (node) => {
  if (!node.closest) return [];
  const symbol = symbolAt(node);
  if (symbol) return [nameOf(symbol)];
  const mark = node.closest("[data-symbol]");
  if (mark) return list(mark.dataset.symbol);
  const shown = node.closest("[data-field]") ?? node.closest("td")?.querySelector("[data-field]");
  const field = node.closest(".field");
  const id = shown?.dataset.follows ?? node.closest("[data-symbols]")?.dataset.panel;
  const own = id && (shown || field) ? tables.filter((entry) => entry.id === id) : [];
  return own.filter((entry) => (shown ? shows(entry, shown) : fieldsOf(entry).includes(field))).flatMap((entry) => entry.names);
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
const shared = new Set(tables.flatMap((entry) => entry.names));
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
    const label = entriesOf(names).flatMap(fieldsOf)[0]?.querySelector("label, legend");
    told.textContent = `${names[0].replace("_", " ")}. ${label?.textContent ?? ""}`;
  });
}
