// Large copies in host memory whose result is read much later.
#pragma once

#include <cstddef>
#include <span>

#include "trainer/tensor/context.h"

namespace sortie::trainer::ops {

struct HostCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t bytes = 0;
};

/// Makes all copies on the compute threads, with non-temporal stores that bypass the caches. Ranges
/// must not overlap.
void copy_past_caches(ExecutionContext& context, std::span<const HostCopy> copies);

}  // namespace sortie::trainer::ops
