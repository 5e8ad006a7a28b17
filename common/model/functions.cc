#include "common/model/functions.h"

#include <algorithm>

#include "common/model/tiling.h"

namespace sortie::model {
namespace {

/// y += dy^T . x: oneDNN rearranges pieces of both operands, some for every thread.
std::shared_ptr<void> weight_gradient_scratch(Tape& tape, const Sized& dy, const Sized& x) {
  const Machine& machine = tape.machine();
  if (!machine.packs_for_avx512) return tape.meter().allocate(0);
  constexpr std::int64_t kOfOneThread = std::int64_t{1} << 20;
  return tape.meter().allocate(std::min((dy.rows * dy.columns + x.rows * x.columns) * x.element,
                                        machine.threads * kOfOneThread));
}

/// A weight [out, in] in the layout of a product, while that is computed.
std::shared_ptr<void> packed_scratch(Tape& tape, std::int64_t out, std::int64_t in,
                                     std::int64_t element, bool backward) {
  if (tape.machine().keeps_packed) return nullptr;
  const auto copies = packed_copies(tape.machine(), out, in, element, /*backward=*/true);
  const std::size_t place = backward ? 1 : 0;
  return place < copies.size() ? tape.meter().allocate(copies[place]) : nullptr;
}

/// What every thread of an attention kernel works in.
std::vector<std::shared_ptr<void>> attention_scratch(Tape& tape, const Heads& h, bool backward) {
  const AttentionTiling tiling = attention_tiling(h.tokens, /*window=*/0);
  const std::int64_t scores = tiling.rows * attention_line(tiling.keys);
  std::int64_t bytes = scores * (kF32 + tape.machine().element);
  if (backward) {
    const std::int64_t dq = tiling.one_tile ? 0 : h.head_dim;
    bytes = 2 * bytes + h.tokens * (h.head_dim + h.value_dim + dq + 1) * kF32;
  } else if (!tiling.one_tile) {
    bytes += tiling.rows * (h.value_dim + 2) * kF32;
  }
  std::vector<std::shared_ptr<void>> parts;
  for (std::int64_t thread = 0; thread < tape.machine().threads; ++thread)
    parts.push_back(tape.meter().allocate(bytes));
  return parts;
}

Sized view(const Sized& x, std::int64_t rows, std::int64_t columns) {
  return {x.block, rows, columns, x.element};
}

/// One value in, one out of another width; the backward step takes `grad_kept` for the gradient
/// and needs `saved`.
Value unary(Tape& tape, const Value& x, std::int64_t columns, const Value& saved) {
  Value out = tape.value(tape.empty(x.data.rows, columns, x.data.element));
  tape.record([&tape, rows = x.data.rows, x_columns = x.data.columns, element = x.data.element,
               saved, x_grad = x.grad, grad = out.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    tape.add_grad(*x_grad, tape.empty(rows, x_columns, element));
  });
  return out;
}

}  // namespace

std::vector<std::int64_t> packed_copies(const Machine& machine, std::int64_t out, std::int64_t in,
                                        std::int64_t element, bool backward) {
  // AVX2's products like the plain matrix [in, out]: the backward pass has it.
  if (!machine.packs_for_avx512) return {out * in * element};
  // Blocks of 64 columns and, with pairs of bf16 in one register, 16 or 32 rows.
  constexpr std::int64_t kColumns = 64;
  const std::int64_t rows = element == 2 ? 32 : 16;
  std::vector<std::int64_t> copies = {round_up(in, rows) * round_up(out, kColumns) * element};
  if (backward) copies.push_back(round_up(out, rows) * round_up(in, kColumns) * element);
  return copies;
}

Value embedding(Tape& tape, std::int64_t rows, Module table) {
  Value out = tape.value(tape.empty(rows, table[0].shape[1]));
  tape.use(table);
  tape.record([grad = out.grad] {});
  return out;
}

Value linear(Tape& tape, const Value& x, Module module) {
  const auto plain = [&tape](const Value& in, std::int64_t columns, bool trained) {
    Value out = tape.value(tape.empty(in.data.rows, columns));
    (void)packed_scratch(tape, columns, in.data.columns, in.data.element, false);
    tape.record([&tape, in, trained, grad = out.grad] {
      if (const Sized dy = std::move(grad->tensor); dy.defined()) {
        Sized dx = tape.like(in.data);
        (void)packed_scratch(tape, dy.columns, in.data.columns, in.data.element, true);
        tape.add_grad(*in.grad, std::move(dx));
        if (trained) weight_gradient_scratch(tape, dy, in.data);
      }
    });
    return out;
  };
  const ParameterInfo& weight = module[0];
  tape.use(module);
  Value out = plain(x, weight.shape[0], weight.trained);
  if (weight.lora_rank == 0) return out;
  tape.set_flows(true);  // the two matrices of the update are trained
  const Value down = plain(x, weight.lora_rank, true);
  const Value inner = unary(tape, down, weight.lora_rank, {});
  return add(tape, out, plain(inner, weight.shape[0], true));
}

namespace {

Value f32_linear(Tape& tape, const Value& x, Module weight) {
  const bool narrow = x.data.element != kF32;
  const auto widened = [narrow](Tape& on, const Sized& from) {
    return narrow ? on.empty(from.rows, from.columns, kF32) : from;
  };
  Sized y = tape.empty(x.data.rows, weight[0].shape[0], kF32);
  {
    const Sized wide = widened(tape, x.data);
    (void)packed_scratch(tape, y.columns, x.data.columns, kF32, false);
  }
  Value out = tape.value(std::move(y));
  tape.use(weight);
  tape.record([&tape, x, narrow, widened, grad = out.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Sized wide = tape.empty(x.data.rows, x.data.columns, kF32);
    (void)widened(tape, x.data);
    (void)packed_scratch(tape, dy.columns, x.data.columns, kF32, true);
    Sized dx = narrow ? tape.like(x.data) : std::move(wide);
    wide = {};
    tape.add_grad(*x.grad, std::move(dx));
  });
  return out;
}

}  // namespace

ResidualNorm residual_norm(Tape& tape, const Value& residual, const Value& branch, Module norm) {
  const Sized sum = branch ? tape.like(residual.data) : residual.data;
  const Sized y = tape.like(residual.data);
  const Sized stats = tape.empty(residual.data.rows, 2, kF32);
  ResidualNorm out{branch ? tape.value(sum) : residual, tape.value(y)};
  tape.use(norm);
  tape.record([&tape, sum, stats, residual_grad = residual.grad, branch_grad = branch.grad,
               sum_grad = out.residual.grad, y_grad = out.normed.grad] {
    const bool passes_through = sum_grad == residual_grad;
    Sized dx = passes_through ? Sized() : std::move(sum_grad->tensor);
    if (const Sized dy = std::move(y_grad->tensor); dy.defined()) {
      const Sized incoming = dx;
      if (!dx.defined() || dx.owners() > 2) dx = tape.like(sum);
      constexpr std::int64_t kMinRows = 64, kMaxBlocks = 64;
      const std::int64_t block = std::max(kMinRows, (sum.rows + kMaxBlocks - 1) / kMaxBlocks);
      tape.empty((sum.rows + block - 1) / block * 2, sum.columns, kF32);
    }
    if (branch_grad) tape.add_grad(*branch_grad, dx);
    tape.add_grad(*residual_grad, std::move(dx));
  });
  return out;
}

Value head_norm(Tape& tape, const Value& x, std::int64_t head_dim, Module norm) {
  const std::int64_t rows = x.data.rows, columns = x.data.columns;
  const std::int64_t heads = rows * columns / head_dim;
  const Value in = tape.value(view(x.data, heads, head_dim));
  tape.record([&tape, x_grad = x.grad, in_grad = in.grad, rows, columns] {
    if (const Sized dx = std::move(in_grad->tensor); dx.defined())
      tape.add_grad(*x_grad, view(dx, rows, columns));
  });
  const Value normed = residual_norm(tape, in, {}, norm).normed;
  Value out = tape.value(view(normed.data, rows, columns));
  tape.record([&tape, normed_grad = normed.grad, out_grad = out.grad, heads, head_dim] {
    if (const Sized dy = std::move(out_grad->tensor); dy.defined())
      tape.add_grad(*normed_grad, view(dy, heads, head_dim));
  });
  return out;
}

Value attention(Tape& tape, const Value& qkv, const Heads& h) {
  const Sized out4 = tape.empty(qkv.data.rows, h.heads * h.head_dim);
  const Sized lse = tape.empty(h.batch * h.heads, h.tokens, kF32);
  (void)attention_scratch(tape, h, /*backward=*/false);
  Value out = tape.value(out4);
  tape.record([&tape, h, qkv, out4, lse, grad = out.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Sized dqkv = tape.like(qkv.data);
    (void)attention_scratch(tape, h, /*backward=*/true);
    tape.add_grad(*qkv.grad, std::move(dqkv));
  });
  return out;
}

Value attention(Tape& tape, const Value& q, const Value& k, const Value& v, const Heads& h) {
  const Sized out4 = tape.empty(q.data.rows, h.heads * h.value_dim);
  const Sized lse = tape.empty(h.batch * h.heads, h.tokens, kF32);
  (void)attention_scratch(tape, h, /*backward=*/false);
  Value out = tape.value(out4);
  tape.record([&tape, h, q, k, v, out4, lse, grad = out.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Sized dq = tape.like(q.data), dk = tape.like(k.data), dv = tape.like(v.data);
    (void)attention_scratch(tape, h, /*backward=*/true);
    tape.add_grad(*q.grad, std::move(dq));
    tape.add_grad(*k.grad, std::move(dk));
    tape.add_grad(*v.grad, std::move(dv));
  });
  return out;
}

Value rope(Tape& tape, const Value& x) {
  Value out = tape.value(x.data);
  tape.record([&tape, x_grad = x.grad, grad = out.grad] {
    Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Sized dx = dy;
    if (dy.owners() > 2) dx = tape.like(dy);
    tape.add_grad(*x_grad, std::move(dx));
  });
  return out;
}

Value latent_attention(Tape& tape, const Value& q, const Value& kv, const Value& rope_key,
                       const Heads& h) {
  const Sized k = tape.like(q.data);
  const Sized out4 = tape.empty(q.data.rows, h.heads * h.value_dim);
  const Sized lse = tape.empty(h.batch * h.heads, h.tokens, kF32);
  (void)attention_scratch(tape, h, /*backward=*/false);
  Value out = tape.value(out4);
  tape.record([&tape, h, q, kv, rope_key, k, out4, lse, grad = out.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Sized dq = tape.like(q.data), dkv = tape.like(kv.data), drope = tape.like(rope_key.data);
    const Sized dk = tape.like(q.data);
    (void)attention_scratch(tape, h, /*backward=*/true);
    tape.add_grad(*q.grad, std::move(dq));
    tape.add_grad(*kv.grad, std::move(dkv));
    tape.add_grad(*rope_key.grad, std::move(drope));
  });
  return out;
}

Value swiglu(Tape& tape, const Value& gate_up) {
  return unary(tape, gate_up, gate_up.data.columns / 2, gate_up);
}

Value gelu(Tape& tape, const Value& x) {
  return unary(tape, x, x.data.columns, x);
}

Value add(Tape& tape, const Value& a, const Value& b) {
  Value out = tape.value(tape.like(a.data));
  tape.record([&tape, a_grad = a.grad, b_grad = b.grad, grad = out.grad] {
    Sized dy = std::move(grad->tensor);
    tape.add_grad(*a_grad, dy);
    tape.add_grad(*b_grad, std::move(dy));
  });
  return out;
}

Value dropout(Tape& tape, const Value& x, double probability) {
  return probability <= 0.0 ? x : unary(tape, x, x.data.columns, {});
}

Value concat(Tape& tape, const Value& a, const Value& b) {
  const std::int64_t first = a.data.columns, second = b.data.columns;
  Value out = tape.value(tape.empty(a.data.rows, first + second, a.data.element));
  tape.record([&tape, first, second, a_grad = a.grad, b_grad = b.grad, grad = out.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    tape.add_grad(*a_grad, view(dy, dy.rows, first));
    tape.add_grad(*b_grad, view(dy, dy.rows, second));
  });
  return out;
}

std::pair<Value, Value> split(Tape& tape, const Value& x, std::int64_t first) {
  const Sized& all = x.data;
  const Value a = tape.value(view(all, all.rows, first));
  const Value b = tape.value(view(all, all.rows, all.columns - first));
  tape.record([&tape, rows = all.rows, columns = all.columns, element = all.element,
               x_grad = x.grad, a_grad = a.grad, b_grad = b.grad] {
    const Sized da = std::move(a_grad->tensor), db = std::move(b_grad->tensor);
    if (!da.defined() && !db.defined()) return;
    tape.add_grad(*x_grad, tape.empty(rows, columns, element));
  });
  return {a, b};
}

Value mixture(Tape& tape, const Value& x, const Mixture& m) {
  const std::int64_t rows = x.data.rows, columns = x.data.columns, choices = rows * m.top_k;
  const std::int64_t experts = m.router[0].shape[0];
  const Value logits = f32_linear(tape, x, m.router);
  const Sized scores = tape.like(logits.data);
  const Value weights = tape.value(tape.empty(rows, m.top_k, kF32));
  const Sized chosen = tape.empty(rows, m.top_k, kI32);
  Sized counts;
  if (m.losses) counts = tape.empty(m.sequences, experts, kF32);
  tape.record([&tape, scores, counts, weights, chosen, logits] {
    const Sized dweights = std::move(weights.grad->tensor);
    Sized dscores;
    if (counts.defined()) dscores = tape.like(scores);
    tape.add_grad(*logits.grad, tape.like(scores));
  });

  // Memory whose size does not depend on the routing.
  const std::int64_t capacity =
      round_up(choices + std::min(choices, experts) * (kExpertRowUnit - 1), kExpertRowUnit);
  const auto sorted = [&tape, capacity](std::int64_t width) { return tape.empty(capacity, width); };
  const Sized row_of = tape.empty(rows, m.top_k, kI32), source = tape.empty(capacity, 1, kI32);

  // Of all experts: `first` 0 = gate_up, 1 = down.
  const auto grouped_linear = [&](const Value& in, std::size_t first) {
    Value out = tape.value(sorted(m.experts[first].shape[0]));
    const auto pack = [&tape, experts](const Sized& rows_in, const Sized& rows_out, bool backward) {
      std::vector<std::shared_ptr<void>> all;
      for (std::int64_t e = 0; e < experts; ++e)
        all.push_back(
            packed_scratch(tape, rows_out.columns, rows_in.columns, rows_in.element, backward));
    };
    pack(in.data, out.data, false);
    for (int pass = 0; pass < 2; ++pass)  // one that is trained lets gradients through all
      for (std::size_t e = first; e < m.experts.size(); e += 2) tape.use(m.experts.subspan(e, 1));
    tape.record([&tape, in, row_of, source, pack, grad = out.grad] {
      if (const Sized dy = std::move(grad->tensor); dy.defined()) {
        Sized dx = tape.like(in.data);
        pack(in.data, dy, true);
        tape.add_grad(*in.grad, std::move(dx));
      }
    });
    return out;
  };
  const auto dispatch = [&] {
    Value out = tape.value(sorted(columns));
    tape.record([&tape, rows, columns, row_of, source, x_grad = x.grad, grad = out.grad] {
      const Sized dy = std::move(grad->tensor);
      if (dy.defined()) tape.add_grad(*x_grad, tape.empty(rows, columns));
    });
    return out;
  };
  const Value inner = grouped_linear(dispatch(), 0);
  Value out = grouped_linear(swiglu(tape, inner), 1);
  Value mixed = tape.value(tape.empty(rows, columns));
  tape.record([&tape, out, weights, row_of, source, grad = mixed.grad] {
    const Sized dy = std::move(grad->tensor);
    if (!dy.defined()) return;
    Sized dsorted = tape.like(out.data);
    Sized dweights = tape.like(weights.data);
    tape.add_grad(*out.grad, std::move(dsorted));
    tape.add_grad(*weights.grad, std::move(dweights));
  });
  return mixed;
}

void head_loss(Tape& tape, const Value& h, std::int64_t vocab_size, Module head) {
  if (!tape.recording()) return;
  Sized dh = tape.like(h.data);
  {
    const std::int64_t rows = std::min(h.data.rows, kCrossEntropyRows);
    const std::int64_t tiles = (vocab_size + kVocabularyTile - 1) / kVocabularyTile;
    const Sized logits = tape.empty(rows, kVocabularyTile, kF32);
    const Sized exponentials = tape.empty(rows * tiles, kVocabularyTile);
    const Sized dh_sum = tape.empty(rows, h.data.columns, kF32);
    if (vocab_size >= kVocabularyTile)  // the kernel takes lesser tiles as they are
      for (const bool backward : {false, true})
        (void)packed_scratch(tape, kVocabularyTile, h.data.columns, h.data.element, backward);
    (void)weight_gradient_scratch(tape, view(logits, rows, kVocabularyTile),
                                  view(h.data, rows, h.data.columns));
  }
  tape.use(head);
  tape.record([&tape, dh, h_grad = h.grad]() mutable { tape.add_grad(*h_grad, std::move(dh)); });
}

}  // namespace sortie::model
