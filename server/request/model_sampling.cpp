#include "server/request/model_sampling.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "server/request/generate_request.h"

namespace tessera {
namespace {

// Sets the parameters that are numbers.
struct RecommendedReader {
  const RecommendedSampling& recommended;

  template <class T>
  void operator()(const SpecialOption& /*option*/, T& /*out*/) const {}
  template <class T>
  void operator()(const Option& option, T& out) const {
    const auto found = recommended.find(std::string(option.name));
    if constexpr (std::is_arithmetic_v<T>) {
      if (found != recommended.end()) set(option, found->second, out);
    }
  }

 private:
  template <class T>
  static void set(const Option& option, double value, T& out) {
    const bool counts = std::is_integral_v<T>;
    // vLLM and transformers: -1, like 0, means all tokens.
    const double number = counts && option.name == "top_k" ? std::max(value, 0.0) : value;
    if (!option.range.contains(number) || (counts && number != std::floor(number)) ||
        number > std::numeric_limits<T>::max()) {
      spdlog::warn("generation-config: the model recommends {} {}, which no request may have",
                   option.name, value);
      return;
    }
    out = static_cast<T>(number);
  }
};

// Copies members that a request does not have. Members are visited in one order.
struct Filler {
  std::vector<const void*> from;
  const std::vector<std::string_view>& given;
  std::size_t at = 0;

  template <class T>
  void operator()(const SpecialOption& /*option*/, T& /*out*/) {
    ++at;
  }
  template <class T>
  void operator()(const Option& option, T& out) {
    const auto* value = static_cast<const T*>(from[at++]);
    if constexpr (std::is_arithmetic_v<T>) {
      if (std::ranges::find(given, option.name) == given.end()) out = *value;
    }
  }
};

}  // namespace

SamplingParams with_recommended(const RecommendedSampling& recommended) {
  SamplingParams params;
  visit_sampling(RecommendedReader{recommended}, params);
  return params;
}

void fill_sampling(const SamplingParams& defaults, GenerateRequest& request) {
  Filler filler{.from = {}, .given = request.given};
  visit_sampling(
      [&](const auto& /*option*/, const auto& member) { filler.from.push_back(&member); },
      defaults);
  visit_sampling(filler, request.sampling);
}

double shortest_number(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

}  // namespace tessera
