#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "server/tenants/api_keys.h"

namespace tessera {

// A tenant file on disk. Removed with this object.
class WrittenTenants {
 public:
  explicit WrittenTenants(const std::string& text, mode_t mode = 0640)
      : path_(std::filesystem::path(testing::TempDir()) /
              ("tessera_tenants_" + std::to_string(getpid()) + ".yaml")) {
    write(text, mode);
  }
  ~WrittenTenants() { std::filesystem::remove(path_); }
  WrittenTenants(const WrittenTenants&) = delete;
  WrittenTenants& operator=(const WrittenTenants&) = delete;

  void write(const std::string& text, mode_t mode = 0640) const {
    std::ofstream(path_, std::ios::binary) << text;
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
  }
  KeySources sources() const { return {.list = {}, .file = {}, .tenants = path_}; }
  ApiKeys keys() const { return ApiKeys::load(sources()).value(); }

 private:
  std::filesystem::path path_;
};

// Tenants "a" and "b". The key of "a" has the right to admin routes; "b" may send 6 requests a
// minute.
inline constexpr char kTwoTenants[] = R"(
tenants:
  - name: a
    keys: [{name: key-of-a, key: a-long-key-of-tenant-a, admin: true}]
  - name: b
    requests-per-minute: 6
    keys: [{name: key-of-b, key: a-long-key-of-tenant-b}]
)";
inline constexpr char kHeaderA[] = "Authorization: Bearer a-long-key-of-tenant-a\r\n";
inline constexpr char kHeaderB[] = "Authorization: Bearer a-long-key-of-tenant-b\r\n";

}  // namespace tessera
