// Compares every family with transformers: logits, loss, gradients and three AdamW steps of the
// tiny random models in tests/data/hf, which scripts/make_hf_fixtures.py made.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "common/base/check.h"
#include "tests/support/bf16.h"
#include "tests/support/emulated.h"
#include "tests/support/every_case.h"
#include "tests/support/flat_values.h"
#include "tests/support/test_data.h"
#include "trainer/hf/open_model.h"
#include "trainer/optim/optimizer.h"
#include "trainer/optim/update_gate.h"

namespace sortie::trainer {
namespace {

namespace fs = std::filesystem;

using Values = std::vector<double>;

/// All folders; on the emulated GPU, unless every case is to run, a dense model and a mixture.
std::vector<fs::path> fixture_folders() {
  const fs::path all = sortie::test::test_data() / "hf";
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(all)) folders.push_back(entry.path());
  REQUIRE(folders.size() >= 15);
  std::ranges::sort(folders);
  if (test::gpu_is_emulated() && !sortie::test::every_case())
    folders = {all / "deepseek-v3-a", all / "gpt-neo-a"};
  return folders;
}

Values values_of(StorageType type, std::span<const std::byte> bytes) {
  Values values(bytes.size() / storage_bytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::byte* at = bytes.data() + i * storage_bytes(type);
    if (type == StorageType::bf16) {
      bf16 narrow;
      std::memcpy(&narrow, at, sizeof narrow);
      values[i] = static_cast<double>(static_cast<float>(narrow));
    } else if (type == StorageType::f32) {
      float value;
      std::memcpy(&value, at, sizeof value);
      values[i] = static_cast<double>(value);
    } else {
      SORTIE_CHECK(type == StorageType::i32, "{}", storage_name(type));
      std::int32_t value;
      std::memcpy(&value, at, sizeof value);
      values[i] = value;
    }
  }
  return values;
}

class Fixture {
 public:
  explicit Fixture(const fs::path& folder)
      : folder_(folder), file_(SafetensorsFile::open(folder / "reference.safetensors").value()) {}

  OpenedModel open(DType dtype) const {
    auto opened = open_model(folder_, {dtype, 1, /*gradients=*/true, test::device()});
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().message));
    return std::move(*opened);
  }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  Values values(const std::string& name) const {
    const TensorEntry* entry = file_.find(name);
    REQUIRE_MESSAGE(entry != nullptr, name);
    return values_of(entry->type, file_.data(*entry));
  }
  Tensor tokens(ExecutionContext& context, const std::string& name) const {
    const TensorEntry* entry = file_.find(name);
    REQUIRE(entry != nullptr);
    Tensor tensor = context.empty(DType::i32, {entry->shape[0], entry->shape[1]});
    ops::copy_bytes_from_host(context, file_.data(*entry), tensor);
    return tensor;
  }
  /// Returns the labels shifted as transformers does: position t predicts label t + 1.
  Tensor targets(ExecutionContext& context) const {
    const Tensor labels = tokens(context, "labels");
    std::vector<std::int32_t> shifted = ops::copy_to_host<std::int32_t>(context, labels);
    const auto width = static_cast<std::size_t>(labels.size(1));
    for (std::size_t i = 0; i < shifted.size(); ++i)
      shifted[i] = (i + 1) % width == 0 ? -100 : shifted[i + 1];
    return ops::tensor_from_host<std::int32_t>(context, shifted, labels.shape());
  }

 private:
  fs::path folder_;
  SafetensorsFile file_;
};

double rms(const Values& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

double max_difference(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i])) return INFINITY;
    most = std::max(most, std::abs(a[i] - b[i]));
  }
  return most;
}

struct Comparison {
  double cosine, norm_ratio, norm, expected_norm;
};
Comparison compare(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    aa += a[i] * a[i];
    bb += b[i] * b[i];
    ab += a[i] * b[i];
  }
  return {ab / std::sqrt(aa * bb), std::sqrt(aa / bb), std::sqrt(aa), std::sqrt(bb)};
}

