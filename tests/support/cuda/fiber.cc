#include "tests/support/cuda/fiber.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#include "common/base/check.h"

namespace emulated_cuda {
namespace {

constexpr std::size_t kPage = 4096;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kStack = 256 << 10;  // frames contain red zones, or call the sanitizer
#else
constexpr std::size_t kStack = 64 << 10;
#endif
constexpr std::size_t kLine = 64, kColors = 31;

}  // namespace

Fiber::Fiber(void (*body)(void*), void* argument) : body_(body), argument_(argument) {
  void* pages = mmap(nullptr, kPage + kStack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  SORTIE_CHECK(pages != MAP_FAILED, "no memory for the stack of an emulated thread");
  pages_ = static_cast<std::byte*>(pages);
  SORTIE_CHECK(mprotect(pages_, kPage, PROT_NONE) == 0, "mprotect");
  // Offset the stacks in the cache's sets, because threads of a block are at the same depth.
  static std::atomic<std::size_t> made;
  stack_ = pages_ + kPage;
  stack_bytes_ = kStack - 2 * kLine * (made++ % kColors);
  context_ = boost::context::detail::make_fcontext(pages_ + kPage + stack_bytes_, stack_bytes_,
                                                   &Fiber::enter);
}

Fiber::~Fiber() {
  drop_fake_stack();
  if (pages_ == nullptr) return;
#ifdef __SANITIZE_ADDRESS__
  // The next mapping at these addresses has no red zones.
  ASAN_UNPOISON_MEMORY_REGION(pages_, kPage + kStack);
#endif
  munmap(pages_, kPage + kStack);
}

/// AddressSanitizer keeps each stack's frames in separate memory and frees it when that stack is
/// left for good. Otherwise megabytes would leak for every thread of every block.
void Fiber::drop_fake_stack() {
#ifdef __SANITIZE_ADDRESS__
  if (pages_ == nullptr || fake_stack_ == nullptr) return;
  Fiber here;
  ender_ = &here;
  here.switch_to(*this);
#endif
}

void Fiber::switch_to(Fiber& next) {
  Switch both{this, &next};
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&fake_stack_, next.stack_, next.stack_bytes_);
#endif
  arrived(boost::context::detail::jump_fcontext(next.context_, &both));
#ifdef __SANITIZE_ADDRESS__
  if (ender_ != nullptr) leave();
#endif
}

#ifdef __SANITIZE_ADDRESS__
/// Nothing may read this stack's frames after the switch, because they are freed.
__attribute__((no_sanitize_address)) void Fiber::leave() {
  last_ = {this, ender_};
  __sanitizer_start_switch_fiber(nullptr, ender_->stack_, ender_->stack_bytes_);
  boost::context::detail::jump_fcontext(ender_->context_, &last_);
}
#endif

void Fiber::arrived(boost::context::detail::transfer_t transfer) {
  const Switch& both = *static_cast<const Switch*>(transfer.data);
  both.from->context_ = transfer.fctx;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(both.to->fake_stack_, &both.from->stack_,
                                  &both.from->stack_bytes_);
#endif
}

void Fiber::enter(boost::context::detail::transfer_t transfer) {
  const Fiber& self = *static_cast<const Switch*>(transfer.data)->to;
  arrived(transfer);
  self.body_(self.argument_);
  std::abort();
}

bool Fiber::overflows_at(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  return pages_ != nullptr && byte >= pages_ && byte < pages_ + kPage;
}

}  // namespace emulated_cuda
