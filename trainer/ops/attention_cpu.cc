// Causal attention: one task per (sequence, head) or, backward, per (sequence, key head), each in
// blocks of query rows that see only the keys from the window of their first row to their last row.
// Products are oneDNN's on one thread each; a key head's gradients are summed by one task, so the
// bits do not depend on threads.
#include <cstring>
#include <vector>

#include "common/model/tiling.h"
#include "trainer/ops/attention_impl.h"
#include "trainer/ops/backend_cpu.h"
#include "trainer/ops/dropout_impl.h"

namespace sortie::trainer::ops {
namespace {

constexpr std::int64_t kRowBlock = model::kAttentionRows;

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

/// A block of query rows: rows [begin, begin + rows) against keys [first, first + keys).
struct Block {
  std::int64_t begin, rows, first, keys;
  std::int64_t line;  // row stride of the scores
  const Matmul *scores, *values, *dprobabilities, *dq, *dk, *dv;
};

struct Strides {
  std::int64_t q, k, v, out, dout, dq;
};

class Plan {
 public:
  Plan(ExecutionContext& context, const Tensor& q, std::int64_t value_dims,
       const AttentionMask& mask, const Strides& strides, bool backward)
      : tokens_(q.size(1)), dims_(q.size(3)), value_dims_(value_dims), dtype_(q.dtype()) {
    for (std::int64_t begin = 0; begin < tokens_; begin += kRowBlock) {
      const std::int64_t rows = std::min(kRowBlock, tokens_ - begin);
      const std::int64_t first =
          mask.window > 0 ? std::max<std::int64_t>(0, begin - mask.window + 1) : 0;
      const std::int64_t keys = begin + rows - first;
      Block block{begin, rows, first, keys, (keys + 31) / 32 * 32, {}, {}, {}, {}, {}, {}};
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
            find(rows, value_dims_, keys, dtype_, block.line, 1, strides.v, 1, strides.out, false);
      } else {
        block.dprobabilities = find(rows, keys, value_dims_, DType::f32, strides.dout, 1, 1,
                                    strides.v, block.line, false);
        block.dq = find(rows, dims_, keys, dtype_, block.line, 1, strides.k, 1, strides.dq, false);
        block.dk = find(keys, dims_, rows, DType::f32, 1, block.line, strides.q, 1, dims_, true);
        block.dv = find(keys, value_dims_, rows, DType::f32, 1, block.line, strides.dout, 1,
                        value_dims_, true);
      }
      blocks.push_back(block);
    }
    std::int64_t line = 0;
    for (const Block& block : blocks) line = std::max(line, block.line);
    scores_ = static_cast<std::size_t>(kRowBlock * line);
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
    const std::size_t key_sums = round_up(key_elements() * sizeof(float));
    const std::size_t value_sums = round_up(value_elements() * sizeof(float));
    std::vector<Scratch> result;
    for (int thread = 0; thread < context.threads(); ++thread) {
      auto memory = context.allocator().allocate(2 * wide + 2 * narrow + key_sums + value_sums +
                                                 matmul_scratch_);
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
      part.dk = static_cast<float*>(take(key_sums));
      part.dv = static_cast<float*>(take(value_sums));
      part.matmul = take(matmul_scratch_);
      part.memory = std::move(memory);
      part.thread = thread;
      result.push_back(std::move(part));
    }
    return result;
  }
  std::size_t key_elements() const { return static_cast<std::size_t>(tokens_ * dims_); }
  std::size_t value_elements() const { return static_cast<std::size_t>(tokens_ * value_dims_); }

  std::vector<Block> blocks;

 private:
  static std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

  std::int64_t tokens_, dims_, value_dims_;
  DType dtype_;
  std::size_t matmul_scratch_ = 0;
  std::size_t scores_ = 0;
};

/// The keys that query row `t` of sample `b` sees: [first, t].
std::int64_t first_key(const AttentionMask& mask, std::int64_t b, std::int64_t t,
                       std::int64_t tokens) {
  std::int64_t first = mask.window > 0 ? std::max<std::int64_t>(0, t - mask.window + 1) : 0;
  if (mask.document_start.defined()) {
    const std::int64_t start = mask.document_start.data<std::int32_t>()[b * tokens + t];
    SORTIE_CHECK(start >= 0 && start <= t, "document of token {} starts at {}", t, start);
    first = std::max(first, start);
  }
  return first;
}

}  // namespace

void rope_cpu(ExecutionContext& context, Tensor& x, const RopeTable& table, const Tensor& positions,
              bool inverse) {
  const std::int64_t tokens = x.size(1);
  const std::int64_t heads = x.size(2);
  const std::int64_t half = table.rotary_dims / 2;
  const auto& kernels = typed_kernels(context, x.dtype());
  const auto turn = table.interleaved ? kernels.rope_interleaved : kernels.rope;
  const float* cos = table.cos.data<float>();
  const float* sin = table.sin.data<float>();
  const std::int32_t* at = positions.defined() ? positions.data<std::int32_t>() : nullptr;
  parallel_ranges(context, x.size(0) * tokens, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t t = row % tokens;
      const std::int64_t position = at != nullptr ? at[row] : t;
      SORTIE_CHECK(position >= 0 && position < table.cos.size(0), "position {} of {}", position,
                   table.cos.size(0));
      for (std::int64_t h = 0; h < heads; ++h)
        turn(head_of(x, row / tokens, h).row(t), cos + position * half, sin + position * half, half,
             inverse ? -1.0f : 1.0f);
    }
  });
}

