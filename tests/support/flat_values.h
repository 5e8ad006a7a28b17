// Copies a store's flat buffers to the host, for tests.
#pragma once

#include "tests/support/test_device.h"
#include "trainer/nn/parameter_store.h"
#include "trainer/ops/copy.h"

namespace sortie::trainer::test {

/// Access to the elements of a flat buffer while the result lives.
inline ops::HostAccess<float> host_view(ParameterStore& store, const Tensor& flat) {
  return {store.context(), flat};
}
inline std::vector<float> host_values(ParameterStore& store, const Tensor& flat) {
  return ops::copy_to_host<float>(store.context(), flat);
}

}  // namespace sortie::trainer::test
