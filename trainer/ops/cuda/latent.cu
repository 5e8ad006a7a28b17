#include "trainer/ops/cuda/latent.h"

#include "trainer/ops/cuda/device.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// A block per token. Heads of k are adjacent in memory, so neighbouring threads access
/// neighbouring elements.
template <class T>
__global__ void join_kernel(LatentSizes sizes, HeadColumns<const T> kv, Rows<const T> rope,
                            HeadColumns<T> k) {
  const std::int64_t row = blockIdx.x;
  const int columns = sizes.own + sizes.shared;
  for (int i = static_cast<int>(threadIdx.x); i < sizes.heads * columns; i += kThreads) {
    const int head = i / columns, column = i % columns;
    k.data[row * k.row + head * k.head + column] =
        column < sizes.own ? kv.data[row * kv.row + head * kv.head + column]
                           : rope.data[row * rope.stride + column - sizes.own];
  }
}

template <class T>
__global__ void split_kernel(LatentSizes sizes, HeadColumns<const T> dk, HeadColumns<T> dkv,
                             Rows<T> drope) {
  const std::int64_t row = blockIdx.x;
  for (int i = static_cast<int>(threadIdx.x); i < sizes.heads * sizes.own; i += kThreads) {
    const int head = i / sizes.own, column = i % sizes.own;
    dkv.data[row * dkv.row + head * dkv.head + column] =
        dk.data[row * dk.row + head * dk.head + column];
  }
  for (int i = static_cast<int>(threadIdx.x); i < sizes.shared; i += kThreads) {
    float sum = 0.0f;
    for (int head = 0; head < sizes.heads; ++head)
      sum += to_float(dk.data[row * dk.row + head * dk.head + sizes.own + i]);
    drope.data[row * drope.stride + i] = from_float<T>(sum);
  }
}

Grid grid_of(const LatentSizes& sizes) {
  return {.blocks = static_cast<unsigned>(sizes.rows), .threads = kThreads};
}

}  // namespace

template <class T>
void join_latent_keys(cudaStream_t stream, const LatentSizes& sizes, HeadColumns<const T> kv,
                      Rows<const T> rope, HeadColumns<T> k) {
  launch(join_kernel<T>, grid_of(sizes), stream, sizes, kv, rope, k);
}
template void join_latent_keys(cudaStream_t, const LatentSizes&, HeadColumns<const float>,
                               Rows<const float>, HeadColumns<float>);
template void join_latent_keys(cudaStream_t, const LatentSizes&, HeadColumns<const bf16>,
                               Rows<const bf16>, HeadColumns<bf16>);

template <class T>
void split_latent_keys(cudaStream_t stream, const LatentSizes& sizes, HeadColumns<const T> dk,
                       HeadColumns<T> dkv, Rows<T> drope) {
  launch(split_kernel<T>, grid_of(sizes), stream, sizes, dk, dkv, drope);
}
template void split_latent_keys(cudaStream_t, const LatentSizes&, HeadColumns<const float>,
                                HeadColumns<float>, Rows<float>);
template void split_latent_keys(cudaStream_t, const LatentSizes&, HeadColumns<const bf16>,
                                HeadColumns<bf16>, Rows<bf16>);

}  // namespace sortie::trainer::ops::cuda
