#include <algorithm>

#include "models/text/jinja/interpreter.h"

namespace tessera::jinja {

size_t allowed_work(const Context& context) {
  constexpr size_t kBaseWork = size_t{1} << 22U;
  constexpr size_t kWorkOfByte = size_t{1} << 9U;  // of the variables' weight
  size_t work = kBaseWork;
  for (const auto& [name, value] : context.variables) {
    work += kWorkOfByte * value.weight();
  }
  return std::min(work, context.max_work);
}

}  // namespace tessera::jinja
