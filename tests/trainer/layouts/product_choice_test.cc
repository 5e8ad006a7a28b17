// Tests the choice of how products are computed. Each rank times products; all then compute them as
// rank 0 chooses, and a resumed run computes them as before. On the emulated GPU, timings are
// random.
#include "trainer/loop/product_choice.h"

#include <filesystem>
#include <set>
#include <sstream>

#include "tests/support/emulated.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_mixture.h"
#include "tests/trainer/layouts/layout_runs.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/products.h"

namespace sortie::trainer::test {
namespace {

constexpr int kTimed = 8;

/// Computes products of 12 shapes, the first of which has 8 * `first` rows.
void multiply_some(ExecutionContext& context, std::int64_t first) {
  for (std::int64_t m = first; m < first + 12; ++m) {
    const Tensor x = context.zeros(DType::f32, {8 * m, 96});
    const ops::PackedWeight weight(context.zeros(DType::f32, {64, 96}));
    Tensor y = context.empty(DType::f32, {8 * m, 64});
    ops::linear_forward(context, x, weight, Tensor(), y);
  }
}

struct Chosen {
  std::string alone, after, note;
};
/// Returns what two ranks choose by themselves, and what they use after they have agreed.
std::array<Chosen, 2> choose_on_two_ranks(const std::string& saved, std::int64_t first = 1) {
  std::array<Chosen, 2> chosen;
  run_thread_ranks(2, [&](Communicator& world) {
    ExecutionContext context(1, device());
    Chosen& mine = chosen[static_cast<std::size_t>(world.rank())];
    const auto note = choose_products(context, world, saved, kTimed, [&] {
      // Each rank has one shape that the other has not.
      multiply_some(context, first + world.rank());
      mine.alone = ops::product_choices(context);
    });
    SORTIE_CHECK(note.has_value(), "{}", note ? "" : note.error().message);
    mine.note = *note;
    mine.after = ops::product_choices(context);
  });
  return chosen;
}

/// Returns the number of shapes for which both texts have the same choice.
std::size_t same_choices(const std::string& a, const std::string& b) {
  const auto lines_in = [](const std::string& text) {
    std::set<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.insert(line);
    return lines;
  };
  const auto first = lines_in(a), second = lines_in(b);
  return static_cast<std::size_t>(std::ranges::count_if(
             first, [&](const auto& line) { return second.contains(line); })) -
         1;  // not the title line
}

struct Training {
  std::vector<double> losses;
  std::string choices;
  std::vector<float> state;
};
/// Trains both ranks to the last step of the job.
std::vector<Training> train_on_two_ranks(const config::JobConfig& job) {
  std::vector<Training> trained(2);
  run_thread_ranks(2, [&](Communicator& world) {
    RankContext rank;
    rank.timed_products = kTimed;
    TinyTraining training(job, world, DType::f32, 1, nullptr, rank);
    Training& mine = trained[static_cast<std::size_t>(world.rank())];
    while (training.trainer->progress().step < job.trainer.train_iterations) {
      const auto report = training.trainer->step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
      mine.losses.push_back(report->loss);
      const auto after = training.trainer->after_step(*report);
      SORTIE_CHECK(after.has_value(), "{}", after ? "" : after.error().message);
    }
    mine.choices = ops::product_choices(training.trainer->context());
    mine.state = state_values(training.trainer->store());
  });
  return trained;
}

}  // namespace

TEST_CASE("on a GPU: ranks whose timings differ compute products as rank 0 does" *
          doctest::skip(no_gpu_is_tested())) {
  const auto chosen = choose_on_two_ranks("");
  // Both ranks have timed eleven common shapes. On a real GPU, they may agree on all of them.
  if (gpu_is_emulated()) CHECK(same_choices(chosen[0].alone, chosen[1].alone) < 11);
  CHECK(chosen[0].after == chosen[1].after);
  CHECK(chosen[0].note == "");
  const std::vector<std::string> texts = {chosen[0].alone, chosen[1].alone};
  CHECK(same_choices(chosen[0].after, ops::merge_product_choices(texts)) == 13);
  CHECK(ops::count_product_choices(chosen[0].alone) == 12);
  CHECK(ops::count_product_choices(chosen[0].after) == 13);

  // As in a resumed run: shapes that are in the saved text are not timed.
  const auto again = choose_on_two_ranks(chosen[0].after);
  CHECK(again[0].after == chosen[0].after);
  CHECK(again[1].after == chosen[0].after);
  CHECK(again[0].note == "");
  // Some shapes are not among the saved ones.
  const auto wider = choose_on_two_ranks(chosen[0].after, 3);
  CHECK(wider[0].after == wider[1].after);
  CHECK(wider[0].note.starts_with("2 of 15 shapes of products are not in the checkpoint"));
  // The choices were saved on another GPU.
  std::string other = chosen[0].after;
  other.replace(other.find("cuBLASLt "), 9, "cuBLASLt 1");
  const auto elsewhere = choose_on_two_ranks(other);
  CHECK(elsewhere[0].after == elsewhere[1].after);
  CHECK(elsewhere[0].note.starts_with("products are chosen anew, so losses are not bit for bit"));
  CHECK(elsewhere[0].note.find("choices of products are those of cuBLASLt 1") != std::string::npos);
}

TEST_CASE("on a GPU: a resume computes products as before, whatever is timed now" *
          doctest::skip(no_gpu_is_tested())) {
  const sortie::test::ScopedTempDir dir;
  config::JobConfig job = tiny_job();
  job.model.sequence_length = 16;
  job.topology.global_batch_size = 4;
  job.topology.micro_batch_size = 1;
  job.trainer.save_dir = dir.str("checkpoints");
  job.trainer.save_interval = 2;
  job.trainer.train_iterations = 4;
  const auto whole = train_on_two_ranks(job);
  CHECK(whole[0].choices == whole[1].choices);
  CHECK(ops::count_product_choices(whole[0].choices) > 10);
  CHECK(whole[0].losses == whole[1].losses);
  CHECK(whole[0].state == whole[1].state);

  std::filesystem::remove_all(dir.str("checkpoints/step-00000004"));
  const auto resumed = train_on_two_ranks(job);
  CHECK(resumed[0].losses.size() == 2);
  CHECK(resumed[0].choices == whole[0].choices);
  CHECK(resumed[0].state == whole[0].state);
  CHECK(resumed[1].state == whole[1].state);
}

TEST_CASE("on a GPU: interleaved stages time their products" * doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = tiny_job();
  job.model.num_layers = 4;
  job.model.sequence_length = 16;
  job.topology.micro_batch_size = 1;
  job.topology.global_batch_size = 4;
  job.topology.pipeline_parallel_size = 2;
  job.topology.pipeline_interleave = 2;
  job.trainer.train_iterations = 1;
  const auto trained = train_on_two_ranks(job);
  CHECK(trained[0].losses == trained[1].losses);
  CHECK(ops::count_product_choices(trained[0].choices) > 4);
}

TEST_CASE("on a GPU: what was timed before the first step has no part in it" *
          doctest::skip(no_gpu_is_tested())) {
  config::JobConfig job = mixture_job("deepseek-v3");
  job.model.sequence_length = 16;
  const auto first_step = [&](int timed) {
    StepReport first;
    run_thread_ranks(1, [&](Communicator& world) {
      RankContext rank;
      rank.timed_products = timed;
      TinyTraining training(job, world, DType::f32, 1, nullptr, rank);
      const auto report = training.trainer->step();
      SORTIE_CHECK(report.has_value(), "{}", report ? "" : report.error().message);
      first = *report;
    });
    return first;
  };
  const StepReport without = first_step(1), with = first_step(kTimed);
  REQUIRE(without.balance_loss.value_or(0) > 0);
  CHECK(with.balance_loss.value_or(0) == doctest::Approx(*without.balance_loss).epsilon(1e-4));
  CHECK(with.grad_norm == doctest::Approx(without.grad_norm).epsilon(1e-4));
}

}  // namespace sortie::trainer::test
