// Figures are inputs: what the server marks as a handle moves fields of its form, by the pointer or by the arrows. The
// script only writes the fields; the answer comes as after any other input.
//
//   data-drag-x="a 0.1 0 32"   one unit of the drawing to the right adds 0.1 to the field `a`, from 0 to 32 in whole steps
//   data-drag-y="grads:1:0 0.5"  one unit up adds 0.5 to row 1, column 0 of a field of rows
//   data-drag-x="lengths:0:1:2 0.1"  … part 2 of a cell such as 4+2+8
//   data-drag-x="counts:0:0|a 0.1"  the first of these fields that is filled
//   data-drag-x="norm *1.02"   one unit to the right multiplies by 1.02
//   data-origin="40 316"       of a figure with one handle: where its fields are 0, so that a click anywhere says where to

const BREAKS = /[;\n]/;
const PARTS = /[^+\s]+/g;

// a field, or one number in a field of rows
class Place {
  constructor(form, written) {
    const [names, unit, least = -Infinity, most = Infinity] = written.split(" ");
    for (const name of names.split("|")) {
      const [field, row, column, part = 0] = name.split(":");
      const found = form.elements[form.dataset.prefix + field];
      if (found && (!this.field || !this.field.value.trim())) Object.assign(this, { field: found, row, column, part: Number(part) });
    }
    this.times = unit[0] === "*";
    this.unit = Number(unit.replace("*", ""));
    this.bounds = [Number(least), Number(most)];
    this.step = least === -Infinity ? 10 ** Math.ceil(Math.log10(Math.abs(this.unit) * 2)) : 1;
  }

  get text() {
    if (this.row === undefined) return this.field.value;
    return this.field.value.split(BREAKS)[this.row]?.split(",")[this.column]?.match(PARTS)?.[this.part] ?? "";
  }

  get number() {
    const [number, below = 1] = this.text.replace("−", "-").split("/").map(Number);
    return this.text.trim() ? number / below : NaN;
  }

  // where so many units of the drawing lead from a number
  from(number, distance) {
    return this.times ? number * this.unit ** distance : number + distance * this.unit;
  }

  next(direction) {
    this.put(this.times ? this.number * 1.05 ** direction : this.number + direction * Math.sign(this.unit) * this.step);
  }

  put(number) {
    const [least, most] = this.bounds;
    const near = this.times ? Number(number.toPrecision(3)) : Math.round(number / this.step) * this.step;
    const rounded = Math.min(most, Math.max(least, near));
    const text = String(Number(rounded.toPrecision(10)));
    if (!Number.isFinite(rounded) || text === this.text.trim()) return;
    if (this.row === undefined) this.field.value = text;
    else {
      const rows = this.field.value.split(BREAKS).map((row) => row.split(","));
      let at = -1;
      rows[this.row][this.column] = rows[this.row][this.column].replace(PARTS, (part) => (++at === this.part ? text : part));
      this.field.value = rows.map((row) => row.join(",")).join(";");
      this.field.dispatchEvent(new Event("redraw")); // its table, where there is one
    }
    this.field.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

const formOf = (node) => node.closest("[data-panel]").querySelector("form[data-calculator]");
const placesOf = (handle) => {
  const places = ["dragX", "dragY"].map((way) => handle.dataset[way] && new Place(formOf(handle), handle.dataset[way]));
  return places.every((place) => !place || (place.field && Number.isFinite(place.number))) ? places : [];
};

// handles are there for keyboard and pointer as often as the server draws them
const HANDLE = "[data-drag-x], [data-drag-y]";
const enable = (within) => {
  for (const handle of within.querySelectorAll(HANDLE)) {
    const places = placesOf(handle);
    if (!places.length) continue;
    handle.closest("svg").setAttribute("role", "group");
    handle.setAttribute("role", "slider");
    handle.setAttribute("tabindex", "0");
    handle.setAttribute("aria-label", handle.dataset.label);
    handle.setAttribute("aria-valuenow", places.find(Boolean).number);
    handle.setAttribute("aria-valuetext", places.filter(Boolean).map((place) => place.text.trim()).join(", "));
  }
};
enable(document);

let held;
const twin = (figure, handle) => [...figure.querySelectorAll(HANDLE)].indexOf(handle);
addEventListener("state", (event) => {
  const kept = held?.at ?? focused;
  enable(event.target);
  if (!kept || !event.target.contains(kept.panel) || document.activeElement !== document.body) return;
  kept.panel.querySelectorAll(HANDLE)[kept.index]?.focus({ preventScroll: true });
});

let focused;
addEventListener("focusin", (event) => {
  const panel = event.target.matches?.(HANDLE) && event.target.closest("[data-panel]");
  focused = panel ? { panel, index: twin(panel, event.target) } : undefined;
});

const MOVES = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [1, 1], ArrowDown: [1, -1] };
addEventListener("keydown", (event) => {
  const move = MOVES[event.key];
  if (!move || !event.target.matches?.(HANDLE)) return;
  event.preventDefault();
  const places = placesOf(event.target);
  // with one way to go, both pairs of arrows go it
  const place = places[move[0]] || places.find(Boolean);
  place?.next(move[1]);
});

addEventListener("pointerdown", (event) => {
  const figure = event.button === 0 && event.target.closest?.("svg.figure");
  const anywhere = figure && figure.dataset.origin && event.pointerType !== "touch";
  const handle = event.target.closest?.(HANDLE) ?? (anywhere && figure.querySelector(HANDLE));
  const places = figure && handle ? placesOf(handle) : [];
  if (!places.length) return;
  event.preventDefault();
  handle.focus({ preventScroll: true });
  const matrix = figure.getScreenCTM().inverse();
  const at = (moved) => new DOMPoint(moved.clientX, moved.clientY).matrixTransform(matrix);
  const start = at(event);
  held = { at: focused, at0: start, places, from: places.map((place) => place && place.number), map: at };
  if (figure.dataset.origin) pick(figure, start);
  if (event.pointerType !== "touch") return;
  // a finger belongs to the element that it came down on, also when that is drawn anew and gone
  event.target.addEventListener("touchmove", (moved) => pull(moved.touches[0]));
  for (const kind of ["touchend", "touchcancel"]) event.target.addEventListener(kind, () => (held = undefined));
});

// a finger on a map scrolls the page; its tap says which cell
addEventListener("click", (event) => {
  const figure = event.pointerType === "touch" && event.target.closest?.("svg[data-origin]");
  const handle = figure && figure.querySelector(HANDLE);
  if (!handle || event.target.closest(HANDLE)) return;
  held = { places: placesOf(handle) };
  pick(figure, new DOMPoint(event.clientX, event.clientY).matrixTransform(figure.getScreenCTM().inverse()));
  held = undefined;
});

// where a click in a map of cells leads: the cell that holds the point
const pick = (figure, point) => {
  const [x, y] = figure.dataset.origin.split(" ").map(Number);
  const [across, up] = held.places;
  held.at0 = point;
  held.from = [Math.floor((point.x - x) * across.unit), Math.floor((y - point.y) * up.unit)];
  across.put(held.from[0]);
  up.put(held.from[1]);
};

const pull = (moved) => {
  if (!held) return;
  const { x, y } = held.map(moved);
  const [across, up] = held.places;
  if (across) across.put(across.from(held.from[0], x - held.at0.x));
  if (up) up.put(up.from(held.from[1], held.at0.y - y));
};
addEventListener("pointermove", (event) => event.pointerType !== "touch" && pull(event));
for (const kind of ["pointerup", "pointercancel"]) {
  addEventListener(kind, (event) => event.pointerType !== "touch" && (held = undefined));
}
