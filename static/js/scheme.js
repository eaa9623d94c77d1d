// The reader's own choice of light or dark, known before the first paint; without one the system's is followed.
const kept = (() => {
  try {
    return localStorage.getItem("scheme");
  } catch {
    return null; // storage is forbidden here: the choice lasts as long as the page
  }
})();
if (kept === "light" || kept === "dark") document.documentElement.dataset.scheme = kept;
