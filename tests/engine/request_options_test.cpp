// The one description of a request's options: every member is visited, and ranges read as words.

#include "engine/request_options.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/request.h"

namespace tessera {
namespace {

// Computes a struct's layout from the members that it is given in their order.
class LayoutWalk {
 public:
  template <class T>
  void operator()(const Option& option, const T& member) {
    names_.insert(std::string(option.name));
    ++visits_;
    const auto at = reinterpret_cast<uintptr_t>(&member);
    const uintptr_t expected = end_ == 0 ? at : (end_ + alignof(T) - 1) / alignof(T) * alignof(T);
    EXPECT_EQ(at, expected) << "a member before " << option.name << " is not visited";
    end_ = at + sizeof(T);
  }
  uintptr_t end() const { return end_; }
  size_t visits() const { return visits_; }
  size_t names() const { return names_.size(); }

 private:
  uintptr_t end_ = 0;
  size_t visits_ = 0;
  std::set<std::string> names_;
};

TEST(RequestOptions, VisitEachMemberOnceInItsOrderUnderANameOfItsOwn) {
  const SamplingParams params;
  LayoutWalk sampling;
  visit_sampling(sampling, params);
  EXPECT_LT(reinterpret_cast<uintptr_t>(&params + 1) - sampling.end(), alignof(SamplingParams));

  const RequestOptions options;
  LayoutWalk all;
  visit_options(all, options);
  EXPECT_LT(reinterpret_cast<uintptr_t>(&options + 1) - all.end(), alignof(RequestOptions));
  EXPECT_EQ(all.names(), all.visits());
  EXPECT_GT(all.visits(), sampling.visits());
}

TEST(RequestOptions, HaveDefaultsWithinTheirRanges) {
  EXPECT_TRUE(check_sampling({}, 1).ok());
}

TEST(OptionRange, KeepsItsBoundsAndNoNan) {
  const OptionRange share{.min = 0, .max = 1, .above = true};
  EXPECT_FALSE(share.contains(0));
  EXPECT_TRUE(share.contains(1));
  EXPECT_FALSE(share.contains(std::numeric_limits<double>::quiet_NaN()));
  const OptionRange all;
  EXPECT_TRUE(all.contains(std::numeric_limits<float>::lowest()));
  EXPECT_FALSE(all.contains(std::numeric_limits<float>::infinity()));
}

TEST(OptionRange, ReadsAsWords) {
  EXPECT_EQ((OptionRange{.min = 0, .max = 1, .above = true}).numbers(), "a number above 0 to 1");
  EXPECT_EQ((OptionRange{.min = 0, .above = true}).numbers(), "a number above 0");
  EXPECT_EQ((OptionRange{-2, 2}).numbers(), "a number from -2 to 2");
  EXPECT_EQ((OptionRange{0, 20}).integers(-128, 127), "an integer from 0 to 20");
  EXPECT_EQ(OptionRange().integers(-128, 127), "an integer from -128 to 127");
}

TEST(CheckOption, NamesTheOptionItsValueAndItsRange) {
  EXPECT_EQ(check_option({"share", {0, 1}}, 1.5f).message(),
            "share is 1.5, it must be a number from 0 to 1");
  EXPECT_EQ(check_option({"count", {1, 128}}, 0).message(),
            "count is 0, it must be an integer from 1 to 128");
}

}  // namespace
}  // namespace tessera
