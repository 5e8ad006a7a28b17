// Stacks that threads of an emulated GPU run on.
#pragma once

#include <boost/context/detail/fcontext.hpp>

#include <cstddef>

namespace emulated_cuda {

/// What runs on a stack. One runs at a time per thread of the host, and says which one is next.
class Fiber {
 public:
  /// The caller's own stack.
  Fiber() = default;
  /// A stack of its own, which runs body(argument) from the first switch_to on. `body` never
  /// returns.
  Fiber(void (*body)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Stops here, of the fiber that runs, and goes on with `next`; returns when another one does
  /// that with this one.
  void switch_to(Fiber& next);

  /// Whether the address is in the page that ends the stack.
  bool overflows_at(const void* address) const;

 private:
  struct Switch {
    Fiber *from, *to;
  };
  static void enter(boost::context::detail::transfer_t transfer);
  static void arrived(boost::context::detail::transfer_t transfer);
  void drop_fake_stack();
  void leave();

  boost::context::detail::fcontext_t context_ = nullptr;  // where it goes on
  void (*body_)(void*) = nullptr;
  void* argument_ = nullptr;
  std::byte* pages_ = nullptr;
  // For AddressSanitizer.
  const void* stack_ = nullptr;
  std::size_t stack_bytes_ = 0;
  void* fake_stack_ = nullptr;
  Fiber* ender_ = nullptr;  // whom to give the thread back to instead of going on
  Switch last_{};           // that does so
  // For ThreadSanitizer.
  void* thread_ = nullptr;
};

}  // namespace emulated_cuda
