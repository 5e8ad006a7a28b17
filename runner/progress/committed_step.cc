#include "runner/progress/committed_step.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>

#include "common/base/fd.h"
#include "runner/process/process_tree.h"

namespace sortie::runner {
namespace {

/// Number of bytes read from the start of the file.
constexpr std::size_t kMaxFileBytes = 4096;

/// Runs in the child. Does not block on a FIFO without a writer.
[[noreturn]] void send_file(const std::string& path, int answer) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  close_descriptors_except({answer});
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  char bytes[kMaxFileBytes];
  const ssize_t count = file < 0 ? -1 : ::read(file, bytes, sizeof bytes);
  if (count > 0) (void)!::write(answer, bytes, static_cast<std::size_t>(count));
  ::_exit(0);
}

}  // namespace

std::optional<std::uint64_t> first_number(std::string_view text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  const auto begin = std::ranges::find_if(text, is_digit);
  const auto end = std::find_if_not(begin, text.end(), is_digit);
  constexpr std::ptrdiff_t kMostDigits = 18;
  if (begin == end || end - begin > kMostDigits) return std::nullopt;
  std::uint64_t number = 0;
  std::from_chars(&*begin, &*begin + (end - begin), number);
  return number;
}

pid_t CommittedStep::look() {
  if (path_.empty() || answer_.is_open()) return -1;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return -1;
  Fd mine(ends[0]), childs(ends[1]);
  const pid_t reader = ::fork();
  if (reader == 0) send_file(path_, childs.get());
  if (reader < 0) return -1;
  answer_.assign(mine.release());
  answer_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [this](const boost::system::error_code& error) {
                       if (!error) take_answer();
                     });
  return reader;
}

void CommittedStep::take_answer() {
  char bytes[kMaxFileBytes];
  const ssize_t count = ::read(answer_.native_handle(), bytes, sizeof bytes);
  if (count > 0)
    if (const auto number = first_number({bytes, static_cast<std::size_t>(count)})) step_ = number;
  answer_.close();
}

}  // namespace sortie::runner
