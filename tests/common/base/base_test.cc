#include <doctest/doctest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "common/base/atomic_file.h"
#include "common/base/process_status.h"
#include "common/base/result.h"

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
