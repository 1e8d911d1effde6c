// Renders chat templates for published_templates.py, which compares them with jinja2. Reads a JSON
// object from each line: "template" is a file, "variables" the text of an object. Prints one for
// each: "text" or "error". The time is kNow.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "base/status_macros.h"
#include "text/chat_template.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/json_value.h"
#include "text/jinja/parser.h"

namespace tessera {
namespace {

constexpr int64_t kNow = 1'700'000'000;

absl::StatusOr<std::string> rendered(const nlohmann::json& asked) {
  std::ifstream file(asked.at("template").get<std::string>());
  std::stringstream source;
  source << file.rdbuf();
  TESSERA_ASSIGN_OR_RETURN(const jinja::Statements statements, jinja::parse_template(source.str()));
  jinja::Context context;
  context.unix_seconds = kNow;
  context.max_work = ChatTemplate::Variables().max_work;
  TESSERA_ASSIGN_OR_RETURN(const jinja::Value variables,
                           parse_json_value(asked.at("variables").get<std::string>()));
  for (const auto& [name, value] : variables.dict()->items) {
    context.variables.emplace_back(name.bytes(), value);
  }
  TESSERA_ASSIGN_OR_RETURN(const jinja::Text text, jinja::render(statements, context));
  return text.bytes();
}

}  // namespace
}  // namespace tessera

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto text = tessera::rendered(nlohmann::json::parse(line));
    nlohmann::json out;
    if (text.ok()) {
      out["text"] = *text;
    } else {
      out["error"] = std::string(text.status().message());
    }
    std::cout << out.dump() << std::endl;
  }
}
