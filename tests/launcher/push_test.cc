// push: what is said of a host whose runner ends in the middle of a transfer.
#include <doctest/doctest.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/this_coro.hpp>
#include <filesystem>
#include <optional>
#include <vector>

#include "common/asio/spawn.h"
#include "launcher/copy/local_tree.h"
#include "launcher/copy/tree_upload.h"
#include "tests/support/copy_session.h"
#include "tests/support/temp_dir.h"

using namespace sortie;
using namespace sortie::launcher;
using test::FakeRunner;
using test::ScopedTempDir;
using test::write_text;
namespace asio = boost::asio;

namespace {

constexpr std::uint32_t kPieces = 8;

struct Sent {
  std::uint64_t wanted = 0, done = 0;  // bytes, at the end
};

/// Pushes a file of kPieces pieces to one fake host in memory.
Result<wire::FilesDone> push(test::FakeHost::Script script, Sent* sent = nullptr) {
  const ScopedTempDir dir;
  write_text(dir / "file", std::string(kPieces << 20, 'x'));
  LocalTree tree;
  return test::with_copy_session(
      std::move(script), {},
      [&](std::shared_ptr<HostSession> session) -> asio::awaitable<Result<wire::FilesDone>> {
        std::vector<files::ScanRoot> roots(1);
        roots[0].path = dir.str("file");
        roots[0].name = "file";
        auto read = co_await read_local_tree(std::move(roots));
        if (!read) co_return std::unexpected(read.error());
        tree = std::move(*read);
        std::function<void(std::string)> on_note = [](const std::string&) {};
        const auto upload = std::make_shared<TreeUpload>(co_await asio::this_coro::executor, tree,
                                                         1, false, std::move(on_note));
        wire::FilesOpen order;
        order.folder = "~";
        auto done = co_await upload->send_to(0, session, std::move(order));
        if (sent != nullptr) *sent = {upload->bytes_wanted(), upload->bytes_done()};
        co_return done;
      });
}

/// Asks for all pieces and reads the first. Then writes to it fail, and it ends with `last`.
test::FakeHost::Script ends_early(std::optional<wire::Message> last) {
  return [last = std::move(last)](FakeRunner& runner) -> asio::awaitable<void> {
    co_await runner.until<wire::Hello>();
    runner.send(wire::Hello{});
    co_await runner.until<wire::FilesManifest>();
    runner.send(wire::FilesWanted{{{0, 0, kPieces}}, 1, 0, ""});
    co_await runner.until<wire::FilePiece>();
    runner.reads_no_more = true;
    runner.send(wire::FilesCredit{1u << 20});  // for another piece, whose write fails
    co_await runner.sleep(std::chrono::milliseconds(200));
    if (last) runner.send(*last);
    runner.end();
  };
}

}  // namespace

TEST_CASE("push: progress is what hosts have written of what they lack") {
  Sent sent;
  const auto lost = push(
      [](FakeRunner& runner) -> asio::awaitable<void> {
        co_await runner.until<wire::Hello>();
        runner.send(wire::Hello{});
        co_await runner.until<wire::FilesManifest>();
        runner.send(wire::FilesWanted{{{0, 2, kPieces - 2}}, 1, 0, ""});  // it has two pieces
        co_await runner.until<wire::FilePiece>();
        runner.send(wire::FilesProgress{1u << 20, ""});
        runner.send(wire::RunnerError{"io", "/x: No space left on device", -1});
        runner.end();
      },
      &sent);
  REQUIRE_FALSE(lost);
  CHECK(sent.wanted == std::uint64_t{kPieces - 2} << 20);
  CHECK(sent.done == 1u << 20);
}

