"use strict";
// Everything here is added to a page that works without it.
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
