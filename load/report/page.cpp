#include "load/report/page.h"

#include "absl/strings/str_cat.h"
#include "eval/measurement/svg.h"

namespace tessera::load {
namespace {

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; color: #22262b;
  background: #fbfbf9; margin: 0 auto; padding: 28px 32px 60px; max-width: 1120px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 19px; margin: 32px 0 4px; }
h3 { font-size: 14px; margin: 0 0 4px; font-weight: 600; } .faint { color: #6a6f76; }
table { border-collapse: collapse; margin: 10px 0; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 16px 5px 0; text-align: right; border-bottom: 1px solid #e4e4e0; }
th:first-child, td:first-child, td.text { text-align: left; }
.interval { display: block; color: #868b92; font-size: 12px; line-height: 1.2; }
.no { color: #b3430b; font-weight: 600; } .yes { color: #00785a; font-weight: 600; }
.plots { display: flex; flex-wrap: wrap; gap: 20px; margin: 14px 0; }
.plot { background: #fff; border: 1px solid #e4e4e0; border-radius: 8px; padding: 14px 14px 8px; }
svg { display: block; max-width: 100%; height: auto; }
svg .tick { font-size: 12px; fill: #5b6067; } svg .axis { font-size: 12.5px; fill: #33383d; }
svg .label { font-size: 12px; font-weight: 600; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
)";

}  // namespace

std::string open_page(const std::string& heading, const std::string& line) {
  const std::string title = escape_markup(heading);
  return absl::StrCat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<title>",
                      title, "</title>\n<style>", kStyle, "</style></head>\n<body>\n<h1>", title,
                      "</h1>\n<p class=\"faint\">", escape_markup(line), "</p>\n");
}

std::string close_page() {
  return "</body></html>\n";
}

std::string framed(const std::string& title, const std::string& plot) {
  return plot.empty()
             ? ""
             : absl::StrCat("<div class=\"plot\"><h3>", title, "</h3>\n", plot, "</div>\n");
}

std::string table_row(const std::vector<std::string>& cells) {
  std::string html = "<tr>";
  for (const std::string& cell : cells) {
    absl::StrAppend(&html, "<td>", cell, "</td>");
  }
  return html + "</tr>\n";
}

}  // namespace tessera::load
