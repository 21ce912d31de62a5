#pragma once

namespace lowerd::server {

// Files of the status page, served by lowerd itself.

inline constexpr char kStatusStyle[] = R"css(:root {
  color-scheme: light dark;
  --ink: #1b1f24; --quiet: #57606a; --paper: #ffffff; --line: #d0d7de; --raised: #f6f8fa;
  --good: #1a7f37; --bad: #cf222e; --busy: #0969da; --wait: #9a6700; --lowered: #dafbe1;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6edf3; --quiet: #9198a1; --paper: #0d1117; --line: #30363d; --raised: #161b22;
    --good: #3fb950; --bad: #f85149; --busy: #58a6ff; --wait: #d29922; --lowered: #12361f;
  }
}
body {
  margin: 0 auto; max-width: 76rem; padding: 1rem 1.5rem 3rem;
  font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
}
header { display: flex; flex-wrap: wrap; gap: 1rem; align-items: baseline; }
main { margin-top: 1.2rem; }
h1 { font-size: 1.4rem; margin: 0.5rem 0; }
h2 { font-size: 1.05rem; margin: 1.8rem 0 0.5rem; }
a { color: var(--busy); }
code, .code { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.good { color: var(--good); }
.bad { color: var(--bad); }
.busy { color: var(--busy); }
.wait { color: var(--wait); }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 0.7rem; }
.tile { background: var(--raised); border: 1px solid var(--line); border-radius: 6px; padding: 0.6rem 0.8rem; }
.tile b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: 0.3rem 0.8rem 0.3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--quiet); white-space: nowrap; }
progress { width: 6rem; }
form { margin: 0.5rem 0; }
input { font: inherit; padding: 0.25rem 0.5rem; width: min(36rem, 70vw); }
button { font: inherit; padding: 0.25rem 0.8rem; }
.tree, .tree ul { list-style: none; margin: 0; padding-left: 1.2rem; border-left: 1px solid var(--line); }
.tree { padding-left: 0; border: 0; }
.tree li { padding: 0.1rem 0 0.1rem 0.4rem; }
.lowered > .node { background: var(--lowered); border-radius: 4px; padding: 0.1rem 0.4rem; }
.badge { border: 1px solid var(--good); color: var(--good); border-radius: 9px; padding: 0 0.5rem; font-size: 0.85em; }
)css";

// Replaces the live part every two seconds while somebody looks. A page without this stays
// readable, and reloads itself.
inline constexpr char kStatusScript[] = R"js("use strict";
const live = document.getElementById("live");
let failures = 0;
async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch(live.dataset.source);
      if (!answer.ok) throw new Error(answer.status);
      live.innerHTML = await answer.text();
      failures = 0;
    } catch (error) {
      failures += 1;
    }
    document.getElementById("connection").textContent = failures > 1 ? "no connection" : "live";
  }
  setTimeout(refresh, Math.min(2000 * (failures + 1), 20000));
}
if (live && live.dataset.source) setTimeout(refresh, 2000);
)js";

}  // namespace lowerd::server
