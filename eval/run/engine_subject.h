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

// An engine in this process: the scheduler, pages and kernels that serve. It is stepped on the
// thread that calls run(), so that several can share one model (run/shared_transformer.h).
// `decode` makes text of generated ids.
using Decode = std::function<std::string(const std::vector<int32_t>& ids)>;
std::unique_ptr<Subject> make_engine_subject(std::string name, std::unique_ptr<Engine> engine,
                                             Decode decode);

}  // namespace tessera
