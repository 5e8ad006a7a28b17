// bench_ops [THREADS] [bf16|f32]: every op of one GPT-124M training step (B4 T256) as the trainer
// calls it, compared with the floor of the step's matrix products, measured in the same run.
// bench_ops cuda [bf16|f32] [OPS]: the same on a GPU (B16 T1024). For ops that are bound by memory,
// also the bytes that they must read and write per second. OPS: only ops with it in their name.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/bench/filled_tensor.h"
#include "tests/bench/step_floor_cpu.h"
#include "tests/support/open_gate.h"
#include "trainer/ops/attention.h"
#include "trainer/ops/copy.h"
#include "trainer/ops/demo.h"
#include "trainer/ops/dropout.h"
#include "trainer/ops/elementwise.h"
#include "trainer/ops/linear.h"
#include "trainer/ops/norm.h"
#include "trainer/ops/optimizer.h"
#include "trainer/tensor/device_module.h"

namespace {

using namespace sortie::trainer;
using sortie::bench::GptShape;

struct Row {
  std::string op;
  std::int64_t calls;
  double seconds, bytes;
};

/// Returns the median time of a call over several runs, after one call for warm-up. On a GPU a run
/// is several calls in a row, so that the host is ahead of the GPU, as in a step.
double seconds_of(ExecutionContext& context, const std::function<void()>& run) {
  const int calls = context.device().kind == DeviceKind::cuda ? 20 : 1;
  run();
  context.synchronize();
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto start = std::chrono::steady_clock::now();
    for (int call = 0; call < calls; ++call) run();
    context.synchronize();
    times.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

class OpsBench {
 public:
  OpsBench(Device device, int threads, DType dtype, std::string_view only)
      : context_(threads, device), dtype_(dtype), only_(only) {}

  std::vector<Row> run(const GptShape& s) {
    const std::int64_t m = s.batch * s.tokens;
    linear("qkv", s.layers, m, 3 * s.hidden, s.hidden);
    linear("attention out", s.layers, m, s.hidden, s.hidden);
    linear("mlp up", s.layers, m, s.ffn, s.hidden);
    linear("mlp down", s.layers, m, s.hidden, s.ffn);
    attention(s);
    rows(s, m);
    head(s, m);
    optimizer(s);
    return rows_;
  }

 private:
  Tensor filled(DType dtype, const Shape& shape) {
    return sortie::bench::filled(context_, dtype, shape, 1);
  }
  /// Measures an op, whose calls must read and write at least `elements` of the activations' type
  /// plus `bytes`. Both are 0 if memory does not bound the op.
  void add(std::string op, std::int64_t calls, const std::function<void()>& run,
           std::int64_t elements = 0, std::int64_t bytes = 0) {
    if (!op.contains(only_)) return;
    const auto moved = elements * static_cast<std::int64_t>(dtype_bytes(dtype_)) + bytes;
    rows_.push_back({std::move(op), calls, seconds_of(context_, run), static_cast<double>(moved)});
  }

  void linear(const std::string& name, std::int64_t calls, std::int64_t m, std::int64_t n,
              std::int64_t k) {
    const Tensor x = filled(dtype_, {m, k}), dy = filled(dtype_, {m, n});
    const Tensor bias = filled(DType::f32, {n});
    ops::PackedWeight w(filled(dtype_, {n, k}));
    Tensor y = context_.empty(dtype_, {m, n}), dx = context_.empty(dtype_, {m, k});
    Tensor dw = context_.zeros(DType::f32, {n, k}), dbias = context_.zeros(DType::f32, {n}), none;
    // A step changes the weight once, so packing is part of the cost.
    add(name + " forward", calls, [&] {
      ops::weight_changed(context_, w);
      ops::linear_forward(context_, x, w, bias, y);
    });
    add(name + " backward data", calls, [&] {
      ops::weight_changed(context_, w);
      ops::linear_backward_data(context_, dy, w, dx);
    });
    add(name + " backward weight alone", 0,
        [&] { ops::linear_backward_weight(context_, dy, x, dw, none); });
    add(name + " backward weight and bias", calls,
        [&] { ops::linear_backward_weight(context_, dy, x, dw, dbias); });
  }

  void attention(const GptShape& s) {
    const std::int64_t d = s.hidden / s.heads;
    const Shape heads{s.batch, s.tokens, s.heads, d};
    const Tensor qkv = filled(dtype_, {s.batch, s.tokens, 3 * s.hidden});
    const Tensor dqkv = filled(dtype_, {s.batch, s.tokens, 3 * s.hidden});
    const auto part = [&](const Tensor& all, std::int64_t index) {
      return all.slice(2, index * s.hidden, s.hidden).view(heads);
    };
    Tensor q = part(qkv, 0), out = context_.empty(dtype_, heads);
    const Tensor k = part(qkv, 1), v = part(qkv, 2), dout = filled(dtype_, heads);
    Tensor lse = context_.empty(DType::f32, {s.batch, s.heads, s.tokens});
    Tensor dq = part(dqkv, 0), dk = part(dqkv, 1), dv = part(dqkv, 2);
    const auto table = ops::make_rope_table(context_, s.tokens, ops::rope_frequencies(d, 10000.0));
    add("rope", 4 * s.layers, [&] { ops::rope(context_, q, table, {}, false); });
    add("attention forward", s.layers,
        [&] { ops::attention_forward(context_, q, k, v, {.scale = 0.125f}, out, lse); });
    add("attention backward", s.layers, [&] {
      ops::attention_backward(context_, q, k, v, out, lse, dout, {.scale = 0.125f}, dq, dk, dv);
    });
  }

  void rows(const GptShape& s, std::int64_t m) {
    const Tensor x = filled(dtype_, {m, s.hidden}), branch = filled(dtype_, {m, s.hidden});
    const Tensor weight = filled(DType::f32, {s.hidden}), bias = filled(DType::f32, {s.hidden});
    Tensor sum = context_.empty(dtype_, {m, s.hidden}), y = context_.empty(dtype_, {m, s.hidden});
    Tensor stats = context_.empty(DType::f32, {m, 2});
    Tensor dweight = context_.zeros(DType::f32, {s.hidden});
    Tensor dbias = context_.zeros(DType::f32, {s.hidden});
    add(
        "layer norm forward", 2 * s.layers + 1,
        [&] {
          ops::residual_norm_forward(context_, ops::NormKind::layer, x, branch, weight, bias, 1e-5f,
                                     sum, y, stats);
        },
        4 * m * s.hidden);
    add(
        "layer norm backward", 2 * s.layers + 1,
        [&] {
          ops::residual_norm_backward(context_, ops::NormKind::layer, branch, x, sum, weight, stats,
                                      y, dweight, dbias);
        },
        4 * m * s.hidden);
    const Tensor up = filled(dtype_, {m, s.ffn}), dup = filled(dtype_, {m, s.ffn});
    Tensor activated = context_.empty(dtype_, {m, s.ffn});
    add(
        "gelu forward", s.layers,
        [&] { ops::gelu_forward(context_, ops::Gelu::exact, up, activated); }, 2 * m * s.ffn);
    add(
        "gelu backward", s.layers,
        [&] { ops::gelu_backward(context_, ops::Gelu::exact, dup, up, activated); }, 3 * m * s.ffn);
    const Tensor gate_up = filled(dtype_, {m, 2 * s.ffn});
    Tensor dgate_up = context_.empty(dtype_, {m, 2 * s.ffn});
    add(
        "swiglu forward", 0, [&] { ops::swiglu_forward(context_, gate_up, {}, activated); },
        3 * m * s.ffn);
    add(
        "swiglu backward", 0, [&] { ops::swiglu_backward(context_, dup, gate_up, {}, dgate_up); },
        5 * m * s.ffn);
    add(
        "add", 0, [&] { ops::add(context_, x, branch, sum); }, 3 * m * s.hidden);
    add(
        "dropout", 0,
        [&] {
          ops::dropout(context_, {0.1f, 7}, s.batch, x, y);
        },
        2 * m * s.hidden);
  }

  void head(const GptShape& s, std::int64_t m) {
    const Tensor h = filled(dtype_, {m, s.hidden});
    ops::PackedWeight w(filled(dtype_, {s.vocab, s.hidden}));
    std::vector<std::int32_t> ids;
    for (std::int64_t i = 0; i < m; ++i)
      ids.push_back(static_cast<std::int32_t>(i * 7919 % s.vocab));
    const Tensor tokens = ops::tensor_from_host<std::int32_t>(context_, ids, {m});
    Tensor dh = context_.empty(dtype_, {m, s.hidden});
    Tensor dw = context_.zeros(DType::f32, {s.vocab, s.hidden});
    Tensor loss = context_.zeros(DType::f64, {2}), none;
    const ops::CrossEntropySpec spec{.vocab_size = s.vocab, .grad_scale = 1e-3f};
    add("head, loss, gradients", 1, [&] {
      ops::weight_changed(context_, w);
      ops::linear_cross_entropy(context_, h, w, tokens, spec, dh, dw, loss);
    });
    add("head, loss only", 0,
        [&] { ops::linear_cross_entropy(context_, h, w, tokens, spec, none, none, loss); });
    add(
        "embedding forward", 1, [&] { ops::embedding_forward(context_, tokens, w.plain(), dh); },
        2 * m * s.hidden);
    add(
        "embedding backward", 1, [&] { ops::embedding_backward(context_, tokens, h, dw); },
        m * s.hidden, 8 * std::min(m, s.vocab) * s.hidden);
  }

  void optimizer(const GptShape& s) {
    const std::int64_t count =
        s.vocab * s.hidden + s.layers * (4 * s.hidden * s.hidden + 2 * s.hidden * s.ffn);
    Tensor w = context_.zeros(DType::f32, {count}), g = context_.zeros(DType::f32, {count});
    Tensor m = context_.zeros(DType::f32, {count}), v = context_.zeros(DType::f32, {count});
    Tensor compute = dtype_ == DType::bf16 ? context_.zeros(DType::bf16, {count}) : Tensor();
    Tensor sum = context_.empty(DType::f64, {1});
    add(
        "zero the gradients", 1, [&] { ops::fill(context_, 0.0, g); }, 0, 4 * count);
    add(
        "sum of squares", 1, [&] { ops::sum_of_squares(context_, g, sum); }, 0, 4 * count);
    const std::vector<float> lr = {1e-3f};
    const ops::AdamWStep step{
        ops::tensor_from_host<float>(context_, lr, {1}), 0.9f, 0.95f, 1e-8f, 0.1f,
        test::open_gate(context_, 0.9, 0.95, 1)};
    add(
        "adamw", 1, [&] { ops::adamw(context_, step, w, g, m, v, compute); }, 0,
        (compute.defined() ? 30 : 28) * count);
    ops::AdamWStep rounded = step;
    rounded.rounding = {.key = 1, .columns = s.hidden, .stride = s.hidden};
    Tensor narrow_m = context_.zeros(DType::bf16, {count});
    Tensor narrow_v = context_.zeros(DType::bf16, {count});
    add(
        "adamw, moments in bf16", 0,
        [&] { ops::adamw(context_, rounded, w, g, narrow_m, narrow_v, compute); }, 0,
        (compute.defined() ? 22 : 20) * count);
    add_demo(w, g, m, compute);
  }

  /// With messages of two members.
  void add_demo(Tensor& w, const Tensor& g, Tensor& m, Tensor& compute) {
    constexpr std::int64_t kColumns = 768;
    const ops::DemoBlocks blocks{.rows = w.elements() / kColumns, .columns = kColumns};
    const std::int64_t count = blocks.rows * kColumns;
    const auto part = [count](const Tensor& x) { return x.defined() ? x.slice(0, 0, count) : x; };
    const Tensor messages = context_.zeros(DType::u8, {2, blocks.message_bytes()});
    const Tensor lr = ops::tensor_from_host<float>(context_, std::vector{1e-3f}, {1});
    const Tensor gate = test::open_gate(context_, 0.9, 0.95, 1);
    add(
        "demo: send", 0,
        [&] {
          Tensor momentum = part(m), message = messages.slice(0, 0, 1).view({messages.size(1)});
          ops::demo_send(context_, {0.999f, lr, gate}, blocks, part(g), momentum, message);
        },
        0, 12 * count);
    add(
        "demo: move", 0,
        [&] {
          Tensor weights = part(w), copies = part(compute);
          ops::demo_move(context_, {lr, 0.1f, gate}, blocks, messages, weights, copies);
        },
        0, (compute.defined() ? 10 : 8) * count);
  }

  ExecutionContext context_;
  DType dtype_;
  std::string only_;
  std::vector<Row> rows_;
};

/// Returns the first GPU's name and the libraries that compute on it.
sortie::Result<std::string> gpu_facts() {
  const auto module = load_cuda_module();
  if (!module.has_value()) return std::unexpected(module.error());
  const auto gpus = (*module)->gpus();
  if (!gpus.has_value()) return std::unexpected(gpus.error());
  return fmt::format("{}, {}", gpus->front().name, (*module)->libraries());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view where = argc > 1 ? argv[1] : "1";
  const bool on_gpu = where == "cuda";
  const int threads = on_gpu ? 1 : std::atoi(where.data());
  const DType dtype = argc > 2 && std::string_view(argv[2]) == "f32" ? DType::f32 : DType::bf16;
  const std::string_view only = argc > 3 ? argv[3] : "";
  if (threads < 1) {
    fmt::print(stderr, "usage: bench_ops [THREADS|cuda] [bf16|f32] [OPS]\n");
    return 2;
  }
  GptShape shape;
  std::vector<sortie::bench::FloorRow> floor;
  if (on_gpu) {
    const auto facts = gpu_facts();
    if (!facts.has_value()) {
      fmt::print(stderr, "bench_ops: {}\n", facts.error().message);
      return 1;
    }
    shape.batch = 16;
    shape.tokens = 1024;
    fmt::print("{}, {}\n", *facts, dtype_name(dtype));
  } else {
    const auto facts = cpu_facts();
    fmt::print("{}, oneDNN uses {}, {} threads, {}\n", facts.model, facts.isa, threads,
               dtype_name(dtype));
    if (only.empty()) {
      floor = sortie::bench::measure_step_floor(shape, dtype, threads);
      sortie::bench::print_floor(floor);
    }
  }
  double sum = 0.0;
  fmt::print("\n{:<36}{:>6}{:>11}{:>11}{:>9}\n", "op", "calls", "ms each", "ms step", "GB/s");
  const Device device = on_gpu ? Device{.kind = DeviceKind::cuda} : Device{};
  for (const Row& row : OpsBench(device, threads, dtype, only).run(shape)) {
    const double step = static_cast<double>(row.calls) * row.seconds;
    sum += step;
    fmt::print("{:<36}{:>6}{:>11.3f}{:>11.2f}", row.op, row.calls, row.seconds * 1e3, step * 1e3);
    if (row.bytes > 0) fmt::print("{:>9.0f}", row.bytes / row.seconds * 1e-9);
    fmt::print("\n");
  }
  if (!only.empty()) return 0;
  fmt::print("{:<36}{:>6}{:>11}{:>11.1f}\n", "all ops of the step", "", "", sum * 1e3);
  if (!on_gpu)
    fmt::print("floor / ops = {:.1f} %\n", 100.0 * sortie::bench::floor_seconds(floor) / sum);
  return 0;
}
