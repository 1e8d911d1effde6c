#pragma once

#include "server/settings.h"

namespace tessera {

// Sends the log to stderr, one line an event: time, level, text. The first line holds the version
// and every setting.
// rank: of those that the model is split over; the settings are said by the first.
void start_log(const Settings& settings, int32_t rank = 0);

}  // namespace tessera
