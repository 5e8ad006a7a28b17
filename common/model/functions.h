// The operations of trainer/autograd, by what they take and keep; see tape.h. Names and order are
// the same, so that the two can be read side by side.
#pragma once

#include <utility>

#include "common/model/tape.h"

namespace sortie::model {

struct Heads {
  std::int64_t batch, tokens, heads, kv_heads, head_dim, value_dim;
};

/// A weight and its bias, where it has one.
using Module = std::span<const ParameterInfo>;

Value embedding(Tape& tape, std::int64_t rows, Module table);
Value linear(Tape& tape, const Value& x, Module module);

struct ResidualNorm {
  Value residual, normed;
};
ResidualNorm residual_norm(Tape& tape, const Value& residual, const Value& branch, Module norm);
Value head_norm(Tape& tape, const Value& x, std::int64_t head_dim, Module norm);

/// Of packed [Q | K | V].
Value attention(Tape& tape, const Value& qkv, const Heads& heads);
Value attention(Tape& tape, const Value& q, const Value& k, const Value& v, const Heads& heads);
Value rope(Tape& tape, const Value& x);
Value latent_attention(Tape& tape, const Value& q, const Value& kv, const Value& rope_key,
                       const Heads& heads);

Value swiglu(Tape& tape, const Value& gate_up);
Value gelu(Tape& tape, const Value& x);
Value add(Tape& tape, const Value& a, const Value& b);
Value dropout(Tape& tape, const Value& x, double probability);
Value concat(Tape& tape, const Value& a, const Value& b);
std::pair<Value, Value> split(Tape& tape, const Value& x, std::int64_t first);

struct Mixture {
  std::int64_t top_k = 0;
  bool losses = false;  // a loss of the router counts its choices
  std::int64_t sequences = 0;
  Module router;
  Module experts;  // gate_up and down of each in turn
};
/// Router and experts, without the shared one.
Value mixture(Tape& tape, const Value& x, const Mixture& mixture);

void head_loss(Tape& tape, const Value& h, std::int64_t vocab_size, Module head);

/// The copies of a weight [out, in] in the layouts that products like best, one for the forward and
/// one for the backward pass.
std::vector<std::int64_t> packed_copies(const Machine& machine, std::int64_t out, std::int64_t in,
                                        std::int64_t element, bool backward);

}  // namespace sortie::model
