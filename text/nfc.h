#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/plain_encoder.h"

namespace tessera {

// Returns: the text in Unicode's normal form C.
// Requires: `text` is UTF-8.
std::string to_nfc(std::string_view text);

// Returns: an encoder that normalises text before `encoder` sees it.
std::unique_ptr<PlainEncoder> make_nfc_encoder(std::unique_ptr<PlainEncoder> encoder);

}  // namespace tessera
