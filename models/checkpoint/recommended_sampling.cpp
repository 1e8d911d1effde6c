#include "models/checkpoint/recommended_sampling.h"

#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "files/gguf/gguf_model.h"
#include "files/json_fields.h"
#include "files/mapped_file.h"
#include "nlohmann/json.hpp"

namespace tessera {
namespace {

using nlohmann::json;

// A parameter by its names in the two kinds of files; null: that one has none.
struct Parameter {
  const char* name;
  const char* gguf;
};

constexpr Parameter kParameters[] = {{"temperature", "general.sampling.temp"},
                                     {"top_p", "general.sampling.top_p"},
                                     {"top_k", "general.sampling.top_k"},
                                     {"min_p", "general.sampling.min_p"},
                                     {"typical_p", nullptr},
                                     {"repetition_penalty", "general.sampling.penalty_repeat"}};

absl::StatusOr<RecommendedSampling> read_fields(const json& object, const std::string& file,
                                                const char* Parameter::*key) {
  constexpr double kAny = std::numeric_limits<float>::max();
  JsonFields fields(object, file);
  RecommendedSampling found;
  for (const Parameter& parameter : kParameters) {
    const char* name = parameter.*key;
    if (name != nullptr && fields.has(name)) {
      found[parameter.name] = double{fields.number(name, -kAny, kAny)};
    }
  }
  TESSERA_RETURN_IF_ERROR(fields.status());
  return found;
}

}  // namespace

absl::StatusOr<RecommendedSampling> read_recommended_sampling(const std::filesystem::path& model) {
  TESSERA_ASSIGN_OR_RETURN(const std::optional<std::filesystem::path> gguf, find_gguf(model));
  if (gguf) {
    TESSERA_ASSIGN_OR_RETURN(const GgufModel opened, GgufModel::open(*gguf));
    return read_fields(opened.fields(), gguf->string(), &Parameter::gguf);
  }
  const std::filesystem::path path = model / "generation_config.json";
  const absl::StatusOr<std::string> text = read_small_file(path);
  if (absl::IsNotFound(text.status())) return RecommendedSampling();
  TESSERA_RETURN_IF_ERROR(text.status());
  const json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path.string(), ": is no JSON object"));
  }
  return read_fields(parsed, path.string(), &Parameter::name);
}

}  // namespace tessera
