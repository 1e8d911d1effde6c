#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "kernels/cpu/pages/pages.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera {
namespace {

int32_t* first_row(const KvPool& pool, int32_t slot) {
  return pool.tables + int64_t{slot} * pool.layers * pool.kv_heads * pool.row_pages;
}

void check_fork(const KvForkArgs& args, const KvRowFork& fork) {
  TESSERA_CHECK(fork.source >= 0 && fork.source < args.pool.slots && fork.target >= 0 &&
                    fork.target < args.pool.slots && fork.source != fork.target,
                "kv_fork: no such slots");
  TESSERA_CHECK(
      fork.tokens > 0 && div_ceil(fork.tokens, args.pages.layout.capacity) <= args.pool.row_pages,
      "kv_fork: tokens beyond the row");
}

// The target's rows: whole pages with one more owner, and a page of its own for the rest.
void fork_rows(const KvForkArgs& args, const KvRowFork& fork) {
  const KvPool& pool = args.pool;
  const int32_t whole = fork.tokens / args.pages.layout.capacity;
  const bool partly = fork.tokens % args.pages.layout.capacity != 0;
  const int64_t rows = int64_t{pool.layers} * pool.kv_heads;
  TESSERA_CHECK(!partly || rows <= pool.free_range->count, "kv_fork: not enough free pages");
  const int32_t* source = first_row(pool, fork.source);
  int32_t* target = first_row(pool, fork.target);
  for (int64_t row = 0; row < rows; ++row, source += pool.row_pages, target += pool.row_pages) {
    TESSERA_CHECK(target[0] == kNoPage, "kv_fork: the target holds pages");
    TESSERA_CHECK(source[whole - (partly ? 0 : 1)] != kNoPage, "kv_fork: tokens without a page");
    for (int32_t i = 0; i < whole; ++i) {
      target[i] = source[i];
      ++pool.owners[target[i]];
    }
    if (partly) {
      KvFreeRange& range = *pool.free_range;
      target[whole] = std::exchange(pool.free_list[range.head], kNoPage);
      pool.owners[target[whole]] = 1;
      range = {(range.head + 1) % pool.pages, range.count - 1};
    }
  }
}

}  // namespace

void kv_fork(const KvForkArgs& args, Stream stream) {
  for (const KvRowFork& fork : args.forks) {
    check_fork(args, fork);
    fork_rows(args, fork);
  }
  const int64_t rows = int64_t{args.pool.layers} * args.pool.kv_heads;
  const KvPageLayout& layout = args.pages.layout;
  const auto copy = [&](int64_t begin, int64_t end, int /*worker*/) {
    for (int64_t i = begin; i < end; ++i) {
      const KvRowFork& fork = args.forks[static_cast<size_t>(i / rows)];
      if (fork.tokens % layout.capacity != 0) {
        const int64_t place = i % rows * args.pool.row_pages + fork.tokens / layout.capacity;
        std::memcpy(args.pages.page(first_row(args.pool, fork.target)[place]),
                    args.pages.page(first_row(args.pool, fork.source)[place]),
                    static_cast<size_t>(layout.page_bytes));
      }
    }
  };
  ThreadPool::of(stream).parallel_for(std::ssize(args.forks) * rows, 1, copy);
}

}  // namespace tessera
