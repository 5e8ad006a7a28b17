#include "trainer/parallel/device_handle.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <thread>

#include "common/base/check.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void fail_with(DeviceRank& rank, GroupCommunicator& host, const std::string& message) {
  rank.broken = true;
  rank.watch.abort_all();
  host.give_up();
  throw CommunicatorError(message);
}

void check_sound(DeviceRank& rank, GroupCommunicator& host) {
  if (const std::string failure = rank.watch.failure(); !failure.empty()) {
    const std::string lost = host.lost_members();
    fail_with(rank, host, lost.empty() ? failure : fmt::format("{} ({})", failure, lost));
  }
  if (rank.broken)
    throw CommunicatorError(
        "all groups of this rank's GPU were ended when one of them failed: see the first error");
}

std::string DeviceWait::given_up() {
  host_.poll();
  if (waits_given_up()) return "given up, because this rank was asked to end";
  std::string lost = host_.lost_members();
  if (lost.empty()) return {};
  // The rank may have ended normally, with nothing left to do for this wait.
  constexpr std::chrono::seconds kAfterAnEnd{2};
  const auto now = Clock::now();
  lost_since_ = std::min(lost_since_, now);
  return now - lost_since_ > kAfterAnEnd ? lost : std::string();
}

std::string DeviceWait::failed() {
  std::string failure = rank_.watch.failure();
  return failure.empty() ? given_up() : failure;
}

std::string DeviceWait::call_failed(const CollectiveName* begins) {
  if (std::string why = failed(); !why.empty()) return why;
  if (limit_.count() <= 0 || Clock::now() - begun_ <= limit_) return {};
  const std::string found =
      begins == nullptr ? "" : rank_.watch.ask_others(host_.ranks().world_ranks, *begins, false);
  return fmt::format(
      "{} did not begin in {:g} s (ranks connect when they use a group first): {}",
      rank_.groups.library(), limit_.count(),
      found.empty() ? "see what happened on the other ranks, or set SORTIE_COMM_TIMEOUT to more "
                      "seconds; NCCL_DEBUG=INFO shows more"
                    : found);
}

void DeviceWait::nap() const {
  constexpr std::chrono::microseconds kSpin{500}, kNap{50};
  if (Clock::now() - begun_ < kSpin)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(kNap);
}

DeviceHandle::~DeviceHandle() {
  SORTIE_CHECK(ordered_ || rank_->broken || std::uncaught_exceptions() > 0,
               "{} is dropped while it is in flight", what_);
}

bool DeviceHandle::poll() {
  host_.poll();
  if (done_.poll()) return ordered_ = true;
  check_sound(*rank_, host_);
  return false;
}

void DeviceHandle::wait() {
  DeviceWait wait(*rank_, host_);
  while (!poll()) {
    if (const std::string why = wait.given_up(); !why.empty())
      fail_with(*rank_, host_, fmt::format("{}: {}", what_, why));
    wait.nap();
  }
}

void DeviceHandle::wait_on(ExecutionContext& context) {
  context.wait(done_);
  ordered_ = true;
}

}  // namespace sortie::trainer
