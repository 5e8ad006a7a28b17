// pull: what is written from the list and the pieces of a host, and from those of a host that lies.
#include <doctest/doctest.h>
#include <sys/stat.h>

#include <optional>
#include <thread>

#include "common/files/piece.h"
#include "launcher/copy/tree_download.h"
#include "tests/support/copy_session.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher;
using test::FakeRunner;
using test::ScopedTempDir;
using test::write_text;
namespace asio = boost::asio;
namespace fs = std::filesystem;

namespace {

using Script = test::FakeHost::Script;

/// Pulls from one fake host in memory.
Result<wire::FilesDone> pull(
    const fs::path& folder, Script script, std::uint64_t max_list = 1u << 20,
    DownloadProgress* seen = nullptr,
    std::chrono::milliseconds heartbeat_timeout = std::chrono::seconds(10)) {
  config::RunnerConfig runner;
  runner.startup_timeout = std::chrono::milliseconds(2000);
  runner.heartbeat_timeout = heartbeat_timeout;
  runner.heartbeat_interval = heartbeat_timeout / 5;
  DownloadProgress progress;
  auto result = test::with_copy_session(
      std::move(script), runner,
      [&](std::shared_ptr<HostSession> session) -> asio::awaitable<Result<wire::FilesDone>> {
        session->expect_progress(work_patience(runner));
        wire::FilesOpen order;
        order.purpose = wire::FilesPurpose::get;
        co_return co_await download_tree(session, order, folder.string(), max_list, progress);
      });
  if (seen != nullptr) *seen = progress;
  return result;
}

/// A host that sends these messages after Hello and the order.
Script says(std::vector<wire::Message> messages) {
  return [messages = std::move(messages)](FakeRunner& runner) -> asio::awaitable<void> {
    co_await runner.next();
    runner.send(wire::Hello{});
    bool ordered = false;
    while (!ordered) {
      const auto message = co_await runner.next();
      if (!message) co_return;
      ordered = std::holds_alternative<wire::FilesOpen>(*message);
    }
    for (const wire::Message& message : messages) runner.send(message);
    for (bool open = true; open;) {
      const auto message = co_await runner.next();
      open = message.has_value();
    }
  };
}

wire::FileEntry file(const char* path, const std::string& content) {
  return {path, wire::FileKind::file, 0644, content.size(), files::hash_bytes(content), ""};
}

}  // namespace

TEST_CASE("pull: what a host gives is what is written") {
  const ScopedTempDir dir;
  const auto done =
      pull(dir / "in/h",
           says({wire::FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{0, 0, "text"}}));
  REQUIRE(done);
  CHECK(done->files_changed == 1);
  CHECK(test::read_text(dir / "in/h/a") == "text");
}

TEST_CASE("pull: progress is what was received of what is missing here") {
  const ScopedTempDir dir;
  write_text(dir / "in/h/there", "equal");
  DownloadProgress progress;
  const std::vector<wire::Message> begin = {
      wire::FilesManifest{{file("a", "text"), file("b", "more text"), file("there", "equal")}, 1},
      wire::FilePiece{0, 0, "text"}};
  std::vector<wire::Message> lost = begin, whole = begin;
  lost.emplace_back(wire::RunnerError{"io", "/b: Input/output error", -1});
  REQUIRE_FALSE(pull(dir / "in/h", says(lost), 1u << 20, &progress));
  CHECK(progress.wanted == 4 + 9);
  CHECK(progress.done == 4);
  whole.emplace_back(wire::FilePiece{1, 0, "more text"});
  write_text(dir / "again/h/there", "equal");
  REQUIRE(pull(dir / "again/h", says(whole), 1u << 20, &progress));
  CHECK(progress.done == progress.wanted);
}

TEST_CASE("pull: a host that falls silent is lost, and nothing is said of ranks") {
  const ScopedTempDir dir;
  const auto silent =
      pull(dir / "in/h", says({}), 1u << 20, nullptr, std::chrono::milliseconds(300));
  REQUIRE_FALSE(silent);
  CHECK_MESSAGE(silent.error().message.contains("no heartbeat for "), silent.error().message);
  CHECK_MESSAGE(silent.error().message.ends_with("(runner.heartbeat_timeout)"),
                silent.error().message);
}

