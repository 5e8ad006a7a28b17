#include "tests/support/cuda/faults.h"

#include <csignal>
#include <cstdlib>
#include <mutex>

#include <unistd.h>

#include "tests/support/cuda/grid.h"
#include "tests/support/cuda/streams.h"

namespace emulated_cuda {
namespace {

struct sigaction previous;

void on_fault(int signal, siginfo_t* info, void*) {
  static bool again = false;
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  // The access faults again, for the previous handler.
  sigaction(signal, again ? &usual : &previous, nullptr);
  if (again) return;
  again = true;
  FaultLine line;
  line.add("emulated GPU: ");
  if (!fault_in_grid(info->si_addr, line) && !fault_in_memory(info->si_addr, line)) return;
  line.add("\n");
  (void)!write(STDERR_FILENO, line.text().data(), line.text().size());
}

}  // namespace

void name_faults() {
  static std::mutex mutex;  // ranks that are threads allocate at the same time
  const std::lock_guard lock(mutex);
  struct sigaction now {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_fault) return;
  previous = now;
  struct sigaction ours {};
  ours.sa_sigaction = on_fault;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &ours, nullptr);
}

}  // namespace emulated_cuda