void attention_forward_cpu(ExecutionContext& context, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionMask& mask, Tensor& out, Tensor& lse) {
  const std::int64_t tokens = q.size(1);
  const std::int64_t heads = q.size(2);
  const std::int64_t group = heads / k.size(2);
  const Plan plan(context, q, v.size(3), mask,
                  {q.stride(1), k.stride(1), v.stride(1), out.stride(1), 0, 0}, false);
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
      block.scores->run(stream, query.row(block.begin), key.row(block.first), own.scores, nullptr,
                        own.matmul, own.thread);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        const std::int64_t t = block.begin + r;
        const std::int64_t unseen = first_key(mask, b, t, tokens) - block.first;
        const std::int64_t seen = t + 1 - block.first - unseen;
        std::byte* line = probabilities + static_cast<std::size_t>(r * block.line) * query.bytes;
        std::byte* from = line + static_cast<std::size_t>(unseen) * query.bytes;
        std::memset(line, 0, static_cast<std::size_t>(unseen) * query.bytes);
        row_lse[t] = rows.softmax(own.scores + r * block.line + unseen, from, seen,
                                  block.keys - unseen, mask.scale);
        if (mask.dropout)
          rows.dropout(
              dropout_row(mask.dropout, b, (h * tokens + t) * tokens + block.first + unseen), from,
              from, seen);
      }
      block.values->run(stream, probabilities, value.row(block.first), result.row(block.begin),
                        nullptr, own.matmul, own.thread);
    }
  });
  context.poll();
}

void attention_backward_cpu(ExecutionContext& context, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& out, const Tensor& lse,
                            const Tensor& dout, const AttentionMask& mask, Tensor& dq, Tensor& dk,
                            Tensor& dv) {
  const std::int64_t tokens = q.size(1);
  const std::int64_t heads = q.size(2);
  const std::int64_t key_heads = k.size(2);
  const std::int64_t group = heads / key_heads;
  const std::int64_t dims = q.size(3);
  const std::int64_t value_dims = v.size(3);
  const Plan plan(
      context, q, value_dims, mask,
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
      block.scores->run(stream, query.row(block.begin), key.row(block.first), own.scores, nullptr,
                        own.matmul, own.thread);
      block.dprobabilities->run(stream, dresult.row(block.begin), value.row(block.first),
                                own.dprobabilities, nullptr, own.matmul, own.thread);
      for (std::int64_t r = 0; r < block.rows; ++r) {
        const std::int64_t t = block.begin + r;
        const std::int64_t unseen = first_key(mask, b, t, tokens) - block.first;
        const std::int64_t seen = t + 1 - block.first - unseen;
        const std::size_t line = static_cast<std::size_t>(r * block.line) * query.bytes;
        const std::size_t from = line + static_cast<std::size_t>(unseen) * query.bytes;
        std::memset(probabilities + line, 0, static_cast<std::size_t>(unseen) * query.bytes);
        std::memset(dscores + line, 0, static_cast<std::size_t>(unseen) * query.bytes);
        float* dp = own.dprobabilities + r * block.line + unseen;
        DropoutRow kept{};
        if (mask.dropout) {
          kept = dropout_row(mask.dropout, b, (h * tokens + t) * tokens + block.first + unseen);
          kernels(context).f32.dropout(kept, dp, dp, seen);
        }
        const float delta = rows.dot(dresult.row(t), result.row(t), value_dims);
        rows.softmax_backward(own.scores + r * block.line + unseen, dp, probabilities + from,
                              dscores + from, seen, block.keys - unseen, mask.scale, row_lse[t],
                              delta);
        if (mask.dropout) rows.dropout(kept, probabilities + from, probabilities + from, seen);
      }
      block.dq->run(stream, dscores, key.row(block.first), dquery.row(block.begin), nullptr,
                    own.matmul, own.thread);
      block.dk->run(stream, dscores, query.row(block.begin), own.dk + block.first * dims, nullptr,
                    own.matmul, own.thread);
      block.dv->run(stream, probabilities, dresult.row(block.begin),
                    own.dv + block.first * value_dims, nullptr, own.matmul, own.thread);
    }
  };

  parallel_tasks(context, q.size(0) * key_heads, [&](std::int64_t task, int thread) {
    const std::int64_t b = task / key_heads;
    const std::int64_t kv = task % key_heads;
    const Plan::Scratch& own = scratch[static_cast<std::size_t>(thread)];
    std::memset(own.dk, 0, plan.key_elements() * sizeof(float));
    std::memset(own.dv, 0, plan.value_elements() * sizeof(float));
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h) one_head(b, h, own);
    const Head dkey = head_of(dk, b, kv);
    const Head dvalue = head_of(dv, b, kv);
    for (std::int64_t t = 0; t < tokens; ++t) {
      rows.from_f32(own.dk + t * dims, dkey.row(t), dims);
      rows.from_f32(own.dv + t * value_dims, dvalue.row(t), value_dims);
    }
  });
  context.poll();
}

}  // namespace sortie::trainer::ops
