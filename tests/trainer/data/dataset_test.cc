// Tests of Permutation, EpochOrder and Dataset: order, coverage, resume.
#include "trainer/data/dataset.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "trainer/data/token_writer.h"

namespace sortie::trainer {
namespace {

using Ids = std::vector<std::int32_t>;

/// Writes documents of 0 to 16 tokens. The ids of all tokens are consecutive, beginning with
/// `first_id`. Returns the id after the last one.
std::int32_t write_numbered(const std::string& prefix, int documents, std::int32_t first_id = 0) {
  auto writer = TokenFileWriter::create(prefix, TokenType::i32, false);
  REQUIRE(writer.has_value());
  std::int32_t id = first_id;
  for (int i = 0; i < documents; ++i) {
    Ids ids(static_cast<std::size_t>(i % 17));
    for (auto& value : ids) value = id++;
    REQUIRE(writer->append(ids).has_value());
    REQUIRE(writer->end_document().has_value());
  }
  REQUIRE(writer->finish().has_value());
  return id;
}

std::unique_ptr<Dataset> open(DatasetOptions options) {
  options.vocab_size = 1'000'000;
  auto dataset = Dataset::open(options);
  REQUIRE(dataset.has_value());
  return std::move(*dataset);
}

Ids sample(Dataset& dataset, std::uint64_t index) {
  Ids ids(static_cast<std::size_t>(dataset.options().sequence_length) + 1);
  REQUIRE(dataset.read_sample(index, ids).has_value());
  return ids;
}

}  // namespace

TEST_CASE("a permutation visits every index once, for every small size") {
  for (std::uint64_t size = 1; size <= 300; ++size)
    for (const std::uint64_t key : {0u, 1u, 12345u}) {
      const Permutation permutation(key, size);
      std::vector<bool> seen(size);
      for (std::uint64_t i = 0; i < size; ++i) {
        const std::uint64_t image = permutation(i);
        REQUIRE(image < size);
        CHECK_FALSE(seen[image]);
        seen[image] = true;
      }
    }
}

TEST_CASE("a permutation of a huge range stays inside and spreads") {
  const std::uint64_t size = (std::uint64_t{1} << 62) + 12345;
  const Permutation permutation(7, size);
  std::set<std::uint64_t> images;
  double sum = 0;
  for (std::uint64_t i = 0; i < 4096; ++i) {
    const std::uint64_t image = permutation(i);
    CHECK(image < size);
    images.insert(image);
    sum += static_cast<double>(image) / static_cast<double>(size);
  }
  CHECK(images.size() == 4096);
  CHECK(sum / 4096 == doctest::Approx(0.5).epsilon(0.05));  // 11 standard deviations wide
}

TEST_CASE("where an index goes is uniform over keys") {
  // 10 cells x 10 indices, 20000 keys each: the chi-square of 9 degrees stays under its 1e-6 tail.
  constexpr std::uint64_t kSize = 10;
  constexpr int kKeys = 20000;
  for (std::uint64_t index = 0; index < kSize; ++index) {
    std::vector<int> count(kSize);
    for (std::uint64_t key = 0; key < kKeys; ++key) ++count[Permutation(key, kSize)(index)];
    double chi = 0;
    for (const int c : count) chi += (c - 2000.0) * (c - 2000.0) / 2000.0;
    CHECK(chi < 45.0);
  }
}

TEST_CASE("the order is pinned: a resumed run must find the samples that it left") {
  // A change of these numbers breaks the resume of every existing run.
  const Permutation permutation(42, 10);
  std::vector<std::uint64_t> images;
  for (std::uint64_t i = 0; i < 10; ++i) images.push_back(permutation(i));
  CHECK(images == std::vector<std::uint64_t>{8, 9, 5, 4, 0, 6, 1, 2, 3, 7});

  test::ScopedTempDir dir;
  write_numbered(dir.str("n"), 30);
  auto dataset = open({.prefixes = {dir.str("n")}, .sequence_length = 7, .seed = 42});
  CHECK(sample(*dataset, 0) == Ids{174, 175, 176, 177, 178, 179, 180, 137});
  CHECK(sample(*dataset, 31) == Ids{58, 59, 60, 61, 62, 63, 64, 65});
  CHECK(sample(*dataset, 1000) == Ids{178, 179, 180, 164, 165, 166, 167, 168});
}

TEST_CASE("an epoch holds every token once as input, but for the rest of less than a sample") {
  test::ScopedTempDir dir;
  const std::int32_t end = write_numbered(dir.str("n"), 200);
  auto dataset = open({.prefixes = {dir.str("n")}, .sequence_length = 13, .seed = 3});
  const std::uint64_t samples = dataset->samples_per_epoch();
  CHECK(samples == (static_cast<std::uint64_t>(end) - 1) / 13);
  for (const std::uint64_t epoch : {0u, 1u, 5u}) {
    std::set<std::int32_t> inputs;
    for (std::uint64_t i = 0; i < samples; ++i) {
      const Ids ids = sample(*dataset, epoch * samples + i);
      inputs.insert(ids.begin(), ids.end() - 1);
    }
    CHECK(inputs.size() == samples * 13);
  }
}

TEST_CASE("within a document a sample keeps the order of the tokens") {
  test::ScopedTempDir dir;
  auto writer = TokenFileWriter::create(dir.str("one"), TokenType::i32, false);
  Ids ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  REQUIRE(writer->append(ids).has_value());
  REQUIRE(writer->end_document().has_value());
  REQUIRE(writer->finish().has_value());
  auto dataset = open({.prefixes = {dir.str("one")}, .sequence_length = 9});
  std::set<std::int32_t> starts;
  for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
    const Ids read = sample(*dataset, i);
    starts.insert(read[0]);
    for (std::size_t k = 1; k < read.size(); ++k) CHECK(read[k] == read[0] + static_cast<int>(k));
    CHECK(read[0] % 9 == 0);
  }
  CHECK(starts.size() == 111);
}

