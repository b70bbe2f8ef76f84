"use strict";
// Everything here is added to a page that works without it.
document.body.classList.add("scripted");
for (const note of document.querySelectorAll(".for-scripts")) note.hidden = false;

// Headers become buttons here, so that without scripts the page shows none that do nothing.
for (const header of document.querySelectorAll("thead th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  header.append(button);
  button.addEventListener("click", () => sortBy(header));
}

function sortBy(header) {
  const column = header.cellIndex;
  const direction = header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", direction);
  const body = header.closest("table").tBodies[0];
  const rows = [...body.rows];
  rows.sort((a, b) => compare(a.cells[column].dataset.sort, b.cells[column].dataset.sort, direction));
  body.append(...rows);
}

function compare(a, b, direction) {
  if (a === "" || b === "") return (a === "") - (b === ""); // what is not known stays last
  const [x, y] = [Number(a), Number(b)];
  const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, undefined, { numeric: true }) : x - y;
  return direction === "ascending" ? order : -order;
}

function smallButton(text, action) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = text;
  button.addEventListener("click", action);
  return button;
}

for (const block of document.querySelectorAll(".again")) {
  const code = block.querySelector("code");
  const button = smallButton("Copy", async () => {
    getSelection().selectAllChildren(code);
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected: copy it with your keyboard";
    }
  });
  block.append(button);
}

// One run alone, in all tables of its group.
const chosen = document.createElement("div");
chosen.className = "chosen";
chosen.hidden = true;
chosen.setAttribute("role", "status");
document.body.append(chosen);

function runsOf(element) {
  return element.dataset.runs.split(" ").filter(Boolean);
}

function choose(run) {
  for (const element of document.querySelectorAll(".other[data-runs]")) element.classList.remove("other");
  chosen.hidden = run === null;
  if (run === null) return;
  const entry = document.getElementById(`run-${run}`);
  const group = entry.closest("section");
  for (const element of group.querySelectorAll("[data-runs]")) {
    const runs = runsOf(element);
    element.classList.toggle("other", runs.length > 0 && !runs.includes(run));
  }
  const link = document.createElement("a");
  link.href = `#run-${run}`;
  link.textContent = entry.querySelector("summary").textContent.trim();
  chosen.replaceChildren(link, " ", smallButton("Show all runs", () => choose(null)));
}

document.addEventListener("click", (event) => {
  if (event.target.closest("a, button, summary, pre")) return;
  const place = event.target.closest("[data-runs]");
  if (!place || place.matches("details")) return;
  const runs = runsOf(place);
  const isChosen = !chosen.hidden && chosen.querySelector("a").getAttribute("href") === `#run-${runs[0]}`;
  if (runs.length) choose(isChosen ? null : runs[0]);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") choose(null);
});
for (const entry of document.querySelectorAll("details.run")) {
  entry.append(smallButton("Show only this run", () => choose(entry.dataset.runs)));
}

// A link opens what it leads to, and paper has all.
function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  for (let place = target; place; place = place.parentElement) if (place.matches("details")) place.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
if (location.hash) openTarget();
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details.topic:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
