"""The style sheet of the report, for light and dark colour schemes and small screens."""

STYLE = """
:root{--page:#fbfbfa;--card:#fff;--ink:#1d2226;--soft:#606a73;--rule:#e3e6e8;--bad:#b3261e;
--c0:#9aa5ad;--c1:#2f6fb2;--c2:#2b8a5f;--c3:#c27a0e;--c4:#c0392b;--c5:#7c4fb3;--c6:#0f8b8d;--c7:#a8557d;--c8:#6b7a1f}
@media(prefers-color-scheme:dark){:root{--page:#14171a;--card:#1c2125;--ink:#e8ebed;--soft:#98a3ab;--rule:#2d343a;
--bad:#ff8a80;--c0:#6f7b84;--c1:#6aa9e9;--c2:#5cc497;--c3:#f0b04a;--c4:#f2776b;--c5:#b894e8;--c6:#4fc9cb;--c7:#df93b7;
--c8:#b7c65a}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:1240px;margin:0 auto;padding:20px 16px 40px}
h1{font-size:24px;margin:0}h2{font-size:18px;margin:0 0 2px}
header p,.about,footer,.none{color:var(--soft);margin:4px 0 12px}
section{margin-top:26px}
.tiles{display:grid;gap:10px;grid-template-columns:repeat(auto-fit,minmax(138px,1fr))}
.tile,figure,.scroll{background:var(--card);border:1px solid var(--rule);border-radius:8px}
.tile{padding:10px 12px;display:flex;flex-direction:column}
.tile span,.tile small{color:var(--soft)}.tile b{font-size:21px;font-weight:600;font-variant-numeric:tabular-nums}
.tile.bad b{color:var(--bad)}
.plots{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
figure{margin:0;padding:12px}figcaption{font-weight:600;margin-bottom:6px}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font-size:13px}.grid{stroke:var(--rule)}
.strip{fill:transparent}.strip:hover{fill:var(--ink);fill-opacity:.08}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;color:var(--soft);font-size:13px;margin-top:4px}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th{color:var(--soft);font-weight:500}tr:last-child td{border-bottom:0}
th:first-child,td:first-child{text-align:left}
td code{white-space:normal;word-break:break-word;display:inline-block;min-width:220px}
code{font-family:ui-monospace,monospace;font-size:13px}
@media(max-width:560px){main{padding:12px 8px 28px}svg text{font-size:17px}.tile b{font-size:19px}}
@media print{body{background:#fff}figure,.tile{break-inside:avoid}}
""".strip()
