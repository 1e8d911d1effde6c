#pragma once

#include "absl/status/status.h"
#include "server/request/generate_request.h"
#include "tessera/v1/inference.pb.h"

namespace tessera {

// Reads the options of engine/request_options.h. A plain option is the field of its name in
// SamplingParams, else in GenerateRequest; absent fields leave their members unchanged. Not read
// here, because its absence has a meaning: seed.
// Errors: InvalidArgument names a field of `cache`. The engine checks the other ranges.
absl::Status read_options(const v1::GenerateRequest& message, GenerateRequest& out);

// Reads the use of the prefix cache, and its salt.
// Errors: InvalidArgument names a field of `cache`.
absl::Status read_cache(const v1::CacheOptions& message, GenerateRequest& out);

}  // namespace tessera
