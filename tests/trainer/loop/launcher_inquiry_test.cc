// Tests of questions through the launcher when it gives no answer, and of what ranks tell of
// themselves. tests/trainer/parallel/nccl_missing_rank.py asks through a launcher.
#include "trainer/loop/launcher_inquiry.h"

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <string>

#include "common/base/fd.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::trainer;

namespace {

/// A socket that accepts connections and never answers, as that of a runner whose launcher is gone.
Fd silent_socket(const std::string& path) {
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  REQUIRE(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(socket.get(), 8) == 0);
  return socket;
}

}  // namespace

TEST_CASE("a rank tells its step and section, once it has a step") {
  CHECK(position_text({}) == "");
  CHECK(position_text({.step = 12, .section = training::Section::data}) == "step 12, data");
}

TEST_CASE("a launcher that does not answer costs a question a few seconds and nothing else") {
  const sortie::test::ScopedTempDir folder;
  const std::string path = folder.path() / "socket";
  const Fd socket = silent_socket(path);
  LauncherInquiry inquiry(path, 0, 2);
  inquiry.start([](const std::string&) { return std::string("here"); });
  const auto begun = std::chrono::steady_clock::now();
  bool concluded = false;
  CHECK_FALSE(inquiry.ask("where are you?", [&](const auto&) {
    concluded = true;
    return std::string();
  }));
  CHECK_FALSE(concluded);
  inquiry.stop();
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(10));
}

TEST_CASE("without a launcher's socket no question is asked, and nothing has to be stopped") {
  LauncherInquiry inquiry("/nowhere/socket", 0, 2);
  inquiry.start([](const std::string&) { return std::string("here"); });
  CHECK_FALSE(inquiry.ask("where are you?", [](const auto&) { return std::string(); }));
  inquiry.stop();
}
