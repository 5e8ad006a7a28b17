// Causal attention: one task per (sequence, head) or, backward, per (sequence, key head), each in
// blocks of query rows that see only the keys up to their last row. Products are oneDNN's on one
// thread each; a key head's gradients are summed by one task, so the bits do not depend on threads.
#include <cstring>
#include <vector>

#include "trainer/ops/attention_impl.h"
#include "trainer/ops/backend_cpu.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kRowBlock = 64;

/// A head of a [B, T, H, D] view: first element and row stride.
struct Head {
  std::byte* data;
  std::int64_t stride;
  std::size_t bytes;  // of an element
  std::byte* row(std::int64_t t) const {
    return data + static_cast<std::size_t>(t * stride) * bytes;
  }
};
Head head_of(const Tensor& x, std::int64_t b, std::int64_t h) {
  const std::size_t bytes = dtype_bytes(x.dtype());
  return {static_cast<std::byte*>(x.raw()) +
              static_cast<std::size_t>(b * x.stride(0) + h * x.stride(2)) * bytes,
          x.stride(1), bytes};
}

/// A block of query rows: rows [begin, begin + rows) against keys [0, keys).
struct Block {
  std::int64_t begin, rows, keys;
  std::int64_t line;  // row stride of the scores
  const Matmul *scores, *values, *dprobabilities, *dq, *dk, *dv;
};

struct Strides {
  std::int64_t q, k, v, out, dout, dq;
};

class Plan {
 public:
  Plan(ExecutionContext& context, const Tensor& q, const Strides& strides, bool backward)
      : tokens_(q.size(1)), dims_(q.size(3)), dtype_(q.dtype()) {
    for (std::int64_t begin = 0; begin < tokens_; begin += kRowBlock) {
      const std::int64_t rows = std::min(kRowBlock, tokens_ - begin);
      const std::int64_t keys = begin + rows;
      Block block{begin, rows, keys, (keys + 31) / 32 * 32, {}, {}, {}, {}, {}, {}};
      if (block.line % 256 == 0) block.line += 32;  // no power of two between rows
      const auto find = [&](std::int64_t m, std::int64_t n, std::int64_t k, DType output,
                            std::int64_t a_row, std::int64_t a_col, std::int64_t b_row,
                            std::int64_t b_col, std::int64_t c_row, bool accumulate) {
        const Matmul* matmul = &find_matmul(context, {m, n, k, dtype_, output, a_row, a_col, b_row,
                                                      b_col, c_row, false, accumulate, true});
        matmul_scratch_ = std::max(matmul_scratch_, matmul->scratch_bytes());
        return matmul;
      };
      block.scores =
          find(rows, keys, dims_, DType::f32, strides.q, 1, 1, strides.k, block.line, false);
      if (!backward) {
        block.values =
            find(rows, dims_, keys, dtype_, block.line, 1, strides.v, 1, strides.out, false);
      } else {
        block.dprobabilities =
            find(rows, keys, dims_, DType::f32, strides.dout, 1, 1, strides.v, block.line, false);
        block.dq = find(rows, dims_, keys, dtype_, block.line, 1, strides.k, 1, strides.dq, false);
        block.dk = find(keys, dims_, rows, DType::f32, 1, block.line, strides.q, 1, dims_, true);
        block.dv = find(keys, dims_, rows, DType::f32, 1, block.line, strides.dout, 1, dims_, true);
      }
      blocks.push_back(block);
    }
    scores_ = static_cast<std::size_t>(kRowBlock * blocks.back().line);
  }

  /// One thread's memory, cut into parts.
  struct Scratch {
    std::shared_ptr<void> memory;
    float *scores, *dprobabilities, *dk, *dv;
    void *probabilities, *dscores, *matmul;
    int thread;
  };
  std::vector<Scratch> scratch(ExecutionContext& context) const {
    const std::size_t wide = round_up(scores_ * sizeof(float));
    const std::size_t narrow = round_up(scores_ * dtype_bytes(dtype_));
    const std::size_t sums = round_up(sum_elements() * sizeof(float));
    std::vector<Scratch> result;
    for (int thread = 0; thread < context.threads(); ++thread) {
      auto memory =
          context.allocator().allocate(2 * wide + 2 * narrow + 2 * sums + matmul_scratch_);
      auto* next = static_cast<std::byte*>(memory.get());
      const auto take = [&next](std::size_t bytes) {
        std::byte* part = next;
        next += bytes;
        return static_cast<void*>(part);
      };
      Scratch part{};
      part.scores = static_cast<float*>(take(wide));
      part.dprobabilities = static_cast<float*>(take(wide));
      part.probabilities = take(narrow);
      part.dscores = take(narrow);
      part.dk = static_cast<float*>(take(sums));
      part.dv = static_cast<float*>(take(sums));
      part.matmul = take(matmul_scratch_);
      part.memory = std::move(memory);
      part.thread = thread;
      result.push_back(std::move(part));
    }
    return result;
  }
  std::size_t sum_elements() const { return static_cast<std::size_t>(tokens_ * dims_); }

  std::vector<Block> blocks;

 private:
  static std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

  std::int64_t tokens_, dims_;
  DType dtype_;
  std::size_t matmul_scratch_ = 0;
  std::size_t scores_ = 0;
};

}  // namespace

