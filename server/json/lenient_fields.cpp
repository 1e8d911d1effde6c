#include "server/json/lenient_fields.h"

#include <fmt/format.h>

#include <utility>

namespace tessera {

namespace {

constexpr int kMaxNamed = 8;
constexpr std::size_t kMaxNameBytes = 64;

thread_local LenientFields* lenient = nullptr;

}  // namespace

LenientFields::LenientFields() : before_(std::exchange(lenient, this)) {}

LenientFields::~LenientFields() {
  lenient = before_;
}

bool LenientFields::leave_out(std::string_view name) {
  if (lenient == nullptr) {
    return false;
  }
  if (lenient->named_++ < kMaxNamed) {
    std::string& warning = lenient->warning_;
    warning += fmt::format("{}{} is left out: it is not known to this server",
                           warning.empty() ? "" : "; ", name.substr(0, kMaxNameBytes));
  }
  return true;
}

}  // namespace tessera
