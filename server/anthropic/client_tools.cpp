#include "server/anthropic/client_tools.h"

#include <algorithm>
#include <iterator>

namespace tessera {
namespace {

using Ordered = nlohmann::ordered_json;

struct ClientTool {
  std::string_view type;  // the beginning of it; the first line that fits counts
  std::string_view description;
  std::string_view properties;
  std::string_view required;
};

constexpr std::string_view kEditor =
    "Views and edits text files: view shows a file, or the names in a folder; create writes a "
    "file; "
    "str_replace replaces the one place that has old_str; insert adds lines behind insert_line.";

constexpr std::string_view kOlderEditor =
    R"({"command":{"type":"string","enum":["view","create","str_replace","insert","undo_edit"]},
        "path":{"type":"string"},"file_text":{"type":"string"},"old_str":{"type":"string"},
        "new_str":{"type":"string"},"insert_line":{"type":"integer"},
        "view_range":{"type":"array","items":{"type":"integer"}}})";

constexpr ClientTool kClientTools[] = {
    {"bash_",
     "Runs a command in a shell that stays open between calls, and returns what it prints.",
     R"({"command":{"type":"string","description":"the command"},
         "restart":{"type":"boolean","description":"true: begins a new shell instead"}})",
     "[]"},
    {"text_editor_20241022", kEditor, kOlderEditor, R"(["command","path"])"},
    {"text_editor_20250124", kEditor, kOlderEditor, R"(["command","path"])"},
    {"text_editor_", kEditor,
     R"({"command":{"type":"string","enum":["view","create","str_replace","insert"]},
         "path":{"type":"string"},"file_text":{"type":"string"},"old_str":{"type":"string"},
         "new_str":{"type":"string"},"insert_line":{"type":"integer"},
         "insert_text":{"type":"string"},
         "view_range":{"type":"array","items":{"type":"integer"}}})",
     R"(["command","path"])"},
    {"memory_",
     "Keeps notes in files below /memories: views, creates, edits, deletes and renames them.",
     R"({"command":{"type":"string",
                    "enum":["view","create","str_replace","insert","delete","rename"]},
         "path":{"type":"string"},"file_text":{"type":"string"},"old_str":{"type":"string"},
         "new_str":{"type":"string"},"insert_line":{"type":"integer"},
         "insert_text":{"type":"string"},"old_path":{"type":"string"},
         "new_path":{"type":"string"},
         "view_range":{"type":"array","items":{"type":"integer"}}})",
     R"(["command"])"}};

}  // namespace

std::optional<Ordered> described_client_tool(std::string_view type, const Ordered& tool) {
  const auto* const known =
      std::find_if(std::begin(kClientTools), std::end(kClientTools),
                   [&](const ClientTool& one) { return type.starts_with(one.type); });
  if (known == std::end(kClientTools)) {
    return std::nullopt;
  }
  Ordered described = {{"name", tool.value("name", Ordered())},
                       {"description", known->description},
                       {"input_schema",
                        {{"type", "object"},
                         {"properties", Ordered::parse(known->properties)},
                         {"required", Ordered::parse(known->required)}}}};
  if (tool.contains("defer_loading")) {
    described["defer_loading"] = tool["defer_loading"];
  }
  return described;
}

}  // namespace tessera
