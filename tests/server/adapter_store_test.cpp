#include "server/adapters/adapter_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "engine/retry_after.h"
#include "server/adapters/adapter_list.h"
#include "tests/server/adapter_files.h"
#include "tests/server/fake_engine.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Adapter = AdapterStore::Adapter;
using AdapterResult = absl::StatusOr<Adapter>;

class AdapterStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    engine_.adapt(AdapterFiles::config());
    each_ = engine_.measure_adapter(files_.write("a", 1)).value();
    for (const char* name : {"b", "c", "d"}) files_.write(name, static_cast<uint32_t>(*name));
  }

  void make(int64_t memory) {
    store_ = std::make_unique<AdapterStore>(engine_,
                                            AdapterStore::Options{.memory = memory, .grows = true});
  }
  std::future<AdapterResult> later(const std::function<void(AdapterStore::Done)>& ask) {
    auto promise = std::make_shared<std::promise<AdapterResult>>();
    ask([promise](AdapterResult result) { promise->set_value(std::move(result)); });
    return promise->get_future();
  }
  std::future<AdapterResult> adding(const std::string& name) {
    const std::filesystem::path path = files_.write(name, static_cast<uint32_t>(name[0]));
    return later([&](auto done) { store_->add(name, path, done); });
  }
  AdapterResult add(const std::string& name) { return adding(name).get(); }
  AdapterResult get(const std::string& name) {
    return later([&](auto done) { store_->get(name, done); }).get();
  }
  bool in_memory(const std::string& name) { return store_->find(name).value() != nullptr; }

  FakeEngine engine_;
  AdapterFiles files_;
  int64_t each_ = 0;  // bytes
  std::unique_ptr<AdapterStore> store_;
};

