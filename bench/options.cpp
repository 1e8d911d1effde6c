#include "bench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "bench/device.h"
#include "bench/kv_formats.h"
#include "bench/op.h"

namespace tessera::bench {
namespace {

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for (const Op& op : all_ops()) {
    names.emplace_back(op.name);
  }
  return names;
}

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : all_shapes()) {
    names.emplace_back(shape.name);
  }
  return names;
}

std::vector<std::string> kv_names() {
  std::vector<std::string> names;
  for (const KvFormatName& kv : kKvFormats) {
    names.emplace_back(kv.name);
  }
  return names;
}

std::vector<std::string> weight_names() {
  std::vector<std::string> names;
  for (const WeightFormat format : kWeightFormats) {
    names.emplace_back(name(format));
  }
  return names;
}

std::vector<std::string> device_names() {
  return {Device::names().begin(), Device::names().end()};
}

std::string joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
  }
  return all;
}

// Declares a list option. An unknown entry is rejected by its name.
void add_names(CLI::App& app, const std::string& flag, std::vector<std::string>& values,
               const std::vector<std::string>& known, const std::string& what) {
  app.add_option(flag, values, what + ": any of " + joined(known))
      ->delimiter(',')
      ->type_name("NAMES")
      ->check([flag, known](const std::string& value) {
        return std::ranges::find(known, value) != known.end()
                   ? std::string()
                   : "there is no " + value + ", but " + joined(known);
      });
}

// "2048x5632"
bool parse_matrix(const std::string& text, Matrix& matrix) {
  std::istringstream in(text);
  char by = 0;
  return in >> matrix.inputs >> by >> matrix.outputs && by == 'x' && in.eof() &&
         matrix.inputs > 0 && matrix.outputs > 0;
}

void declare(CLI::App& app, Options& options) {
  options.ops = op_names();
  options.shapes = {"tiny"};
  options.seconds = 0.3;
  app.set_version_flag("--version", "tessera-bench " TESSERA_VERSION);
  add_names(app, "--ops", options.ops, op_names(), "ops to time [all]");
  add_names(app, "--shapes", options.shapes, shape_names(), "model sizes [tiny]");
  add_names(app, "--weights", options.weights, weight_names(),
            "formats of weights [all that the device has]");
  add_names(app, "--kv", options.kv, kv_names(), "formats of pages [all that the device has]");
  app.add_option("--isa", options.isas,
                 "instruction sets, the first the one others are compared with: any that the "
                 "device has, as scalar, avx2, avx512, amx [the best]")
      ->delimiter(',')
      ->type_name("NAMES");
  app.add_option("--device", options.device, "device: " + joined(device_names()) + " [cpu]")
      ->type_name("NAME")
      ->check([](const std::string& value) {
        const std::vector<std::string> known = device_names();
        return std::ranges::find(known, value) != known.end()
                   ? std::string()
                   : "there is no device " + value + ", but " + joined(known);
      });
  app.add_option("--threads", options.threads, "0 takes a thread for each core [0]")
      ->check(CLI::Range(0, 4096))
      ->type_name("N");
  app.add_option("--cases", options.cases,
                 "only cases whose label contains one of these, as 'decode' or '512 x' [all]")
      ->delimiter(',')
      ->type_name("TEXTS");
  app.add_option("--matrix", "sizes for linear instead of the shape's, INPUTSxOUTPUTS")
      ->delimiter(',')
      ->type_name("SIZES")
      ->each([&options](const std::string& text) {
        Matrix matrix{"matrix", 0, 0};
        if (!parse_matrix(text, matrix)) {
          throw CLI::ValidationError("--matrix", text + " is not of the form INPUTSxOUTPUTS");
        }
        options.matrices.push_back(matrix);
      });
  app.add_option("--memory", options.memory_bytes,
                 "bytes each variant cycles over, as 64MiB [beyond the caches: several times the "
                 "largest, 512MiB at least]")
      ->transform(CLI::AsSizeValue(false))
      ->type_name("SIZE");
  app.add_flag("--as-in-model", options.as_in_model,
               "cycle over no more copies than the model has layers or weights, so that data that "
               "stays in a cache there stays in it here");
  app.add_flag("--peers", options.peers, "other libraries beside ours: oneDNN, for linear");
  app.add_option("--budget", options.seconds, "seconds for each variant of each case [0.3]")
      ->check(CLI::PositiveNumber)
      ->type_name("SECONDS");
  app.add_option("--json", options.json, "write the results here, too")->type_name("FILE");
}

}  // namespace

std::optional<Options> parse_options(int argc, const char* const* argv, int& exit_code) {
  CLI::App app("Times every op of a backend against the limits of the machine.", "tessera-bench");
  Options options;
  declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error);
    return std::nullopt;
  }
  return options;
}

}  // namespace tessera::bench
