// Kernels of the LM head's loss, on f32 logits that a product has computed. Each launcher adds its
// kernels to the stream and returns at once. T: float or bf16, the model's dtype.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// Rows of the head, with `columns` of the vocabulary from the token `first` on.
struct HeadRows {
  std::int64_t rows = 0, columns = 0;
  std::int64_t first = 0, vocab_size = 0;
  const std::int32_t* targets = nullptr;  // [rows]; below 0: not counted; from vocab_size on: the
                                          // loss and the row's gradients become NaN
  float grad_scale = 0.0f;
  const float* step_scale = nullptr;  // another factor; nullptr = 1
};

/// losses [rows] = -log softmax(logits [rows, line])[target], 0 if there is no target. If gradients
/// is not nullptr, gradients = grad_scale * step_scale * (softmax - onehot), and 0 from `columns`
/// on up to a multiple of kHeadPack. They may be in the logits' memory if each row's are the end of
/// its line. Addresses are 16-byte aligned, lines multiples of kHeadPack. `shared_bytes`: shared
/// memory that a block may use to keep logits.
template <class T>
void softmax_losses(cudaStream_t stream, const HeadRows& rows, const float* logits,
                    std::int64_t line, std::size_t shared_bytes, double* losses, T* gradients,
                    std::int64_t gradient_line);

/// For a part of the vocabulary: stats [rows, 3] = largest logit, sum of exp(logit - largest), the
/// target's logit (0 if it is in another part). If exponentials is not nullptr, the values
/// exp(logit - largest) are written to it. Rows without a target get zero stats and no
/// exponentials.
template <class T>
void part_exponentials(cudaStream_t stream, const HeadRows& rows, const float* logits,
                       std::int64_t line, double* stats, T* exponentials,
                       std::int64_t exponential_line);

/// From the stats [parts, rows, 3] of all parts and those of this part, own [rows, 3]: losses
/// [rows] as above, and factors [rows], by which this part's exponentials become probabilities.
void join_stats(cudaStream_t stream, const HeadRows& rows, const double* stats, std::int64_t parts,
                const double* own, double* losses, float* factors);

/// Converts exponentials to gradients, in place; 0 from `columns` on as above, if lines have room.
template <class T>
void part_gradients(cudaStream_t stream, const HeadRows& rows, const float* factors,
                    T* exponentials, std::int64_t exponential_line);

/// loss [2] += (loss_scale * sum of losses, number of targets >= 0), in an order that depends on
/// `rows` alone.
void add_losses(cudaStream_t stream, const double* losses, const std::int32_t* targets,
                std::int64_t rows, double loss_scale, double* loss);

/// y = sums + x [rows, few] . w [few, cols]; sums may be y, and nullptr stands for zeros.
template <class T>
void add_few_products(cudaStream_t stream, Rows<const T> x, Rows<const T> w, Rows<const float> sums,
                      Rows<T> y);

}  // namespace sortie::trainer::ops::cuda
