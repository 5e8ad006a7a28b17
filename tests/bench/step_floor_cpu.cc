// Times the variants of each product directly in oneDNN, without any code of the trainer.
#include "tests/bench/step_floor_cpu.h"

#include <fmt/core.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <unordered_map>

namespace sortie::bench {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Type = memory::data_type;

constexpr int kRepeats = 9;

struct Variant {
  std::string name;
  double seconds;
};

class Bench {
 public:
  Bench(trainer::DType dtype, int threads)
      : type_(dtype == trainer::DType::bf16 ? Type::bf16 : Type::f32) {
    omp_set_num_threads(threads);
    attributes_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  }

  /// y [m, n] = x [m, k] . W^T, W [n, k].
  Variant forward(std::int64_t m, std::int64_t n, std::int64_t k) {
    const auto x = plain(m, k), y = plain(m, n);
    return best({product("matmul packed", x, matrix(k, n, Tag::any), y, false),
                 product("matmul plain", x, matrix(k, n, Tag::ba), y, false),
                 inner_product_forward(m, n, k)});
  }
  /// dx [m, k] = dy [m, n] . W.
  Variant backward_data(std::int64_t m, std::int64_t n, std::int64_t k) {
    const auto dy = plain(m, n), dx = plain(m, k);
    return best({product("matmul packed", dy, matrix(n, k, Tag::any), dx, false),
                 product("matmul plain", dy, plain(n, k), dx, false),
                 inner_product_backward_data(m, n, k)});
  }
  /// dw [n, k] in f32 += dy^T . x, or = without the sum, also in a layout that oneDNN chooses.
  /// Returns the fastest.
  Variant backward_weight(std::int64_t m, std::int64_t n, std::int64_t k) {
    const memory::desc dw({n, k}, Type::f32, Tag::ab);
    return best({product("matmul, += f32", matrix(n, m, Tag::ba), plain(m, k), dw, true),
                 product("matmul, = f32", matrix(n, m, Tag::ba), plain(m, k), dw, false),
                 inner_product_backward_weights("inner product, = f32", Tag::ab, m, n, k),
                 inner_product_backward_weights("inner product, = f32 packed", Tag::any, m, n, k)});
  }
  /// `count` products of one size at once, not causal.
  Variant batched(std::int64_t count, std::int64_t m, std::int64_t n, std::int64_t k, Tag a, Tag b,
                  Type output) {
    return best({product("batched", memory::desc({count, m, k}, type_, a),
                         memory::desc({count, k, n}, type_, b),
                         memory::desc({count, m, n}, output, Tag::abc), false)});
  }
  Type type() const { return type_; }

 private:
  memory::desc matrix(std::int64_t rows, std::int64_t cols, Tag tag) const {
    return {{rows, cols}, type_, tag};
  }
  memory::desc plain(std::int64_t rows, std::int64_t cols) const {
    return matrix(rows, cols, Tag::ab);
  }

  memory filled(const memory::desc& desc) {
    memory result(desc, engine_);
    auto* bytes = static_cast<unsigned char*>(result.get_data_handle());
    std::uint32_t state = 1;
    const auto next = [&state] { return (state = state * 1664525u + 1013904223u) >> 9; };
    if (desc.data_type() == Type::bf16)
      for (std::size_t i = 0; i + 1 < desc.get_size(); i += 2) {
        const auto bits = static_cast<std::uint16_t>(0x3c00u + (next() & 0x3ffu));
        std::memcpy(bytes + i, &bits, 2);
      }
    else
      for (std::size_t i = 0; i + 3 < desc.get_size(); i += 4) {
        const float value = static_cast<float>(next() & 0xffffu) * 1e-6f;
        std::memcpy(bytes + i, &value, 4);
      }
    return result;
  }