void rope_cpu(ExecutionContext& context, Tensor& x, const RopeTable& table, bool inverse) {
  const std::int64_t tokens = x.size(1);
  const std::int64_t heads = x.size(2);
  const std::int64_t half = table.rotary_dims / 2;
  const auto& rows = typed_kernels(context, x.dtype());
  const float* cos = table.cos.data<float>();
  const float* sin = table.sin.data<float>();
  parallel_ranges(context, x.size(0) * tokens, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t t = row % tokens;
      for (std::int64_t h = 0; h < heads; ++h)
        rows.rope(head_of(x, row / tokens, h).row(t), cos + t * half, sin + t * half, half,
                  inverse ? -1.0f : 1.0f);
    }
  });
}

void attention_forward_cpu(ExecutionContext& context, const Tensor& q, const Tensor& k,
                           const Tensor& v, float scale, Tensor& out, Tensor& lse) {
  const std::int64_t tokens = q.size(1);
  const std::int64_t heads = q.size(2);
  const std::int64_t group = heads / k.size(2);
  const Plan plan(context, q, {q.stride(1), k.stride(1), v.stride(1), out.stride(1), 0, 0}, false);
  const auto scratch = plan.scratch(context);
  const auto& rows = typed_kernels(context, q.dtype());
  const dnnl::stream& stream = context.backend().stream;
  parallel_tasks(context, q.size(0) * heads, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / heads;
    const std::int64_t h = task % heads;
    const Head query = head_of(q, b, h);
    const Head key = head_of(k, b, h / group);
    const Head value = head_of(v, b, h / group);
    const Head result = head_of(out, b, h);
    const Plan::Scratch& own = scratch[static_cast<std::size_t>(thread)];
    auto* probabilities = static_cast<std::byte*>(own.probabilities);
    float* row_lse = lse.data<float>() + task * tokens;
    for (const Block& block : plan.blocks) {
      block.scores->run(stream, query.row(block.begin), key.data, own.scores, nullptr, own.matmul,
                        own.thread);
      for (std::int64_t r = 0; r < block.rows; ++r)
        row_lse[block.begin + r] =
            rows.softmax(own.scores + r * block.line,
                         probabilities + static_cast<std::size_t>(r * block.line) * query.bytes,
                         block.begin + r + 1, block.keys, scale);
      block.values->run(stream, probabilities, value.data, result.row(block.begin), nullptr,
                        own.matmul, own.thread);
    }
  });
  context.poll();
}

void attention_backward_cpu(ExecutionContext& context, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& out, const Tensor& lse,
                            const Tensor& dout, float scale, Tensor& dq, Tensor& dk, Tensor& dv) {
  const std::int64_t tokens = q.size(1);
  const std::int64_t heads = q.size(2);
  const std::int64_t key_heads = k.size(2);
  const std::int64_t group = heads / key_heads;
  const std::int64_t dims = q.size(3);
  const Plan plan(
      context, q,
      {q.stride(1), k.stride(1), v.stride(1), out.stride(1), dout.stride(1), dq.stride(1)}, true);
  const auto scratch = plan.scratch(context);
  const auto& rows = typed_kernels(context, q.dtype());
  const dnnl::stream& stream = context.backend().stream;

  const auto one_head = [&](std::int64_t b, std::int64_t h, const Plan::Scratch& own) {
    const Head query = head_of(q, b, h);
    const Head key = head_of(k, b, h / group);
    const Head value = head_of(v, b, h / group);
    const Head result = head_of(out, b, h);
    const Head dresult = head_of(dout, b, h);
    const Head dquery = head_of(dq, b, h);
    const float* row_lse = lse.data<float>() + (b * heads + h) * tokens;
    auto* probabilities = static_cast<std::byte*>(own.probabilities);
    auto* dscores = static_cast<std::byte*>(own.dscores);
    for (const Block& block : plan.blocks) {
      block.scores->run(stream, query.row(block.begin), key.data, own.scores, nullptr, own.matmul,
                        own.thread);
      block.dprobabilities->run(stream, dresult.row(block.begin), value.data, own.dprobabilities,
                                nullptr, own.matmul, own.thread);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        const std::int64_t t = block.begin + r;
        const std::size_t offset = static_cast<std::size_t>(r * block.line) * query.bytes;
        const float delta = rows.dot(dresult.row(t), result.row(t), dims);
        rows.softmax_backward(own.scores + r * block.line, own.dprobabilities + r * block.line,
                              probabilities + offset, dscores + offset, t + 1, block.keys, scale,
                              row_lse[t], delta);
      }
      block.dq->run(stream, dscores, key.data, dquery.row(block.begin), nullptr, own.matmul,
                    own.thread);
      block.dk->run(stream, dscores, query.row(block.begin), own.dk, nullptr, own.matmul,
                    own.thread);
      block.dv->run(stream, probabilities, dresult.row(block.begin), own.dv, nullptr, own.matmul,
                    own.thread);
    }
  };

  parallel_tasks(context, q.size(0) * key_heads, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / key_heads;
    const std::int64_t kv = task % key_heads;
    const Plan::Scratch& own = scratch[static_cast<std::size_t>(thread)];
    std::memset(own.dk, 0, plan.sum_elements() * sizeof(float));
    std::memset(own.dv, 0, plan.sum_elements() * sizeof(float));
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) one_head(b, h, own);
    const Head dkey = head_of(dk, b, kv);
    const Head dvalue = head_of(dv, b, kv);
    for (std::int64_t t = 0; t < tokens; ++t) {
      rows.from_f32(own.dk + t * dims, dkey.row(t), dims);
      rows.from_f32(own.dv + t * dims, dvalue.row(t), dims);
    }
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
