// Two small helps; every page works without them.
document.addEventListener("DOMContentLoaded", () => {
  // The other language opens at the section that is being read.
  const other = document.querySelector("a.language-switch");
  if (other) other.addEventListener("click", () => { other.hash = location.hash; other.search = location.search; });
});
// Search results quote each page by fetching it, which a browser refuses to do from file://.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
