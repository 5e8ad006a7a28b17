// Stacks on which the threads of an emulated GPU run.
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include <cstddef>

namespace emulated_cuda {

/// An execution context. Per host thread one fiber runs at a time, and it selects the next one.
class Fiber {
 public:
  /// Represents the caller's own stack.
  Fiber() = default;
  /// Creates a new stack. The first switch_to() to it calls body(argument). `body` must never
  /// return.
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Suspends this fiber, which must be the running one, and resumes `next`. Returns when another
  /// fiber switches back to this one.
  void switch_to(Fiber& next);

  /// Whether the address is in the guard page at the end of the stack.
  bool overflows_at(const void* address) const;

 private:
  struct Switch {
    Fiber *from, *to;
  };
  static void enter(boost::context::detail::transfer_t transfer);
  static void arrived(boost::context::detail::transfer_t transfer);
  void drop_fake_stack();
  void leave();

  boost::context::detail::fcontext_t context_ = nullptr;  // where it resumes
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::byte* pages_ = nullptr;
  // For AddressSanitizer.
  const void* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  Fiber* ender_ = nullptr;  // fiber to return to instead of resuming
  Switch last_{};           // data of the switch that does so
};

}  // namespace emulated_cuda
