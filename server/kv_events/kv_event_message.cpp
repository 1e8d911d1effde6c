#include "server/kv_events/kv_event_message.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace tessera {
namespace {

using Json = nlohmann::json;
using Event = PrefixEvents::Event;

// One message in the making.
class Message {
 public:
  Message(int32_t block_tokens, double seconds) : block_tokens_(block_tokens), seconds_(seconds) {}

  bool full() const { return count_ >= kKvMessageEvents || tokens_ >= kKvMessageTokens; }
  bool empty() const { return count_ == 0; }

  // tokens: of a stored block.
  void add(const Event& event, const int32_t* tokens) {
    if (!continues(event)) {
      begin(event);
    }
    Json& current = events_.back();
    current[1].push_back(event.block);
    if (event.stored) {
      auto& all = current[3].get_ref<Json::array_t&>();
      all.insert(all.end(), tokens, tokens + block_tokens_);
      tokens_ += static_cast<std::size_t>(block_tokens_);
    }
    last_ = event;
    ++count_;
  }

  // A copy in a store.
  void add(const PrefixEvents::StoreEvent& event) {
    if (empty() || event.stored != last_copy_.stored || event.store != last_copy_.store) {
      const char* const medium = event.store == PrefixEvents::Store::host ? "CPU" : "DISK";
      events_.push_back(event.stored ? Json::array({"BlockStored", Json::array(), nullptr,
                                                    Json::array(), block_tokens_, nullptr, medium})
                                     : Json::array({"BlockRemoved", Json::array(), medium}));
    }
    events_.back()[1].push_back(event.block);
    last_copy_ = event;
    ++count_;
  }

  std::string pack() {
    std::string packed;
    Json::to_msgpack(Json::array({seconds_, std::move(events_), 0}), packed);
    return packed;
  }

 private:
  bool continues(const Event& event) const {
    return !empty() && event.stored == last_.stored &&
           (!event.stored || event.parent == last_.block);
  }

  void begin(const Event& event) {
    if (event.stored) {
      events_.push_back(Json::array({"BlockStored", Json::array(),
                                     event.parent == 0 ? Json() : Json(event.parent), Json::array(),
                                     block_tokens_, nullptr, nullptr}));
    } else {
      events_.push_back(Json::array({"BlockRemoved", Json::array(), nullptr}));
    }
  }

  const int32_t block_tokens_;
  const double seconds_;
  Json events_ = Json::array();
  Event last_;
  PrefixEvents::StoreEvent last_copy_;
  std::size_t count_ = 0;
  std::size_t tokens_ = 0;
};

}  // namespace

void write_kv_messages(const PrefixEvents::Batch& batch, int32_t block_tokens, double seconds,
                       const std::function<void(const std::string&)>& send) {
  const int32_t* tokens = batch.tokens.data();
  for (auto event = batch.events.begin(); event != batch.events.end();) {
    Message message(block_tokens, seconds);
    for (; event != batch.events.end() && !message.full(); ++event) {
      message.add(*event, tokens);
      tokens += event->stored ? block_tokens : 0;
    }
    send(message.pack());
  }
  for (auto event = batch.of_stores.begin(); event != batch.of_stores.end();) {
    Message message(block_tokens, seconds);
    for (; event != batch.of_stores.end() && !message.full(); ++event) {
      message.add(*event);
    }
    send(message.pack());
  }
}

}  // namespace tessera
