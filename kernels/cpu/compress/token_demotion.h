#pragma once

#include "kernels/cpu/compress/token_copy.h"

namespace tessera {

// Encodes a token of a page of `high` anew as one of a page of `low`, of codes or sparse, at the end
// of what that holds. The bytes are those of decode_token and encode_token
// (kernels/cpu/pages/page_codec.h), in a fraction of their time: a step may demote a group of every
// head.
void demote_token(const KvPageLayout& high, TokenPlace from, const KvPageLayout& low,
                  TokenPlace to);

}  // namespace tessera
