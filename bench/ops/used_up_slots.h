#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/op.h"
#include "kernels/backend.h"

namespace tessera::bench {

// The case of an op that uses up the state of a slot with each call. `Slots` is constructed from a
// format, the setup and the shape, and has:
//   cost()            of a call
//   cycled_bytes()
//   calls()           calls until restore() is needed
//   next()            arguments of the next call, which the caller must make
//   restore()         brings back the state of all slots
// op: a member of Backend.
template <class Slots, auto op>
std::vector<Case> cases_of_used_up_slots(int32_t tokens, const Setup& setup, const Shape& shape) {
  const int32_t rows = shape.layers * shape.kv_heads;
  const auto prepare = [&setup, shape] {
    std::vector<Variant> variants;
    for (const KvFormatName& kv : setup.kv) {
      const auto slots = std::make_shared<Slots>(kv.format, setup, shape);
      const Stream stream = setup.device->stream();
      const OpCost cost = slots->cost();
      for (const std::string_view isa : setup.isas) {
        const Backend& backend = setup.device->backend(isa);
        variants.push_back(
            {.format = std::string(kv.name),
             .isa = std::string(isa),
             .peer = {},
             .cost = cost,
             .cycled_bytes = slots->cycled_bytes(),
             .call = [slots, &backend, stream] { (backend.*op)(slots->next(), stream); },
             .restore = [slots] { slots->restore(); },
             .max_calls = slots->calls()});
      }
    }
    return variants;
  };
  return {{.label = std::to_string(tokens) + " tokens rows " + std::to_string(rows),
           .parameters = {{"tokens", tokens}, {"rows", rows}},
           .prepare = prepare}};
}

}  // namespace tessera::bench