/// Returns a forward context that replays the experts that transformers chose.
ForwardContext replayed(const Fixture& fixture, ExecutionContext& context,
                        const std::string& prefix) {
  ForwardContext forward;
  for (std::size_t i = 0;; ++i) {
    const std::string name = fmt::format("{}experts.{}", prefix, i);
    if (!fixture.has(name)) return forward;
    forward.routers.replay.push_back(fixture.tokens(context, name));
  }
}

Values logits_of(OpenedModel& opened, const Tensor& tokens, ForwardContext context = {}) {
  Graph graph(*opened.context, Graph::Mode::inference);
  const Tensor logits = opened.model->logits(graph, tokens, std::move(context));
  Values values;
  for (std::int64_t row = 0; row < logits.size(0); ++row)
    for (const float value : ops::copy_to_host<float>(*opened.context, logits.slice(0, row, 1)))
      values.push_back(static_cast<double>(value));
  return values;
}

/// Returns the mean loss and leaves the gradients in the store.
double loss_of(OpenedModel& opened, const Tensor& tokens, const Tensor& targets,
               ForwardContext context = {}) {
  std::int64_t count = 0;
  for (const std::int32_t id : ops::copy_to_host<std::int32_t>(*opened.context, targets))
    count += id >= 0;
  opened.store->zero_gradients();
  Graph graph(*opened.context, Graph::Mode::record);
  const Tensor sums = opened.model->loss(
      graph, tokens, targets, static_cast<float>(1.0 / static_cast<double>(count)), context);
  graph.backward({});
  const auto loss = ops::read_cross_entropy(*opened.context, sums);
  REQUIRE(loss.count == count);
  const Tensor& balance = context.routers.load_loss;
  return loss.loss_sum / static_cast<double>(count) +
         (balance.defined() ? ops::read_scalar<double>(*opened.context, balance) : 0.0);
}

/// Returns the values of a folder's tensor, taken from a flat buffer.
Values folder_values(const HfTensor& tensor, ParameterStore& store, const Tensor& flat) {
  const auto values = test::host_view(store, flat);
  return values_of(StorageType::f32, write_hf_tensor(tensor, StorageType::f32, values.span()));
}

}  // namespace