TEST_CASE("pull: files that change or go while they are copied are named, and the others arrive") {
  const ScopedTempDir dir;
  write_text(dir / "in/h/gone", "old");
  const std::string large((2u << 20) + 5, 'x');
  wire::FileEntry changed = file("changed", large);
  changed.hashes = files::hash_bytes(large.substr(0, 1u << 20)) +
                   files::hash_bytes(large.substr(1u << 20, 1u << 20)) +
                   files::hash_bytes(large.substr(2u << 20));
  DownloadProgress progress;
  const auto done =
      pull(dir / "in/h",
           says({wire::FilesManifest{
                     {file("a", "text"), changed, file("gone", "new"), file("z", "end")}, 1},
                 wire::FilePiece{0, 0, "text"}, wire::FilePiece{1, 0, large.substr(0, 1u << 20)},
                 wire::FilePiece{1, 1, std::string(1u << 20, 'y')},
                 wire::FilePiece{1, 2, "", "changed: became shorter while it was sent"},
                 wire::FilePiece{2, 0, "", "/home/\x1b[2Jgone: No such file or directory"},
                 wire::FilePiece{3, 0, "end"}}),
           1u << 20, &progress);
  REQUIRE_MESSAGE(done, done.error().message);
  CHECK(done->files_changed == 2);
  CHECK(test::read_text(dir / "in/h/a") == "text");
  CHECK(test::read_text(dir / "in/h/z") == "end");
  CHECK(test::read_text(dir / "in/h/gone") == "old");
  CHECK_FALSE(fs::exists(dir / "in/h/changed"));
  CHECK(std::distance(fs::directory_iterator(dir / "in/h"), {}) == 3);  // no parts
  REQUIRE(progress.missing.size() == 2);
  CHECK(progress.missing[0].message.find(
            "changed: received data does not match the announced hash") != std::string::npos);
  CHECK(progress.missing[1].message.find("gone: No such file") != std::string::npos);
  CHECK(progress.missing[1].message.find('\x1b') == std::string::npos);
  CHECK(progress.wanted == 7 + (1u << 20));  // with the piece of the file that then changed
}

TEST_CASE("pull: what a host can not send keeps the error class that it has there") {
  const ScopedTempDir dir;
  DownloadProgress progress;
  const auto done =
      pull(dir / "in/h",
           says({wire::RunnerError{"missing_path:io", "/b: Permission denied", -1},
                 wire::RunnerError{"missing_path:not_found", "/c: No such file", -1},
                 wire::FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{0, 0, "text"}}),
           1u << 20, &progress);
  REQUIRE_MESSAGE(done, done.error().message);
  REQUIRE(progress.missing.size() == 2);
  CHECK(progress.missing[0].code == ErrorCode::io);
  CHECK(progress.missing[0].message.find("/b: Permission denied") != std::string::npos);
  CHECK(progress.missing[1].code == ErrorCode::not_found);
}

TEST_CASE("pull: modes are those of the host less the umask, also of files that are there") {
  const ScopedTempDir dir;
  wire::FileEntry tool = file("d/tool", "text");
  tool.mode = 0777;
  const wire::FileEntry folder = {"d", wire::FileKind::folder, 0777, 0, "", ""};
  const std::vector<wire::Message> tree = {wire::FilesManifest{{folder, tool}, 1},
                                           wire::FilePiece{1, 0, "text"}};
  const auto mode = [&](const char* path) {
    return static_cast<unsigned>(fs::status(dir / path).permissions());
  };
  const mode_t before = ::umask(027);
  const auto done = pull(dir / "in/h", says(tree));
  CHECK(mode("in/h/d") == 0750);
  CHECK(mode("in/h/d/tool") == 0750);
  ::umask(077);
  const auto again = pull(dir / "in/h", says({tree[0]}));
  ::umask(before);
  CHECK(done);
  CHECK(again);
  CHECK(mode("in/h/d") == 0700);
  CHECK(mode("in/h/d/tool") == 0700);
}

TEST_CASE("pull: a symlink that leads out of the copy is left out and named") {
  const ScopedTempDir dir;
  const auto link = [](const char* path, const char* target) {
    return wire::FileEntry{path, wire::FileKind::symlink, 0777, 0, "", target};
  };
  const wire::FileEntry folder = {"d", wire::FileKind::folder, 0755, 0, "", ""};
  DownloadProgress progress;
  const auto done =
      pull(dir / "in/h",
           says({wire::FilesManifest{{folder, link("d/good", "../z"), link("d/up", "../../../x"),
                                      link("d/way", "good/../../x"), link("passwd", "/etc/passwd"),
                                      file("z", "text")},
                                     1},
                 wire::FilePiece{5, 0, "text"}}),
           1u << 20, &progress);
  REQUIRE_MESSAGE(done, done.error().message);
  CHECK(test::read_text(dir / "in/h/d/good") == "text");
  for (const char* name : {"in/h/d/up", "in/h/d/way", "in/h/passwd"})
    CHECK_FALSE(fs::is_symlink(dir / name));
  CHECK(progress.links_left_out == std::vector<std::string>{"d/up -> ../../../x",
                                                            "d/way -> good/../../x",
                                                            "passwd -> /etc/passwd"});
}

