#pragma once

#include "server/settings.h"

namespace tessera {

// Sends the log to stderr, one line an event: time, level, text. The first line holds the version
// and every setting.
void start_log(const Settings& settings);

}  // namespace tessera
