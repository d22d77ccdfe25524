"""The style sheet of reports: no external fonts, light and dark, readable on a telephone."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --paper: #fcfcfa; --card: #ffffff; --ink: #1b1e24; --soft: #5c6370; --line: #dfe1e6;
  --accent: #0072b2; --wash: #eef5fa; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14161a; --card: #1b1e24; --ink: #e6e8ec; --soft: #9aa2af; --line: #343a45;
  --accent: #5ab4e6; --wash: #1d2a35; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
.kicker { margin: 0; color: var(--accent); font-weight: 600; letter-spacing: .04em; }
h1 { margin: .2rem 0 1rem; font-size: 2rem; line-height: 1.15; letter-spacing: -.01em; }
h2 { margin: 3rem 0 .5rem; font-size: 1.3rem; line-height: 1.25; }
p { margin: .5rem 0 .9rem; max-width: 46rem; }
.headline { font-size: 1.2rem; line-height: 1.45; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr));
  gap: .9rem 1.5rem; margin: 1.5rem 0 0; padding: 1rem 1.2rem; background: var(--card);
  border: 1px solid var(--line);
  border-radius: .6rem; }
.facts dt { color: var(--soft); font-size: .8rem; }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.note, small { color: var(--soft); font-size: .86rem; }
.scroll { overflow-x: auto; margin: 1rem 0; background: var(--card); border: 1px solid var(--line);
  border-radius: .6rem; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .55rem .8rem; text-align: right; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { font-size: .8rem; font-weight: 600; color: var(--soft); vertical-align: bottom;
  border-bottom: 1px solid var(--line); white-space: normal; }
thead th small { display: block; font-weight: 400; }
tbody th { font-weight: 600; }
tbody tr + tr > * { border-top: 1px solid var(--line); }
tr.subject > * { background: var(--wash); }
td small { display: block; }
td.absent { color: var(--soft); font-style: italic; }
.swatch { display: inline-block; width: .7em; height: .7em; margin-right: .5em;
  border-radius: 50%; }
figure { margin: 1rem 0; padding: 1rem .6rem .5rem; background: var(--card);
  border: 1px solid var(--line); border-radius: .6rem; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { font-family: inherit !important; }
mark { padding: .05em .35em; border-radius: .25em; background: var(--wash); color: var(--accent);
  font-weight: 600; }
.sentence { margin: 1.6rem 0 .3rem; font-size: 1.05rem; }
.words th, .words td { text-align: left; white-space: normal; }
.words { table-layout: fixed; min-width: 34rem; }
.words td { padding-right: 1.6rem; }
.words ol { margin: 0; padding: 0; list-style: none; }
.words li { display: flex; justify-content: space-between; gap: .8rem; }
.words li.right { color: var(--accent); font-weight: 600; }
.words li span:last-child { color: var(--soft); font-weight: 400; }
pre { overflow-x: auto; padding: .9rem 1.1rem; background: var(--card);
  border: 1px solid var(--line); border-radius: .6rem;
  font: .86rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
summary { cursor: pointer; color: var(--accent); }
@media print { body { background: none; } figure, .scroll { break-inside: avoid; } }
"""
