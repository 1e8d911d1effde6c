#pragma once

#include <string_view>

namespace tessera {

// The chat page served at `/`: HTML, UTF-8, self-contained (server/web/page.html).
std::string_view chat_page();

// Its Content-Security-Policy. It names the page's script and style by their hashes, so that
// nothing else runs. It refuses text as markup (trusted types), and all addresses but the server's
// own.
std::string_view chat_page_policy();

std::string_view chat_icon();  // SVG

}  // namespace tessera
