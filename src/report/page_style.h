// The style sheet of the page. Charts use the custom properties --s0 to --s9 (series), --ink, --muted, --grid, --band,
// --heat-good and --heat-bad. No '<' or '&' in it: the page is also XML.
#pragma once

namespace bitloom::report {

inline constexpr char page_style[] = R"css(
:root{color-scheme:light dark;
--page:#f6f7f9;--card:#fff;--ink:#1c2430;--muted:#667085;--line:#e3e7ed;--grid:#e9ecf1;--band:#f1f4f8;--marked:#fdf3dc;--axis:#98a2b3;
--accent:#2563c9;--warn-ink:#7a4a00;--warn:#fff4dc;--warn-line:#f0d9a8;--heat-good:#2563c9;--heat-bad:#d9542b;
--s0:#2f6fd0;--s1:#e07b1f;--s2:#2a9d68;--s3:#c8385a;--s4:#8456c4;--s5:#8a6242;--s6:#d565ab;--s7:#1b9ab0;--s8:#9a9a1e;--s9:#5d6b85}
@media (prefers-color-scheme:dark){:root{
--page:#12161c;--card:#1a2029;--ink:#e6eaf0;--muted:#95a0b2;--line:#2b3440;--grid:#29313d;--band:#202833;--marked:#2e2818;--axis:#5b6778;
--accent:#7fb0ff;--warn-ink:#ffdf9e;--warn:#3a2e14;--warn-line:#5c4a20;--heat-good:#5b97f5;--heat-bad:#f0764e;
--s0:#6aa5f8;--s1:#f2a154;--s2:#58c795;--s3:#f0708e;--s4:#b693f0;--s5:#c79d7b;--s6:#ee9acd;--s7:#55c8dc;--s8:#cfcf5a;--s9:#a2afc8}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px 48px}
header h1{font-size:26px;line-height:1.25;margin:0 0 2px;overflow-wrap:anywhere}
header p{margin:0;color:var(--muted)}
h2{font-size:19px;line-height:1.3;margin:0 0 4px}
section{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:18px 20px 20px;margin-top:18px}
section .note{margin:0 0 12px;color:var(--muted);font-size:14px;max-width:85ch}
.banner{margin-top:18px;padding:11px 16px;border-radius:10px;background:var(--warn);color:var(--warn-ink);border:1px solid var(--warn-line)}
.cards{display:grid;grid-template-columns:repeat(12,1fr);gap:12px;margin-top:18px}
.card{grid-column:span 3;background:var(--card);border:1px solid var(--line);border-radius:10px;padding:12px 16px;min-width:0}
.card.lead{grid-column:span 6}
.card b{display:block;font-size:21px;line-height:1.3;font-weight:650;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.card.lead b{font-size:42px;line-height:1.15;color:var(--accent)}
.card span{color:var(--muted);font-size:13px}
.card .label{display:block;color:var(--ink);font-size:13px;font-weight:600}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:14px 28px;align-items:start}
.chart{margin-top:6px}
.chart+.chart,.chart+.pair{margin-top:18px}
.pair .chart{margin-top:0}
svg{display:block;width:100%;height:auto;fill:var(--ink)}
svg text{font-family:inherit}
.chart-title{font-size:14px;font-weight:600}
.axis-title,.no-data{fill:var(--muted)}
.band-label{fill:var(--muted);font-size:11px}
.grid{stroke:var(--grid);fill:none}
.axis{stroke:var(--axis);fill:none}
.band{fill:var(--band)}
.band-even{fill:transparent}
.band-marked{fill:var(--marked)}
.odd{fill-opacity:.55}
.narrow{display:none}
.line{stroke:var(--c);fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.line.faint{stroke-width:1.5;stroke-dasharray:4 4;stroke-linecap:butt}
circle{fill:var(--c)}
.values rect:hover{fill:var(--ink);fill-opacity:.06}
.heat-frame{fill:none;stroke:var(--line)}
.on-strong{fill:#fff}
.in-box{fill:var(--page);font-size:11px}
.lane{fill:var(--band)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:6px 14px 6px 0;text-align:left;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--muted);font-weight:600;white-space:nowrap}
.even table{table-layout:fixed}.even th,.even td{white-space:normal;overflow-wrap:anywhere}
tbody tr:last-child td{border-bottom:0}
tfoot td{font-weight:600;border-top:1px solid var(--axis);border-bottom:0}
.num{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.num+td:not(.num),.num+th:not(.num){padding-left:18px}
.key{white-space:nowrap;color:var(--muted)}
.options{columns:2;column-gap:36px}
.options div{display:flex;justify-content:space-between;gap:16px;padding:5px 0;border-bottom:1px solid var(--line);break-inside:avoid}
.options .key{flex:none;max-width:60%;overflow-wrap:anywhere;white-space:normal}
.options .value{text-align:right;overflow-wrap:anywhere;min-width:0}
pre{margin:0;padding:12px 14px;background:var(--page);border:1px solid var(--line);border-radius:8px;overflow-x:auto;
font:13px/1.5 ui-monospace,"DejaVu Sans Mono",monospace}
pre.command{white-space:pre-wrap;overflow-wrap:anywhere}
details{margin-top:12px}
summary{cursor:pointer;color:var(--muted);margin-bottom:8px}
.images{display:grid;grid-template-columns:repeat(8,minmax(0,1fr));gap:18px 14px;margin-top:14px}
figure{margin:0;min-width:0;break-inside:avoid}
figure img{display:block;width:100%;height:auto;border:1px solid var(--line);border-radius:4px}
.small img{image-rendering:pixelated}
.twins{grid-template-columns:repeat(6,minmax(0,1fr))}
.twins div{display:grid;grid-template-columns:1fr 1fr;gap:2px}
.drawn{margin:0 0 14px}
.drawn dt{font-size:13px;color:var(--muted);margin-top:12px}
.drawn dd{margin:2px 0 0;padding:8px 12px;border:1px solid var(--line);border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere}
.samples{width:auto}
.samples th,.samples td{border:0;padding:3px 6px 3px 0}
.samples thead th{vertical-align:bottom;font-size:12px;line-height:1.3;font-weight:400;white-space:normal;overflow-wrap:anywhere;
min-width:114px;max-width:114px}
.samples thead th:first-child{min-width:0;padding:0}
.samples tbody th{vertical-align:middle;text-align:right;padding-right:12px;position:sticky;left:0;background:var(--card);
white-space:normal;min-width:92px;max-width:130px}
.samples img{display:block;width:108px;height:auto;border:1px solid var(--line);border-radius:4px}
.own{fill:none;stroke:var(--ink);stroke-width:1.5}
figcaption{font-size:13px;line-height:1.35;margin-top:5px;color:var(--muted);overflow-wrap:anywhere}
figcaption b,figcaption span{display:block}
figcaption b{color:var(--ink)}
footer{margin-top:22px;color:var(--muted);font-size:13px}
@media (max-width:760px){
main{padding:16px 10px 32px}section{padding:14px 12px}header h1{font-size:22px}
.card,.card.lead{grid-column:span 6}.card.lead b{font-size:30px}.card b{font-size:18px}
.broad{display:none}.narrow{display:block}
.images{grid-template-columns:repeat(3,minmax(0,1fr));gap:14px 10px}.twins{grid-template-columns:repeat(2,minmax(0,1fr))}
.samples img{width:84px}.samples thead th{min-width:90px;max-width:90px}
.samples tbody th{min-width:58px;max-width:76px;padding-right:8px;font-size:13px}
.pair{grid-template-columns:minmax(0,1fr)}.options{columns:1}
th{white-space:normal}td,th{padding-right:8px}th,td:not(.num){overflow-wrap:anywhere;min-width:4em}
.even th:first-child{width:31%}
.listed thead{display:none}.listed tr{display:block;padding:8px 0;border-bottom:1px solid var(--line)}
.listed tbody tr:last-child{border-bottom:0}.listed tfoot tr{border-top:1px solid var(--axis);border-bottom:0}
.listed td,.listed .num,.listed .num+td:not(.num){display:flex;justify-content:flex-end;align-items:baseline;gap:6px;padding:2px 0;
border:0;text-align:right;white-space:normal;overflow-wrap:anywhere}
.listed td:first-child{font-weight:600}.listed td:empty:empty{display:none}
.listed td:before{content:attr(data-heading);color:var(--muted);text-align:left;font-weight:400;margin-right:auto;padding-right:10px;
flex:none;max-width:60%}}
@media print{body{background:#fff}section,.card{break-inside:avoid}}
)css";

}  // namespace bitloom::report
