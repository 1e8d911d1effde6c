#include "server/start/start_adapters.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>
#include <vector>

#include "base/status_macros.h"
#include "server/adapters/adapter_list.h"

namespace tessera {
namespace {

absl::Status with_adapter(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(),
                      fmt::format("lora: {}: {}", name, std::string(status.message())));
}

absl::Status add_now(AdapterStore& store, const NamedAdapter& adapter) {
  std::promise<absl::Status> added;
  store.add(adapter.name, adapter.path,
            [&added](const auto& result) { added.set_value(result.status()); });
  const absl::Status status = added.get_future().get();
  return status.ok() ? status : with_adapter(adapter.name, status);
}

// Without --lora-memory, there is room for the adapters of the start.
absl::StatusOr<int64_t> memory_for(const Settings& settings, const Engine& engine,
                                   const std::vector<NamedAdapter>& adapters) {
  int64_t memory = settings.lora_memory;
  for (const NamedAdapter& adapter : adapters) {
    if (settings.lora_memory > 0) break;
    const absl::StatusOr<int64_t> bytes = engine.measure_adapter(adapter.path);
    if (!bytes.ok()) return with_adapter(adapter.name, bytes.status());
    memory += *bytes;
  }
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterStore>> start_adapters(const Settings& settings,
                                                             const Engine& engine,
                                                             std::span<const std::string> taken) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<NamedAdapter> adapters, parse_adapters(settings.lora));
  if (adapters.empty() && settings.lora_memory == 0) return nullptr;
  for (const NamedAdapter& adapter : adapters) {
    if (std::ranges::find(taken, adapter.name) != taken.end()) {
      return absl::InvalidArgumentError(
          fmt::format("lora: '{}' is a name of the model itself", adapter.name));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(const int64_t memory, memory_for(settings, engine, adapters));
  auto store = std::make_unique<AdapterStore>(
      engine, AdapterStore::Options{.memory = memory, .grows = settings.lora_memory > 0});
  for (const NamedAdapter& adapter : adapters) {
    TESSERA_RETURN_IF_ERROR(add_now(*store, adapter));
  }
  constexpr double kMib = 1 << 20;
  spdlog::info("adapters: {} read, {:.1f} MiB in memory, at most {:.1f} MiB{}", adapters.size(),
               static_cast<double>(store->bytes()) / kMib, static_cast<double>(memory) / kMib,
               settings.lora_memory > 0 ? "; POST /v1/load_lora_adapter adds more" : "");
  return store;
}

}  // namespace tessera
