#pragma once

#include <string>
#include <vector>

namespace tessera::load {

// Returns: a self-contained page up to its heading and the line below it. Both are plain text.
std::string open_page(const std::string& heading, const std::string& line);
std::string close_page();

// Returns: a plot with a title; nothing for no plot.
std::string framed(const std::string& title, const std::string& plot);

// Returns: a row of a table. The cells are HTML.
std::string table_row(const std::vector<std::string>& cells);

}  // namespace tessera::load
