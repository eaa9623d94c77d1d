// Makes panels answer while their inputs move. Every number comes from the server; what is shown is a pure function of
// the address it came from, so an answer that was seen or fetched ahead may be shown again.

const KEPT = 128;
const LONGEST_ADDRESS = Number(document.querySelector("[data-longest-address]").dataset.longestAddress);
const PATIENCE = 5000;
const SLOW = 400;
const RETRY = 3000;
const PAUSE = 250;
const GLIDE = 220;
const ALONE = 300;
const MOST_SHAPES = 300;
const SHAPES = "svg.figure :is(rect, circle, path)";
const GEOMETRY = ["x", "y", "width", "height", "cx", "cy", "r", "d"];
const calm = matchMedia("(prefers-reduced-motion: reduce)");

// ---- the page's address holds the state of every panel; browsers limit how often it may change

// a page that a sent form has brought has its state in the other language's link only
const page = new URLSearchParams(location.search || document.querySelector("a[data-alternate]")?.search);
let writing;

const readable = (state) => state.toString().replaceAll("%3B", ";").replaceAll("%2C", ",").replaceAll("%2F", "/");
const search = () => (page.size ? "?" + readable(page) : "");
const writeAddress = () => {
  clearTimeout(writing);
  writing = undefined;
  history.replaceState(history.state, "", location.pathname + search() + location.hash);
  for (const link of document.querySelectorAll("a[data-alternate]")) link.search = search();
};
const writeAddressSoon = () => {
  clearTimeout(writing);
  writing = setTimeout(writeAddress, PAUSE);
};
addEventListener("pagehide", () => writing && writeAddress());
addEventListener("popstate", () => new URLSearchParams(location.search).toString() !== page.toString() && location.reload());

// ---- answers by address: those at hand, and those on their way

const atHand = new Map();
const onTheWay = new Map();

// the address of an answer is its key also where it is too long to be asked for, and the state goes as a form
const isLong = (url) => url.split("?", 2)[1].length > LONGEST_ADDRESS;
const ask = (url) => {
  if (!onTheWay.has(url)) {
    const [place, state] = url.split("?", 2);
    const form = { method: "POST", body: new URLSearchParams(state) };
    const answer = (isLong(url) ? request(place, form) : request(url)).then((found) => {
      atHand.set(url, found);
      if (atHand.size > KEPT) atHand.delete(atHand.keys().next().value);
      return found;
    });
    onTheWay.set(url, answer.finally(() => onTheWay.delete(url)));
  }
  return onTheWay.get(url);
};
const request = async (url, options) => {
  const response = await fetch(url, { signal: AbortSignal.timeout(PATIENCE), ...options });
  if (!response.ok && response.status !== 422) throw new Error(`status ${response.status}`);
  return { ok: response.ok, html: await response.text() };
};

// a number as the server reads it (1/3, 7B); NaN where it is none
const POWERS = { k: 1e3, m: 1e6, g: 1e9, b: 1e9, t: 1e12, 万: 1e4, 亿: 1e8 };
const numberOf = (text) => {
  const [, number, below, letter] = /^\s*([^/]*?)(?:\/(\d+)| ?([kmgbt万亿]))?\s*$/i.exec(text.replace("−", "-")) ?? [];
  return number ? (Number(number) * (POWERS[letter?.toLowerCase()] ?? 1)) / Number(below ?? 1) : NaN;
};

// up and down in a number: by the step of its slider, else by its own, else by 1
const walk = (field, direction) => {
  const number = numberOf(field.value);
  const range = field.form.querySelector(`[data-twin="${field.id}"]:not([data-stops])`);
  const step = Number(range?.step) || Number(field.dataset.step) || 1;
  if (!Number.isFinite(number)) return false;
  field.value = String(Number((number + direction * step).toPrecision(12)));
  field.dispatchEvent(new Event("input", { bubbles: true }));
  return true;
};

// a slider goes to a number; its range grows until it holds it, so that the next key steps on from there
const reach = (range, number) => {
  if (!range.dataset.stops) {
    while (Number(range.max) > 0 && Number(range.max) < number) range.max *= 2;
    while (Number(range.min) < 0 && Number(range.min) > number) range.min *= 2;
    range.value = number;
    return;
  }
  const stops = range.dataset.stops.split(" ");
  const decade = stops.findIndex((stop) => Number(stop) >= 10 * Number(stops[0]));
  while (Number(stops.at(-1)) < number) for (let i = 0; i < decade; i++) stops.push(String(Number((10 * stops.at(-decade)).toPrecision(6))));
  range.dataset.stops = stops.join(" ");
  range.max = stops.length - 1;
  range.value = stops.findIndex((stop) => Number(stop) >= number);
};

