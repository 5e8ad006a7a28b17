// The step of the last checkpoint of a program that reports no events: the first number in a file
// (recovery.progress_file). A child process reads the file, because its file system may hang.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sortie::runner {

/// The first number in `text`; nullopt if there is none or it has more than 18 digits.
std::optional<std::uint64_t> first_number(std::string_view text);

class CommittedStep {
 public:
  /// `path` may be empty: then step() is always nullopt.
  CommittedStep(boost::asio::io_context& io, std::string path)
      : path_(std::move(path)), answer_(io) {}
  CommittedStep(const CommittedStep&) = delete;
  CommittedStep& operator=(const CommittedStep&) = delete;

  /// Starts to read the file in a child, unless a read is in progress. Returns the child's pid,
  /// which the caller must reap, or -1. A child that hangs in the kernel blocks later reads; it is
  /// killed when this process dies.
  pid_t look();
  /// The number that was read last.
  std::optional<std::uint64_t> step() const { return step_; }

 private:
  void take_answer();

  const std::string path_;
  boost::asio::posix::stream_descriptor answer_;
  std::optional<std::uint64_t> step_;
};

}  // namespace sortie::runner
