#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

// A part of a text to encode.
struct TextSegment {
  std::string text;
  bool parse_special = false;  // "<|end|>" in it becomes the special token, not characters
};

// Converts text to token ids and back. Immutable after loading; every method may be called from any
// thread.
class Tokenizer {
 public:
  // Reads tokenizer.json or tokenizer.model of a Hugging Face directory; the former has priority,
  // as in Hugging Face. Also reads tokenizer_config.json, special_tokens_map.json and
  // added_tokens.json. Without these two, reads Mistral's tekken.json or tokenizer.model.v*. Of a
  // GGUF file (files/gguf/gguf_model.h), reads the metadata. Supports BPE only: sentencepiece's
  // own, tiktoken's, and Hugging Face's byte-level and sentencepiece styles.
  // Errors: NotFound without a vocabulary; InvalidArgument for files that are malformed or
  // contradict each other; Unimplemented with the name of a part that is not supported.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> load(const std::filesystem::path& model);

  virtual ~Tokenizer() = default;

  // Returns: the ids of the concatenated segments. Merges cross segment borders; special tokens are
  // recognised only in segments with parse_special. `add_bos` has an effect only if the
  // checkpoint's settings add BOS. EOS is not added, even if they do, because prompts are
  // continued: see text_end(). Invalid UTF-8 is encoded as U+FFFD.
  virtual std::vector<int32_t> encode(std::span<const TextSegment> segments,
                                      bool add_bos) const = 0;

  // Returns: the ids that the checkpoint's settings put after a text which nothing continues, such
  // as EOS. Embeddings of models that were trained so need them. Valid as long as the tokenizer.
  virtual std::span<const int32_t> text_end() const { return {}; }

  // Returns: the bytes of a token inside a text (a sentencepiece "▁the" is " the"). Empty for
  // special tokens unless `keep_special`, and for ids without a token, because a model's output
  // layer may be wider than its vocabulary. May be part of a UTF-8 character: see Detokenizer.
  virtual std::string token_bytes(int32_t id, bool keep_special = false) const = 0;

  // Returns: true if the first token of a text loses one leading space (sentencepiece's dummy
  // prefix).
  virtual bool strips_leading_space() const = 0;

  virtual bool is_special(int32_t id) const = 0;
  virtual std::optional<int32_t> special_id(std::string_view text) const = 0;
  virtual int32_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos_id() const = 0;
  virtual std::optional<int32_t> eos_id() const = 0;
};

}  // namespace tessera
