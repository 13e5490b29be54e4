// Draws the plots in the colours of the theme, and redraws them when the theme or the medium changes.
(() => {
  "use strict";
  const root = document.documentElement;
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const places = [...document.querySelectorAll(".plot")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const config = {
    responsive: true, displaylogo: false,
    // The buttons are listed one by one, because plotly.js would otherwise offer to upload a plot.
    showSendToCloud: false, plotlyServerURL: "", modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    toImageButtonOptions: { format: "svg" },
  };
  const PAPER_PX = { whole: 660, half: 318 };

  // Under a key that ends in "color", "@role" and "@role/0.2" become the colour of that role.
  function colour(text, style) {
    const [role, opacity] = text.slice(1).split("/");
    const hex = style.getPropertyValue("--" + role).trim();
    if (opacity === undefined) return hex;
    const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
    return `rgba(${r},${g},${b},${opacity})`;
  }

  function paint(value, style, coloured) {
    if (typeof value === "string") return coloured && value[0] === "@" ? colour(value, style) : value;
    if (Array.isArray(value)) return value.map((item) => paint(item, style, coloured));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, paint(item, style, key.endsWith("color"))]));
  }

  function draw(place, width) {
    const figure = paint(figures[Number(place.dataset.figure)], getComputedStyle(root), false);
    Object.assign(figure.layout, width === undefined ? { autosize: true } : { width, autosize: false });
    Plotly.react(place, figure.data, figure.layout, config);
  }

  // Draws a few plots at a time, so that a long page can be read while the rest is drawn.
  function drawAll(from) {
    const until = performance.now() + 60;
    let next = from;
    while (next < places.length && performance.now() < until) draw(places[next++]);
    if (next < places.length) setTimeout(() => drawAll(next), 0);
    else window.plotsReady = true;
  }

  function storedTheme() {
    try { return localStorage.getItem("pinchpoint-theme"); } catch { return null; }
  }

  function setTheme(name) {
    root.dataset.theme = name;
    try { localStorage.setItem("pinchpoint-theme", name); } catch { /* a page opened from disk may have no storage */ }
    places.forEach((place) => draw(place));
  }

  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  document.getElementById("theme").addEventListener("click", () => setTheme(isDark() ? "light" : "dark"));
  document.getElementById("print").addEventListener("click", () => print());
  dark.addEventListener("change", () => { if (!root.dataset.theme) places.forEach((place) => draw(place)); });

  // A legend entry hides and shows its trace and the law and band whose group is the trace's name.
  for (const key of document.querySelectorAll(".key")) {
    key.addEventListener("click", () => {
      const shown = key.getAttribute("aria-pressed") !== "true";
      key.setAttribute("aria-pressed", String(shown));
      for (const trace of figures[Number(key.dataset.figure)].data) {
        if (key.dataset.name === (trace.name || trace.legendgroup)) trace.visible = shown;
      }
      draw(places[Number(key.dataset.figure)]);
    });
  }

  const unfolded = [];
  addEventListener("beforeprint", () => {
    root.dataset.paper = "";
    for (const fold of document.querySelectorAll("details:not([open])")) { fold.open = true; unfolded.push(fold); }
    for (const place of places) draw(place, place.closest(".half") ? PAPER_PX.half : PAPER_PX.whole);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.paper;
    for (const fold of unfolded.splice(0)) fold.open = false;
    for (const place of places) {
      Plotly.purge(place); // otherwise a plot keeps the width it was printed with
      draw(place);
    }
  });

  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) links.get(entry.target.id)?.classList.toggle("here", entry.isIntersecting);
  }, { rootMargin: "-10% 0px -70% 0px" });
  for (const part of document.querySelectorAll("#overview, article")) observer.observe(part);

  const theme = storedTheme();
  if (theme) root.dataset.theme = theme;
  drawAll(0);
})();
