// Figures are inputs: what is pulled in a drawing sets the fields that it stands for, as if it had been typed there.
//
//   data-pull="FIELD ROW COLUMN AXIS FROM TO LOW HIGH HOW; …"
//
// Along the AXIS, x or y, a pointer between FROM and TO (units of the drawing) means a value between LOW and HIGH: rounded,
// or with HOW = floor the cell that it is in. ROW and COLUMN are a place in a field of rows, "-" where it is one number.

const read = (text) =>
  text.split(";").map((part) => {
    const [field, row, column, axis, ...rest] = part.trim().split(" ");
    const [from, to, low, high] = rest.map(Number);
    return { field, row, column, axis, from, to, low, high, how: rest[4] };
  });

const valueAt = ({ axis, from, to, low, high, how }, point) => {
  const share = Math.min(1, Math.max(0, (point[axis] - from) / (to - from)));
  const value = low + share * (high - low);
  if (how === "floor") return Math.min(Math.floor(value), high - 1);
  const step = 10 ** Math.floor(Math.log10(Math.abs(high - low) / 100));
  return Number((Math.round(value / step) * step).toPrecision(10));
};

// what ends a row and a value, as the server reads them
const grammar = document.querySelector("[data-row-breaks]")?.dataset ?? { rowBreaks: '";"', valueBreaks: '","' };
const [rowBreak, valueBreak] = [grammar.rowBreaks, grammar.valueBreaks].map((marks) => new RegExp(`[${JSON.parse(marks)}]`));

const placed = (text, row, column, value) => {
  const rows = text.trim().split(rowBreak).map((line) => line.split(valueBreak));
  rows[row][column] = String(value);
  return rows.map((cells) => cells.join(",")).join(";");
};

export const begin = (handle, event) => {
  const svg = handle.ownerSVGElement;
  const form = handle.closest("[data-panel]").querySelector("form[data-calculator]");
  // the drawing is made anew with every state: what a place means stays as it was when the pull began
  const named = (name) => form.elements[form.dataset.prefix + name] ?? form.elements[`body.${name}`];
  const pulls = read(handle.dataset.pull).filter((one) => named(one.field));
  const inverse = svg.getScreenCTM().inverse();
  if (!pulls.length) return;
  const [left, top] = [event.clientX + scrollX, event.clientY + scrollY];
  const pull = ({ pageX, pageY }) => {
    const point = new DOMPoint(event.clientX + pageX - left, event.clientY + pageY - top).matrixTransform(inverse);
    for (const one of pulls) {
      const field = named(one.field);
      const value = valueAt(one, point);
      field.value = one.row === "-" ? value : placed(field.value, one.row, one.column, value);
      field.dispatchEvent(new Event("input", { bubbles: true }));
    }
  };
  const move = (next) => (next.buttons ? pull(next) : end());
  const end = () => {
    removeEventListener("pointermove", move);
    named(pulls[0].field).dispatchEvent(new Event("change", { bubbles: true }));
  };
  addEventListener("pointermove", move);
  for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, end, { once: true });
  pull(event);
};
