#include "server/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <string>

#include "server/commit.h"

namespace tessera {

void start_log(const Settings& settings, int32_t rank) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("tessera"));
  const std::string who = rank == 0 ? "" : fmt::format("rank {}: ", rank);
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ " + who + "%v");
  spdlog::set_level(spdlog::level::from_str(settings.log_level));
  if (rank > 0) {
    return;
  }
  spdlog::info("tessera-server {} ({}): {}", TESSERA_VERSION, commit(), describe(settings));
}

}  // namespace tessera
