// SPDX-License-Identifier: Apache-2.0
#include "proto/drawing/page.h"

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "proto/drawing/svg.h"

namespace terrace {
namespace {

constexpr char kHead[] = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>
<style>
:root { color-scheme: light; --ink: #1b1f24; --dim: #5b656f; --rule: #d9dee3; --paper: #fff; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; color: var(--ink); background: var(--paper);
       max-width: 1080px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .3rem; }
p { margin: .2rem 0 .8rem; color: var(--dim); } p b { color: var(--ink); font-weight: 600; }
p.why { color: var(--ink); border-left: 3px solid #3b6fb6; padding: .1rem 0 .1rem .8rem; white-space: pre-line; overflow-wrap: anywhere; }
p.refused { border-color: #c22f2f; }
dl.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
dl.tiles div { border: 1px solid var(--rule); border-radius: 6px; padding: .5rem .8rem; }
dl.tiles dt { color: var(--dim); font-size: .8rem; } dl.tiles dd { margin: 0; font-size: 1.25rem; font-weight: 600; }
dl.tiles dd small { display: block; font-size: .8rem; font-weight: 400; color: var(--dim); }
div.wide { overflow-x: auto; margin: .5rem 0; } div.wide > svg { min-width: 760px; }
svg { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .86rem; margin: .6rem 0; }
th { text-align: left; color: var(--dim); font-weight: 600; }
th, td { padding: .22rem .6rem .22rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:first-child.n, th:first-child.n { text-align: left; padding-right: 1.2rem; }
thead th.n { white-space: normal; } thead th { vertical-align: bottom; }
td b { font-weight: 600; }
table.keys { width: auto; } table.keys td:first-child { color: var(--dim); padding-right: 1.6rem; white-space: nowrap; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
div.wide code { overflow-wrap: normal; }
@media (max-width: 700px) { div.wide :is(td:first-child, td:last-child):not(.n) { min-width: 11rem; } }
@page { margin: 14mm; }
@media print { html { font-size: 12px; } body { max-width: none; margin: 0; padding: 0; font-size: 11.5px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  div.wide { overflow: visible; } div.wide > svg { min-width: 0; }
  tr, svg, dl, p { break-inside: avoid; } h2, h2 + p { break-after: avoid; } thead { display: table-header-group; } }
)";

// After the style of pictures, which stands alone too and is then on white: paper, ink and rules of
// both, chosen by their colour in the light. Bars keep theirs, and so does what is written on them.
constexpr char kDark[] = R"(@media screen and (prefers-color-scheme: dark) {
  :root { color-scheme: dark; --ink: #e6e9ed; --dim: #9aa5b1; --rule: #313841; --paper: #0f1216; }
  svg text { fill: var(--dim); } svg text:is(.ink, .head, .title) { fill: var(--ink); }
  svg text[style*="#a82424"] { fill: #ff8b80 !important; }
  svg text.label { stroke: var(--paper); } rect.hover { fill: #fff; }
  svg [stroke="#1b1f24"] { stroke: var(--ink); } svg [stroke="#c22f2f"] { stroke: #ff8b80; }
  svg :is([stroke="#e3e7ea"], [stroke="#d9dee3"]) { stroke: var(--rule); }
  svg [fill="#fff"] { fill: var(--paper); } svg [fill="#f3f5f6"] { fill: #232931; } }
)";

}  // namespace

std::string PageStart(std::string_view title) {
  return absl::StrCat(kHead, kPictureStyle, kDark, "</style>\n<title>", EscapeXml(title),
                      "</title></head><body>\n");
}

std::string PageEnd() { return "</body></html>\n"; }

std::string Wide(std::string_view markup) {
  return absl::StrCat("<div class=\"wide\">", Absl(markup), "</div>\n");
}

std::string Code(std::string_view text) {
  return absl::StrCat("<code>", EscapeXml(text), "</code>");
}

}  // namespace terrace
