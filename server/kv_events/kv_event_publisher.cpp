#include "server/kv_events/kv_event_publisher.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <chrono>
#include <thread>
#include <zmq.hpp>

#include "absl/strings/match.h"
#include "server/kv_events/kv_event_message.h"

namespace tessera {
namespace {

constexpr int kLingerMs = 1'000;

std::array<std::byte, 8> big_endian(uint64_t number) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(number >> (56 - 8 * i) & 0xff);
  }
  return bytes;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

class ZeroMqPublisher final : public KvEventPublisher {
 public:
  // Throws: zmq::error_t.
  ZeroMqPublisher(const KvEventOptions& options, PrefixEvents& events)
      : topic_(options.topic), events_(events), socket_(context_, zmq::socket_type::pub) {
    socket_.set(zmq::sockopt::sndhwm, kMaxUnsent);
    socket_.set(zmq::sockopt::linger, kLingerMs);
    if (absl::StrContains(options.endpoint, '*') || absl::StartsWith(options.endpoint, "ipc://")) {
      socket_.bind(options.endpoint);
      spdlog::info("KV events: listening {}", socket_.get(zmq::sockopt::last_endpoint));
    } else {
      socket_.connect(options.endpoint);
      spdlog::info("KV events: sending to {}", options.endpoint);
    }
    thread_ = std::thread([this] { run(); });
  }

  ~ZeroMqPublisher() override {
    events_.close();
    thread_.join();
  }

 private:
  void run() {
    PrefixEvents::Batch batch;
    while (events_.take(batch)) {
      if (batch.lost > 0) {
        spdlog::warn("KV events: {} blocks were stored too quickly; routers do not see them",
                     batch.lost);
      }
      write_kv_messages(batch, events_.block_tokens(), seconds_now(),
                        [this](const std::string& message) { send(message); });
    }
  }

  // A PUB socket never waits: it leaves out subscribers with kMaxUnsent messages.
  void send(const std::string& message) {
    try {
      const std::array<std::byte, 8> number = big_endian(sent_++);
      socket_.send(zmq::buffer(topic_), zmq::send_flags::sndmore);
      socket_.send(zmq::buffer(number), zmq::send_flags::sndmore);
      socket_.send(zmq::buffer(message), zmq::send_flags::none);
    } catch (const zmq::error_t& error) {
      spdlog::error("KV events: {}", error.what());
    }
  }

  const std::string topic_;
  PrefixEvents& events_;
  uint64_t sent_ = 0;
  zmq::context_t context_;
  zmq::socket_t socket_;  // after start() only the thread uses it
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<KvEventPublisher>> KvEventPublisher::start(
    const KvEventOptions& options, PrefixEvents& events) {
  try {
    return std::make_unique<ZeroMqPublisher>(options, events);
  } catch (const zmq::error_t& error) {
    return absl::UnavailableError(fmt::format("kv-events: {}: {}", options.endpoint, error.what()));
  }
}

}  // namespace tessera
