#include "trainer/inference/generate.h"

#include <doctest/doctest.h>

#include "tests/support/tiny_mixture.h"

using namespace sortie::trainer;
using namespace sortie::trainer::test;

namespace {

std::vector<std::int32_t> continue_text(Trainer& trainer, std::vector<std::int32_t> text,
                                        const SamplingOptions& options) {
  generate(trainer.context(), trainer.model(), text, options, [&](std::int32_t token) {
    text.push_back(token);
    return true;
  });
  return text;
}

bool is_mixture(std::string_view architecture) {
  return architecture == "mixtral" || architecture == "qwen3-moe" || architecture == "deepseek-v3";
}

}  // namespace

TEST_CASE("a trained model continues a progression, past its own context") {
  const auto communicator = make_single_communicator();
  auto job = tiny_job();
  job.trainer.train_iterations = 400;
  TinyTraining training(job, *communicator);
  training.losses(400);
  SamplingOptions options;
  options.temperature = 0;
  options.max_tokens = 40;
  const auto text = continue_text(*training.trainer, {5, 6, 7, 8, 9, 10}, options);
  REQUIRE(text.size() == 46);
  int right = 0;
  for (std::size_t i = 6; i < text.size(); ++i) right += text[i] == (text[i - 1] + 1) % 50;
  CHECK(right >= 36);
  int handed_out = 0;
  generate(training.trainer->context(), training.trainer->model(), {5, 6}, options,
           [&](std::int32_t) { return ++handed_out < 3; });
  CHECK(handed_out == 3);
}

TEST_CASE("greedy and drawn text with the cache is that without, to the token") {
  const auto communicator = make_single_communicator();
  for (const Family& family : families()) {
    const std::string architecture(family.name);
    CAPTURE(architecture);
    auto job = is_mixture(architecture) ? mixture_job(architecture) : tiny_job(architecture);
    if (architecture == "mistral") job.model.attention_window = 5;
    if (architecture == "gpt-neo") {
      job.model.attention_layers = {"global", "local"};
      job.model.attention_window = 4;
    }
    job.model.init_std = 0.3;  // far from uniform without training
    TinyTraining training(job, *communicator);
    for (const std::vector<std::int32_t>& prompt :
         {std::vector<std::int32_t>{7}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}}) {
      SamplingOptions options;
      options.max_tokens = 60;  // the window of 19 tokens moves several times
      for (const double temperature : {0.0, 1.0}) {
        options.temperature = temperature;
        options.cache = true;
        const auto cached = continue_text(*training.trainer, prompt, options);
        options.cache = false;
        CHECK(cached == continue_text(*training.trainer, prompt, options));
      }
    }
  }
}

TEST_CASE("a mixture and latent attention give the same greedy text with the cache") {
  const auto communicator = make_single_communicator();
  for (const char* architecture : {"mixtral", "deepseek-v3"}) {
    CAPTURE(architecture);
    auto job = tiny_job("llama");
    job.model.architecture = architecture;
    job.model.init_std = 0.3;
    job.model.ffn_hidden_size = 40;
    job.model.moe.num_experts = 6;
    job.model.moe.topk = 2;
    if (std::string_view(architecture) == "deepseek-v3") {
      job.model.attention_num_kv_heads = 0;
      job.model.mla = {.q_lora_rank = 20,
                       .kv_lora_rank = 16,
                       .qk_nope_head_dim = 8,
                       .qk_rope_head_dim = 6,
                       .v_head_dim = 10};
      job.model.moe.ffn_hidden_size = 24;
      job.model.moe.first_dense_layers = 1;
    } else {
      job.model.head_dim = 12;
    }
    TinyTraining training(job, *communicator);
    SamplingOptions options;
    options.temperature = 0;
    options.max_tokens = 50;
    const auto cached = continue_text(*training.trainer, {1, 2, 3, 4, 5}, options);
    options.cache = false;
    CHECK(cached == continue_text(*training.trainer, {1, 2, 3, 4, 5}, options));
  }
}

