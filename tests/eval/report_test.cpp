#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "eval/measurement/svg.h"
#include "eval/report/explanations.h"
#include "eval/report/plots.h"
#include "eval/report/writers.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

struct Preset {
  const char* name;
  int64_t bytes;
  double kl;
  double accuracy;
};
// Typical numbers of a report on many presets.
constexpr Preset kReportedPresets[] = {
    {"f16", 6144, 0, 0.95},       {"f32", 12288, 6e-8, 0.95},      {"k8v8", 3168, 2e-4, 0.95},
    {"k8v4", 2400, 3e-3, 0.949},  {"k4v4", 1632, 0.03, 0.93},      {"k4v2", 1248, 0.21, 0.81},
    {"leankv", 1900, 8e-3, 0.94}, {"s70 <k8v8>", 1344, 0.05, 0.9},
};

MetricReport metric(std::string name, std::string unit, int decimals) {
  MetricReport out{.name = std::move(name), .unit = std::move(unit), .decimals = decimals};
  for (const Preset& preset : kReportedPresets) {
    const double value = out.unit == "%" ? 100 * preset.accuracy : preset.kl;
    const bool none = out.unit != "%" && out.subjects.empty();
    out.subjects.push_back(none ? std::optional<Interval>()
                                : Interval{value, value * 0.9, value * 1.05});
  }
  return out;
}

Report many_presets() {
  Report report{
      .model = "tessera-tiny", .device = "cpu (avx512), 2 threads", .weights = "f32", .seed = 3};
  TaskReport text{.name = "text", .description = "held-out text", .items = 10};
  TaskReport multikey{.name = "multikey", .description = "pairs", .items = 24, .left_out = 2};
  TaskReport generation{.name = "generation", .description = "1000 tokens", .items = 2};
  text.metrics = {metric("KL mean", "nats", -1)};
  generation.metrics = {metric("KL mean", "nats", -1)};
  multikey.qualifications = {{.length = 1024, .accuracy = 0.4, .counts = false}};
  multikey.metrics = {metric("accuracy", "%", 1)};
  multikey.grid = GridReport{"tokens", {256, 512, 1024, 1536}, {0, 0.25, 0.5, 0.75, 1}, {}};
  generation.course = CourseReport{};
  for (int i = 0; i < 10; ++i) generation.course->positions.push_back(50 + 100 * i);
  for (const Preset& preset : kReportedPresets) {
    SubjectReport& subject = report.subjects.emplace_back();
    const bool reference = report.subjects.size() == 1;
    subject.name = preset.name;
    subject.description = "what it is";
    subject.kv = KvReport{preset.bytes * 100, 100};
    subject.accuracy = preset.accuracy;
    if (!reference) {
      subject.kl = preset.kl;
      subject.judgement = Judgement{.verdict = preset.kl < 0.01 ? Verdict::lossless : Verdict::no,
                                    .reason = "mean KL",
                                    .contexts = 10,
                                    .kl = Bounds{preset.kl, 0, 2 * preset.kl},
                                    .lost = {}};
    }
    for (TaskReport* const task : {&text, &multikey, &generation}) {
      task->kv.push_back(KvReport{preset.bytes * 100, 100});
      task->judgements.push_back(subject.judgement);
    }
    std::vector<double>& cells = multikey.grid->subjects.emplace_back();
    std::vector<double>& course = generation.course->subjects.emplace_back();
    for (int i = 0; i < 20; ++i) cells.push_back(std::pow(preset.accuracy, i / 2));
    for (int i = 0; i < 10 && !reference; ++i) course.push_back(preset.kl * (1 + 0.1 * i));
  }
  multikey.grid->subjects[0][3] = -1;
  KeptReport kept{6, 2, {}};
  for (int i = 0; i < 12; ++i) kept.share.push_back(i / 11.0);
  report.subjects[6].kept = kept;
  report.tasks = {text, multikey, generation};
  return report;
}

TEST(ParetoFront, HoldsWhatNothingBeats) {
  //                                              dominated by 1 and 3
  const std::vector<FrontierPoint> points = {{4, 1}, {2, 2}, {3, 3}, {1, 5}, {1, 6}, {4, 0.5}};
  EXPECT_THAT(pareto_front(points, Better::lower), ElementsAre(3, 1, 5));
  EXPECT_THAT(pareto_front(points, Better::higher), ElementsAre(4));
  EXPECT_THAT(pareto_front({{1, 7}, {1, 7}}, Better::lower), ElementsAre(0)) << "one of equals";
}

TEST(Axis, HasRoundTicks) {
  const Axis axis = Axis::linear({0, 12.9}, {100, 400});
  EXPECT_THAT(axis.ticks(), ElementsAre(0, 5, 10, 15));
  EXPECT_EQ(axis.at(0), 100);
  EXPECT_EQ(axis.at(15), 400);
  EXPECT_EQ(axis.label(5), "5");
}

