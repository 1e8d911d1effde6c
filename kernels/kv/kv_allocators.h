#pragma once

#include <cstdint>

#include "kernels/kv/allocators/heads.h"
#include "kernels/kv/allocators/losses.h"
#include "kernels/kv/allocators/pages.h"
#include "kernels/kv/allocators/pyramid.h"
#include "kernels/kv/allocators/retrieval.h"
#include "kernels/kv/allocators/uniform.h"
#include "kernels/kv/allocators/zigzag.h"

namespace tessera {

// An allocator divides a budget of tokens over all rows (layers x KV heads) of a sequence. The rule
// decides which tokens fill a row's budget (kv_rules.h). Budget that a row cannot use is not given
// to other rows, except by allocators that read scores.
//
// An allocator is one file of allocators/ and one line of the table below, for every backend. Its
// type has:
//   kReads                          its input, see AllocatorReads
//   measure(layer)                  with AllocatorReads::scores: calls layer.set(head, measure)
//                                   for each KV head of one layer. A TESSERA_ROW_FUNCTION.
//   budget(shape, row)              Returns: tokens of a row (AllocatorRow). Backends round down,
//                                   and clamp to the stored tokens. Products that are added to
//                                   something are rounded_product(), for equal bits on every
//                                   backend.
// Shape is AllocatorShape (row_budget.h). Layer gives access to the tokens of one layer's rows:
//   heads(), row_budget()     KV heads; mean budget of a row in tokens
//   stored(head)              tokens of the row
//   own(head)                 those of them that a rule may change
//   own_at_least(head, cut)   those of its own tokens whose key is at least `cut`
//   mass(head)                sum of the significances of the row's stored tokens
//   cut_best(best)            the cutoff that exactly the best `best` own tokens of the layer reach
//   cut_mass(head, limit)     the cutoff below which the row's own tokens have at most `limit` of
//                             the significance together
//   set(head, measure)        sets the result of a row
// The name is the value of the policy field `allocator`. Values go between ranks: add new ones
// last.
#define TESSERA_KV_ALLOCATORS(ALLOCATOR)   \
  ALLOCATOR(uniform, UniformAllocator)     \
  ALLOCATOR(pyramid, PyramidAllocator)     \
  ALLOCATOR(heads, HeadsAllocator)         \
  ALLOCATOR(pages, PagesAllocator)         \
  ALLOCATOR(zigzag, ZigzagAllocator)       \
  ALLOCATOR(retrieval, RetrievalAllocator) \
  ALLOCATOR(losses, LossesAllocator)

enum class KvAllocator : uint8_t {
#define TESSERA_ALLOCATOR(name, Type) name,
  TESSERA_KV_ALLOCATORS(TESSERA_ALLOCATOR)
#undef TESSERA_ALLOCATOR
};

// Returns: call(Type()) for the allocator's type.
template <class Call>
constexpr auto with_allocator(KvAllocator allocator, Call&& call) {
  switch (allocator) {
#define TESSERA_ALLOCATOR(name, Type) \
  case KvAllocator::name:             \
    return call(Type());
    TESSERA_KV_ALLOCATORS(TESSERA_ALLOCATOR)
#undef TESSERA_ALLOCATOR
  }
  return call(UniformAllocator());
}

constexpr AllocatorReads reads_of(KvAllocator allocator) {
  return with_allocator(allocator, [](auto type) { return decltype(type)::kReads; });
}

}  // namespace tessera
