// Tests of token files as samples for the trainer: blends by weights, in Sortie's order and in
// Megatron's.
#include "trainer/samples/dataset_source.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/support/temp_dir.h"
#include "trainer/data/token_writer.h"

namespace sortie::trainer {
namespace {

/// Writes 40 documents of 7 tokens, all of which are `token`.
void write_tokens(const std::string& prefix, std::int32_t token) {
  auto writer = TokenFileWriter::create(prefix, TokenType::u16, false);
  REQUIRE(writer.has_value());
  for (int i = 0; i < 40; ++i) {
    REQUIRE(writer->append(std::vector<std::int32_t>(7, token)).has_value());
    REQUIRE(writer->end_document().has_value());
  }
  REQUIRE(writer->finish().has_value());
}

}  // namespace

TEST_CASE("prefixes give their shares of the samples, under every sampler") {
  sortie::test::ScopedTempDir dir;
  write_tokens(dir.str("a"), 1);
  write_tokens(dir.str("b"), 2);
  config::JobConfig job;
  job.model.sequence_length = 8;
  job.data.data_prefixes = {dir.str("a"), dir.str("b")};
  job.data.weights = {"3", "1"};
  for (const char* sampler : {"sortie", "megatron"}) {
    CAPTURE(sampler);
    job.data.sampler = sampler;
    // More than an epoch of either prefix.
    const auto source = DatasetSource::open_training(job, {.samples = 400});
    REQUIRE(source.has_value());
    CHECK((*source)->order() == (job.data.sampler == "sortie"
                                     ? ""
                                     : "9 epochs, the last apart; 3 epochs, shuffled together"));
    std::vector<std::int32_t> counts(3);
    std::vector<std::int32_t> tokens(8);
    std::vector<std::int32_t> targets(8);
    for (std::int64_t i = 0; i < 400; ++i) {
      REQUIRE((*source)->sample(i, tokens, targets).has_value());
      CHECK(tokens == targets);
      CHECK(tokens == std::vector<std::int32_t>(8, tokens[0]));
      ++counts[static_cast<std::size_t>(tokens[0])];
    }
    CHECK(counts == std::vector<std::int32_t>{0, 300, 100});
    // A rollback that skips samples needs more samples than were planned. These are new ones, not
    // the first ones again.
    const auto longer = DatasetSource::open_training(job, {.samples = 430});
    REQUIRE(longer.has_value());
    for (std::int64_t i = 400; i < 430; ++i) {
      std::vector<std::int32_t> wanted(8);
      REQUIRE((*source)->sample(i, tokens, targets).has_value());
      REQUIRE((*longer)->sample(i, wanted, targets).has_value());
      CHECK(tokens == wanted);
    }
  }
  // Validation does not use weights: it reads every document, in stored order.
  const auto validation = DatasetSource::open_validation(job, job.data.data_prefixes);
  REQUIRE(validation.has_value());
  CHECK((*validation)->samples_per_epoch() == (2 * 40 * 7 - 1) / 8);
}

}  // namespace sortie::trainer
