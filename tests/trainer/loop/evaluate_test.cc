#include "trainer/inference/evaluate.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <numbers>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_training.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// A source of bytes as tokens: "abcdefgh...", from a position on.
class AlphabetSource final : public SampleSource {
 public:
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto at = index + static_cast<std::int64_t>(i);
      tokens[i] = static_cast<std::int32_t>('a' + at % 26);
      targets[i] = static_cast<std::int32_t>('a' + (at + 1) % 26);
    }
    return {};
  }
  std::string fingerprint() const override { return "alphabet"; }
  std::int64_t samples_per_epoch() const override { return 26; }
};

config::JobConfig alphabet_job() {
  config::JobConfig job = tiny_job();
  job.model.vocab_size = 256;
  job.trainer.train_iterations = 60;
  return job;
}

std::string error_of(TinyTraining& training, const std::filesystem::path& file) {
  const auto score = score_choices(training.trainer->context(), training.trainer->model(),
                                   *make_byte_tokenizer(), {}, file);
  return score ? "none" : score.error().message;
}

}  // namespace

TEST_CASE("loss, perplexity and bits per byte of a text are those of its tokens") {
  const auto communicator = make_single_communicator();
  TinyTraining training(alphabet_job(), *communicator, DType::f32, 1,
                        std::make_unique<AlphabetSource>());
  training.losses(10);
  AlphabetSource source;
  const auto tokenizer = make_byte_tokenizer();
  Trainer& trainer = *training.trainer;
  std::vector<std::uint64_t> done;
  const auto score = score_text(trainer.context(), trainer.model(), *tokenizer, source, 7, 3,
                                [&](const WorkProgress& work) {
                                  CHECK(work.stage == "scoring text");
                                  CHECK(work.unit == "samples");
                                  CHECK(work.total == 7);
                                  done.push_back(work.done);
                                });
  REQUIRE(score);
  CHECK(done == std::vector<std::uint64_t>{3, 6, 7});
  CHECK(score->tokens == 7 * 19);
  CHECK(score->bytes == 7 * 19);
  const auto one_by_one = score_text(trainer.context(), trainer.model(), *tokenizer, source, 7, 1);
  CHECK(score->nats == doctest::Approx(one_by_one->nats).epsilon(1e-6));
  CHECK(score->loss() == doctest::Approx(score->nats / 133));
  CHECK(score->perplexity() == doctest::Approx(std::exp(score->loss())));
  CHECK(score->bits_per_byte() == doctest::Approx(score->loss() / std::numbers::ln2));
  // Takes each probability from the model's own next-token distribution.
  double nats = 0;
  std::vector<std::int32_t> text(19), next(19);
  REQUIRE(source.sample(0, text, next));
  for (std::size_t i = 0; i < text.size(); ++i) {
    const Tensor tokens = ops::tensor_from_host<std::int32_t>(
        trainer.context(), std::span(text).first(i + 1), {1, static_cast<std::int64_t>(i + 1)});
    Graph graph(trainer.context(), Graph::Mode::inference);
    const std::vector<float> logits =
        ops::copy_to_host<float>(trainer.context(), trainer.model().last_logits(graph, tokens));
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    nats += std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(next[i])]);
  }
  const auto first = score_text(trainer.context(), trainer.model(), *tokenizer, source, 1, 1);
  CHECK(first->nats == doctest::Approx(nats).epsilon(1e-5));
}

TEST_CASE("multiple choice: the likeliest answer, and the likeliest per byte") {
  const auto communicator = make_single_communicator();
  TinyTraining training(alphabet_job(), *communicator, DType::f32, 1,
                        std::make_unique<AlphabetSource>());
  training.losses(60);
  const sortie::test::ScopedTempDir dir;
  sortie::test::write_text(
      dir / "items.jsonl",
      "{\"context\": \"abcdef\", \"choices\": [\"zzz\", \"ghi\", \"gxi\"], \"answer\": 1}\n"
      "\n"
      // The short choice is likelier as a whole, the long one per byte.
      "{\"context\": \"hijkl\", \"choices\": [\"q\", \"mnopqrstuvwxyzabc\"], \"answer\": 1}\n"
      "{\"context\": \"stuv\", \"choices\": [\"wxy\", \"efg\"], \"answer\": 1}\n"
      // Longer than the window: the end of the context decides.
      "{\"context\": \"qqqqqqqqqqqqqqqqqqqqqqqqqqabcdef\", \"choices\": [\"b\", \"ghi\"], "
      "\"answer\": 1}\n");
  std::vector<WorkProgress> reports;
  const auto score = score_choices(training.trainer->context(), training.trainer->model(),
                                   *make_byte_tokenizer(), {}, dir / "items.jsonl",
                                   [&](const WorkProgress& work) { reports.push_back(work); });
  REQUIRE(score);
  REQUIRE(reports.size() == 4);
  CHECK(reports[0].stage == "scoring choices");
  CHECK(reports[0].done < reports[1].done);
  CHECK(reports[3].done == reports[3].total);
  CHECK(reports[3].total == std::filesystem::file_size(dir / "items.jsonl"));
  CHECK(score->items == 4);
  CHECK(score->right_per_byte == 3);
  CHECK(score->right >= 2);
  CHECK(score->right <= 3);
}

TEST_CASE("a bad line of choices is named with what is wrong") {
  const auto communicator = make_single_communicator();
  TinyTraining training(alphabet_job(), *communicator);
  const sortie::test::ScopedTempDir dir;
  const auto check = [&](const char* line, const char* error) {
    sortie::test::write_text(dir / "items.jsonl", std::string("\n") + line + "\n");
    const std::string message = error_of(training, dir / "items.jsonl");
    CAPTURE(message);
    CHECK(message.starts_with(dir.str("items.jsonl:2: ")));
    CHECK(message.find(error) != std::string::npos);
  };
  check("{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 1}", "answer 1 of 1 choices");
  check("{\"context\": \"a\", \"answer\": 1}", "choices");
  check("{\"context\": \"a\", ", "not JSON; write {\"context\"");
  check("{\"context\": \"\", \"choices\": [\"b\"], \"answer\": 0}", "the context is empty");
  check("{\"context\": \"a\", \"choices\": [\"\"], \"answer\": 0}", "a choice is empty");
  CHECK(error_of(training, dir / "absent").starts_with(dir.str("absent")));
  sortie::test::write_text(dir / "items.jsonl", "\n");
  CHECK(error_of(training, dir / "items.jsonl").ends_with("no items in it"));
}
