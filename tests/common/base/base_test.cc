#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/atomic_file.h"
#include "common/base/process_status.h"
#include "common/base/result.h"
#include "common/base/standard_files.h"

using namespace sortie;

TEST_CASE("a wait status of a signal is told apart from an exit code of the same number") {
  CHECK(ProcessStatus::from_wait_status(11) ==
        ProcessStatus{ProcessStatus::Kind::signaled, SIGSEGV, false});
  CHECK(ProcessStatus::from_wait_status(11 << 8) ==
        ProcessStatus{ProcessStatus::Kind::exited, 11, false});
  CHECK(ProcessStatus::from_wait_status(9).shell_code() == 137);
  CHECK(ProcessStatus::from_wait_status(3 << 8).shell_code() == 3);
  CHECK(ProcessStatus::from_wait_status(9).to_string() == "signal 9 (SIGKILL)");
  CHECK(ProcessStatus::from_wait_status(11 | 0x80).to_string() ==
        "signal 11 (SIGSEGV, core dumped)");
}

TEST_CASE("an error keeps its code when context is added") {
  const Error error = with_context(os_error(ENOENT, "open /x"), "gpu-01");
  CHECK(error.code == ErrorCode::io);
  CHECK(error.message == "gpu-01: open /x: No such file or directory");
}

TEST_CASE("an atomic write replaces the content and leaves no temporary file") {
  char folder_name[] = "/tmp/sortie-test-XXXXXX";
  REQUIRE(mkdtemp(folder_name) != nullptr);
  const std::filesystem::path folder = folder_name;
  REQUIRE(write_file_atomic(folder / "f", "one"));
  REQUIRE(write_file_atomic(folder / "f", "two"));
  CHECK(read_file(folder / "f").value() == "two");
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  CHECK(read_file(folder / "f", 2).error().message.ends_with("larger than the limit of 2 bytes"));
  CHECK(read_file(folder / "absent").error().code == ErrorCode::not_found);
  std::filesystem::remove_all(folder);
}

TEST_CASE("standard files that are closed get no file that is opened later") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const int file : {0, 1, 2}) ::close(file);
    open_closed_standard_files();
    char byte = 'x';
    const bool no_input = ::read(0, &byte, 1) < 0 && errno == EBADF;
    const bool no_output = ::write(1, &byte, 1) < 0 && errno == EBADF;
    const bool dropped = ::write(2, &byte, 1) == 1;
    const bool next = ::open("/dev/null", O_RDONLY | O_CLOEXEC) > 2;
    ::_exit(no_input && no_output && dropped && next ? 0 : 1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(ProcessStatus::from_wait_status(status).shell_code() == 0);
}