TEST(Axis, HasDecadesWhereItIsLogarithmic) {
  const Axis axis = Axis::logarithmic({3e-6, 0.4}, {300, 0});
  EXPECT_NEAR(axis.at(1e-6), 300, 1e-9);
  EXPECT_NEAR(axis.at(1), 0, 1e-9);
  EXPECT_NEAR(axis.at(1e-3), 150, 1e-9);
  EXPECT_EQ(axis.label(1e-6), "1e-6");
  EXPECT_EQ(axis.label(0.01), "0.01");
}

TEST(Axis, ShowsHalvesWhereItCountsPowersOfTwo) {
  const Axis axis = Axis::logarithmic({1.1, 12}, {0, 400}, 2);
  EXPECT_THAT(axis.ticks(), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_EQ(axis.label(axis.ticks()[3]), "8");
}

TEST(Markup, IsEscaped) {
  EXPECT_EQ(escape_markup("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
}

TEST(Report, PrintsAnAlignedTable) {
  const std::string table = print_table(many_presets());
  EXPECT_THAT(table, HasSubstr("multikey: pairs (24 items, 2 too long)"));
  EXPECT_THAT(table, HasSubstr("answers do not count at 1024 tokens: the reference answers 40 %"));
  EXPECT_THAT(table, HasSubstr("KL mean, nats"));
  EXPECT_THAT(table, HasSubstr("2.00e-04 [1.80e-04, 2.10e-04]"));
  size_t at = table.find("\n  preset");
  ASSERT_NE(at, std::string::npos);
  const size_t width = table.find('\n', at + 1) - at;
  for (size_t row = 0; row < std::size(kReportedPresets); ++row) {
    at += width;
    EXPECT_EQ(table.find('\n', at + 1) - at, width) << "row " << row;
  }
}

TEST(Report, PrintsJsonThatSaysEverything) {
  const auto json = nlohmann::json::parse(print_json(many_presets()));
  EXPECT_EQ(json["model"], "tessera-tiny");
  EXPECT_EQ(json["seed"], 3);
  EXPECT_EQ(json["presets"][2]["name"], "k8v8");
  EXPECT_EQ(json["presets"][2]["kv"]["bytes_per_token"], 3168);
  EXPECT_EQ(json["presets"][2]["judgement"]["verdict"], "lossless");
  EXPECT_EQ(json["presets"][2]["judgement"]["lost"], nullptr);
  EXPECT_EQ(json["presets"][0]["judgement"], nullptr);
  EXPECT_EQ(json["tasks"][1]["qualifications"][0]["counts"], false);
  EXPECT_EQ(json["presets"][6]["kept"]["share"].size(), 12u);
  EXPECT_EQ(json["tasks"][0]["metrics"][0]["scores"]["f16"], nullptr);
  EXPECT_EQ(json["tasks"][0]["metrics"][0]["scores"]["k8v4"]["value"], 3e-3);
  EXPECT_EQ(json["tasks"][1]["grid"]["lengths"][3], 1536);
  EXPECT_EQ(json["tasks"][2]["course"]["kl"]["f32"].size(), 10u);
}

TEST(Report, PrintsCsvOfOneWidth) {
  Report report = many_presets();
  report.tasks[0].name = "a \"b\", c";
  const std::string csv = print_csv(report);
  EXPECT_THAT(csv,
              HasSubstr("\"a \"\"b\"\", c\",KL mean,nats,f32,6e-08,5.4e-08,6.3e-08,1228800,100\n"));
  EXPECT_THAT(csv, HasSubstr(",f16,,,,614400,100\n")) << "no score, but bytes";
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 3 * 8);
}

TEST(Report, PrintsOnePageWithEveryPlot) {
  const std::string html = print_html(many_presets());
  std::ofstream(testing::TempDir() + "tessera_eval_report.html") << html;
  EXPECT_THAT(html, HasSubstr("Pareto front"));
  EXPECT_THAT(html, HasSubstr("Tokens kept, by layer and KV head"));
  EXPECT_THAT(html, HasSubstr("colspan=\"6\">what it is; mean KL")) << "in a row of its own";
  EXPECT_THAT(html, HasSubstr("s70 &lt;k8v8&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("s70 <k8v8>")));
  EXPECT_THAT(html, Not(HasSubstr("http"))) << "it needs nothing else";
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  size_t plots = 0;
  for (size_t at = html.find("<svg"); at != std::string::npos; at = html.find("<svg", at + 1)) {
    ++plots;
  }
  EXPECT_EQ(plots, 2u + 2 /* kept and its scale */ + 8 + 1 /* grids and their scale */ + 1);
}

TEST(Report, HasNoFrontierForASinglePreset) {
  Report report = many_presets();
  report.subjects.resize(1);
  EXPECT_EQ(plot_kl_frontier(report), "");
  EXPECT_EQ(plot_accuracy_frontier(report), "");
}

TEST(Explanations, AreOneSentenceEach) {
  for (const Explanation& entry : explanations()) {
    EXPECT_FALSE(entry.name.empty());
    EXPECT_THAT(std::string(entry.meaning), testing::EndsWith(".")) << entry.name;
  }
}

}  // namespace
}  // namespace tessera
