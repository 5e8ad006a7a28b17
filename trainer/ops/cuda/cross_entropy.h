// Kernels of the LM head's loss, on logits that a product has left in f32. Each goes to the stream
// and returns at once. T: float or bf16, the model's.
#pragma once

#include <cuda_runtime.h>

#include "trainer/ops/cuda/views.h"
#include "trainer/ops/cuda/work_sizes.h"

namespace sortie::trainer::ops::cuda {

/// Rows of the head: `columns` of the vocabulary from the token `first` on.
struct HeadRows {
  std::int64_t rows = 0, columns = 0;
  std::int64_t first = 0, vocab_size = 0;
  const std::int32_t* targets = nullptr;  // [rows]; below 0: not counted, from vocab_size on: the
                                          // loss and the row's gradients become NaN
  float grad_scale = 0.0f;
  const float* step_scale = nullptr;  // another factor; null = 1
};

/// losses [rows] = -log softmax(logits [rows, line])[target], 0 where there is no target. With
/// gradients != null, gradients = grad_scale * step_scale * (softmax - onehot), and 0 behind
/// `columns` up to a multiple of kHeadPack. They may be the logits' own memory, if each row's are
/// the end of its line. Addresses are 16-byte aligned, lines multiples of kHeadPack.
/// `shared_bytes`: of a block, to keep logits in.
template <class T>
void softmax_losses(cudaStream_t stream, const HeadRows& rows, const float* logits,
                    std::int64_t line, std::size_t shared_bytes, double* losses, T* gradients,
                    std::int64_t gradient_line);

/// Of a part of the vocabulary: stats [rows, 3] = largest logit, sum of exponentials against it,
/// the target's logit (0: it is elsewhere). With exponentials != null they are kept there. Without
/// a target: no such sums, nothing kept.
template <class T>
void part_exponentials(cudaStream_t stream, const HeadRows& rows, const float* logits,
                       std::int64_t line, double* stats, T* exponentials,
                       std::int64_t exponential_line);

/// From the stats [parts, rows, 3] of all parts and the own [rows, 3]: losses [rows] as above;
/// factors [rows], by which the own exponentials become probabilities.
void join_stats(cudaStream_t stream, const HeadRows& rows, const double* stats, std::int64_t parts,
                const double* own, double* losses, float* factors);

/// Exponentials become gradients, in place; behind `columns` as above, where lines have room.
template <class T>
void part_gradients(cudaStream_t stream, const HeadRows& rows, const float* factors,
                    T* exponentials, std::int64_t exponential_line);

/// loss [2] += (loss_scale * sum of losses, number of targets >= 0), in an order that depends on
/// `rows` alone.
void add_losses(cudaStream_t stream, const double* losses, const std::int32_t* targets,
                std::int64_t rows, double loss_scale, double* loss);

/// y = sums + x [rows, few] . w [few, cols]; sums may be y, and null for zeros.
template <class T>
void add_few_products(cudaStream_t stream, Rows<const T> x, Rows<const T> w, Rows<const float> sums,
                      Rows<T> y);

}  // namespace sortie::trainer::ops::cuda
