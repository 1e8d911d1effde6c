#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::load {

// These return a plot of a report as an <svg> element, or nothing if the report has no data for it.
std::string plot_percentiles(const nlohmann::ordered_json& report);
std::string plot_timeline(const nlohmann::ordered_json& report);
std::string plot_kv_bytes(const nlohmann::ordered_json& report);
std::string plot_sweep(const nlohmann::ordered_json& report);

}  // namespace tessera::load