TEST_CASE("push: files are listed before they are read, so that there is a total from then on") {
  const ScopedTempDir dir;
  write_text(dir / "tree/a", std::string((2u << 20) + 5, 'x'));
  write_text(dir / "tree/sub/b", "text");
  std::filesystem::create_symlink("a", dir / "tree/link");
  std::vector<ReadProgress> seen;
  std::optional<Result<LocalTree>> tree;
  asio::io_context io(1);
  const auto read = [&]() -> asio::awaitable<void> {
    std::vector<files::ScanRoot> roots(2);
    roots[0].path = dir.str("tree");
    roots[0].name = "tree";
    roots[1].path = dir.str("absent");
    roots[1].name = "absent";
    std::function<void(const ReadProgress&)> on_progress = [&](const ReadProgress& now) {
      seen.push_back(now);
    };
    std::function<void(const Error&)> on_left_out = [](const Error&) {};
    tree =
        co_await read_local_tree(std::move(roots), std::move(on_progress), std::move(on_left_out));
  };
  spawn(io, read());
  io.run();
  REQUIRE(tree);
  REQUIRE(*tree);
  CHECK((*tree)->entries.size() == 5);
  CHECK((*tree)->entries[1].hashes.size() == 3 * (*tree)->entries[4].hashes.size());
  const std::uint64_t bytes = (2u << 20) + 5 + 4;
  CHECK((*tree)->bytes == bytes);
  REQUIRE(!seen.empty());
  std::size_t listed = 0;
  std::uint64_t hashed = 0;
  for (const ReadProgress& now : seen) {
    const bool reads = now.to_read > 0;
    CHECK(now.listed == (reads ? 5 : ++listed));
    CHECK(now.to_read == (reads ? bytes : 0));
    CHECK(now.hashed >= hashed);
    hashed = now.hashed;
  }
  CHECK(listed == 5);
  CHECK(hashed == bytes);
}

TEST_CASE("push: the tree is walked once, and files are read as they are then") {
  const ScopedTempDir dir;
  write_text(dir / "tree/a", "short");
  write_text(dir / "tree/b", "gone before it is read");
  std::optional<Result<LocalTree>> tree;
  std::vector<std::string> left_out;
  asio::io_context io(1);
  const auto read = [&]() -> asio::awaitable<void> {
    std::vector<files::ScanRoot> roots(1);
    roots[0].path = dir.str("tree");
    roots[0].name = "tree";
    std::function<void(const ReadProgress&)> on_progress = [&](const ReadProgress& now) {
      if (now.listed < 3 || now.hashed > 0) return;  // folder, a and b are listed
      write_text(dir / "tree/a", "longer than before");
      write_text(dir / "tree/new", "too late");
      std::filesystem::remove(dir / "tree/b");
    };
    std::function<void(const Error&)> on_left_out = [&](const Error& why) {
      left_out.push_back(why.message);
    };
    tree =
        co_await read_local_tree(std::move(roots), std::move(on_progress), std::move(on_left_out));
  };
  spawn(io, read());
  io.run();
  REQUIRE(tree);
  REQUIRE(*tree);
  REQUIRE((*tree)->entries.size() == 2);  // a second walk would find tree/new
  CHECK((*tree)->entries[1].path == "tree/a");
  CHECK((*tree)->entries[1].size == 18);
  CHECK((*tree)->paths[1] == dir.str("tree/a"));
  REQUIRE(left_out.size() == 1);
  CHECK(left_out[0].starts_with(dir.str("tree/b") + ": "));
}

TEST_CASE("push: why a runner ended is heard also if a write to it fails first") {
  const auto full = push(ends_early(wire::RunnerError{"io", "/x: No space left on device", -1}));
  REQUIRE_FALSE(full);
  CHECK(full.error().message == "/x: No space left on device");
  CHECK(full.error().code == ErrorCode::io);
}

TEST_CASE("push: a runner that ends without a word is lost") {
  const auto ended = push(ends_early(std::nullopt));
  REQUIRE_FALSE(ended);
  CHECK(ended.error().code == ErrorCode::lost);
  CHECK_MESSAGE(ended.error().message.starts_with("the runner ended unexpectedly"),
                ended.error().message);
}

TEST_CASE("push: a host that reads nothing and stays silent is lost by the write that failed") {
  const auto silent = push([](FakeRunner& runner) -> asio::awaitable<void> {
    co_await runner.until<wire::Hello>();
    runner.send(wire::Hello{});
    co_await runner.until<wire::FilesManifest>();
    runner.reads_no_more = true;
    runner.send(wire::FilesWanted{{{0, 0, kPieces}}, 1, 0, ""});
    bool open = true;
    while (open) {
      const auto message = co_await runner.next();
      open = message.has_value();
    }
  });
  REQUIRE_FALSE(silent);
  CHECK(silent.error().code == ErrorCode::lost);
  CHECK(silent.error().message == "write: it reads no more");
}
