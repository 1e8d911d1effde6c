#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "eval/run/subject.h"

namespace tessera {

// Returns: an engine in this process, with the scheduler, pages and kernels of the server. run()
// steps it on the calling thread, so that several can share one model (run/shared_transformer.h).
// `decode` converts generated ids to text.
using Decode = std::function<std::string(const std::vector<int32_t>& ids)>;
std::unique_ptr<Subject> make_engine_subject(std::string name, std::unique_ptr<Engine> engine,
                                             Decode decode);

}  // namespace tessera
