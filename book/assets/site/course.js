// Small helps; every page can be read without them.

// The other language opens at the section that is being read.
document.addEventListener("DOMContentLoaded", () => {
  const other = document.querySelector("a.language-switch");
  if (other) other.addEventListener("click", () => { other.hash = location.hash; other.search = location.search; });
});

// Search results quote each page by fetching it, which a browser refuses to do from file://.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// Where there is a MathJax, widgets hand it their text by a call of its version 2, which version 3 no longer has.
// Ours contain no formulas: nothing is to be done, but not with an exception.
let mathJax;
const withHub = (value) => { if (value && !value.Hub) value.Hub = { Queue() {} }; return value; };
const already = window.MathJax;
Object.defineProperty(window, "MathJax", { get: () => mathJax, set: (value) => { mathJax = withHub(value); }, configurable: true });
window.MathJax = already;
