#include "server/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace tessera {

void start_log(const Settings& settings) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("tessera"));
  spdlog::set_pattern("%Y-%m-%dT%H:%M:%S.%e %^%l%$ %v");
  spdlog::set_level(spdlog::level::from_str(settings.log_level));
  spdlog::info("tessera-server {}: {}", TESSERA_VERSION, describe(settings));
}

}  // namespace tessera
