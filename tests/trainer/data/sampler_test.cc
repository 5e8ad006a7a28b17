// Tests of the orders and file formats of other software, against values that it has computed.
#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/token_files.h"
#include "trainer/data/blend.h"
#include "trainer/data/dataset.h"
#include "trainer/data/megatron_order.h"
#include "trainer/data/numpy_random.h"

namespace sortie::trainer {
namespace {

using Numbers = std::vector<std::uint32_t>;
using Places = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

Numbers list(std::span<const std::uint32_t> values) {
  return {values.begin(), values.end()};
}

struct MegatronCase {
  std::vector<std::int32_t> lengths;
  std::int64_t sequence_length;
  std::uint64_t samples;
  std::uint32_t seed;
  Numbers documents;
  Places places;
  Numbers shuffle;
  const char* text;
};

const std::vector<MegatronCase> kMegatron = {
    {{3, 2, 4},
     2,
     4,
     1234,
     {0, 1, 2},
     {{0, 0}, {0, 2}, {1, 1}, {2, 1}, {2, 3}},
     {1, 2, 3, 0},
     "1 epoch"},
    {{3, 2, 4},
     2,
     6,
     1234,
     {0, 1, 2, 1, 2, 0},
     {{0, 0}, {0, 2}, {1, 1}, {2, 1}, {2, 3}, {3, 1}, {4, 1}, {4, 3}, {5, 1}},
     {3, 2, 1, 0, 6, 4, 7, 5},
     "2 epochs, the last apart"},
    {{5, 7, 1, 6},
     4,
     5,
     42,
     {1, 3, 0, 2, 1, 3, 0, 2},
     {{0, 0}, {0, 4}, {1, 1}, {1, 5}, {2, 3}, {4, 1}, {4, 5}, {5, 2}, {6, 0}, {6, 4}},
     {3, 0, 1, 2, 7, 5, 4, 8, 6},
     "2 epochs, the last apart"}};

void put(std::string& out, std::uint64_t value, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 255);
}

}  // namespace

TEST_CASE("numpy's shuffle") {
  Numbers values(10);
  std::iota(values.begin(), values.end(), 0u);
  NumpyRandom(42).shuffle(std::span(values));
  CHECK(values == Numbers{8, 1, 5, 0, 7, 2, 9, 4, 3, 6});
}

TEST_CASE("Megatron's indices") {
  test::ScopedTempDir dir;
  int number = 0;
  for (const MegatronCase& want : kMegatron) {
    CAPTURE(number);
    const auto files = test::write_documents(dir.str("m" + std::to_string(number++)), want.lengths);
    const DocumentTable table(files);
    const MegatronOrder order(table, want.sequence_length, want.seed, want.samples);
    CHECK(list(order.document_index()) == want.documents);
    CHECK(list(order.shuffle_index()) == want.shuffle);
    CHECK(order.text() == want.text);
    REQUIRE(order.size() + 1 == want.places.size());
    for (std::size_t i = 0; i < want.places.size(); ++i)
      CHECK(order.sample_index(i) == want.places[i]);
  }
}

TEST_CASE("a dataset in Megatron's order reads the tokens that the indices name") {
  test::ScopedTempDir dir;
  const MegatronCase& want = kMegatron[1];
  test::write_documents(dir.str("m"), want.lengths);
  const auto dataset = Dataset::open({.prefixes = {dir.str("m")},
                                      .sequence_length = 2,
                                      .seed = want.seed,
                                      .megatron_samples = want.samples});
  REQUIRE(dataset.has_value());
  // Documents 0 (0 1 2), 1 (3 4) and 2 (5 6 7 8) in Megatron's order.
  std::vector<std::int32_t> stream;
  for (const std::uint32_t document : want.documents)
    for (std::int32_t i = 0; i < want.lengths[document]; ++i)
      stream.push_back(i + (document == 0 ? 0 : document == 1 ? 3 : 5));
  for (std::uint64_t i = 0; i < want.shuffle.size(); ++i) {
    std::vector<std::int32_t> sample(3);
    REQUIRE((*dataset)->read_sample(i, sample).has_value());
    const auto begin = stream.begin() + 2 * want.shuffle[i];
    CHECK(sample == std::vector<std::int32_t>(begin, begin + 3));
  }
}