TEST_CASE("a host that beats and does nothing else is given up on, one that works is not") {
  const ScopedTempDir dir;
  const auto beats = [](bool works) {
    return [works](FakeRunner& runner) -> asio::awaitable<void> {
      co_await runner.until<wire::Hello>();
      runner.send(wire::Hello{});
      co_await runner.until<wire::FilesOpen>();
      const int count = works ? 70 : 110;  // 4.2 s and 6.6 s: longer than work_patience(), 3 s
      for (int i = 0; i < count; ++i) {
        runner.send(wire::Heartbeat{});
        if (works && i % 10 == 0) runner.send(wire::FilesProgress{1, ""});
        co_await runner.sleep(std::chrono::milliseconds(60));
      }
      runner.send(wire::FilesManifest{{}, 1});
      co_await runner.sleep(std::chrono::milliseconds(500));
    };
  };
  using namespace std::chrono_literals;
  const auto mute = pull(dir / "in/mute", beats(false), 1u << 20, nullptr, 100ms);
  REQUIRE_FALSE(mute);
  CHECK(mute.error().code == ErrorCode::timeout);
  CHECK(mute.error().message.find("alive, but") != std::string::npos);
  const auto busy = pull(dir / "in/busy", beats(true), 1u << 20, nullptr, 100ms);
  CHECK_MESSAGE(busy, busy.error().message);
}

TEST_CASE("time in which this process did not run is none in which a host did nothing") {
  const ScopedTempDir dir;
  const auto stands_still = [](FakeRunner& runner) -> asio::awaitable<void> {
    co_await runner.until<wire::Hello>();
    runner.send(wire::Hello{});
    co_await runner.until<wire::FilesOpen>();
    co_await runner.sleep(std::chrono::milliseconds(50));
    std::this_thread::sleep_for(std::chrono::milliseconds(3200));  // more than work_patience(), 3 s
    for (int i = 0; i < 3; ++i) {
      runner.send(wire::Heartbeat{});
      co_await runner.sleep(std::chrono::milliseconds(60));
    }
    runner.send(wire::FilesManifest{{}, 1});
    co_await runner.sleep(std::chrono::milliseconds(500));
  };
  const auto done =
      pull(dir / "in/h", stands_still, 1u << 20, nullptr, std::chrono::milliseconds(100));
  CHECK_MESSAGE(done, done.error().message);
}

TEST_CASE("pull: a host that lies writes nothing, and nothing outside its folder") {
  const ScopedTempDir dir;
  write_text(dir / "outside", "keep");
  const auto refused = [&](std::vector<wire::Message> messages, std::uint64_t max = 1u << 20) {
    const auto done = pull(dir / "in/h", says(std::move(messages)), max);
    return done ? std::string() : done.error().message;
  };
  using wire::FilesManifest;
  CHECK(refused({FilesManifest{{file("../../outside", "x")}, 1}}).find("..") != std::string::npos);
  CHECK(refused({FilesManifest{{file("/etc/x", "x")}, 1}}) != "");
  const wire::FileEntry link = {"l", wire::FileKind::symlink, 0777, 0, "", dir.str("")};
  CHECK(refused({FilesManifest{{link, file("l/outside", "x")}, 1}})
            .find("folder is not in the list") != std::string::npos);
  CHECK(refused({FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{7, 0, "text"}}) != "");
  CHECK(refused({FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{0, 9, "text"}}) != "");
  CHECK(refused({wire::FilePiece{0, 0, "text"}}).find("sent FilePiece") != std::string::npos);
  CHECK(refused({FilesManifest{{file("a", "text")}, 1}, wire::FilePiece{7, 0, "", "gone"}})
            .find("of which no piece is missing") != std::string::npos);
  CHECK(refused({wire::RunnerError{"not_found", "/x: \x1b[2Jgone", -1}}).find("\x1b") ==
        std::string::npos);
  std::vector<wire::Message> endless;
  for (int i = 0; i < 400; ++i)
    endless.push_back(FilesManifest{{file(("f" + std::to_string(1000 + i)).c_str(), "x")}, 0});
  CHECK(refused(std::move(endless), 16u << 10).find("names and hashes") != std::string::npos);
  CHECK(test::read_text(dir / "outside") == "keep");
  CHECK_FALSE(fs::exists(dir / "in/h/a"));
}
