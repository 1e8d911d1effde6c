#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "bench/options.h"
#include "bench/report.h"

namespace tessera::bench {
namespace {

template <class Name>
bool contains(const std::vector<std::string>& names, Name name) {
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string_view> isas_for(const Options& options, const Device& device) {
  const std::vector<std::string_view> known = device.isas();
  if (options.isas.empty()) {
    return {known[0]};
  }
  std::vector<std::string_view> isas;
  for (const std::string& isa : options.isas) {
    const auto found = std::ranges::find(known, isa);
    if (found == known.end()) {
      exit_with_error("--isa: this machine has no " + isa);
    }
    isas.push_back(*found);
  }
  return isas;
}

// Returns: the formats of --weights, or all formats of the device. Errors: exits if the device
// lacks one of --weights.
std::vector<WeightFormat> weights_for(const Options& options, const Backend& backend) {
  std::vector<WeightFormat> weights;
  for (const WeightFormat format : kWeightFormats) {
    const bool served = backend.packed_weight_bytes(format, kPackRows, kPackRows) > 0;
    if (contains(options.weights, name(format)) && !served) {
      exit_with_error("--weights: the device has no kernels for weights of " +
                      std::string(name(format)));
    }
    if (served && (options.weights.empty() || contains(options.weights, name(format)))) {
      weights.push_back(format);
    }
  }
  return weights;
}

bool serves(const Backend& backend, KvFormat format, const Options& options) {
  return backend.serves_pages == nullptr ||
         std::ranges::all_of(all_shapes(), [&](const Shape& shape) {
           return !contains(options.shapes, shape.name) ||
                  backend.serves_pages(format, shape.head_dim);
         });
}

// Returns: formats in the order of --kv. The others are compared with the first.
std::vector<KvFormatName> kv_for(const Options& options, const Backend& backend) {
  std::vector<KvFormatName> kv;
  for (const std::string& wanted : options.kv) {
    kv.push_back(*std::ranges::find(kKvFormats, wanted, &KvFormatName::name));
    if (!serves(backend, kv.back().format, options)) {
      exit_with_error("--kv: the device has no kernels for pages of " + wanted);
    }
  }
  if (kv.empty()) {
    std::ranges::copy_if(kKvFormats, std::back_inserter(kv), [&](const KvFormatName& one) {
      return serves(backend, one.format, options);
    });
  }
  return kv;
}

Setup setup_for(const Options& options, const Device& device) {
  Setup setup;
  setup.device = &device;
  setup.isas = isas_for(options, device);
  setup.weights = weights_for(options, device.backend(setup.isas[0]));
  setup.kv = kv_for(options, device.backend(setup.isas[0]));
  if (options.peers && device.name() != "cpu") {
    exit_with_error("--peers: they run on the CPU alone");
  }
  setup.matrices = options.matrices;
  setup.memory_bytes =
      options.memory_bytes > 0 ? options.memory_bytes : device.bytes_beyond_caches();
  setup.as_in_model = options.as_in_model;
  setup.peers = options.peers;
  return setup;
}

constexpr double kPeakSeconds = 0.1;

Machine describe(Device& device, Peaks& peaks, const Setup& setup) {
  Machine machine{.device = std::string(device.name()),
                  .what = device.describe(),
                  .threads = device.threads(),
                  .memory_bytes = std::min(setup.memory_bytes, device.bytes_beyond_caches()),
                  .bandwidth = {},
                  .peaks = {}};
  double load = 0;
  machine.load = getloadavg(&load, 1) == 1 ? load : 0;
  for (int64_t passed = 0; passed < machine.memory_bytes; passed += int64_t{64} << 20) {
    const Bandwidth measured = device.measure_bandwidth(machine.memory_bytes);
    machine.bandwidth = {std::max(machine.bandwidth.read, measured.read),
                         std::max(machine.bandwidth.copy, measured.copy)};
  }
  for (const std::string_view isa : setup.isas) {
    for (const WeightFormat arithmetic : setup.weights) {
      machine.peaks.push_back({std::string(isa), arithmetic,
                               std::string(device.peak_instruction(isa, arithmetic)),
                               peaks.of(isa, arithmetic, kPeakSeconds)});
    }
  }
  return machine;
}

bool wanted(const Options& options, const Case& one) {
  return options.cases.empty() || std::ranges::any_of(options.cases, [&](const std::string& part) {
           return one.label.find(part) != std::string::npos;
         });
}

class Run {
 public:
  Run(const Options& options, Device& device)
      : options_(options), device_(device), peaks_(device), setup_(setup_for(options, device)) {}

  // Returns: the exit code.
  int run() {
    device_.backend(setup_.isas[0]).attach_thread(device_.stream());
    const Machine machine = describe(device_, peaks_, setup_);
    print_machine(machine);
    print_heading();
    for (const Op& op : all_ops()) {
      for (const Shape& shape : all_shapes()) {
        if (contains(options_.ops, op.name) && contains(options_.shapes, shape.name)) {
          time_cases(op, shape);
        }
      }
    }
    if (!options_.json.empty() && !write_json(machine, rows_, options_.json)) {
      exit_with_error("cannot write " + options_.json);
    }
    return 0;
  }

 private:
  void time_cases(const Op& op, const Shape& shape) {
    for (const Case& one : op.cases(setup_, shape)) {
      if (!wanted(options_, one)) {
        continue;
      }
      const std::vector<Variant> variants = one.prepare();
      const std::vector<Measured> measured = measure(device_, peaks_, variants, options_.seconds);
      for (size_t i = 0; i < variants.size(); ++i) {
        rows_.push_back({.op = std::string(op.name),
                         .shape = std::string(shape.name),
                         .label = one.label,
                         .parameters = one.parameters,
                         .variant = variants[i],
                         .measured = measured[i],
                         .ratio = measured[i].call.median / measured[0].call.median});
        rows_.back().variant.call = nullptr;  // releases the operands
        rows_.back().variant.restore = nullptr;
        print_row(rows_.back());
      }
    }
  }

  const Options& options_;
  Device& device_;
  Peaks peaks_;
  Setup setup_;
  std::vector<Row> rows_;
};

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  int exit_code = 0;
  const std::optional<Options> options = parse_options(argc, argv, exit_code);
  if (!options.has_value()) {
    return exit_code;
  }
  const std::unique_ptr<Device> device = Device::make(options->device, options->threads);
  return Run(*options, *device).run();
}
