#include "server/start/request_memory.h"

#include <algorithm>

#include "server/grammar/grammar_compiler.h"
#include "server/grammar/grammar_store.h"
#include "server/http/listener.h"

namespace tessera {
namespace {

// gRPC's part of --request-memory: one of so many.
constexpr std::size_t kGrpcShare = 4;

// The part of open calls in it: one of so many.
constexpr std::size_t kCallShare = 4;

// The part of grammars: one of so many.
constexpr std::size_t kGrammarShare = 8;

// Memory of a body that is parsed and answered, at most, for each of its bytes. Measured: a list of
// one-digit numbers, as ids of a prompt and of stop_token_ids, and texts for /tokenize and
// /detokenize. A text of words takes most, 42.
constexpr std::size_t kParsedBytes = 48;

// Memory of an HTTP connection besides the bytes that it has read.
constexpr std::size_t kConnectionBytes = 32 << 10;

}  // namespace

std::size_t http_connection_bytes(const Settings& settings) {
  return kConnectionBytes + settings.http.header_bytes + kHttpSentAheadBytes;
}

RequestMemory request_memory_of(const Settings& settings, std::size_t http_connections) {
  const std::size_t grpc = settings.request_memory / kGrpcShare;
  const std::size_t grammars = settings.request_memory / kGrammarShare;
  const std::size_t longest =
      std::max(settings.http.body_bytes, static_cast<std::size_t>(settings.grpc.max_message_bytes));
  // One of the threads is for short requests.
  return {.bodies = settings.request_memory - grpc - grammars,
          .grammars = grammars,
          .compiling = std::size_t{kCompileThreads} * kCompileBytes,
          .messages = grpc - grpc / kCallShare,
          .calls = grpc / kCallShare,
          .parsing = (settings.work.threads - 1) * longest * kParsedBytes,
          .connections = http_connections * http_connection_bytes(settings),
          .responses = settings.routes.response_store};
}

}  // namespace tessera
