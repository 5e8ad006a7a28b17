#include "trainer/cli/verb_guard.h"

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "trainer/loop/exception_error.h"

namespace sortie::trainer {
namespace {

/// Memory for the report of an error, which is needed when there is none left.
constexpr std::size_t kReserve = 1u << 20;
std::atomic<std::byte*> spare_memory{nullptr};

int report_exception(const std::exception_ptr& exception) {
  delete[] spare_memory.exchange(nullptr);
  const Error error = error_of_exception(
      exception,
      {.memory = "raise the limit of memory if there is one (ulimit -v, memory.max of the cgroup), "
                 "give the command less to do, or use a machine with more memory",
       .gpu_memory = "give the command less to do, or use a GPU with more memory",
       .threads = "use fewer threads (OMP_NUM_THREADS, --threads)"});
  std::fflush(stdout);
  print_stderr("sortie-train: {}\n", error.message);
  return exit_code_for(error.code);
}

}  // namespace

VerbGuard::VerbGuard() {
  spare_memory = new std::byte[kReserve];
  old_terminate_ = std::set_terminate(on_terminate);
}

VerbGuard::~VerbGuard() {
  std::set_terminate(old_terminate_);
  delete[] spare_memory.exchange(nullptr);
}

void VerbGuard::on_terminate() {
  const std::exception_ptr exception = std::current_exception();
  if (!exception) std::abort();
  std::_Exit(report_exception(exception));
}

int VerbGuard::run(const std::function<int()>& verb) {
  std::exception_ptr exception;
  try {
    return verb();
  } catch (...) {
    exception = std::current_exception();
  }
  return report_exception(exception);
}

}  // namespace sortie::trainer
