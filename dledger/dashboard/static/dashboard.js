// Keeps an open page up to date, draws its charts, and shows times in the reader's zone. Every page can be read
// without it.
"use strict";

const charts = new Map();

function showTimes(root) {
  for (const one of root.querySelectorAll("time")) {
    const at = new Date(one.dateTime);
    if (!Number.isNaN(at.getTime())) {
      one.title = one.dateTime;
      one.textContent = at.toLocaleString(document.documentElement.lang, { dateStyle: "short", timeStyle: "medium" });
    }
  }
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function drawCharts() {
  for (const [host, chart] of charts) {
    if (!host.isConnected) {
      chart.destroy();
      charts.delete(host);
    }
  }
  for (const host of document.querySelectorAll("[data-chart]")) {
    const found = JSON.parse(host.parentElement.querySelector("script").textContent);
    const data = [found.at_ms.map((ms) => ms / 1000), found.in, found.out];
    const known = charts.get(host);
    if (known) {
      known.setData(data);
      continue;
    }
    const axis = { stroke: colour("--weak"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    charts.set(host, new uPlot({
      width: host.clientWidth, height: 160,
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
      axes: [axis, axis],
      series: [{}, { label: host.dataset.in, stroke: colour("--leader"), width: 2 }, { label: host.dataset.out, stroke: colour("--link"), width: 2 }],
    }, data, host));
  }
}

function update(main, html) {
  Idiomorph.morph(main, html, {
    morphStyle: "innerHTML",
    ignoreActiveValue: true,
    callbacks: {
      // What a library drew, and what the reader opened, stays.
      beforeNodeMorphed: (before) => !(before instanceof Element && before.matches("[data-chart]")),
      beforeAttributeUpdated: (name, node) => !(name === "open" && node instanceof HTMLDetailsElement),
    },
  });
  showTimes(main);
  drawCharts();
}

function listen(main) {
  const stale = document.getElementById("stale");
  let source = null;

  function say(text) {
    stale.textContent = text;
    stale.hidden = text === "";
  }

  function open() {
    source = new EventSource(location.href);
    source.onmessage = (event) => {
      const found = JSON.parse(event.data);
      say(found.problem ?? "");
      if (found.main !== undefined) {
        update(main, found.main);
      }
    };
    source.onerror = () => say(stale.dataset.lost);
  }

  function close() {
    source?.close();
    source = null;
  }

  // A browser has six connections to a host: a page that nobody sees must not hold one.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else if (source === null) {
      open();
    }
  });
  addEventListener("pagehide", close);
  if (!document.hidden) {
    open();
  }
}

const main = document.getElementById("main");
showTimes(document);
drawCharts();
addEventListener("resize", () => {
  for (const [host, chart] of charts) {
    chart.setSize({ width: host.clientWidth, height: 160 });
  }
});
if (document.body.hasAttribute("data-live")) {
  listen(main);
}
