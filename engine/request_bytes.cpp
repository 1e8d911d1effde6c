#include "engine/request_bytes.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "kernels/check.h"

namespace tessera {
namespace {

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}

  template <class... Fields>
  void operator()(const Fields&... fields) {
    (put(fields), ...);
  }

 private:
  void put_raw(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_raw(&value, sizeof(T));
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    put_raw(values.data(), values.size() * sizeof(T));
  }
  void put(const std::string& text) {
    put(text.size());
    put_raw(text.data(), text.size());
  }
  void put(const KvPreset& preset) {
    put(preset.name);
    put(preset.policy);
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value.has_value()) {
      put(*value);
    }
  }
  void put(const std::vector<std::shared_ptr<EventSink>>& sinks) { put(sinks.size()); }

  std::vector<std::byte>& bytes_;
};

class Reader {
 public:
  Reader(std::span<const std::byte>& bytes, const std::shared_ptr<EventSink>& sink)
      : bytes_(bytes), sink_(sink) {}

  template <class... Fields>
  void operator()(Fields&... fields) {
    (get(fields), ...);
  }

 private:
  void get_raw(void* data, size_t size) {
    TESSERA_CHECK(size <= bytes_.size(), "a request that ends too early");
    if (size > 0) {
      std::memcpy(data, bytes_.data(), size);
    }
    bytes_ = bytes_.subspan(size);
  }
  template <class T>
  void get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    get_raw(&value, sizeof(T));
  }
  template <class T>
  void get(std::vector<T>& values) {
    values.resize(size());
    get_raw(values.data(), values.size() * sizeof(T));
  }
  void get(std::string& text) {
    text.resize(size());
    get_raw(text.data(), text.size());
  }
  void get(KvPreset& preset) {
    get(preset.name);
    get(preset.policy);
  }
  template <class T>
  void get(std::optional<T>& value) {
    bool there = false;
    get(there);
    if (there) {
      get(value.emplace());
    }
  }
  void get(std::vector<std::shared_ptr<EventSink>>& sinks) { sinks.assign(size(), sink_); }

  size_t size() {
    size_t count = 0;
    get(count);
    return count;
  }

  std::span<const std::byte>& bytes_;
  const std::shared_ptr<EventSink>& sink_;
};

// The only list of a request's fields. A missing or an extra field is a compile error.
template <class Visitor, class Request>
void visit_fields(Visitor&& visit, Request& request) {
  auto& [prompt, sampling, max_tokens, stop_ids, ignore_eos, priority, forced, observe_logits, kv,
         cache_salt, cache, cache_accept, deadline, deterministic, sinks] = request;
  visit(prompt, max_tokens, stop_ids, ignore_eos, priority, forced, observe_logits, kv, cache_salt,
        cache, cache_accept, deadline, deterministic, sinks);
  auto& [temperature, top_p, top_k, seed, min_p, repetition_penalty, presence_penalty,
         frequency_penalty, logit_bias, min_tokens, top_logprobs, prompt_logprobs] = sampling;
  visit(temperature, top_p, top_k, seed, min_p, repetition_penalty, presence_penalty,
        frequency_penalty, logit_bias, min_tokens, top_logprobs, prompt_logprobs);
}

}  // namespace

void append_request(const EngineRequest& request, std::vector<std::byte>& bytes) {
  visit_fields(Writer(bytes), request);
}

EngineRequest take_request(std::span<const std::byte>& bytes,
                           const std::shared_ptr<EventSink>& sink) {
  EngineRequest request;
  visit_fields(Reader(bytes, sink), request);
  return request;
}

}  // namespace tessera
