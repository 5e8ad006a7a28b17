// Runs code that ends the process, in a child process.
#pragma once

#include <doctest/doctest.h>

#include <csignal>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cuda/faults.h"

namespace emulated_cuda {

struct Ended {
  bool by_signal = false;
  std::string said;  // its stderr
};

/// Runs `body` in a child process.
template <class Body>
Ended in_child(const Body& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int signal : {SIGSEGV, SIGABRT}) std::signal(signal, SIG_DFL);  // not doctest's
    name_faults();
    dup2(ends[1], STDERR_FILENO);
    body();
    _exit(0);
  }
  close(ends[1]);
  Ended ended;
  char piece[512];
  for (ssize_t n = 0; (n = read(ends[0], piece, sizeof piece)) > 0;)
    ended.said.append(piece, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  ended.by_signal = WIFSIGNALED(status);
  if (!ended.by_signal) CHECK(WEXITSTATUS(status) == 0);
  return ended;
}

/// Checks that `body` ends the process with a message that contains `words`.
template <class Body>
void check_ends(const char* words, const Body& body) {
  const Ended ended = in_child(body);
  INFO(ended.said);
  CHECK(ended.by_signal);
  CHECK(ended.said.find(words) != std::string::npos);
}
/// Checks that it does not end the process and prints nothing.
template <class Body>
void check_lives(const Body& body) {
  const Ended ended = in_child(body);
  INFO(ended.said);
  CHECK_FALSE(ended.by_signal);
  CHECK(ended.said.empty());
}

}  // namespace emulated_cuda
