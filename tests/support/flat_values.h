// A store's flat buffers on the host, for tests, and the device that tests compute on.
#pragma once

#include <cstdlib>
#include <string_view>

#include "common/base/check.h"
#include "trainer/nn/parameter.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer::test {

/// SORTIE_TEST_DEVICE=guarded: memory that only ops can touch; unset: the CPU.
inline Device device() {
  const char* name = std::getenv("SORTIE_TEST_DEVICE");
  if (name == nullptr) return {};
  SORTIE_CHECK(std::string_view(name) == "guarded", "SORTIE_TEST_DEVICE is \"{}\"; set guarded",
               name);
  return {.kind = DeviceKind::guarded};
}

/// The elements of a flat buffer while the result lives.
inline ops::HostAccess<float> host_view(ParameterStore& store, const Tensor& flat) {
  return {store.context(), flat};
}
inline std::vector<float> host_values(ParameterStore& store, const Tensor& flat) {
  return ops::copy_to_host<float>(store.context(), flat);
}

}  // namespace sortie::trainer::test
