// Texts of a host in our messages and files: bounded and printable.
#include "launcher/host/host_texts.h"

#include <doctest/doctest.h>

namespace sortie::launcher {
namespace {

const std::string kMega(1u << 20, 'm');

template <class T>
T bounded(T message) {
  wire::Message any(std::move(message));
  bound_texts(any);
  return std::get<T>(any);
}

}  // namespace

TEST_CASE("what a host says is short and takes over no terminal") {
  const auto error = bounded(wire::RunnerError{kMega, "\x1b[2Jfirst\nsecond" + kMega, -1});
  CHECK(error.code.size() < 300);
  CHECK(error.message.size() < 5000);
  CHECK(error.message.starts_with("^[[2Jfirst\nsecond"));
  wire::Swept swept;
  swept.left.assign(1000, "1 \x1b]0;x\x07" + kMega);
  const auto left = bounded(std::move(swept)).left;
  REQUIRE(left.size() == 32);
  CHECK(left[0].size() < 2200);
  const std::string command =
      "containers: " + std::string(1000, 'w') + "; remove it with `docker rm x`";
  swept.left = {command};
  CHECK(bounded(std::move(swept)).left.at(0) == command);
  CHECK(left[0].find('\x1b') == std::string::npos);
  CHECK(bounded(wire::ImageProgress{kMega}).text.size() < 300);
  CHECK(bounded(wire::PmixNotice{0, kMega}).text.size() < 5000);
  wire::FilesWanted wanted;
  wanted.reason = kMega;
  CHECK(bounded(std::move(wanted)).reason.size() < 5000);
  CHECK(bounded(wire::FilesProgress{0, kMega}).waits_for.size() < 5000);
}

TEST_CASE("last words are the end of what was said, on one line") {
  CHECK(last_words("") == "");
  CHECK(last_words("one\ntwo\n\n") == "one|two");
  const std::string said = last_words("begin" + kMega + "\x1b[2Jthe end\n");
  CHECK(said.size() < 1100);
  CHECK(said.starts_with("...mmm"));
  CHECK(said.ends_with("^[[2Jthe end"));
}

TEST_CASE("errors of runners have the classes that a launcher knows") {
  CHECK(runner_error_code({"spawn", "", -1}) == ErrorCode::spawn);
  CHECK(runner_error_code({"protocol", "", -1}) == ErrorCode::protocol);
  CHECK(runner_error_code({"no class", "", -1}) == ErrorCode::runner);
}

}  // namespace sortie::launcher