class Panel {
  constructor(form) {
    this.form = form;
    this.prefix = form.dataset.prefix;
    this.frame = form.closest("[data-panel]");
    this.section = this.frame.querySelector("[data-result]");
    this.body = this.section.querySelector("[data-body]");
    this.errors = this.section.querySelector("[data-errors]");
    this.status = this.section.querySelector("[data-status]");
    this.spoken = this.section.querySelector("[data-spoken]");
    this.shown = this.first = this.state().toString();
    this.ahead = true;

    for (const range of form.querySelectorAll("[data-twin]")) range.twin = document.getElementById(range.dataset.twin);
    form.addEventListener("pointerdown", (event) => {
      this.ahead = false;
      this.keepInSight(event);
    });
    form.addEventListener("keydown", (event) => {
      this.ahead = true;
      const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
      if (direction && "step" in event.target.dataset && walk(event.target, direction)) event.preventDefault();
    });
    form.addEventListener("focusin", (event) => this.lookAhead(event.target));
    form.addEventListener("input", (event) => {
      this.pasted = /^insertFrom(Paste|Drop)/.test(event.inputType);
      this.mirror(event.target);
      this.send(event.target);
    });
    form.addEventListener("change", () => {
      this.pasted = true;
      if (!this.busy) this.takeRead();
      this.speakSoon();
    });
    form.addEventListener("submit", (event) => {
      if (event.submitter?.getAttribute("formmethod")) return;
      event.preventDefault();
      this.send();
      this.speakSoon();
    });
    addEventListener("online", () => this.section.dataset.state === "failed" && this.send());
    this.frame.querySelector("[data-copy]").addEventListener("click", () => this.copy());
    this.frame.querySelector("[data-summary]")?.addEventListener("click", (event) => this.copySummary(event.target));
    this.frame.querySelector("[data-card]")?.addEventListener("click", (event) => this.copyCard(event));
    this.more = this.frame.querySelector("[data-more-body]");
    this.more?.addEventListener("toggle", () => this.refreshMore(), true);
  }

  // a finger on a slider of a small screen: the figure that it moves stays above it, or below where there is no room
  keepInSight(event) {
    const figure = this.body.querySelector("figure");
    if (event.target.type !== "range" || event.pointerType === "mouse" || innerWidth > 640 || !figure) return;
    const [top, bottom] = ["top", "bottom"].map((side) => figure.getBoundingClientRect()[side]);
    if (top >= 0 && bottom <= innerHeight) return;
    this.frame.dataset.dragged = event.target.getBoundingClientRect().top > innerHeight / 2 ? "above" : "below";
    const end = () => delete this.frame.dataset.dragged;
    for (const kind of ["pointerup", "pointercancel"]) addEventListener(kind, end, { once: true });
  }

  // the fields by their bare names; a blank optional one is not given
  state(changed, value) {
    const state = new URLSearchParams();
    for (const field of this.form.elements) {
      if (!field.name.startsWith(this.prefix) || !field.name || field.type === "hidden") continue;
      if (field.type === "radio" && !field.checked) continue;
      const text = field === changed ? value : field.value;
      if (text !== "" || !("optional" in field.dataset)) state.set(field.name.slice(this.prefix.length), text);
    }
    return state;
  }

  // a slider and its number show the same value; a logarithmic slider counts its stops
  mirror(field) {
    const range = field.twin ? field : this.form.querySelector(`[data-twin="${field.id}"]`);
    if (!range) return;
    if (range.type === "checkbox") {
      mirrorSwitch(field, range);
      return;
    }
    if (!field.twin) {
      const number = numberOf(field.value);
      if (Number.isFinite(number)) reach(range, number);
    }
    const stops = range.dataset.stops?.split(" ");
    if (field.twin) field.twin.value = stops ? stops[field.value] : field.value;
    if (stops) range.setAttribute("aria-valuetext", stops[range.value]);
  }

  // ---- one request in flight, the newest next

  async send(source) {
    const state = this.state();
    this.wanted = state.toString();
    this.again = false;
    const url = `${this.form.dataset.resultUrl}?${this.wanted}`;
    if (atHand.has(url)) {
      this.show(atHand.get(url), state, source, isLong(url));
      return;
    }
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    const slow = setTimeout(() => this.say("waiting"), SLOW);
    try {
      const answer = await ask(url);
      // an answer that was overtaken by one at hand is old; one that the newest request still waits behind is not
      if (this.again || this.wanted === state.toString()) this.show(answer, state, source, isLong(url));
    } catch {
      if (!this.again) this.fail();
    } finally {
      clearTimeout(slow);
      this.busy = false;
      if (this.again) this.send(source);
    }
  }

  // tried again by the next input, when the network is back, and every few seconds
  fail() {
    this.say("failed");
    clearTimeout(this.retrying);
    this.retrying = setTimeout(() => this.section.dataset.state === "failed" && this.send(), RETRY);
  }

