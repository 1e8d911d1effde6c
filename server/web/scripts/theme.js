// Light or dark: as the system says, or as chosen here.

import { $ } from "./dom.js";

const kKey = "tessera-theme";
const kThemes = ["auto", "light", "dark"];

export function bindTheme() {
  const stored = localStorage.getItem(kKey);
  const show = (theme) => {
    document.documentElement.dataset.theme = theme;
    $("theme").value = theme;
  };
  show(kThemes.includes(stored) ? stored : "auto");
  $("theme").addEventListener("change", () => {
    localStorage.setItem(kKey, $("theme").value);
    show($("theme").value);
  });
}
