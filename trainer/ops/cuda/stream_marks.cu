#include "trainer/ops/cuda/stream_marks.h"

#include "trainer/ops/cuda/device_clock.h"
#include "trainer/ops/cuda/launch.h"

namespace sortie::trainer::ops::cuda {
namespace {

/// One thread. Reads everything before it writes, because each read takes the way to the host. The
/// host reads at any time, so each value is written at once, the mark's last.
__global__ void mark_kernel(volatile StreamPlace* place, StreamMark mark) {
  const std::uint64_t now = time_ns();
  const std::uint64_t is_timed = place->is_timed, since = place->since_ns;
  const std::uint64_t timed = place->timed_ns, value = place->value;
  if (is_timed != 0) place->timed_ns = timed + (now - since);
  place->since_ns = now;
  place->is_timed = mark.timed ? 1 : 0;
  place->value = (value & mark.kept) | mark.value;
}

}  // namespace

void mark_place(cudaStream_t stream, StreamPlace& place, const StreamMark& mark) {
  launch(mark_kernel, {.blocks = 1, .threads = 1}, stream, &place, mark);
}

}  // namespace sortie::trainer::ops::cuda
