// Tests of validation: fixed samples, the same bits on every number of ranks, a loss for each set.
#include "trainer/loop/validation.h"

#include <doctest/doctest.h>

#include <mutex>

#include "tests/support/tiny_training.h"
#include "trainer/parallel/thread_ranks.h"

using namespace sortie;
using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

/// A source that records which samples were requested.
class AskedSource final : public SampleSource {
 public:
  explicit AskedSource(std::int64_t vocab) : plain_(vocab) {}
  Result<> sample(std::int64_t index, std::span<std::int32_t> tokens,
                  std::span<std::int32_t> targets) override {
    asked.push_back(index);
    return plain_.sample(index, tokens, targets);
  }
  std::string fingerprint() const override { return "counting"; }
  std::int64_t samples_per_epoch() const override { return 11; }
  std::vector<std::int64_t> asked;

 private:
  ProgressionSource plain_;
};

Validation validation_on(int ranks, const config::JobConfig& job) {
  std::mutex mutex;
  std::vector<Validation> all;
  run_thread_ranks(ranks, [&](Communicator& communicator) {
    TinyTraining training(job, communicator);
    const auto result = training.trainer->evaluate();
    const std::lock_guard lock(mutex);
    REQUIRE(result);
    all.push_back(*result);
  });
  for (const Validation& one : all) CHECK(one.loss == all[0].loss);  // on every rank
  return all[0];
}

}  // namespace

TEST_CASE("the measure of a validation is that of its samples and of nothing else") {
  ProgressionSource one(50);
  AskedSource other(50);
  const config::JobConfig job = tiny_job();
  const auto measure = [&](SampleSource& source, const auto& change, const char* name = "a") {
    config::JobConfig changed = job;
    change(changed);
    return validation_measure({{name, &source}}, changed);
  };
  const auto same = [](config::JobConfig&) {};
  const std::int64_t plain = measure(one, same);
  CHECK(plain > 0);
  CHECK(validation_measure({}, job) == 0);
  CHECK(measure(other, same) != plain);
  CHECK(measure(one, same, "b") != plain);
  CHECK(validation_measure({{"a", &one}, {"b", &one}}, job) != plain);
  CHECK(measure(one, [](auto& changed) { changed.model.sequence_length = 20; }) != plain);
  CHECK(measure(one, [](auto& changed) { changed.model.document_end_token = 3; }) != plain);
  CHECK(measure(one, [](auto& changed) { changed.model.reset_positions = true; }) != plain);
  CHECK(measure(one, [](auto& changed) { changed.trainer.eval_samples = 7; }) != plain);
  const auto all = [](auto& changed) { changed.trainer.eval_samples = 0; };
  const auto more = [](auto& changed) { changed.trainer.eval_samples = 12; };  // more than its 11
  CHECK(measure(other, all) == measure(other, more));
  CHECK(measure(one, [](auto& changed) {
          changed.topology.micro_batch_size = 1;
          changed.trainer.eval_interval = 7;
        }) == plain);
}

TEST_CASE("the validation loss is the same to the bit on every number of ranks") {
  config::JobConfig job = tiny_job();
  for (const std::int64_t samples : {1, 7, 16}) {
    CAPTURE(samples);
    job.trainer.eval_samples = samples;
    const double one = validation_on(1, job).loss;
    for (const int ranks : {2, 4}) {
      CAPTURE(ranks);
      CHECK(validation_on(ranks, job).loss == one);
    }
  }
  // The loss is a mean over exactly these samples: another number of samples gives another loss.
  job.trainer.eval_samples = 7;
  const double seven = validation_on(2, job).loss;
  job.trainer.eval_samples = 8;
  CHECK(validation_on(2, job).loss != seven);
}

TEST_CASE("each sample is taken once, from the start, and no more than there are") {
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator);
  AskedSource source(training.job.model.vocab_size);
  const auto asked = [&](std::int64_t samples) {
    source.asked.clear();
    REQUIRE(validate({{"one", &source}}, {.samples = samples, .rows = 3},
                     training.trainer->context(), training.trainer->passes(),
                     training.trainer->layout(), *training.rank.marks));
    return source.asked;
  };
  CHECK(asked(4) == std::vector<std::int64_t>{0, 1, 2, 3});
  const std::vector<std::int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  CHECK(asked(0) == all);
  CHECK(asked(64) == all);
}

TEST_CASE("several sets have a loss each, and the loss is their mean") {
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator);
  ProgressionSource plain(training.job.model.vocab_size);
  MaskedSource masked(training.job.model.vocab_size);
  const auto run = [&](const std::vector<ValidationSet>& sets) {
    return validate(sets, {.samples = 6, .rows = 2}, training.trainer->context(),
                    training.trainer->passes(), training.trainer->layout(), *training.rank.marks)
        .value();
  };
  const double first = run({{"wiki", &plain}}).loss, second = run({{"code", &masked}}).loss;
  CHECK(first != second);
  const Validation both = run({{"wiki", &plain}, {"code", &masked}});
  REQUIRE(both.sets.size() == 2);
  CHECK(both.sets[0].name == "wiki");
  CHECK(both.sets[0].loss == first);
  CHECK(both.sets[1].name == "code");
  CHECK(both.sets[1].loss == second);
  CHECK(both.loss == doctest::Approx((first + second) / 2));
}
