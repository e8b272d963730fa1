// Small helps; every page works without them (a widget loses a label).
document.addEventListener("DOMContentLoaded", () => {
  // The other language opens at the section that is being read.
  const other = document.querySelector("a.language-switch");
  if (other) other.addEventListener("click", () => { other.hash = location.hash; other.search = location.search; });
});
// Search results quote each page by fetching it, which a browser refuses to do from file://.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
// ipywidgets hands its texts to MathJax in the way of MathJax 2, and fails where it meets the page's MathJax 3.
document.addEventListener("DOMContentLoaded", () => {
  if (window.MathJax && !MathJax.Hub) MathJax.Hub = { Queue: ([, , element]) => MathJax.typesetPromise?.([element]) };
}, { capture: true });
// The slider of ipywidgets has no name that a screen reader could say; its label stands beside it.
document.addEventListener("DOMContentLoaded", () => {
  const name = () => document.querySelectorAll(".noUi-handle:not([aria-label])").forEach((handle) => {
    const label = handle.closest(".widget-inline-hbox")?.querySelector("label");
    if (label?.innerText) handle.setAttribute("aria-label", label.innerText);
  });
  if (document.querySelector('script[type="application/vnd.jupyter.widget-view+json"]'))
    new MutationObserver(name).observe(document.body, { childList: true, subtree: true });
}, { capture: true });