  show(answer, state, source, long) {
    this.mark(answer.ok ? "" : answer.html);
    if (!answer.ok) {
      this.say("invalid");
      return;
    }
    if (this.shown !== state.toString()) this.paint(answer.html);
    if (this.pasted && this.takeRead()) state = this.state();
    this.shown = state.toString();
    this.say(long ? "long" : "");
    this.refreshMoreSoon();
    for (const link of this.frame.querySelectorAll("a[data-state]")) link.hidden = long;
    if (!long) this.follow(state);
    this.lookAhead(source);
  }

  // what the server read from a log line goes into the fields that it belongs to, once the line is there as a whole
  takeRead() {
    const read = this.body.querySelector("[data-read]:not([data-taken])");
    if (!read) return false;
    read.dataset.taken = "";
    for (const [name, text] of Object.entries(JSON.parse(read.dataset.read))) {
      const field = this.form.elements[this.prefix + name];
      field.value = text;
      this.mirror(field);
    }
    this.follow(this.state());
    return true;
  }

  // what the reader opened or scrolled inside the results stays as it was
  paint(html) {
    const from = this.places();
    const open = [...this.body.querySelectorAll("details")].map((details) => details.open);
    const places = [...this.body.querySelectorAll(".table-scroll")].map((region) => region.scrollLeft);
    this.body.innerHTML = html;
    for (const [i, details] of this.body.querySelectorAll("details").entries()) details.open = open[i] ?? details.open;
    if (places.some(Boolean)) {
      for (const [i, region] of this.body.querySelectorAll(".table-scroll").entries()) region.scrollLeft = places[i] ?? 0;
    }
    this.glide(from);
  }

  // results glide from one state to the next where a state comes alone: what follows a finger needs no help
  places() {
    const now = performance.now();
    const alone = now - (this.painted ?? -ALONE) > ALONE;
    this.painted = now;
    if (!alone || calm.matches || !this.body.animate) return [];
    return this.shapes().map((shape) => [shape.tagName, GEOMETRY.map((name) => shape.getAttribute(name))]);
  }

  shapes() {
    return [...this.body.querySelectorAll(SHAPES)];
  }

  // only between figures of the same build: shape for shape the same element
  glide(from) {
    const shapes = from.length && from.length <= MOST_SHAPES ? this.shapes() : [];
    if (shapes.length !== from.length || shapes.some((shape, i) => shape.tagName !== from[i][0])) return;
    for (const [i, shape] of shapes.entries()) {
      const old = {};
      for (const [k, name] of GEOMETRY.entries()) {
        const [before, after] = [from[i][1][k], shape.getAttribute(name)];
        if (before === after || before === null || after === null) continue;
        old[name] = name === "d" ? `path("${before}")` : `${before}px`;
      }
      if (Object.keys(old).length) shape.animate(old, { duration: GLIDE, easing: "ease-out" });
    }
  }

  // the server's messages, moved beside their fields
  mark(html) {
    if (!html && !this.errors.firstChild) return;
    this.errors.innerHTML = html;
    for (const link of this.errors.querySelectorAll("a[href^='#']")) {
      const name = this.form.querySelector(`label[for="${link.hash.slice(1)}"], [id="${link.hash.slice(1)}"] > legend`);
      if (name) link.textContent = name.textContent.trim();
    }
    for (const place of this.form.querySelectorAll("[data-error]")) {
      const name = place.dataset.error;
      const message = this.errors.querySelector(`[data-error-for="${name}"] [data-message]`)?.textContent ?? "";
      const field = document.getElementById(`${this.form.id}-${name}`);
      if (place.textContent !== message) place.textContent = message;
      const cell = this.errors.querySelector(`[data-error-for="${name}"]`)?.dataset.cell;
      field.dispatchEvent(new CustomEvent("cell", { detail: cell }));
      if (message) field.setAttribute("aria-invalid", "true");
      else field.removeAttribute("aria-invalid");
      if (message && field.closest("details")) field.closest("details").open = true;
    }
  }

  // addresses follow the state: the page's, the links below the panel, the other language
  follow(state) {
    this.frame.dispatchEvent(new CustomEvent("state", { bubbles: true, detail: state }));
    for (const name of [...page.keys()]) if (name.startsWith(this.prefix)) page.delete(name);
    for (const [name, value] of state) page.set(this.prefix + name, value);
    writeAddressSoon();
    for (const link of this.frame.querySelectorAll("a[data-state]")) {
      const query = new URLSearchParams(state);
      if ("format" in link.dataset) query.set("format", link.dataset.format);
      link.search = readable(query);
    }
    const switched = this.frame.querySelector('[data-switch="general"]');
    if (switched) switched.search = readable(new URLSearchParams([["as", "general"], ...state]));
  }

