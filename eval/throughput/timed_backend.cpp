#include "eval/throughput/timed_backend.h"

#include <chrono>

namespace tessera {
namespace {

// Ops are plain functions, so their state is global.
Backend g_timed;
Backend g_table;
double g_page_seconds = 0;
double g_score_seconds = 0;

void wait(Stream stream) {
  if (g_timed.memory != nullptr) {
    g_timed.memory->wait(stream);
  }
}

// Calls this op of the table between two waits.
template <class Args, void (*Backend::*kOp)(const Args&, Stream), double& kSeconds>
void timed_op(const Args& args, Stream stream) {
  wait(stream);
  const auto begin = std::chrono::steady_clock::now();
  (g_timed.*kOp)(args, stream);
  wait(stream);
  kSeconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TimedBackend::TimedBackend(const Backend& timed) {
  g_timed = timed;
  g_table = timed;
  g_table.record = nullptr;  // an op inside a recording cannot be waited for
  g_page_seconds = 0;
  g_score_seconds = 0;
  g_table.kv_resize = timed_op<KvResizeArgs, &Backend::kv_resize, g_page_seconds>;
  g_table.kv_fork = timed_op<KvForkArgs, &Backend::kv_fork, g_page_seconds>;
  g_table.kv_share = timed_op<KvShareArgs, &Backend::kv_share, g_page_seconds>;
  g_table.kv_attach = timed_op<KvAttachArgs, &Backend::kv_attach, g_page_seconds>;
  g_table.kv_own = timed_op<KvOwnArgs, &Backend::kv_own, g_page_seconds>;
  g_table.kv_evict = timed_op<KvEvictArgs, &Backend::kv_evict, g_page_seconds>;
  g_table.kv_compress = timed_op<KvCompressArgs, &Backend::kv_compress, g_page_seconds>;
  g_table.kv_score = timed_op<KvScoreArgs, &Backend::kv_score, g_score_seconds>;
}

const Backend& TimedBackend::table() const {
  return g_table;
}

double TimedBackend::page_seconds() const {
  return g_page_seconds;
}

double TimedBackend::score_seconds() const {
  return g_score_seconds;
}

}  // namespace tessera
