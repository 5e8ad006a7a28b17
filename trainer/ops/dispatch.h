// dispatch(): the only way from the front of an op to the backend: dispatch<&Backend::add>(context,
// a, b, y). Whatever must happen around all ops happens here. Included by the fronts' .cc files.
#pragma once

#include <span>
#include <tuple>
#include <type_traits>
#include <vector>

#include "trainer/ops/backend.h"
#include "trainer/tensor/device_memory.h"

namespace sortie::trainer::ops {

/// A deferred op's copy of an argument. The copy of a tensor keeps its memory alive; the copy of a
/// span holds its elements. A PackedWeight is not copied and must outlive the queues.
template <class T>
struct Kept {
  T value;
  explicit Kept(const T& argument) : value(argument) {}
  T& get() { return value; }
};
template <>
struct Kept<PackedWeight> {
  const PackedWeight* value;
  explicit Kept(const PackedWeight& argument) : value(&argument) {}
  const PackedWeight& get() { return *value; }
};
template <class T>
struct Kept<std::span<T>> {
  std::vector<std::remove_const_t<T>> value;
  explicit Kept(std::span<T> argument) : value(argument.begin(), argument.end()) {}
  std::span<T> get() { return value; }
};

template <auto Method, class... Args>
[[gnu::noinline]] void dispatch_with_care(ExecutionContext& context, Args&... args) {
  if (context.dispatch() == ExecutionContext::Dispatch::guarded) {
    const OpenMemory open(context.device());
    (context.backend().*Method)(context, args...);
    return;
  }
  context.enqueue([&context, kept = std::tuple<Kept<std::remove_const_t<Args>>...>(
                                 Kept<std::remove_const_t<Args>>(args)...)]() mutable {
    std::apply([&](auto&... each) { (context.backend().*Method)(context, each.get()...); }, kept);
  });
}

/// Calls the backend's method as context.dispatch() says: now, or when the current stream gets
/// there.
template <auto Method, class... Args>
void dispatch(ExecutionContext& context, Args&&... args) {
  if (context.dispatch() == ExecutionContext::Dispatch::direct) [[likely]]
    (context.backend().*Method)(context, args...);
  else
    dispatch_with_care<Method>(context, args...);
}

}  // namespace sortie::trainer::ops
