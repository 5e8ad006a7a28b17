// Tests of Scaling's order, against samples from its own TextDataset, BlendedDataset and
// RandomSampler.
#include "trainer/data/scaling_order.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/token_files.h"

namespace sortie::trainer {
namespace {

struct Case {
  std::vector<std::vector<std::int32_t>> lengths;  // lengths of the documents of each prefix
  std::int64_t sequence_length;
  std::uint64_t seed, group;
  std::vector<double> weights;
  // First and last token of each sample, over more than one epoch.
  std::vector<std::int32_t> first, last;
};

const std::vector<Case> kCases = {
    {{{3, 2, 4, 9, 1, 7, 30, 5}},
     4,
     42,
     1,
     {},
     {3,  21, 0,  57, 5,  9,  13, 26, 30, 34, 38, 42, 46, 50, 9,  13, 56, 19, 23, 27,
      31, 35, 39, 43, 47, 51, 5,  3,  19, 23, 6,  1,  58, 27, 31, 35, 39, 43, 47, 51},
     {21, 25, 57, 5,  9,  13, 17, 30, 34, 38, 42, 46, 50, 54, 13, 17, 60, 23, 27, 31,
      35, 39, 43, 47, 51, 55, 3,  2,  23, 6,  1,  58, 27, 31, 35, 39, 43, 47, 51, 55}},
    {{{3, 2, 4, 9, 1, 7, 30, 5}},
     4,
     7,
     4,
     {},
     {5, 19, 23, 1, 28, 32, 36, 40, 44, 48, 52, 9, 56, 0, 6, 27, 31, 35, 39, 43, 47, 51, 19, 23},
     {19, 23, 1, 28, 32, 36, 40, 44, 48, 52, 9, 13, 60, 6, 27, 31, 35, 39, 43, 47, 51, 55, 23, 4}},
    {{{11, 8, 5, 20, 1}, {4, 4, 9, 2, 13, 6}, {40}},
     4,
     1234,
     2,
     {},
     {0,    1008, 2000, 4,    1012, 2004, 8,    1004, 2008, 12,   1032, 2012, 16,   1036, 2016,
      20,   1002, 2020, 24,   1021, 2024, 28,   1025, 2028, 32,   1029, 2032, 36,   0,    1000,
      2000, 4,    1004, 2004, 8,    1032, 2008, 12,   1036, 2012, 16,   1021, 2016, 20},
     {4,    1012, 2004, 8,    1016, 2008, 12,   1032, 2012, 16,   1036, 2016, 20,   1002, 2020,
      24,   1021, 2024, 28,   1025, 2028, 32,   1029, 2032, 36,   1018, 2036, 40,   4,    1004,
      2004, 8,    1032, 2008, 12,   1036, 2012, 16,   1021, 2016, 20,   1025, 2020, 24}},
    {{{11, 8, 5, 20, 1}, {4, 4, 9, 2, 13, 6}, {40}},
     4,
     1234,
     1,
     {0.5, 0.3, 0.2},
     {0,  1008, 2000, 4, 8,    1012, 12, 2004, 16,   1004, 20,   24, 1032, 2008, 28,
      32, 1036, 36,   0, 1000, 2000, 4,  8,    1004, 12,   2004, 16, 1032, 20,   24},
     {4,  1012, 2004, 8, 12,   1016, 16, 2008, 20,   1032, 24,   28, 1036, 2012, 32,
      36, 1002, 40,   4, 1004, 2004, 8,  12,   1032, 16,   2008, 20, 1036, 24,   28}},
    {{{9, 9, 1, 2, 14, 3, 3, 3}, {25, 2, 2, 31}},
     6,
     3,
     3,
     {1.0, 4.0},
     {35,   1029, 1035, 1041, 1047, 1053, 1025, 1004, 1010, 21,   1000, 1006, 1012, 1018, 1025,
      1033, 1039, 1045, 41,   1000, 1006, 1012, 1018, 1025, 1031, 1037, 1043, 0,    1000, 1006},
     {21,   1035, 1041, 1047, 1053, 1059, 1004, 1010, 1016, 27,   1006, 1012, 1018, 1024, 1033,
      1039, 1045, 1051, 24,   1006, 1012, 1018, 1024, 1031, 1037, 1043, 1049, 6,    1006, 1012}},
};

ScalingOptions options_of(const test::ScopedTempDir& dir, const Case& c) {
  ScalingOptions options;
  for (std::size_t i = 0; i < c.lengths.size(); ++i) {
    options.prefixes.push_back(dir.str("set" + std::to_string(i)));
    test::write_documents(options.prefixes.back(), c.lengths[i],
                          static_cast<std::int32_t>(1000 * i));
  }
  options.weights = c.weights;
  options.sequence_length = c.sequence_length;
  options.vocab_size = 100000;
  options.seed = c.seed;
  options.group = c.group;
  return options;
}

std::string error_of(ScalingOptions options) {
  const auto order = ScalingOrder::open(std::move(options));
  return order ? "none" : order.error().message;
}

}  // namespace

TEST_CASE("samples, epochs and blends are Scaling's") {
  for (const Case& c : kCases) {
    CAPTURE(c.seed);
    const test::ScopedTempDir dir;
    auto order = ScalingOrder::open(options_of(dir, c));
    REQUIRE(order);
    CHECK((*order)->samples_per_epoch() % c.group == 0);
    CHECK((*order)->samples_per_epoch() < c.first.size());
    std::vector<std::int32_t> sample(static_cast<std::size_t>(c.sequence_length) + 1);
    const auto check = [&](std::size_t i) {
      CAPTURE(i);
      REQUIRE((*order)->read_sample(i, sample));
      CHECK(sample.front() == c.first[i]);
      CHECK(sample.back() == c.last[i]);
    };
    for (std::size_t i = 0; i < c.first.size(); ++i) check(i);
    for (std::size_t i = c.first.size(); i-- > 0;) check(i);  // a resumed run may begin anywhere
  }
}

TEST_CASE("a document's last token is no input, and what fills no sample is left out") {
  const test::ScopedTempDir dir;
  const auto files = test::write_documents(dir.str("t"), {5, 1, 9, 0, 3});
  const DocumentTable table(files);
  const ScalingPacking packing(table, 4, 1);
  std::vector<std::int32_t> sample(5);
  std::vector<int> inputs(18);
  for (std::uint64_t i = 0; i < packing.size(); ++i) {
    REQUIRE(packing.read(i, 100, sample));
    for (std::size_t k = 0; k < 4; ++k) ++inputs[static_cast<std::size_t>(sample[k])];
  }
  for (const int count : inputs) CHECK(count <= 1);
  CHECK(inputs[5] == 0);  // the document of one token
}

TEST_CASE("a blend takes all shares, evenly") {
  using Shares = std::vector<std::uint64_t>;
  CHECK(scaling_blend(Shares{5, 3, 2}) == std::vector<std::uint16_t>{0, 1, 2, 0, 1, 0, 2, 0, 1, 0});
  CHECK(scaling_blend(Shares{2, 0, 1}) == std::vector<std::uint16_t>{0, 2, 0});
  CHECK(scaling_shares(Shares{10, 10, 10}, std::vector<double>{4, 2, 1}) == Shares{10, 5, 2});
  CHECK(scaling_shares(Shares{3, 0, 70}, {}) == Shares{3, 0, 70});
  CHECK(scaling_shares(Shares{100, 3}, std::vector<double>{1000, 1}) == Shares{100, 1});
}

TEST_CASE("too little text, and seeds that numpy does not know, are refused") {
  const test::ScopedTempDir dir;
  CHECK(error_of({}) == "data: no prefix given; set data.data_prefixes");
  ScalingOptions options = options_of(dir, kCases[0]);
  options.sequence_length = 100;
  CHECK(error_of(options).find("61 tokens fill no sample of 100 + 1") != std::string::npos);
  options.sequence_length = 4;
  options.group = 16;
  CHECK(error_of(options).find("14 samples, but all ranks take 16 at a time") != std::string::npos);
  options.group = 1;
  options.seed = std::uint64_t{1} << 32;
  CHECK(error_of(options).starts_with("trainer.seed: 4294967296 is too large"));
}

}  // namespace sortie::trainer