TEST_CASE("every family equals transformers in f32: logits, loss, gradients, three AdamW steps") {
  for (const fs::path& folder : fixture_folders()) {
    CAPTURE(folder.filename().string());
    const Fixture fixture(folder);
    OpenedModel opened = fixture.open(DType::f32);
    const Tensor tokens = fixture.tokens(*opened.context, "input_ids");
    const Values logits = fixture.values("logits");
    CHECK(max_difference(logits_of(opened, tokens), logits) <= 1e-4 * rms(logits));
    if (!fixture.has("loss")) continue;  // one token: nothing to predict

    const Tensor targets = fixture.targets(*opened.context);
    const double loss = loss_of(opened, tokens, targets);
    CHECK(std::abs(loss - fixture.values("loss")[0]) <= 1e-5);
    for (const HfTensor& tensor : opened.tensors) {
      CAPTURE(tensor.name);
      if (tensor.parameter->spec().use == Use::state) continue;
      const Values expected = fixture.values("grad." + tensor.name);
      const Comparison c =
          compare(folder_values(tensor, *opened.store, opened.store->gradients()), expected);
      // A bias of keys shifts all scores of a row equally, so its gradient is 0 except for
      // rounding.
      if (c.expected_norm < 1e-6) {
        CHECK(c.norm < 1e-6);
        continue;
      }
      CHECK(c.cosine >= 0.99999);
      CHECK(std::abs(c.norm_ratio - 1.0) <= 1e-4);
    }

    config::JobConfig job;
    job.optimizer.beta1 = 0.9;
    job.optimizer.beta2 = 0.95;
    job.optimizer.eps = 1e-8;
    job.optimizer.weight_decay = 0.1;
    job.optimizer.gradient_clipping = 0.0;
    job.learning_rate_scheduler.learning_rate = 1e-2;
    job.learning_rate_scheduler.learning_rate_decay_style = "constant";
    Optimizer optimizer(job, *opened.store);
    REQUIRE(optimizer.assign_groups());
    UpdateGate gate(job);
    gate.allocate(*opened.context);
    const Tensor zero = opened.context->zeros(DType::f64, {1});
    Tensor outcome = opened.context->zeros(DType::f64, {ops::kGateOutcomeValues});
    const Values losses = fixture.values("losses");
    for (std::size_t step = 0; step < losses.size(); ++step) {
      CAPTURE(step);
      CHECK(std::abs(loss_of(opened, tokens, targets) - losses[step]) <= 1e-5 * losses[step]);
      gate.decide(*opened.context, {}, zero, zero, outcome);
      optimizer.update(*opened.context, static_cast<std::int64_t>(step) + 1, gate.gate());
    }
    for (const HfTensor& tensor : opened.tensors) {
      CAPTURE(tensor.name);
      if (tensor.parameter->spec().use == Use::state) continue;
      const Values expected = fixture.values("after." + tensor.name),
                   gradient = fixture.values("grad." + tensor.name);
      const Values actual = folder_values(tensor, *opened.store, opened.store->master());
      REQUIRE(actual.size() == expected.size());
      // Skips elements whose gradient is 0 except for rounding (a key's bias shifts all scores of a
      // row equally): AdamW steps by the sign of the rounding error there.
      double worst = 0;
      for (std::size_t i = 0; i < actual.size(); ++i)
        if (std::abs(gradient[i]) > 1e-5)
          worst = std::max(worst, std::abs(actual[i] - expected[i]));
      CHECK(worst <= 2e-4);
    }
  }
}

TEST_CASE("every family follows transformers in bf16") {
  if (skips_bf16()) return;
  for (const fs::path& folder : fixture_folders()) {
    CAPTURE(folder.filename().string());
    const Fixture fixture(folder);
    if (!fixture.has("bf16.loss")) continue;
    OpenedModel opened = fixture.open(DType::bf16);
    const Tensor tokens = fixture.tokens(*opened.context, "input_ids");
    // With experts, rounding to bf16 decides which ones transformers chooses, so its choice is
    // replayed.
    const ForwardContext forward = replayed(fixture, *opened.context, "bf16.");
    const bool mixture = !forward.routers.replay.empty();
    const double enough = mixture ? 0.995 : 0.9995;
    CHECK(compare(logits_of(opened, tokens, forward), fixture.values("bf16.logits")).cosine >=
          enough);
    const double loss = loss_of(opened, tokens, fixture.targets(*opened.context), forward);
    // The loss of transformers in bf16 differs from its f32 loss by up to 4.5e-3, by roundings that
    // this implementation need not have.
    const double off = std::min(std::abs(loss - fixture.values("bf16.loss")[0]),
                                std::abs(loss - fixture.values("loss")[0]));
    CHECK(off <= 4e-3);
    for (const HfTensor& tensor : opened.tensors) {
      CAPTURE(tensor.name);
      if (tensor.parameter->spec().use == Use::state) continue;
      const Values exact = fixture.values("grad." + tensor.name);
      if (rms(exact) < 1e-6) continue;
      const Values actual = folder_values(tensor, *opened.store, opened.store->gradients()),
                   expected = fixture.values("bf16.grad." + tensor.name);
      // The gradient of a bias is a small sum of large parts. In transformers, rounding to bf16
      // moves it away from its f32 value; ours must then be as near to the f32 value.
      const double cosine = compare(actual, expected).cosine;
      CHECK((mixture ? cosine : std::max(cosine, compare(actual, exact).cosine)) >= enough);
    }
  }
}

}  // namespace sortie::trainer
