#include "trainer/metrics/progress_reporter.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>

#include "common/base/fd.h"
#include "trainer/metrics/stack_writer.h"

namespace sortie::trainer {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kSample{250};
constexpr std::chrono::milliseconds kRepeat{1000};

Result<Fd> connect_socket(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return fail(ErrorCode::io,
                fmt::format("SORTIE_SOCKET {}: path longer than a socket allows", path));
  std::memcpy(address.sun_path, path.data(), path.size());
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    return std::unexpected(os_error(errno, "SORTIE_SOCKET " + path));
  return socket;
}

}  // namespace

std::string progress_line(const ProgressMarks::Seen& seen) {
  return fmt::format(
      R"({{"type":"progress","step":{},"section":"{}","sequence":{},"ticks":{},"own_us":{}}})"
      "\n",
      seen.step, training::section_name(seen.section), seen.sequence, seen.ticks, seen.own_us);
}

struct ProgressReporter::Parts {
  Parts(Fd to, ProgressMarks& of, std::function<std::uint64_t()> work, std::string stacks)
      : socket(std::move(to)),
        marks(of),
        file_work(std::move(work)),
        stacks_path(std::move(stacks)) {}

  ProgressMarks::Seen look() const {
    ProgressMarks::Seen seen = marks.look();
    // In other sections, files may be written concurrently with training; that is no progress of a
    // step.
    if (seen.section == training::Section::save && file_work) seen.ticks += file_work();
    return seen;
  }

  /// Skips a line that the runner does not accept, since the next line has all of it. Completes a
  /// line that the runner has accepted in part.
  void tell(const ProgressMarks::Seen& seen) {
    const std::lock_guard lock(mutex);
    const bool begins = rest.empty();
    if (begins) rest = progress_line(seen);
    const ssize_t count =
        ::send(socket.get(), rest.data(), rest.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count > 0)
      rest.erase(0, static_cast<std::size_t>(count));
    else if (begins)
      rest.clear();
    told = seen;
    told_at = Clock::now();
  }

  bool is_due(const ProgressMarks::Seen& seen) {
    const std::lock_guard lock(mutex);
    return !(seen == told) || Clock::now() - told_at >= kRepeat;
  }

  void run() {
    tell(look());
    while (!ending) {
      if (stack_request().wait(kSample)) write_stacks(stacks_path);
      const ProgressMarks::Seen seen = look();
      if (is_due(seen)) tell(seen);
    }
    tell(look());
  }

  Fd socket;
  ProgressMarks& marks;
  const std::function<std::uint64_t()> file_work;
  const std::string stacks_path;
  std::mutex mutex;  // guards the next three members: the main thread calls tell() too
  std::string rest;  // the rest of a partially sent line
  ProgressMarks::Seen told;
  Clock::time_point told_at{};
  std::atomic<bool> ending{false};
  std::unique_ptr<StackSignal> signal;  // destroyed after the thread
  std::thread thread;
};

Result<std::unique_ptr<ProgressReporter>> ProgressReporter::start(
    const std::string& socket_path, ProgressMarks& marks,
    std::function<std::uint64_t()> file_work) {
  SORTIE_ASSIGN_OR_RETURN(Fd socket, connect_socket(socket_path));
  return std::unique_ptr<ProgressReporter>(new ProgressReporter(std::make_unique<Parts>(
      std::move(socket), marks, std::move(file_work),
      fmt::format("{}{}{}", socket_path, training::kStacksSuffix, ::getpid()))));
}

ProgressReporter::ProgressReporter(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {
  parts_->signal = std::make_unique<StackSignal>();
  // The new thread blocks all signals, so that the main thread receives those of the process.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  parts_->thread = std::thread([to = parts_.get()] { to->run(); });
  parts_->marks.on_started([to = parts_.get()] { to->tell(to->look()); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

ProgressReporter::~ProgressReporter() {
  parts_->marks.on_started({});
  parts_->ending = true;
  stack_request().wake();
  parts_->thread.join();
}

}  // namespace sortie::trainer
