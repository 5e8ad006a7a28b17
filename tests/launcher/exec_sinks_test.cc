// Sinks for the output of `sortie exec`: folding, and a folder.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "launcher/exec/fold_sink.h"
#include "launcher/exec/sinks.h"
#include "tests/support/temp_dir.h"

namespace sortie::launcher {
namespace {

using Kind = Outcome::Kind;

std::string report(FoldSink& sink) {
  std::string text;
  while (const auto piece = sink.next_piece()) text += *piece;
  return text;
}

TEST_CASE("folding: what is equal is shown once, whatever its size and its pieces") {
  FoldSink sink;
  std::string big;
  for (int i = 0; i < 60000; ++i) big += "line " + std::to_string(i) + "\n";
  Outcome ok, failed;
  ok.kind = Kind::ok;
  failed.kind = Kind::failed;
  failed.reason = "exit code 2";
  const std::vector<std::string> names = {"g01", "g02", "x", "g03", "silent", "unreached"};
  for (std::size_t i = 0; i < 5; ++i) sink.started(i, names[i]);
  for (std::size_t at = 0; at < big.size();) {  // interleaved, so that parts are mixed in the file
    const std::size_t end = std::min(big.size(), at + 5000);
    for (const std::size_t i : {0, 1, 3})
      sink.output(i, names[i], wire::Stream::out, std::string_view(big).substr(at, end - at));
    at = end;
  }
  sink.output(1, "g02", wire::Stream::err, "no new");
  sink.output(3, "g03", wire::Stream::err, "no ");
  sink.output(3, "g03", wire::Stream::err, "new");
  sink.output(2, "x", wire::Stream::out, "\x1b[2Jpercent 1\rpercent 2\n");
  // The last host ends first, so that the first of a group to end is not its first host.
  for (std::size_t i = 6; i-- > 0;) sink.finished(i, names[i], i == 2 ? failed : ok);
  const std::string text = report(sink);
  // Groups are in the order of their first hosts, whatever their sizes and which host ends first.
  CHECK(text.starts_with("==> g01 (1)\nline 0\n"));
  CHECK(text.find("line 59999\n==> g[02-03] (2)\nline 0\n") != text.npos);
  CHECK(text.find("line 59999\nno new\n==> x (1)") != text.npos);
  CHECK(text.find("==> x (1): exit code 2\npercent 2\n") != text.npos);
  CHECK(text.find("==> silent (1)\n") != text.npos);
  CHECK(text.find("unreached") == text.npos);  // it is in the table of failures
  CHECK(static_cast<std::size_t>(std::ranges::count(text, '\n')) == 2 * 60000 + 1 + 1 + 4);
  CHECK(!sink.trouble());
}

TEST_CASE("a thousand hosts with the same answer fold to one line") {
  FoldSink sink;
  Outcome ok;
  ok.kind = Kind::ok;
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::string name = "n" + std::to_string(i);
    sink.started(i, name);
    sink.output(i, name, wire::Stream::out, "same\n");
    sink.finished(i, name, ok);
  }
  CHECK(report(sink) == "==> n[0-999] (1000)\nsame\n");
}

TEST_CASE("files that can not be written are told of, the command goes on") {
  const test::ScopedTempDir dir;
  REQUIRE(FolderSink::open(dir / "a/b"));
  test::write_text(dir / "file", "");
  CHECK(!FolderSink::open(dir / "file/x"));
  auto sink = FolderSink::open(dir / "a");
  std::filesystem::create_directory(dir / "a/h.out");
  (*sink)->started(0, "h");
  (*sink)->output(0, "h", wire::Stream::out, "lost");
  (*sink)->started(1, "g");
  (*sink)->output(1, "g", wire::Stream::out, std::string("a\0b", 3));
  (*sink)->finished(1, "g", {});
  REQUIRE((*sink)->trouble());
  CHECK(test::read_text(dir / "a/g.out") == std::string("a\0b", 3));
}

}  // namespace
}  // namespace sortie::launcher
