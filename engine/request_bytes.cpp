#include "engine/request_bytes.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

#include "base/check.h"
#include "engine/kv/kv_presets.h"

namespace tessera {
namespace {

class Writer {
 public:
  explicit Writer(std::vector<std::byte>& bytes) : bytes_(bytes) {}

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
  template <class T>
  void put(const std::vector<std::vector<T>>& lists) {
    put(lists.size());
    for (const std::vector<T>& list : lists) {
      put(list);
    }
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
  void put(const std::shared_ptr<const TokenGrammar>& grammar) { put(grammar != nullptr); }
  void put(const std::shared_ptr<const LoraAdapter>& adapter) {
    TESSERA_CHECK(adapter == nullptr, "several ranks serve no adapters");
  }
  // There are no stores with several ranks, so a transfer is refused by all of them.
  void put(const std::shared_ptr<PrefixTransfer>&) {}

 private:
  void put_raw(const void* data, size_t size) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + size);
  }

  std::vector<std::byte>& bytes_;
};

// Stands for a grammar on the ranks that get the leader's masks.
class LeadersGrammar final : public TokenGrammar {
 public:
  std::unique_ptr<TokenConstraint> begin() const override { return nullptr; }
};

class Reader {
 public:
  Reader(std::span<const std::byte>& bytes, const std::shared_ptr<EventSink>& sink)
      : bytes_(bytes), sink_(sink) {}

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
  template <class T>
  void get(std::vector<std::vector<T>>& lists) {
    lists.resize(size());
    for (std::vector<T>& list : lists) {
      get(list);
    }
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
  void get(std::shared_ptr<const LoraAdapter>& adapter) { adapter = nullptr; }
  void get(std::shared_ptr<PrefixTransfer>& transfer) { transfer = nullptr; }
  void get(std::shared_ptr<const TokenGrammar>& grammar) {
    bool there = false;
    get(there);
    if (there) {
      grammar = std::make_shared<LeadersGrammar>();
    }
  }

 private:
  void get_raw(void* data, size_t size) {
    TESSERA_CHECK(size <= bytes_.size(), "a request that ends too early");
    if (size > 0) {
      std::memcpy(data, bytes_.data(), size);
    }
    bytes_ = bytes_.subspan(size);
  }

  size_t size() {
    size_t count = 0;
    get(count);
    return count;
  }

  std::span<const std::byte>& bytes_;
  const std::shared_ptr<EventSink>& sink_;
};

// Calls `visit(member)` for each member of a request. A missing or an extra member is a compile
// error.
template <class Visitor, class Options, class Input>
void visit_members(const Visitor& visit, Options& options, Input& input) {
  visit_options([&](const Option&, auto& member) { visit(member); }, options);
  auto& [prompt, max_tokens, forced, observe_logits, pooling, kv, deadline, start_by, grammar,
         tenant, adapter, kept, transfer, sinks] = input;
  const auto visit_all = [&](auto&... members) { (visit(members), ...); };
  visit_all(prompt, max_tokens, forced, observe_logits, pooling, kv, deadline, start_by, grammar,
            tenant, adapter, kept, transfer, sinks);
}

}  // namespace

void append_request(const EngineRequest& request, std::vector<std::byte>& bytes) {
  const RequestOptions& options = request;
  const RequestInput& input = request;
  Writer writer(bytes);
  visit_members([&](const auto& member) { writer.put(member); }, options, input);
}

EngineRequest take_request(std::span<const std::byte>& bytes,
                           const std::shared_ptr<EventSink>& sink) {
  EngineRequest request;
  RequestOptions& options = request;
  RequestInput& input = request;
  Reader reader(bytes, sink);
  visit_members([&](auto& member) { reader.get(member); }, options, input);
  return request;
}

}  // namespace tessera
