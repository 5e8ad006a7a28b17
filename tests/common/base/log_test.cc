#include "common/base/log.h"

#include "tests/support/captured_stderr.h"

namespace sortie {
namespace {

/// What a logged text looks like on stderr.
std::string logged(std::string_view text) {
  log::init("sortie", log::Level::info);
  const test::CapturedStderr stderr_of_log;
  log::write(log::Level::info, text);
  return stderr_of_log.text();
}

TEST_CASE("log: text from a host can not control the terminal or look like another line") {
  CHECK(logged("gpu07: ready") == "sortie: info: gpu07: ready\n");
  CHECK(logged("a\x1b[31m\x7f\r") == "sortie: info: a^[[31m^?^M\n");
  CHECK(logged("a\u202e"
               "b") == "sortie: info: a<U+202E>b\n");
  CHECK(logged("a\xff"
               "b") ==
        "sortie: info: a\ufffd"
        "b\n");
  CHECK(logged("a\xc2\x9b"
               "b") ==
        "sortie: info: a\ufffd"
        "b\n");
  CHECK(logged("two\nlines,\ta tab and \u00e9") == "sortie: info: two\nlines,\ta tab and \u00e9\n");
}

TEST_CASE("log: lines below the level are left out") {
  log::init("sortie", log::Level::warning);
  const test::CapturedStderr stderr_of_log;
  log::info("{}", 1);
  log::warning("{}", 2);
  CHECK(stderr_of_log.text() == "sortie: warning: 2\n");
}

}  // namespace
}  // namespace sortie