TEST_CASE("Megatron's blend") {
  const std::vector<double> weights = {0.5, 0.3, 0.2};
  Blend blend(weights);
  const std::vector<std::size_t> datasets = {0, 1, 2, 0, 1, 0, 2, 0, 1, 0};
  const std::vector<std::uint64_t> samples = {0, 0, 0, 1, 1, 2, 1, 3, 2, 4};
  for (std::size_t i = 0; i < 10; ++i) {
    CHECK(blend.at(i).dataset == datasets[i]);
    CHECK(blend.at(i).sample == samples[i]);
  }
  // Weights that do not sum to 1, over many blocks: the same picks, and each sample once and in
  // order.
  const std::vector<double> large = {5, 3, 2};
  Blend longer(large);
  std::vector<std::uint64_t> next(3);
  for (std::uint64_t i = 0; i < 5000; ++i) {
    const Blend::Pick pick = longer.at(i);
    CHECK(pick.sample == next[pick.dataset]++);
  }
  CHECK(next == std::vector<std::uint64_t>{2500, 1500, 1000});
  CHECK(Blend::samples_of_share(0.5, 1000) == 503);
}

TEST_CASE("Scaling's memory map reads as the same documents, and is checked as strictly") {
  test::ScopedTempDir dir;
  const std::vector<std::vector<std::int32_t>> documents = {
      {11, 12, 13}, {21, 22}, {31, 32, 33, 34}};
  std::string bin;
  std::string idx;
  std::uint64_t start = 0;
  for (const auto& document : documents) {
    for (const std::int32_t token : document) put(bin, static_cast<std::uint32_t>(token), 4);
    put(idx, start, 8);
    put(idx, document.size(), 8);
    start += document.size();
  }
  REQUIRE(bin.size() == 36);
  REQUIRE(idx.size() == 48);
  const std::string meta = R"({"dtype": "int32", "index_dtype": "int64", "document_count": 3})";
  const auto message = [&](const std::string& index, const std::string& about) {
    test::write_text(dir.path() / "s.bin", bin);
    test::write_text(dir.path() / "s.idx", index);
    test::write_text(dir.path() / "s.meta.json", about);
    const auto file = TokenFile::open(dir.str("s"));
    return file ? std::string("opened") : file.error().message;
  };
  REQUIRE(message(idx, meta) == "opened");
  const auto file = TokenFile::open(dir.str("s"));
  REQUIRE(file->num_documents() == 3);
  CHECK(file->index().type() == TokenType::i32);
  for (std::uint64_t i = 0; i < 3; ++i) {
    std::vector<std::int32_t> tokens(file->index().document_tokens(i));
    REQUIRE(file->read(file->index().document_begin(i), 100, tokens).has_value());
    CHECK(tokens == documents[i]);
  }
  const auto with = [&](std::size_t at, std::uint64_t value) {
    std::string changed = idx;
    std::string bytes;
    put(bytes, value, 8);
    return changed.replace(at, 8, bytes);
  };
  CHECK(message(idx.substr(0, 47), meta).find("do not belong together") != std::string::npos);
  CHECK(message(idx, R"({"dtype": "int32"})")
            .find("s.meta.json: not that of a memory map of Scaling: "
                  "no \"index_dtype\"; copy the file again") != std::string::npos);
  CHECK(
      message(idx, R"({"dtype": 4})").find(": \"dtype\": a number, where a string is expected; ") !=
      std::string::npos);
  CHECK(message(idx + idx, meta).find("do not belong together") != std::string::npos);
  CHECK(message(with(8, ~0ull), meta).find("length -1") != std::string::npos);
  CHECK(message(with(8, 4), meta).find("starts at byte 12") != std::string::npos);
  CHECK(message(with(16, 1ull << 62), meta).find("starts at token") != std::string::npos);
  CHECK(message(with(40, 5), meta).find("truncated") != std::string::npos);
  CHECK(message(idx, R"({"dtype": "float32", "index_dtype": "int64", "document_count": 3})")
            .find("dtype float32") != std::string::npos);
  CHECK(message(idx, R"({"dtype": "int32", "index_dtype": "int32", "document_count": 3})")
            .find("index_dtype int32") != std::string::npos);
  CHECK(message(idx, "{}").find("meta.json") != std::string::npos);
  std::filesystem::remove(dir.path() / "s.meta.json");
  CHECK(TokenFile::open(dir.str("s")).error().message.find("MMIDIDX") != std::string::npos);
}

}  // namespace sortie::trainer
