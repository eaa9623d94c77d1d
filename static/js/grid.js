// Text areas that hold rows of numbers, edited as tables. The text area stays the form's field: what is typed into a cell
// is written back into it, and everything else (asking the server, links, errors) goes on as if it had been typed there.

const MOST_CELLS = 4096;
const MOST_UNASKED = 512; // more inputs than these cost the browser more than the answers do
const LARGEST_FILE = 64 * 1024 * 1024 - 64 * 1024;
const zh = document.documentElement.lang === "zh";
const words = (chinese, english) => (zh ? chinese : english);

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};

// what ends a row and a value, as the server reads them
const grammar = document.querySelector("[data-row-breaks]").dataset;
const ROW_BREAK = new RegExp(`[${JSON.parse(grammar.rowBreaks)}]`);
const VALUE_BREAK = new RegExp(`[${JSON.parse(grammar.valueBreaks)}]`);
const isDivided = (text) => ROW_BREAK.test(text) || VALUE_BREAK.test(text);

// a cell that holds what parts cells (1,234 or 0,5) is quoted, so that the server refuses it at its place
const written = (rows) => rows.map((row) => row.map((cell) => (isDivided(cell) ? JSON.stringify(cell) : cell)).join(",")).join(";");
// a list as a program prints it, with its name in a log: `counts: [[2, 3], [8, 0]]`, `tensor([2., 3.])`
const PRINTED = /^(?:[\w./ -]{1,60}[:=]\s*)?(?:[\w.]{1,20}\()?\s*([[(].*[\])])$/s;
const printed = (text) =>
  PRINTED.exec(text.trim().replace(/,\s*\w+=[\w'".:<>]+(?=\s*[,)])/g, ""))?.[1]
    .split(/[\])]\s*[,;]?\s*[[(]/)
    .map((row) => row.replace(/[[\]()]/g, " ").trim().replace(/[, ]+$/, ""))
    .map((row) => row.split(row.includes(",") ? /\s*,\s*/ : /\s+/));
const rowsOf = (text) => printed(text) ??
  text
    .replace(/\r\n?/g, "\n")
    .replace(/^[ \n]+|[ \n]+$/g, "")
    .split(ROW_BREAK)
    .map((row) => row.split(VALUE_BREAK).map((cell) => cell.trim()));
// a spreadsheet's block has tabs, and its commas belong to the numbers
const blockOf = (text) => (text.includes("\t") && !printed(text) ? text.replace(/\r\n?/g, "\n").replace(/^\n+|\n+$/g, "").split("\n").map((row) => row.split("\t").map((cell) => cell.trim().replace(/^"(.*)"$/, "$1"))) : rowsOf(text));
// a first row of words above numbers is the block's header
const isNumber = (cell) => /^[+\-−]?(\d|\.\d|inf|nan)/i.test(cell);
const withoutHead = (block) => (block.length > 1 && !block[0].some(isNumber) && block[1].some(isNumber) ? block.slice(1) : block);
const flat = (value) => value !== null && typeof value === "object" && !Array.isArray(value) && Object.values(value).every((one) => one === null || typeof one !== "object");
const listed = (value, holds) => Array.isArray(value) && value.length > 0 && value.every(holds);

// What a text can be shown as: `layers` of rows (a matrix has one without a name), how they are written back, and
// whether the columns have names. Null where a table would not help.
const FORMS = {
  matrix: (text) => ({ layers: [["", rowsOf(text)]], write: ([[, rows]]) => written(rows) }),
  list: (text) => ({ layers: [["", [rowsOf(text).flat()]]], write: ([[, rows]]) => written(rows), single: true }),
  json: (text) => {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      return null;
    }
    const keys = (objects) => [...new Set(objects.flatMap((one) => Object.keys(one)))];
    if (listed(value, (row) => listed(row, flat))) {
      return {
        layers: keys(value.flat()).map((key) => [key, value.map((row) => row.map((cell) => shown(cell[key])))]),
        write: (layers) => JSON.stringify(layers[0][1].map((row, r) => row.map((_, k) => objectOf(layers.map(([key, rows]) => [key, rows[r]?.[k] ?? ""]))))),
      };
    }
    if (listed(value, flat)) {
      const names = keys(value);
      return {
        layers: [["", value.map((one) => names.map((key) => shown(one[key])))]],
        names,
        write: ([[, rows]]) => JSON.stringify(rows.map((row) => objectOf(names.map((key, i) => [key, row[i] ?? ""])))),
      };
    }
    return null;
  },
};
const sizeOf = ({ layers }) => layers.reduce((sum, [, rows]) => sum + rows.reduce((n, row) => n + row.length, 0), 0);
const shown = (value) => (value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value));
// a cell that is no JSON value is a text; a blank one is left out
const objectOf = (pairs) =>
  Object.fromEntries(
    pairs
      .filter(([, text]) => text !== "")
      .map(([key, text]) => {
        try {
          const value = JSON.parse(text);
          return [key, typeof value === "number" && String(value) !== text ? text : value];
        } catch {
          return [key, text];
        }
      }),
  );

const grids = [];

class Grid {
  constructor(area) {
    grids.push(this);
    this.area = area;
    this.form = FORMS[area.dataset.grid];
    this.label = document.querySelector(`label[for="${area.id}"]`)?.textContent.trim() ?? area.name;
    this.names = [area.dataset.row ?? words("行", "row"), area.dataset.column ?? (area.dataset.grid === "list" ? words("项", "entry") : words("列", "column"))];
    this.frame = element("div", { class: "grid", role: "group", "aria-label": this.label });
    this.toggle = element("button", { type: "button", class: "quiet grid-toggle" });
    this.actions = element("div", { class: "grid-actions" }, this.toggle);
    this.toggle.addEventListener("click", () => (this.frame.hidden ? this.open(true) : this.close()));
    for (const kind of ["input", "change"]) this.frame.addEventListener(kind, (event) => event.stopPropagation());
    this.frame.addEventListener("input", (event) => this.typed(event.target));
    this.frame.addEventListener("change", () => area.dispatchEvent(new Event("change", { bubbles: true })));
    this.past = []; // what pasted blocks replaced
    this.frame.addEventListener("keydown", (event) => this.walk(event));
    this.frame.addEventListener("keydown", (event) => this.undo(event));
    this.frame.addEventListener("paste", (event) => this.paste(event));
    area.addEventListener("cell", (event) => this.mark(event.detail));
    area.addEventListener("redraw", () => this.frame.hidden || this.open(false));
    area.after(this.frame, this.actions);
    this.close();
    const table = area.value.trim() ? this.form(area.value) : this.blank;
    // a single number, or JSON that is no table, is typed as text
    this.actions.hidden = !table || (area.dataset.grid === "list" && table.layers[0][1].flat().length < 2);
    if (area.value.trim() && !this.actions.hidden) this.open(false);
  }

  get blank() {
    return { matrix: this.form("0,0;0,0"), list: this.form("0,0"), json: null }[this.area.dataset.grid];
  }

  open(asked) {
    const table = this.area.value.trim() ? this.form(this.area.value) : this.blank;
    if (!asked && table && sizeOf(table) > MOST_UNASKED) return;
    if (!table || sizeOf(table) > MOST_CELLS) {
      if (asked) this.name(words("作为文本编辑：放不进表格", "Edit as text: this does not fit a table"));
      return;
    }
    this.table = table;
    this.frame.hidden = false;
    this.area.hidden = true;
    this.name(words("作为文本", "As text"));
    this.draw();
    if (asked) this.frame.querySelector("input").focus();
  }

  close() {
    this.frame.hidden = true;
    this.frame.replaceChildren();
    this.area.hidden = false;
    this.actions.replaceChildren(this.toggle);
    this.name(words("作为表格编辑", "Edit as a table"));
  }

  name(text) {
    this.toggle.textContent = text;
    this.toggle.setAttribute("aria-label", `${text}: ${this.label}`);
  }

  draw() {
    const { layers, names, single } = this.table;
    const columns = Math.max(...layers[0][1].map((row) => row.length));
    const [row, column] = this.names;
    this.frame.classList.toggle("grid-list", Boolean(single));
    this.frame.classList.toggle("grid-large", sizeOf(this.table) > MOST_UNASKED);
    const widest = Math.max(...layers.flatMap(([, rows]) => rows.flat().map((text) => text.length)));
    this.frame.style.setProperty("--digits", Math.min(Math.max(widest, 3), 10));
    const heads = Array.from({ length: columns }, (_, k) => element("th", { scope: "col" }, names?.[k] ?? String(k)));
    const tables = layers.map(([name, rows], layer) =>
      element(
        "table",
        {},
        ...(name ? [element("caption", {}, name)] : []),
        ...(single ? [] : [element("thead", {}, element("tr", {}, element("td", {}, names ? "" : `${column} →`), ...heads.map((head) => head.cloneNode(true))))]),
        element(
          "tbody",
          {},
          ...rows.map((cells, r) =>
            element("tr", {}, ...(single ? [] : [element("th", { scope: "row" }, `${row} ${r}`)]), ...Array.from({ length: columns }, (_, k) => element("td", {}, this.cell(name, layer, r, k, cells[k] ?? "")))),
          ),
        ),
      ),
    );
    this.frame.replaceChildren(element("div", { class: "table-scroll", tabindex: "0", role: "group", "aria-label": this.label }, ...tables));
    this.actions.replaceChildren(...(single ? [] : [this.stepper(row, 1, 0)]), ...(names ? [] : [this.stepper(column, 0, 1)]), this.toggle);
  }

  // one row or column less or more
  stepper(word, rows, columns) {
    const button = (sign, name, factor) => {
      const made = element("button", { type: "button", class: "quiet", "aria-label": `${this.label}: ${name}` }, sign);
      made.addEventListener("click", () => {
        const place = [...this.actions.querySelectorAll("button")].indexOf(made);
        this.resizeAll(factor * rows, factor * columns);
        this.actions.querySelectorAll("button")[place].focus();
      });
      return made;
    };
    return element("span", { class: "stepper" }, button("−", words(`减一个${word}`, `one ${word} less`), -1), element("span", {}, word), button("+", words(`加一个${word}`, `one ${word} more`), 1));
  }

  cell(layerName, layer, r, k, text) {
    const { names, single } = this.table;
    const [row, column] = this.names;
    const place = names ? [`${row} ${r}`, names[k]] : single ? [`${column} ${k}`] : [layerName, `${row} ${r}`, `${column} ${k}`];
    const input = element("input", { type: "text", inputmode: "decimal", spellcheck: "false", autocomplete: "off", "aria-label": `${this.label}: ${place.filter(Boolean).join(", ")}`, "data-at": `${layer} ${r} ${k}` });
    input.value = text;
    return input;
  }

  typed(input) {
    const [layer, r, k] = input.dataset.at.split(" ").map(Number);
    const row = this.table.layers[layer][1][r];
    while (row.length < k) row.push("");
    row[k] = input.value;
    this.past = [];
    // a ragged row ends where its last cell is emptied
    if (!this.table.names) while (row.length > 1 && row.at(-1) === "") row.pop();
    this.write();
  }

  write() {
    this.area.value = this.table.write(this.table.layers);
    this.area.dispatchEvent(new Event("input", { bubbles: true }));
  }

  get shape() {
    return this.frame.hidden ? "" : this.table.layers[0][1].map((row) => row.length).join();
  }

  // tables of one shape in one form belong together: a rank more in one is a rank more in all
  resizeAll(rows, columns) {
    const { shape } = this;
    for (const grid of grids.filter((grid) => grid.area.form === this.area.form && grid.shape === shape)) grid.resize(rows, columns);
    this.area.dispatchEvent(new Event("input", { bubbles: true }));
    this.area.dispatchEvent(new Event("change", { bubbles: true }));
  }

  // a new cell holds what is neutral in most places
  resize(rows, columns) {
    for (const [, table] of this.table.layers) {
      const width = Math.max(...table.map((row) => row.length));
      if (rows > 0) table.push(Array(width).fill("0"));
      if (rows < 0 && table.length > 1) table.pop();
      if (columns > 0) for (const row of table) row.push("0");
      if (columns < 0 && width > 1) for (const row of table) if (row.length === width) row.pop();
    }
    this.draw();
    this.area.value = this.table.write(this.table.layers);
  }

  // Enter and the arrows up and down go through a column
  walk(event) {
    const step = { ArrowDown: 1, Enter: 1, ArrowUp: -1 }[event.key];
    if (!step || !event.target.dataset.at) return;
    event.preventDefault();
    const [layer, r, k] = event.target.dataset.at.split(" ").map(Number);
    const next = this.frame.querySelector(`[data-at="${layer} ${r + step} ${k}"]`);
    next?.focus();
    next?.select();
  }

  // right after a block was pasted the browser has nothing to undo: the text before it comes back
  undo(event) {
    if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.shiftKey || !this.past.length) return;
    event.preventDefault();
    const at = event.target.dataset.at;
    this.area.value = this.past.pop();
    this.table = this.form(this.area.value);
    this.draw();
    this.area.dispatchEvent(new Event("input", { bubbles: true }));
    this.area.dispatchEvent(new Event("change", { bubbles: true }));
    (this.frame.querySelector(`[data-at="${at}"]`) ?? this.frame.querySelector("input")).focus();
  }

  // a block from a spreadsheet fills the cells from here on; the table grows as it needs to
  paste(event) {
    const text = event.clipboardData.getData("text");
    if (!event.target.dataset.at || (!isDivided(text.trim()) && !printed(text))) return;
    event.preventDefault();
    const [layer, r, k] = event.target.dataset.at.split(" ").map(Number);
    let block = withoutHead(blockOf(text));
    this.past.push(this.area.value);
    if (this.table.single) block = [block.flat()];
    const height = Math.max(this.table.layers[layer][1].length, r + block.length);
    for (const [, rows] of this.table.layers) while (rows.length < height) rows.push(rows.at(-1).map(() => "0"));
    for (const [i, cells] of block.entries()) {
      const row = this.table.layers[layer][1][r + i];
      for (const [j, value] of cells.entries()) if (!this.table.names || k + j < this.table.names.length) {
        while (row.length < k + j) row.push("0");
        row[k + j] = value;
      }
    }
    if (sizeOf(this.table) > MOST_UNASKED) this.close();
    else this.draw();
    this.write();
    this.area.dispatchEvent(new Event("change", { bubbles: true }));
    (this.frame.querySelector(`[data-at="${layer} ${r} ${k}"]`) ?? this.area).focus();
  }

  // the server's complaint, at its cell
  mark(place) {
    for (const wrong of this.frame.querySelectorAll("[aria-invalid]")) wrong.removeAttribute("aria-invalid");
    const [r, k] = (place ?? "").split(" ");
    if (!place) return;
    const cells = k === undefined ? this.frame.querySelectorAll(`[data-at^="0 ${r} "]`) : this.frame.querySelectorAll(`[data-at$=" ${r} ${k}"]`);
    for (const cell of cells) cell.setAttribute("aria-invalid", "true");
    const message = document.getElementById(`${this.area.id}-error`);
    const divided = [...cells].find((cell) => isDivided(cell.value) && this.area.dataset.grid !== "json");
    if (divided) message.textContent = words(`“${divided.value}”：一格只放一个数，小数点写作 .，千位不加分隔。`, `“${divided.value}”: a cell holds one number; decimals have a point, thousands no mark.`);
  }
}

for (const area of document.querySelectorAll("textarea[data-grid]")) new Grid(area);

// ---- files dropped on the instrument go the way of the upload form, with what is typed now

const upload = document.querySelector("form[data-upload]");
if (upload) {
  const file = upload.querySelector("input[type=file]");
  const main = document.querySelector("form[data-calculator]");
  const target = upload.closest("[data-panel]") ?? document.body;
  if (file.hasAttribute("aria-invalid")) file.focus();
  const withState = () => {
    for (const old of upload.querySelectorAll("input[type=hidden]")) old.remove();
    for (const [name, value] of new FormData(main)) if (typeof value === "string") upload.append(element("input", { type: "hidden", name, value }));
  };
  upload.addEventListener("submit", (event) => {
    withState();
    if (!(file.files[0]?.size > LARGEST_FILE)) return;
    event.preventDefault();
    file.setAttribute("aria-invalid", "true");
    upload.querySelector("[data-error=file]").textContent = words("超过 64 MiB：请改用更短的文件。", "is larger than 64 MiB: bring a shorter file.");
  });
  file.addEventListener("change", () => file.files.length && upload.requestSubmit());
  target.addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    target.classList.add("dropping");
  });
  target.addEventListener("dragleave", (event) => target.contains(event.relatedTarget) || target.classList.remove("dropping"));
  target.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return;
    event.preventDefault();
    target.classList.remove("dropping");
    const field = event.target.closest(".field")?.querySelector("textarea[data-grid]");
    const into = upload.elements.into;
    const name = field?.dataset.into ?? field?.name.replace(/^body\./, "");
    if (into && [...into.options].some((option) => option.value === name)) into.value = name;
    const one = new DataTransfer();
    one.items.add(event.dataTransfer.files[0]);
    file.files = one.files;
    upload.requestSubmit();
  });
}