  /// Returns the best time of several runs of the function that `prepare` returns, or nullopt if
  /// oneDNN has no such primitive.
  std::optional<Variant> timed(const std::string& name,
                               const std::function<std::function<void()>()>& prepare) {
    try {
      const auto run = prepare();
      run();
      double best_seconds = 1e9;
      for (int i = 0; i < kRepeats; ++i) {
        const auto start = std::chrono::steady_clock::now();
        run();
        best_seconds = std::min(
            best_seconds,
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
      return Variant{name, best_seconds};
    } catch (const dnnl::error&) {
      return std::nullopt;
    }
  }

  std::function<void()> runner(const dnnl::primitive& primitive,
                               std::unordered_map<int, memory> arguments,
                               const memory::desc& scratch) {
    arguments.emplace(DNNL_ARG_SCRATCHPAD, memory(scratch, engine_));
    return [this, primitive, arguments] {
      primitive.execute(stream_, arguments);
      stream_.wait();
    };
  }

  std::optional<Variant> product(const std::string& name, const memory::desc& a,
                                 const memory::desc& b, const memory::desc& c, bool accumulate) {
    return timed(name, [&] {
      dnnl::primitive_attr attributes = attributes_;
      if (accumulate) {
        dnnl::post_ops operations;
        operations.append_sum(1.0f);
        attributes.set_post_ops(operations);
      }
      const dnnl::matmul::primitive_desc desc({a, b, c}, attributes, engine_);
      return runner(dnnl::matmul(desc),
                    {{DNNL_ARG_SRC, filled(desc.src_desc())},
                     {DNNL_ARG_WEIGHTS, filled(desc.weights_desc())},
                     {DNNL_ARG_DST, filled(desc.dst_desc())}},
                    desc.scratchpad_desc());
    });
  }

  dnnl::inner_product_forward::primitive_desc forward_hint(std::int64_t m, std::int64_t n,
                                                           std::int64_t k) {
    return {{dnnl::prop_kind::forward_training, plain(m, k), matrix(n, k, Tag::any), plain(m, n)},
            attributes_,
            engine_};
  }
  std::optional<Variant> inner_product_forward(std::int64_t m, std::int64_t n, std::int64_t k) {
    return timed("inner product packed", [&] {
      const auto desc = forward_hint(m, n, k);
      return runner(dnnl::inner_product_forward(desc),
                    {{DNNL_ARG_SRC, filled(desc.src_desc())},
                     {DNNL_ARG_WEIGHTS, filled(desc.weights_desc())},
                     {DNNL_ARG_DST, filled(desc.dst_desc())}},
                    desc.scratchpad_desc());
    });
  }
  std::optional<Variant> inner_product_backward_data(std::int64_t m, std::int64_t n,
                                                     std::int64_t k) {
    return timed("inner product packed", [&] {
      const dnnl::inner_product_backward_data::primitive_desc desc(
          {plain(m, k), matrix(n, k, Tag::any), plain(m, n)}, attributes_, engine_,
          forward_hint(m, n, k));
      return runner(dnnl::inner_product_backward_data(desc),
                    {{DNNL_ARG_DIFF_SRC, filled(desc.diff_src_desc())},
                     {DNNL_ARG_WEIGHTS, filled(desc.weights_desc())},
                     {DNNL_ARG_DIFF_DST, filled(desc.diff_dst_desc())}},
                    desc.scratchpad_desc());
    });
  }
  std::optional<Variant> inner_product_backward_weights(const std::string& name, Tag layout,
                                                        std::int64_t m, std::int64_t n,
                                                        std::int64_t k) {
    return timed(name, [&] {
      const dnnl::inner_product_backward_weights::primitive_desc desc(
          {plain(m, k), memory::desc({n, k}, Type::f32, layout), plain(m, n)}, attributes_, engine_,
          forward_hint(m, n, k));
      return runner(dnnl::inner_product_backward_weights(desc),
                    {{DNNL_ARG_SRC, filled(desc.src_desc())},
                     {DNNL_ARG_DIFF_WEIGHTS, filled(desc.diff_weights_desc())},
                     {DNNL_ARG_DIFF_DST, filled(desc.diff_dst_desc())}},
                    desc.scratchpad_desc());
    });
  }

  static Variant best(const std::vector<std::optional<Variant>>& variants) {
    Variant winner{"none here", 0.0};
    for (const auto& variant : variants)
      if (variant && (winner.seconds == 0.0 || variant->seconds < winner.seconds))
        winner = *variant;
    return winner;
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::primitive_attr attributes_;
  Type type_;
};

}  // namespace

std::vector<FloorRow> measure_step_floor(const GptShape& s, trainer::DType dtype, int threads) {
  Bench bench(dtype, threads);
  std::vector<FloorRow> rows;
  const std::int64_t m = s.batch * s.tokens;
  const auto add = [&](std::string name, const Variant& variant, std::int64_t calls, double flop) {
    rows.push_back({std::move(name), variant.name, calls, flop, variant.seconds});
  };
  const auto linear = [&](const std::string& name, std::int64_t calls, std::int64_t n,
                          std::int64_t k) {
    const double flop = 2.0 * static_cast<double>(m) * static_cast<double>(n * k);
    add(name + " forward", bench.forward(m, n, k), calls, flop);
    add(name + " backward data", bench.backward_data(m, n, k), calls, flop);
    add(name + " backward weight", bench.backward_weight(m, n, k), calls, flop);
  };
  linear("qkv", s.layers, 3 * s.hidden, s.hidden);
  linear("attention out", s.layers, s.hidden, s.hidden);
  linear("mlp up", s.layers, s.ffn, s.hidden);
  linear("mlp down", s.layers, s.hidden, s.ffn);
  linear("head", 1, s.vocab, s.hidden);

  // oneDNN alone computes attention on the whole T x T square. A causal kernel needs a little more
  // than half of it, so half of the square's time is counted.
  const std::int64_t heads = s.batch * s.heads, t = s.tokens, d = s.hidden / s.heads;
  const auto half = [&](const std::string& name, Variant variant) {
    variant.seconds /= 2;
    variant.name += ", half of it";
    add(name, variant, s.layers, static_cast<double>(heads) * static_cast<double>(t * t * d));
  };
  half("q k^T", bench.batched(heads, t, t, d, Tag::abc, Tag::acb, Type::f32));
  half("p v", bench.batched(heads, t, d, t, Tag::abc, Tag::abc, bench.type()));
  half("q k^T again", bench.batched(heads, t, t, d, Tag::abc, Tag::acb, Type::f32));
  half("dout v^T", bench.batched(heads, t, t, d, Tag::abc, Tag::acb, Type::f32));
  half("dq = ds k", bench.batched(heads, t, d, t, Tag::abc, Tag::abc, bench.type()));
  half("dk = ds^T q", bench.batched(heads, t, d, t, Tag::acb, Tag::abc, bench.type()));
  half("dv = p^T dout", bench.batched(heads, t, d, t, Tag::acb, Tag::abc, bench.type()));
  return rows;
}

double floor_seconds(const std::vector<FloorRow>& rows) {
  double sum = 0.0;
  for (const FloorRow& row : rows) sum += static_cast<double>(row.calls) * row.seconds;
  return sum;
}

void print_floor(const std::vector<FloorRow>& rows) {
  fmt::print("{:<30}{:>6}{:>11}{:>11}{:>10}  {}\n", "product", "calls", "ms each", "ms step",
             "TFLOP/s", "best of the variants");
  double flop = 0.0;
  for (const FloorRow& row : rows) {
    const auto calls = static_cast<double>(row.calls);
    flop += calls * row.flop;
    fmt::print("{:<30}{:>6}{:>11.3f}{:>11.2f}{:>10.3f}  {}\n", row.product, row.calls,
               row.seconds * 1e3, calls * row.seconds * 1e3, row.flop / row.seconds / 1e12,
               row.best);
  }
  const double seconds = floor_seconds(rows);
  fmt::print("{:<30}{:>6}{:>11}{:>11.1f}{:>10.3f}\n", "all products of the step", "", "",
             seconds * 1e3, flop / seconds / 1e12);
}

}  // namespace sortie::bench
