#pragma once

#include "server/settings.h"

namespace tessera {

// Sends the log to stderr, one line per event: time, level, text. The first line holds the version
// and every setting. `rank`: of this process, among the ranks that the model is split over. Only
// rank 0 logs the settings.
void start_log(const Settings& settings, int32_t rank = 0);

}  // namespace tessera
