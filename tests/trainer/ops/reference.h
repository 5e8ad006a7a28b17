// Plain f64 forward and backward passes of every op, on dense row-major vectors. Kernels are
// compared with them. Their own backward passes are checked by finite differences in
// reference_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sortie::trainer::reference {

using Vec = std::vector<double>;

/// x [m, k], w [n, k], bias [n] or empty.
Vec linear(const Vec& x, const Vec& w, const Vec& bias, std::int64_t m, std::int64_t n,
           std::int64_t k);
struct LinearGradients {
  Vec dx, dw, dbias;
};
LinearGradients linear_backward(const Vec& dy, const Vec& x, const Vec& w, std::int64_t m,
                                std::int64_t n, std::int64_t k);

/// x [rows, cols]; LayerNorm if `layer`, else RMSNorm. `bias` may be empty.
Vec norm(bool layer, const Vec& x, const Vec& weight, const Vec& bias, double eps,
         std::int64_t rows, std::int64_t cols);
struct NormGradients {
  Vec dx, dweight, dbias;
};
NormGradients norm_backward(bool layer, const Vec& dy, const Vec& x, const Vec& weight, double eps,
                            std::int64_t rows, std::int64_t cols);

/// gate_up [rows, 2 cols].
Vec swiglu(const Vec& gate_up, std::int64_t rows, std::int64_t cols);
Vec swiglu_backward(const Vec& dy, const Vec& gate_up, std::int64_t rows, std::int64_t cols);
Vec gelu(const Vec& x, bool tanh = false);
Vec gelu_backward(const Vec& dy, const Vec& x, bool tanh = false);

struct HeadShape {
  std::int64_t batch, tokens, heads, key_heads, dims;
  std::int64_t value_dims = 0;  // 0: dims
};
/// x [B, T, H, D]. Rotates by `sign` times the angle.
Vec rope(const Vec& x, const HeadShape& shape, std::int64_t rotary_dims, double base, double sign);

struct AttentionOut {
  Vec out, lse;  // [B, T, H, D], [B, H, T]
};
/// Which keys j <= i the query at i of sample b sees (all if `sees` is empty), and the factor of
/// the probability of (b, h, i, j) after the softmax (1 if `factor` is empty).
struct Mask {
  std::function<bool(std::int64_t b, std::int64_t i, std::int64_t j)> sees;
  std::function<double(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j)> factor;
};
AttentionOut attention(const Vec& q, const Vec& k, const Vec& v, const HeadShape& shape,
                       double scale, const Mask& mask = {});
struct AttentionGradients {
  Vec dq, dk, dv;
};
AttentionGradients attention_backward(const Vec& q, const Vec& k, const Vec& v, const Vec& dout,
                                      const HeadShape& shape, double scale, const Mask& mask = {});

/// loss = sum of -log softmax(h w^T [:, :vocab])[target]; gradients are those of scale * loss.
struct CrossEntropyOut {
  double loss = 0.0;
  std::int64_t count = 0;
  Vec dh, dw;
};
CrossEntropyOut cross_entropy(const Vec& h, const Vec& w, const std::vector<std::int32_t>& targets,
                              std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t vocab,
                              double scale);

/// Parameters of one AdamW step, which updates w, m and v.
struct AdamW {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  int step;
};
void adamw(const AdamW& a, Vec& w, const Vec& grad, Vec& m, Vec& v);

}  // namespace sortie::trainer::reference
