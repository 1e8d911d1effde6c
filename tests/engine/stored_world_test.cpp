// The prefix tree above its stores through random operations and crashes: each sequence reads what
// was stored for its tokens, wherever they were meanwhile.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>

#include "engine/tier/block_tiers.h"
#include "engine/tier/disk_store.h"
#include "tests/engine/prefix_world.h"
#include "tests/models/temporary_directory.h"

namespace tessera {
namespace {

constexpr int64_t kNever = INT64_MAX;
std::atomic<int64_t> bytes_before_crash = kNever;

// Writes nothing more from the crash on. A write may be torn by it.
ssize_t write_until_crash(int file, const void* bytes, size_t count, off_t offset) {
  const int64_t left = bytes_before_crash.fetch_sub(static_cast<int64_t>(count));
  const auto part = std::min<int64_t>(static_cast<int64_t>(count), std::max<int64_t>(left, 0));
  return part > 0 && pwrite(file, bytes, static_cast<size_t>(part), offset) < 0
             ? -1
             : static_cast<ssize_t>(count);
}

int sync_no_disk(int) {
  return 0;
}

constexpr DiskCalls kCrashing{.write = write_until_crash, .sync = sync_no_disk};

class StoredWorld final : public PrefixWorld {
 public:
  StoredWorld(const PrefixSetup& setup, uint64_t seed) : PrefixWorld(setup, seed) { open(); }
  ~StoredWorld() override {
    sequences_.clear();
    kv_.reset();
  }

  int64_t restored() const { return restored_; }
  int64_t crashes() const { return crashes_; }

 private:
  void open() {
    bytes_before_crash = kNever;
    const KvTierOptions options{.host_bytes = 200'000,
                                .disk = directory_ / "kv",
                                .disk_bytes = DiskStore::kLeastLimit,
                                .calls = &kCrashing};
    auto tiers = BlockTiers::open(options, kv_->prefixes().stored_shape(), "one checkpoint");
    ASSERT_TRUE(tiers.ok()) << tiers.status();
    tiers_ = *std::move(tiers);
    kv_->prefixes().store_in(*tiers_);
  }

  void before_operation() override {
    kv_->prefixes().save_some(pick(4));
    if (pick(300) == 0) {
      bytes_before_crash = pick(100'000);
    }
    if (pick(300) == 0) {
      begin_again();
    }
    const KvTierStats stats = tiers_->stats();
    ASSERT_LE(stats.host.bytes, stats.host.limit);
    ASSERT_LE(stats.disk.bytes, stats.disk.limit);
  }

  // A new process, behind a crash or an ordinary end. Half of the time a byte of a file flips.
  void begin_again() {
    ++crashes_;
    while (!sequences_.empty()) {
      end();
    }
    if (bytes_before_crash == kNever) {
      kv_->prefixes().save_all(PrefixPins::Time::max());
    }
    kv_.reset();
    tiers_.reset();
    if (pick(2) == 0) {
      damage();
    }
    make_cache();
    open();
  }

  void damage() {
    for (const auto& file : std::filesystem::directory_iterator(directory_ / "kv")) {
      const auto size = static_cast<int32_t>(file.file_size());
      if (size > 0 && pick(4) == 0) {
        std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
        bytes.seekp(pick(size));
        bytes.put(static_cast<char>(pick(256)));
      }
    }
  }

  // Reads what the stores have of the text, as an engine does before it admits a sequence.
  void before_match(Text& text) override {
    SharedPrefixes& prefixes = kv_->prefixes();
    const KvPrompt prompt = this->prompt(text);
    const auto tokens = static_cast<int32_t>(std::ssize(text.tokens)) - 1;
    const KvMatch match = prefixes.whole_blocks_of(prefixes.match(prompt, tokens, {}));
    if (pick(3) == 0 || !prefixes.continued_in(prompt, tokens, match)) {
      return;
    }
    BlockReader& reader = tiers_->reader();
    BlockReader::Job* const job = reader.free_job();
    ASSERT_NE(job, nullptr);
    prefixes.describe(prompt, tokens, match, *job);
    reader.start(*job);
    SharedPrefixes::Restored path(prefixes, match);
    for (bool fits = true; !reader.ended(*job);) {
      if (const BlockBuffer* const stored = reader.front(*job)) {
        fits = fits && path.add(prompt, *stored);
        restored_ += fits ? 1 : 0;
        reader.pop(*job);
      } else {
        reader.wait(std::chrono::milliseconds(1));
      }
    }
    reader.release(*job);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<BlockTiers> tiers_;
  int64_t restored_ = 0;
  int64_t crashes_ = 0;
};

// TESSERA_PREFIX_OPERATIONS sets the number of operations.
void run_stored(const PrefixSetup& setup) {
  const char* setting = std::getenv("TESSERA_PREFIX_OPERATIONS");
  const int64_t operations = setting != nullptr ? std::stoll(setting) / 4 : 1'500;
  int64_t restored = 0;
  int64_t crashes = 0;
  for (uint64_t seed = 1; seed <= 2 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    StoredWorld world(setup, seed);
    world.run(operations / 2);
    restored += world.restored();
    crashes += world.crashes();
  }
  EXPECT_GT(restored, 0);
  EXPECT_GT(crashes, 0);
}

TEST(StoredPrefixes, SurviveCrashesInFloats) {
  run_stored({kKvPresetF16, {}});
}
TEST(StoredPrefixes, SurviveCrashesInCodes) {
  run_stored({*find_kv_preset("k8v4"), {}});
}
TEST(StoredPrefixes, SurviveCrashesBelowALadder) {
  run_stored({*find_kv_preset("k8v4"), {kKvK4V2}});
}
TEST(StoredPrefixes, SurviveCrashesBelowALadderOfFloats) {
  run_stored({kKvPresetF16, {kKvK8V4}});
}

}  // namespace
}  // namespace tessera