TEST_F(AdapterStoreTest, TheLongestUnusedLeaveMemoryAndAreReadAgain) {
  make(2 * each_);
  ASSERT_TRUE(add("a").ok());
  const std::string fingerprint = add("b").value()->fingerprint();
  ASSERT_TRUE(in_memory("a"));  // which is a use
  ASSERT_TRUE(add("c").ok());
  EXPECT_TRUE(in_memory("a"));
  EXPECT_FALSE(in_memory("b"));
  EXPECT_EQ(store_->bytes(), 2 * each_);
  EXPECT_EQ(get("b").value()->fingerprint(), fingerprint);
  EXPECT_FALSE(in_memory("c")) << "b was read in its place";
  EXPECT_THAT(store_->names(), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(in_memory("a"));
}

TEST_F(AdapterStoreTest, AnAdapterInUseIsNeverTakenAway) {
  make(2 * each_);
  const Adapter a = add("a").value();
  const Adapter b = add("b").value();
  const absl::Status refused = add("c").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_TRUE(retry_after_of(refused).has_value());
  EXPECT_FALSE(store_->has("c"));
  EXPECT_EQ(store_->find("a").value(), a);
  EXPECT_EQ(store_->find("b").value(), b);
}

TEST_F(AdapterStoreTest, ARemovedAdapterCountsUntilItsLastRequestEnds) {
  make(each_);
  Adapter held = add("a").value();
  ASSERT_TRUE(store_->remove("a").ok());
  EXPECT_FALSE(store_->has("a"));
  EXPECT_EQ(store_->find("a").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->bytes(), each_);
  EXPECT_EQ(add("b").status().code(), absl::StatusCode::kResourceExhausted);
  held.reset();
  for (int i = 0; i < 500 && store_->bytes() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(store_->bytes(), 0);
  EXPECT_TRUE(add("b").ok());
}

TEST_F(AdapterStoreTest, RequestsForOneAdapterShareItsRead) {
  make(each_);
  ASSERT_TRUE(add("a").ok());
  ASSERT_TRUE(add("b").ok());
  ASSERT_FALSE(in_memory("a"));
  std::promise<void> open;
  std::atomic<int> reads = 0;
  engine_.before_read([&, opened = open.get_future().share()] {
    ++reads;
    opened.wait();
  });
  std::vector<std::future<AdapterResult>> waiting;
  for (int i = 0; i < 8; ++i) {
    waiting.push_back(later([&](auto done) { store_->get("a", done); }));
  }
  EXPECT_TRUE(store_->find("a").ok()) << "a read blocks nothing else";
  open.set_value();
  for (auto& one : waiting) EXPECT_TRUE(one.get().ok());
  EXPECT_EQ(reads, 1);
}

TEST_F(AdapterStoreTest, TellsWaitingRequestsThatANameIsGoneOrTheServerStops) {
  make(each_);
  ASSERT_TRUE(add("a").ok());
  ASSERT_TRUE(add("b").ok());
  std::promise<void> open;
  std::atomic<bool> reading = false;
  engine_.before_read([&, opened = open.get_future().share()] {
    reading = true;
    opened.wait();
  });
  auto of_a = later([&](auto done) { store_->get("a", done); });
  while (!reading) std::this_thread::yield();
  auto of_c = adding("c");
  ASSERT_TRUE(store_->remove("a").ok());
  EXPECT_EQ(of_a.get().status().code(), absl::StatusCode::kNotFound);
  std::thread stopping([&] { store_.reset(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  open.set_value();
  stopping.join();
  EXPECT_EQ(of_c.get().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(AdapterStoreTest, RefusesNamesAndFilesThatItCannotServe) {
  make(each_);
  ASSERT_TRUE(add("a").ok());
  EXPECT_EQ(add("a").status().code(), absl::StatusCode::kAlreadyExists);
  const auto status_of = [&](const std::string& name, const std::filesystem::path& path) {
    return later([&](auto done) { store_->add(name, path, done); }).get().status();
  };
  EXPECT_EQ(status_of("", "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(std::string(257, 'x'), "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of("x", "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of("x", "nowhere").code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(store_->has("x"));
  EXPECT_EQ(store_->remove("x").code(), absl::StatusCode::kNotFound);
  make(each_ - 1);
  const absl::Status large = add("a").status();
  EXPECT_EQ(large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.message()), HasSubstr("--lora-memory"));
}

TEST_F(AdapterStoreTest, SaysWhichAdapterCanNoLongerBeRead) {
  make(each_);
  ASSERT_TRUE(add("a").ok());
  ASSERT_TRUE(add("b").ok());
  const std::filesystem::path path = files_.write("a", 1);
  std::filesystem::remove_all(path);
  const absl::Status status = get("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("adapter 'a' can no longer be read"));
  files_.write("a", 1);
  EXPECT_TRUE(get("a").ok());
}

TEST_F(AdapterStoreTest, ShrinksByAdaptersThatNoRequestUses) {
  make(4 * each_);
  const Adapter held = add("a").value();
  for (const char* name : {"b", "c", "d"}) ASSERT_TRUE(add(name).ok());
  store_->shrink();
  EXPECT_EQ(store_->bytes(), 2 * each_);
  store_->shrink();
  EXPECT_EQ(store_->bytes(), each_);
  store_->shrink();
  EXPECT_EQ(store_->find("a").value(), held);
}

TEST(AdapterList, HasNamesAndPaths) {
  const auto adapters = parse_adapters("sql=/a/b,chat=c=d").value();
  ASSERT_EQ(adapters.size(), 2U);
  EXPECT_EQ(adapters[0].name, "sql");
  EXPECT_EQ(adapters[0].path, "/a/b");
  EXPECT_EQ(adapters[1].path, "c=d");
  EXPECT_TRUE(parse_adapters("").value().empty());
  for (const char* wrong : {"sql", "=a", "sql=", "a=b,a=c"}) {
    EXPECT_EQ(parse_adapters(wrong).status().code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
}

}  // namespace
}  // namespace tessera
