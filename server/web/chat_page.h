#pragma once

#include <string_view>

namespace tessera {

// The chat page served at `/`: HTML, UTF-8, self-contained (server/web/chat.html).
std::string_view chat_page();

}  // namespace tessera
