#include "runner/health/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>

namespace sortie::runner::health {

Inbox::Inbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

void Inbox::put(Finding finding) {
  {
    const std::lock_guard lock(mutex_);
    findings_.push_back(std::move(finding));
  }
  const std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof one);
}

std::vector<Finding> Inbox::take() {
  std::uint64_t count = 0;
  (void)!::read(event_.get(), &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(findings_, {});
}

void Inbox::name_gpu(const std::string& pci, int number, std::string uuid) {
  const std::lock_guard lock(mutex_);
  gpus_[pci] = {number, std::move(uuid)};
}

void Inbox::add_gpu_names(Finding& finding) const {
  if (finding.gpu) return;
  const std::lock_guard lock(mutex_);
  const auto known = gpus_.find(finding.device);
  if (known == gpus_.end()) return;
  finding.gpu = known->second.first;
  finding.uuid = known->second.second;
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace sortie::runner::health
