// Figures that show time. The server draws the last moment, whole; the marks on its elements say when each came:
//
//   data-step="3", "2-4"   there from moment 3 on, or in moments 2 to 4 only
//   data-from="40 -20"     comes flying from there, by so many units of the drawing
//   data-lit="1,4-6"       emphasised in these moments
//   data-cover="0.9 0.4 0" hides what lies ahead: the part that is left in each moment
//
// `data-captions` of the figure's `data-film` says in words what happens in each. No marks change what is drawn last.

const zh = document.documentElement.lang === "zh";
const words = (chinese, english) => (zh ? chinese : english);
const still = matchMedia("(prefers-reduced-motion: reduce)");
const WHOLE = 6000;
const LONGEST = 1100;

const spans = (text) => text.split(",").map((part) => part.split("-").map(Number));
const within = (moment, text) => spans(text).some(([first, last = first]) => moment >= first && moment <= last);

class Film {
  constructor(frame, button) {
    this.captions = JSON.parse(frame.dataset.captions);
    this.last = this.captions.length;
    this.marked = [...frame.querySelectorAll("[data-step], [data-lit], [data-cover]")];
    this.pace = Math.min(LONGEST, WHOLE / this.last);
    frame.style.setProperty("--pace", `${this.pace / 2}ms`);
    frame.classList.add("film-on");
    this.button = button;
    this.range = Object.assign(document.createElement("input"), { type: "range", min: 1, max: this.last, step: 1 });
    this.range.setAttribute("aria-label", words("时刻", "Moment"));
    this.caption = document.createElement("p");
    this.caption.className = "film-caption";
    button.after(this.range, this.caption);
    button.addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    this.range.addEventListener("input", () => {
      this.pause();
      this.show(Number(this.range.value));
    });
  }

  play() {
    this.show(this.moment && this.moment < this.last ? this.moment : 1);
    // who wants no motion steps through the stills
    if (still.matches) return this.range.focus();
    this.timer = setInterval(() => {
      if (!this.range.isConnected) return this.pause();
      this.show(this.moment + 1);
      if (this.moment >= this.last) this.pause();
    }, this.pace);
    this.name();
  }

  pause() {
    clearInterval(this.timer);
    this.timer = undefined;
    this.name();
  }

  name() {
    this.button.textContent = this.timer ? words("暂停", "Pause") : words("播放", "Play");
  }

  show(moment) {
    this.moment = moment;
    this.range.value = moment;
    this.caption.textContent = this.captions[moment - 1];
    this.range.setAttribute("aria-valuetext", this.captions[moment - 1]);
    for (const element of this.marked) {
      const { step, from, lit, cover } = element.dataset;
      if (step) {
        const [first, last = Infinity] = spans(step)[0];
        element.classList.toggle("film-out", moment < first || moment > last);
        if (from) element.style.transform = moment < first ? `translate(${from.split(" ").map((way) => `${way}px`).join(", ")})` : "";
      }
      if (lit) element.classList.toggle("film-lit", within(moment, lit));
      if (cover) element.style.transform = `scaleX(${cover.split(" ")[moment - 1]})`;
    }
  }
}

const films = new WeakMap();

export const start = (button) => {
  const frame = button.closest("[data-film]");
  if (films.has(frame)) return; // its own listener answers
  const film = new Film(frame, button);
  films.set(frame, film);
  film.play();
};