TEST_CASE("logits with the cache are those without, up to rounding") {
  const auto communicator = make_single_communicator();
  TinyTraining training(tiny_job(), *communicator);
  NextToken cached(training.trainer->context(), training.trainer->model(), true);
  NextToken plain(training.trainer->context(), training.trainer->model(), false);
  std::vector<std::int32_t> text = {3};
  for (int i = 0; i < 30; ++i) {
    CAPTURE(i);
    ExecutionContext& context = training.trainer->context();
    const auto a = ops::copy_to_host<float>(context, cached.logits(text));
    const auto b = ops::copy_to_host<float>(context, plain.logits(text));
    for (std::size_t v = 0; v < a.size(); ++v) REQUIRE(a[v] == doctest::Approx(b[v]).epsilon(1e-4));
    text.push_back(static_cast<std::int32_t>(i * 7 % 50));
    if (i % 4 == 0) text.push_back(11);  // two new tokens at once
  }
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

TEST_CASE("top-p keeps the likeliest that reach the share, and draws among them alone") {
  // Shares 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(2.0f), std::log(8.0f), std::log(4.0f),
                                     std::log(2.0f)};
  SamplingOptions options;
  options.temperature = 1;
  options.top_k = 0;
  const auto counts = [&](double top_p) {
    options.top_p = top_p;
    std::vector<int> out(4);
    for (std::uint64_t i = 0; i < 2000; ++i)
      ++out[static_cast<std::size_t>(sample_token(logits, options, i))];
    return out;
  };
  CHECK(counts(0.0) == std::vector<int>{0, 2000, 0, 0});
  CHECK(counts(0.49) == std::vector<int>{0, 2000, 0, 0});
  const auto two = counts(0.6);
  CHECK(two[0] == 0);
  CHECK(two[3] == 0);
  CHECK(two[1] == doctest::Approx(1333).epsilon(0.06));
  const auto all = counts(1.0);
  CHECK(all[0] > 180);
  CHECK(all[3] > 180);
}

TEST_CASE("the cache has memory for the text, not for all positions of the model") {
  const auto communicator = make_single_communicator();
  for (const char* architecture : {"llama", "deepseek-v3"}) {
    CAPTURE(architecture);
    auto job = is_mixture(architecture) ? mixture_job(architecture) : tiny_job(architecture);
    job.model.sequence_length = 4096;
    job.topology.micro_batch_size = 1;
    job.topology.global_batch_size = 1;
    TinyTraining training(job, *communicator);
    ExecutionContext& context = training.trainer->context();
    const Allocator& allocator = context.allocator();
    // Returns the memory of a cache with room for `most` tokens.
    const auto memory_of = [&](std::int64_t most) {
      NextToken next(context, training.trainer->model(), true, true, most);
      const std::size_t before = allocator.bytes_in_use();
      next.logits({1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
      return allocator.bytes_in_use() - before;
    };
    const std::size_t whole = memory_of(4096), some = memory_of(10 + 40);
    CHECK(whole > 0);
    CHECK(some * 15 < whole);  // room for 256 tokens
    CHECK(memory_of(257) * 7 < whole);
    CHECK(memory_of(std::numeric_limits<std::int64_t>::max()) == whole);
    // generate() allocates no more than that. On a GPU, its graphs have separate memory.
    if (on_gpu()) continue;
    SamplingOptions options;
    options.temperature = 0;
    options.max_tokens = 40;
    context.allocator().reset_peak();
    const std::size_t before = allocator.bytes_in_use();
    continue_text(*training.trainer, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, options);
    CHECK(allocator.peak_bytes_in_use() - before < whole / 2);
  }
}

TEST_CASE("logits do not depend on the size of the cache, to the bit") {
  const auto communicator = make_single_communicator();
  auto job = tiny_job();
  job.model.sequence_length = 1000;
  job.model.init_std = 0.3;
  TinyTraining training(job, *communicator);
  ExecutionContext& context = training.trainer->context();
  for (const std::int64_t most : {300, 900, 5000}) {
    CAPTURE(most);
    NextToken whole(context, training.trainer->model(), true);
    NextToken some(context, training.trainer->model(), true, true, most);
    std::vector<std::int32_t> text;
    for (std::int32_t i = 0; i < 250; ++i) text.push_back(i * 7 % 50);
    while (static_cast<std::int64_t>(text.size()) < std::min<std::int64_t>(most, 320)) {
      const auto a = ops::copy_to_host<float>(context, whole.logits(text));
      REQUIRE(ops::copy_to_host<float>(context, some.logits(text)) == a);
      text.push_back(static_cast<std::int32_t>(text.size() * 11 % 50));
    }
  }
}
