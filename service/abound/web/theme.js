// Light, dark, or the theme of the system. Runs before the first paint.
(() => {
  const NAME = "abound.theme";
  const ORDER = ["auto", "light", "dark"];
  const SAID = { auto: "as the system has them", light: "light", dark: "dark" };
  const root = document.documentElement;
  const chosen = () => (ORDER.includes(localStorage.getItem(NAME)) ? localStorage.getItem(NAME) : "auto");
  const show = () => {
    root.dataset.theme = chosen();
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = `Theme: ${chosen()}`;
      button.title = `Colours: ${SAID[chosen()]}`;
    }
  };
  show();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  addEventListener("DOMContentLoaded", () => {
    show();
    document.getElementById("theme").addEventListener("click", () => {
      localStorage.setItem(NAME, ORDER[(ORDER.indexOf(chosen()) + 1) % ORDER.length]);
      show();
    });
  });
})();
