// Numbers in the text that speak of a panel's example follow the panel. The server says what each is in the new state; a
// number keeps the choices (a scheme, a reduction) that its sentence names. At the example the text is as it was written.

const PAUSE = 250;

class Followers {
  constructor(form, numbers) {
    this.form = form;
    this.numbers = numbers;
    this.example = new URLSearchParams(form.dataset.example);
    this.note = form.closest("[data-panel]").querySelector("[data-following]");
    this.words = this.note.firstElementChild.textContent.replace("{n}", numbers.length);
    for (const number of numbers) number.dataset.written = number.textContent;
    this.note.querySelector("[data-back]").addEventListener("click", () => this.back());
    form.closest("[data-panel]").addEventListener("state", (event) => this.follow(event.detail));
    if (location.search.includes(`${form.dataset.prefix}`)) this.follow(this.state());
  }

  state() {
    const prefix = this.form.dataset.prefix;
    return new URLSearchParams([...new FormData(this.form)].filter(([name]) => name.startsWith(prefix)).map(([name, text]) => [name.slice(prefix.length), text]));
  }

  follow(state) {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(() => this.ask(new URLSearchParams(state)), PAUSE);
  }

  // one question for all numbers of the same choices
  async ask(state) {
    const same = (choices) => [...this.example].every(([name, text]) => choices.has(name) || (state.get(name) ?? "") === text);
    const groups = Map.groupBy(this.numbers, (number) => number.dataset.choices);
    this.asked = state;
    for (const [text, numbers] of groups) {
      const choices = new URLSearchParams(text);
      if (same(choices)) {
        for (const number of numbers) this.write(number, number.dataset.written);
        continue;
      }
      const wanted = new URLSearchParams([...state]);
      for (const [name, choice] of choices) wanted.set(name, choice);
      const query = new URLSearchParams(wanted);
      for (const number of numbers) query.append("shown", this.path(number));
      const answer = await fetch(`${this.form.dataset.resultUrl.replace(/result$/, "values")}?${query}`).catch(() => ({}));
      if (this.asked !== state) return;
      // a state in which these choices cannot be, and no answer, leave the number as it was
      const values = answer.ok ? await answer.json() : {};
      for (const number of numbers) if (this.path(number) in values) this.write(number, values[this.path(number)], wanted);
    }
    const moved = this.numbers.some((number) => "followed" in number.dataset);
    this.note.firstElementChild.textContent = this.words;
    this.note.hidden = !moved;
  }

  path(number) {
    return (/^[+−]/.test(number.dataset.written) ? "+" : "") + number.dataset.field;
  }

  write(number, text, state) {
    number.textContent = text;
    number.dataset.home ??= number.search;
    number.search = state ? state : number.dataset.home;
    if (state) {
      number.dataset.followed = "";
      number.title = `${document.documentElement.lang === "zh" ? "原例" : "in the example"}: ${number.dataset.written}`;
    } else {
      delete number.dataset.followed;
      number.removeAttribute("title");
    }
  }

  back() {
    const { prefix } = this.form.dataset;
    for (const [name, text] of this.example) {
      const field = this.form.elements[prefix + name];
      if (!field || field.value === text) continue;
      field.value = text;
      (field.id ? field : field[0]).dispatchEvent(new Event("input", { bubbles: true }));
    }
    this.form.querySelector("input, select, textarea").focus();
  }
}

for (const form of document.querySelectorAll("form[data-example]")) {
  const numbers = [...document.querySelectorAll(`[data-follows="${form.id}"]`)];
  if (numbers.length) new Followers(form, numbers);
}
