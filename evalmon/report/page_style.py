"""How the report page looks, and what it may do: style sheet, security policy, fitting."""

__all__ = ["POLICY", "SCRIPT", "STYLE"]

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)

STYLE = """
:root { --ink:#1f2933; --muted:#5f6b7a; --line:#dfe4ea; --soft:#f6f8fa; --accent:#0072b2; }
* { box-sizing:border-box; }
html { scroll-behavior:smooth; }
body { margin:0; color:var(--ink); background:#fff;
  font:16px/1.55 Inter,'Segoe UI','Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;
  -webkit-font-smoothing:antialiased; }
header, main, footer { max-width:1080px; margin:0 auto; padding:0 32px; }
header { padding-top:36px; }
header h1 { font-size:20px; font-weight:650; margin:0; letter-spacing:-.01em; }
header p, footer p { color:var(--muted); font-size:14px; margin:2px 0 0; }
footer { padding-bottom:28px; }
nav { display:flex; flex-wrap:wrap; gap:10px; margin-top:18px; }
nav a { display:flex; align-items:center; gap:10px; text-decoration:none; color:var(--ink);
  border:1px solid var(--line); border-radius:10px; padding:8px 14px; font-weight:550; }
nav a:hover { border-color:var(--accent); }
section.run { padding:36px 0 44px; border-bottom:1px solid var(--line); }
section.run:last-of-type { border-bottom:0; }
.name { color:var(--muted); font-size:14px; margin:0 0 10px; }
.name strong { color:var(--ink); }
h2 { font-size:27px; line-height:1.3; font-weight:680; letter-spacing:-.018em; margin:12px 0 0;
  text-wrap:balance; }
h3 { font-size:18px; font-weight:650; letter-spacing:-.01em; margin:44px 0 2px; }
h4 { font-size:15px; font-weight:650; margin:22px 0 4px; }
.lead { color:var(--muted); font-size:14.5px; margin:2px 0 10px; max-width:72ch; }
.badge { display:inline-block; border-radius:999px; padding:3px 12px; font-size:13px;
  font-weight:650; white-space:nowrap; }
.finding { color:#8a2d00; background:#fdece2; } .healthy { color:#00573f; background:#e0f4ec; }
.unsure { color:#4f4a00; background:#f6f1cf; }
.tiles { display:grid; grid-template-columns:repeat(4,1fr); gap:14px; margin:26px 0 0; }
.tile { background:var(--soft); border:1px solid var(--line); border-radius:12px;
  padding:14px 18px 13px; }
.tile dt { color:var(--muted); font-size:13px; font-weight:550; }
.tile dd { margin:0; } .tile .value { font-size:26px; font-weight:680; letter-spacing:-.02em;
  font-variant-numeric:tabular-nums; }
.tile .unit { font-size:14px; font-weight:500; color:var(--muted); margin-left:.3em;
  letter-spacing:0; }
.tile .note { color:var(--muted); font-size:13px; line-height:1.45; white-space:pre-line; }
.facts { display:grid; grid-template-columns:repeat(auto-fill,minmax(150px,1fr)); gap:10px 24px;
  margin:10px 0 0; } .facts dt { color:var(--muted); font-size:12.5px; }
.facts dd { margin:0; font-size:15px; font-weight:550; font-variant-numeric:tabular-nums;
  overflow-wrap:anywhere; }
.facts.wide { grid-template-columns:repeat(auto-fill,minmax(min(100%,400px),1fr)); }
.facts.wide dd { font-size:14px; font-weight:450; }
table { border-collapse:collapse; width:100%; font-size:14.5px; margin:10px 0 0; }
th { text-align:left; color:var(--muted); font-size:12.5px; font-weight:600;
  border-bottom:1px solid #c6cdd5; padding:6px 14px 6px 0; vertical-align:bottom; }
td { border-bottom:1px solid var(--line); padding:7px 14px 7px 0; vertical-align:top; }
.scroll { overflow-x:auto; }
td.note { color:var(--muted); font-size:13px; text-align:right; max-width:260px; }
.number { text-align:right; font-variant-numeric:tabular-nums; white-space:nowrap; }
ul.reasons { padding-left:20px; margin:8px 0 0; max-width:80ch; } ul.reasons li { margin:5px 0; }
ul.fine { font-size:14px; } ul.reasons + .facts, .facts + ul.reasons { margin-top:16px; }
pre { background:var(--soft); border:1px solid var(--line); border-radius:10px; padding:12px 16px;
  font:13.5px/1.6 ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace; white-space:pre-wrap;
  overflow-wrap:anywhere; }
summary { cursor:pointer; color:var(--accent); font-size:14.5px; margin:16px 0 0; }
.plot { margin:6px 0 0; }
.empty { background:var(--soft); border-radius:10px; color:var(--muted); padding:14px 18px;
  font-size:14.5px; }
@media (max-width:800px) { .tiles { grid-template-columns:repeat(2,1fr); }
  header, main, footer { padding-left:18px; padding-right:18px; } h2 { font-size:23px; } }
@media print { @page { margin:14mm; } header, main, footer { padding-left:0; padding-right:0;
  max-width:none; } nav { display:none; } section.run { break-before:page; border:0; padding:0; }
  section.run:first-of-type { break-before:auto; padding-top:16px; }
  .block, .tile, tr, pre { break-inside:avoid; } h3 { break-after:avoid; margin-top:26px; }
  body { font-size:13px; } h2 { font-size:22px; } * { print-color-adjust:exact; } }
"""

# A narrow screen stacks the legend, which Plotly then lays over the axis. Chromium lays a page
# out for paper without telling its charts.
SCRIPT = """
const plots = () => document.querySelectorAll('.js-plotly-plot');
addEventListener('load', () => innerWidth < 560 && plots().forEach(plot => {
  const {height, margin} = plot.layout;
  const rows = plot.querySelectorAll('.legendtext').length;
  const more = Math.max(0, 58 + 19 * rows - margin.b);
  plot.style.height = `${height + more}px`;
  Plotly.relayout(plot, {height: height + more, 'margin.b': margin.b + more});
}));
const resize = width => plots().forEach(
  plot => Plotly.relayout(plot, width ? {width} : {width: null, autosize: true}));
addEventListener('beforeprint', () => resize(680));
addEventListener('afterprint', () => resize(null));
"""
