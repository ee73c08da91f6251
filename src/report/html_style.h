// Style and script of report.html.
#pragma once

namespace hawser::report {

inline constexpr const char* kHtmlStyle = R"css(
:root { color-scheme: light dark; --page: #fbfbf9; --card: #ffffff; --text: #1d2326; --quiet: #667074; --rule: #dfe3e2;
  --good: #17734a; --warn: #a85400; --bad: #b3261e;
  --c0: #1f66ad; --c1: #c2571a; --c2: #2b8a5e; --c3: #8a4fae; --c4: #a8891c; --c5: #b23a61; --c6: #3d8fa3; --c7: #7b7f83; }
@media screen and (prefers-color-scheme: dark) { :root { --page: #14181a; --card: #1c2225; --text: #e4e8e8; --quiet: #98a3a6;
  --rule: #333c40; --good: #5cc894; --warn: #f0a050; --bad: #ff8a80;
  --c0: #6db0f2; --c1: #f09a5e; --c2: #62c898; --c3: #c493e4; --c4: #d8bd58; --c5: #ec7fa2; --c6: #74c4d6; --c7: #a2a8ab; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 20px 60px; max-width: 1180px; background: var(--page); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 28px; overflow-wrap: anywhere; } h2 { margin: 34px 0 10px; font-size: 18px; }
.state { font-weight: 600; } .good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.quiet, i { color: var(--quiet); font-style: normal; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin: 18px 0; }
.tile, figure, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; }
.tile { padding: 10px 16px; flex: 1 1 130px; } .tile b { display: block; font-size: 21px; white-space: nowrap; }
.tile span { color: var(--quiet); font-size: 13px; }
.grid2 { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 14px; }
figure { margin: 0; padding: 12px 14px; position: relative; break-inside: avoid; }
figcaption { font-size: 14px; margin-bottom: 4px; } figcaption i { font-size: 12px; margin-left: 8px; }
svg { display: block; width: 100%; height: auto; } svg.bar { height: 26px; margin: 8px 0; }
.grid { stroke: var(--rule); stroke-width: 1; } .axis { stroke: var(--quiet); stroke-width: 1; }
figure.chart { container-type: inline-size; } figure.chart svg { overflow: visible; }
.tick { fill: var(--quiet); font-size: 12px; } .cursor { stroke: var(--quiet); stroke-dasharray: 3 3; visibility: hidden; }
@container (max-width: 480px) { .tick { font-size: 13px; } } @container (max-width: 390px) { .tick { font-size: 15px; } }
@container (max-width: 320px) { .tick { font-size: 18px; } } @container (min-width: 600px) { .tick { font-size: 9.5px; } }
@container (min-width: 760px) { .tick { font-size: 7.5px; } }
.resume { stroke: var(--warn); stroke-width: 1.2; stroke-dasharray: 1.5 3; }
.curve { fill: none; stroke: var(--c); stroke-width: 1.8; stroke-linejoin: round; } .mark, .part { fill: var(--c); }
.band { fill: var(--c); opacity: 0.16; stroke: none; }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 3px; background: var(--c); margin: 0 6px 0 8px; }
td .key { margin-left: 0; } .entry { display: inline-block; }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
output { position: absolute; right: 14px; top: 12px; font-size: 12px; background: var(--card); padding: 0 4px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { padding: 3px 8px 3px 0; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
tr:last-child td { border-bottom: 0; } td.n { text-align: right; white-space: nowrap; padding-left: 12px; }
td:first-child { white-space: nowrap; } .sum td { font-weight: 600; } .default td { color: var(--quiet); }
.card { padding: 10px 14px; break-inside: avoid; } .card td:first-child { width: 42%; padding-right: 14px; } .card h3 { margin: 0 0 6px; font-size: 14px; }
ul.findings { margin: 0; padding: 0; list-style: none; }
ul.findings li { padding: 8px 14px; margin-bottom: 8px; background: var(--card); border: 1px solid var(--rule);
  border-left: 4px solid var(--warn); border-radius: 6px; }
footer { margin-top: 36px; color: var(--quiet); font-size: 13px; overflow-wrap: anywhere; }
@media (max-width: 480px) { body { padding: 18px 10px 40px; } figure, .tile { padding: 10px; } }
@page { margin: 10mm; }
@media print { :root { color-scheme: light; --page: #ffffff; } h2, h2 + p { break-after: avoid; }
  ul.findings li, tr { break-inside: avoid; } body { max-width: none; padding: 0 1px; font-size: 12px; } .grid2 { grid-template-columns: 1fr 1fr; }
  svg, .key { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
)css";

// Shows the curves' values at the pointer, and that the page of a running process is no longer rewritten.
inline constexpr const char* kHtmlScript = R"js(
const stale = document.getElementById("stale"), age = stale ? Date.now() / 1000 - stale.dataset.time : 0;
if (stale && age > stale.dataset.limit)
  stale.textContent = ", not rewritten for " + Math.floor(age / 60) + " minutes: the run may have been killed";
for (const figure of document.querySelectorAll("figure.chart")) {
  const svg = figure.querySelector("svg"), cursor = figure.querySelector(".cursor"), out = figure.querySelector("output");
  const curves = [...svg.querySelectorAll(".curve")].map(c => ({ name: c.dataset.name, unit: c.dataset.unit,
    steps: c.dataset.step.split(" "), values: c.dataset.value.split(" "), points: c.points }));
  svg.addEventListener("pointermove", event => {
    const x = (event.clientX - svg.getBoundingClientRect().left) * svg.viewBox.baseVal.width / svg.clientWidth;
    let at = 0, step = "", text = [], best = 1e9;
    for (const c of curves) {
      let near = 0;
      for (let i = 1; i < c.points.length; ++i)
        if (Math.abs(c.points[i].x - x) < Math.abs(c.points[near].x - x)) near = i;
      const away = Math.abs(c.points[near].x - x);
      if (away < best) { best = away; step = c.steps[near]; at = c.points[near].x; }
      if (away < 12) text.push(c.name + " " + c.values[near] + (c.unit ? " " + c.unit : ""));
    }
    cursor.setAttribute("x1", at); cursor.setAttribute("x2", at); cursor.style.visibility = "visible";
    out.textContent = "step " + step + ": " + text.join(", ");
  });
  svg.addEventListener("pointerleave", () => {
    cursor.style.visibility = "hidden"; out.textContent = "";
  });
}
)js";

}  // namespace hawser::report