  // ---- all numbers and the program of a state: asked for when they are open, after the results have come to rest

  refreshMoreSoon() {
    clearTimeout(this.refreshing);
    if (this.more) this.refreshing = setTimeout(() => this.refreshMore(), PAUSE);
  }

  async refreshMore() {
    const open = [...this.more.querySelectorAll("details[open]")].map((details) => details.dataset.more);
    const state = this.state();
    const key = state.toString();
    if (!open.length || (this.moreOf ?? this.first) === key || this.section.dataset.state === "invalid") return;
    const url = `${this.more.dataset.moreUrl}?${key}`;
    try {
      const answer = await ask(url);
      if (!answer.ok || this.state().toString() !== key) return;
      this.moreOf = key;
      this.more.innerHTML = answer.html;
      for (const details of this.more.querySelectorAll("details")) details.open = open.includes(details.dataset.more);
    } catch {
      this.moreOf = undefined;
    }
  }

  // ---- the status line tells how it stands with the answer; the verdict of one that has come to rest is spoken, and
  // not shown a second time

  say(kind) {
    if (kind) this.section.dataset.state = kind;
    else delete this.section.dataset.state;
    this.write(kind ? this.status.dataset[kind] : "");
  }

  write(text, place = this.status) {
    if (place.textContent !== text) place.textContent = text;
  }

  speakSoon() {
    clearTimeout(this.speaking);
    this.speaking = setTimeout(() => {
      if (this.busy) this.speakSoon();
      else if (!this.section.dataset.state) this.write(this.body.querySelector("[data-verdict]")?.textContent.trim() ?? "", this.spoken);
    }, PAUSE);
  }

  get link() {
    if (writing) writeAddress();
    return location.origin + location.pathname + search() + (this.prefix ? "#" + this.form.id : "");
  }

  async copy(text = this.link) {
    try {
      await navigator.clipboard.writeText(text);
      this.write(this.status.dataset.copied);
    } catch {
      this.write(text);
    }
  }

  // one line for a chat or a commit: what it is, the verdict, what to change, the link
  copySummary(button) {
    const said = ["[data-verdict]", "[data-fix]"].map((mark) => this.body.querySelector(mark)?.innerText ?? "");
    this.copy([`${button.dataset.summary}: ${said[0]}`, said[1], this.link].map((part) => part.replace(/\s+/g, " ").trim()).filter(Boolean).join(" "));
  }

  // the picture of the state; where pictures cannot be copied the link opens it
  async copyCard(event) {
    if (!globalThis.ClipboardItem || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const { href, dataset } = event.currentTarget;
    try {
      const picture = fetch(href).then((answer) => (answer.ok ? answer.blob() : Promise.reject(answer.status)));
      await navigator.clipboard.write([new ClipboardItem({ "image/png": picture })]);
      this.write(dataset.copied);
    } catch {
      open(href);
    }
  }

  // ---- for keyboard steps: the slider's neighbouring states, fetched before they are asked for

  lookAhead(range) {
    if (!this.ahead || !range?.twin || range.type !== "range") return;
    for (const direction of ["stepUp", "stepDown"]) {
      const neighbour = range.cloneNode();
      for (const _ of ["next", "the one after"]) {
        neighbour[direction]();
        const value = range.dataset.stops ? range.dataset.stops.split(" ")[neighbour.value] : neighbour.value;
        const url = `${this.form.dataset.resultUrl}?${this.state(range.twin, value)}`;
        if (!atHand.has(url)) ask(url).catch(() => {});
      }
    }
  }
}

// ---- a switch empties its text field, and writes back what stood there

const mirrorSwitch = (field, toggle) => {
  if (field === toggle) {
    toggle.twin.value = toggle.checked ? toggle.dataset.on : "";
    return;
  }
  toggle.checked = field.value.trim() !== "";
  if (toggle.checked) toggle.dataset.on = field.value;
};

// ---- the boundary of the shelf's figure moves tokens from one card to the other; it follows numbers that are typed

const divide = (range) => {
  const [a, b] = ["a", "b"].map((name) => range.form.elements[name]);
  range.addEventListener("input", () => {
    const tokens = Math.max(2, numberOf(a.value) + numberOf(b.value)) || 1000;
    a.value = Math.min(tokens - 1, Math.max(1, Math.round((tokens * range.value) / 100)));
    b.value = tokens - a.value;
  });
  for (const field of [a, b]) {
    field.addEventListener("input", () => {
      const share = (100 * numberOf(a.value)) / (numberOf(a.value) + numberOf(b.value));
      if (Number.isFinite(share)) range.value = share;
    });
  }
};

for (const range of document.querySelectorAll("[data-boundary]")) divide(range);
for (const form of document.querySelectorAll("form[data-calculator]")) new Panel(form);
