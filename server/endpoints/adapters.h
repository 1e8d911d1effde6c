#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tessera {

struct AdapterRequest {
  std::string name;
  std::string path;  // to load; empty to unload
};

// Parse the bodies of /v1/load_lora_adapter and /v1/unload_lora_adapter.
// Errors: InvalidArgument names the field.
absl::StatusOr<AdapterRequest> parse_load_adapter_request(std::string_view body);
absl::StatusOr<AdapterRequest> parse_unload_adapter_request(std::string_view body);

}  // namespace tessera
