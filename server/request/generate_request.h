#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/engine.h"
#include "server/grammar/grammar_spec.h"
#include "server/request/cache_marks.h"
#include "server/request/infill.h"
#include "server/request/kv_overrides.h"
#include "server/tenants/caller.h"
#include "text/chat_template.h"

namespace tessera {

struct RequestRecord;

inline constexpr int32_t kTruncateToFit = -1;

// A text, token ids, or a chat.
using Prompt = std::variant<std::string, std::vector<int32_t>, Conversation>;

// Conversion of a prompt to token ids. A prompt of token ids is not changed.
struct PromptOptions {
  bool add_bos = true;                // for a text, if the checkpoint asks for it; never for a chat
  bool parse_special = false;         // parses special tokens in a text
  bool add_generation_prompt = true;  // a chat ends with the start of the assistant's turn
  bool close_thought = false;         // if the chat ends inside a thought: it ends that too
  std::string answer_begin{};         // after the chat; special tokens are parsed
  std::optional<Infill> infill{};     // of a text: the answer is between it and a suffix
  std::vector<CacheMark> marks{};     // of a chat; at most kMaxKeptPrefixes
};

// One generation request, the same for both front ends: the engine's options without the seed, and
// the fields from which the service computes the rest of an EngineRequest.
struct GenerateRequest : RequestOptions {
  Prompt prompt;
  PromptOptions prompt_options;
  // Names of the sampling parameters that the request has. The model's defaults are for the others
  // (Service::sampling).
  std::vector<std::string_view> given;
  std::optional<uint64_t> seed;  // none: a new one each time; with `deterministic`, a fixed one
  std::optional<int32_t> max_tokens;  // none: as many as the context has room for; 0: prefill only
  std::vector<std::string> stop;      // not part of the returned text, unless `include_stop`
  bool include_stop = false;          // the stop string, or the stop token's text, is part of it
  // Number of the prompt's last tokens that are kept; a BOS at the beginning counts and stays.
  // kTruncateToFit: as many as leave room for max_tokens, or for half of the context if that is
  // less. None: all.
  std::optional<int32_t> truncate_prompt;
  // Texts that are not generated, and texts at which a repetition ends for DRY (none: "\n", ":",
  // '"' and "*"). The service converts them to the tokens of SamplingParams.
  std::vector<std::string> bad_texts;
  std::optional<std::vector<std::string>> breakers;
  bool keep_special = false;               // prints special tokens
  std::vector<int32_t> printed_special{};  // special tokens that are printed all the same
  KvOverrides kv;
  // Prompt and answer stay in the prefix cache for so long after their last use, or for the longest
  // time that the caller may pin. None: for no time that is promised.
  std::optional<std::chrono::seconds> retention;
  std::string_view ttl_field = "cache.ttl";  // for errors: the client's name of Cache::ttl
  // The grammar that the text must match, and its compiled form, which Service::compile makes.
  std::optional<GrammarSpec> grammar;
  std::shared_ptr<const TokenGrammar> compiled_grammar;
  // The adapter that the model's name asks for, and its matrices (server/adapters/).
  std::string adapter_name;
  std::shared_ptr<const LoraAdapter> adapter;
  std::optional<std::chrono::steady_clock::time_point> deadline;
  bool streamed = false;           // the client reads the answer while it is generated
  bool echo = false;               // the answer begins with the prompt
  bool prompt_ids = false;         // the answer has the prompt's token ids
  std::optional<Pooling> pooling;  // makes an embedding of the prompt (EventSink::on_embedding)
  std::shared_ptr<PrefixTransfer> transfer;  // moves blocks of the prompt; null: none
  // Queue timeout of the client; none: the server's own.
  std::optional<std::chrono::milliseconds> queue_timeout;
  std::shared_ptr<const Caller> caller;   // null: a server without keys
  bool admitted = false;                  // Service::admit has counted it
  std::shared_ptr<RequestRecord> record;  // receives the tokens and times; null: no access log
};

}  // namespace tessera
