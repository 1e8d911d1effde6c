#include "eval/lab/method.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace tessera::lab {
namespace {

const MethodLine* find_line(std::string_view name) {
  const auto found = std::ranges::find(methods(), name, &MethodLine::name);
  return found == methods().end() ? nullptr : &*found;
}

absl::StatusOr<NamedMethod> make_method(const std::string& text, const Shape& shape) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  NamedMethod made{.name = text, .line = find_line(parts.first)};
  if (made.line == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--method: there is no method '", parts.first, "'; there are ",
                     absl::StrJoin(methods(), ", ", [](std::string* out, const MethodLine& line) {
                       out->append(std::string(line.name));
                     })));
  }
  const auto refuse = [&](const absl::Status& status) {
    return absl::Status(status.code(),
                        absl::StrCat("--method ", text, ": ", std::string(status.message())));
  };
  absl::StatusOr<Settings> settings = Settings::parse(parts.second);
  if (!settings.ok()) return refuse(settings.status());
  made.method = made.line->make(*settings, shape);
  if (const absl::Status read = settings->check_all_read(); !read.ok()) return refuse(read);
  return made;
}

}  // namespace

std::vector<float> Method::compute_prompt(Model& model, std::span<const int32_t> tokens,
                                          Cache& cache) {
  const std::shared_ptr<const Prompt> prompt = model.prompt(tokens);
  fill(*prompt, cache);
  return prompt->logits;
}

int64_t Method::bytes(const Cache& cache) const {
  constexpr int64_t kF16 = 2;
  return cache.entries() * 2 * cache.shape.head_dim * kF16;
}

std::string describe_methods() {
  std::string table = "| name | method | what it does | deviation |\n|---|---|---|---|\n";
  for (const MethodLine& line : methods()) {
    absl::StrAppend(&table, "| `", std::string(line.name), "` | ", std::string(line.paper), " | ",
                    std::string(line.what_it_does), " | ", std::string(line.deviation), " |\n");
  }
  return table;
}

absl::StatusOr<std::vector<NamedMethod>> find_methods(const std::string& list, const Shape& shape,
                                                      bool has_draft) {
  std::vector<std::string> names = {"full"};
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(list, ',', absl::SkipWhitespace()))) {
    if (name == "all") {
      for (const MethodLine& line : methods()) {
        if (has_draft || !line.needs_draft) names.emplace_back(line.name);
      }
    } else {
      names.push_back(name);
    }
  }
  std::vector<NamedMethod> found;
  for (const std::string& name : names) {
    if (std::ranges::find(found, name, &NamedMethod::name) != found.end()) continue;
    TESSERA_ASSIGN_OR_RETURN(found.emplace_back(), make_method(name, shape));
    if (found.back().line->needs_draft && !has_draft) {
      return absl::InvalidArgumentError(absl::StrCat("--method ", name, " needs --draft-model"));
    }
  }
  return found;
}

}  // namespace tessera::lab
