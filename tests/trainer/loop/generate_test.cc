#include <doctest/doctest.h>

#include "tests/support/tiny_training.h"
#include "trainer/generate.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

TEST_CASE("a trained model continues a progression, past its own context") {
  const auto communicator = make_single_communicator();
  auto job = tiny_job();
  job.trainer.train_iterations = 400;
  TinyTraining training(job, *communicator);
  training.losses(400);
  SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = 40;
  std::vector<std::int32_t> text = {5, 6, 7, 8, 9, 10};
  generate(training.trainer->context(), training.trainer->model(), text, options,
           [&](std::int32_t token) { text.push_back(token); });
  REQUIRE(text.size() == 46);
  int right = 0;
  for (std::size_t i = 6; i < text.size(); ++i) right += text[i] == (text[i - 1] + 1) % 50;
  CHECK(right >= 36);
}

TEST_CASE("sampling depends on seed and position only, and top-k 1 is greedy") {
  const std::vector<float> logits = {0.1f, 2.0f, 2.0f, -1.0f};
  SamplingOptions options;
  options.top_k = 1;
  CHECK(sample_token(logits, options, 0) == 1);
  options.temperature = 0;
  CHECK(sample_token(logits, options, 0) == 1);
  options.temperature = 1;
  options.top_k = 0;
  std::vector<int> counts(4);
  for (std::uint64_t i = 0; i < 1000; ++i)
    ++counts[static_cast<std::size_t>(sample_token(logits, options, i))];
  CHECK(sample_token(logits, options, 17) == sample_token(logits, options, 17));
  CHECK(counts[1] > 350);
  CHECK(counts[2] > 350);
  CHECK(counts[3] < 60);
}
