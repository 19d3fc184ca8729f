// Before the first paint: the chosen theme, else the system's.
(() => {
  const chosen = localStorage.getItem("resihp-theme");
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