TEST_CASE("epochs and seeds give different orders, equal ones the same") {
  test::ScopedTempDir dir;
  write_numbered(dir.str("n"), 300);
  const DatasetOptions options{.prefixes = {dir.str("n")}, .sequence_length = 16, .seed = 1};
  DatasetOptions other_seed = options;
  other_seed.seed = 2;
  auto a = open(options);
  auto b = open(options);
  auto c = open(other_seed);
  const std::uint64_t samples = a->samples_per_epoch();
  std::uint64_t same_epoch = 0;
  std::uint64_t same_seed = 0;
  for (std::uint64_t i = 0; i < samples; ++i) {
    CHECK(sample(*a, i) == sample(*b, i));
    same_epoch += sample(*a, i) == sample(*a, i + samples);
    same_seed += sample(*a, i) == sample(*c, i);
  }
  CHECK(same_epoch < samples / 10);
  CHECK(same_seed < samples / 10);
}

TEST_CASE("samples can be read in any order, also backwards over epochs") {
  test::ScopedTempDir dir;
  write_numbered(dir.str("n"), 100);
  auto forward = open({.prefixes = {dir.str("n")}, .sequence_length = 8});
  auto backward = open({.prefixes = {dir.str("n")}, .sequence_length = 8});
  const std::uint64_t count = 3 * forward->samples_per_epoch();
  std::vector<Ids> read;
  for (std::uint64_t i = 0; i < count; ++i) read.push_back(sample(*forward, i));
  for (std::uint64_t i = count; i-- > 0;) CHECK(sample(*backward, i) == read[i]);
}

TEST_CASE("several prefixes are one set of documents") {
  test::ScopedTempDir dir;
  const std::int32_t middle = write_numbered(dir.str("a"), 50);
  const std::int32_t end = write_numbered(dir.str("b"), 70, middle);
  auto dataset = open({.prefixes = {dir.str("a"), dir.str("b")}, .sequence_length = 5});
  CHECK(dataset->num_documents() == 120);
  CHECK(dataset->num_tokens() == static_cast<std::uint64_t>(end));
  std::set<std::int32_t> seen;
  std::uint64_t from_both = 0;
  for (std::uint64_t i = 0; i < dataset->samples_per_epoch(); ++i) {
    const Ids ids = sample(*dataset, i);
    seen.insert(ids.begin(), ids.end());
    const auto low = std::count_if(ids.begin(), ids.end(), [&](int id) { return id < middle; });
    from_both += low > 0 && low < 6;
  }
  CHECK(seen.size() + 5 > static_cast<std::size_t>(end));
  CHECK(from_both > 0);  // some samples span documents of both files
}

TEST_CASE("without a shuffle samples come as stored and start again at the end") {
  test::ScopedTempDir dir;
  write_numbered(dir.str("n"), 40);
  auto dataset = open({.prefixes = {dir.str("n")}, .sequence_length = 10, .shuffle = false});
  const std::uint64_t samples = dataset->samples_per_epoch();
  for (std::uint64_t i = 0; i < samples; ++i) {
    const Ids ids = sample(*dataset, i);
    for (std::size_t k = 0; k < ids.size(); ++k)
      CHECK(ids[k] == static_cast<std::int32_t>(i * 10 + k));
    CHECK(sample(*dataset, i + samples) == ids);
  }
}

TEST_CASE("data too small for one sample is refused") {
  test::ScopedTempDir dir;
  auto writer = TokenFileWriter::create(dir.str("s"), TokenType::u8, false);
  REQUIRE(writer->append_raw(std::as_bytes(std::span("12345678", 8))).has_value());
  REQUIRE(writer->end_document().has_value());
  REQUIRE(writer->finish().has_value());
  CHECK(Dataset::open({.prefixes = {dir.str("s")}, .sequence_length = 7}).has_value());
  const auto refused = Dataset::open({.prefixes = {dir.str("s")}, .sequence_length = 8});
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().message.find("8 tokens are not enough for one sample of 8 + 1") !=
        std::string::npos);
  CHECK_FALSE(Dataset::open({}).has_value());
}

}  // namespace sortie::trainer
