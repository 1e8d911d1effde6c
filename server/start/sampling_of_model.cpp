#include "server/start/sampling_of_model.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <string>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "models/checkpoint/recommended_sampling.h"
#include "server/request/model_sampling.h"
#include "server/settings/settings.h"

namespace tessera {

absl::StatusOr<SamplingParams> sampling_of_model(const Settings& settings) {
  if (!settings.generation_config) return SamplingParams();
  TESSERA_ASSIGN_OR_RETURN(const RecommendedSampling recommended,
                           read_recommended_sampling(settings.model));
  if (!recommended.empty()) {
    spdlog::info("requests that leave them out have the model's {} (--generation-config)",
                 absl::StrJoin(recommended, ", ", [](std::string* out, const auto& entry) {
                   out->append(fmt::format("{} {:g}", entry.first, entry.second));
                 }));
  }
  return with_recommended(recommended);
}

}  // namespace tessera
