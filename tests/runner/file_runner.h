// A runner that takes part in file transfers, and whole transfers with it.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/files/manifest.h"
#include "common/files/tree_scan.h"
#include "tests/support/runner_client.h"
#include "tests/support/scanned_tree.h"

namespace sortie::test {

/// Bytes that do not compress and are the same in each run.
inline std::string incompressible(std::size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return text;
}

/// A runner with its own home folder, after the Hello exchange.
struct FileRunner {
  explicit FileRunner(const std::filesystem::path& home)
      : client(SORTIE_RUNNER_BINARY, {"HOME=" + home.string(), "PATH=/usr/bin:/bin"}) {
    std::filesystem::create_directories(home);
    client.send(wire::Hello{wire::kProtocolVersion, "build"});
    REQUIRE(client.expect<wire::Hello>());
  }

  void open(wire::FilesPurpose purpose, const std::string& folder, const std::string& relay = "",
            const std::string& key = "", std::uint64_t cache = 1u << 30) {
    wire::FilesOpen order;
    order.purpose = purpose;
    order.folder = folder;
    order.key = key;
    order.cache_bytes = cache;
    order.heartbeat_interval_ms = 200;
    order.heartbeat_timeout_ms = 20000;
    order.relay_address = relay;
    client.send(order);
  }
  void list(const ScannedTree& tree) {
    wire::FilesManifest part;
    for (std::size_t at = 0; part.last == 0; client.send(part))
      part = files::manifest_part(tree.entries, at);
  }
  std::vector<wire::PieceRange> wanted() {
    std::vector<wire::PieceRange> ranges;
    for (;;) {
      const auto part = client.expect<wire::FilesWanted>();
      REQUIRE(part);
      ranges.insert(ranges.end(), part->ranges.begin(), part->ranges.end());
      relay_port = part->relay_port;
      reason = part->reason;
      if (part->last) return ranges;
    }
  }
  /// Sends at most `limit` pieces, waiting for credit after each; returns their number.
  int feed(const ScannedTree& tree, const std::vector<wire::PieceRange>& ranges,
           int limit = 1 << 30) {
    files::PieceReader reader;
    int sent = 0;
    for (const wire::PieceRange& range : ranges)
      for (std::uint32_t piece = range.first; piece < range.first + range.count; ++piece) {
        if (sent == limit) return sent;
        auto bytes = reader.read(tree.paths[range.entry], tree.entries[range.entry].size, piece);
        REQUIRE(bytes);
        client.send(wire::FilePiece{range.entry, piece, *bytes});
        REQUIRE(client.expect<wire::FilesCredit>()->bytes == bytes->size());
        ++sent;
      }
    return sent;
  }
  std::string refused() {
    const auto error = client.expect<wire::RunnerError>();
    return error ? error->message : "";
  }
  void goodbye() {
    client.send(wire::Goodbye{});
    const auto status = client.wait_exit();
    REQUIRE(status);
    CHECK(status->success());
  }

  RunnerClient client;
  std::uint16_t relay_port = 0;
  std::string reason;
};

/// Pushes a whole tree; returns the number of pieces sent.
inline int push(const std::filesystem::path& home, const ScannedTree& tree,
                const std::string& folder) {
  FileRunner runner(home);
  runner.open(wire::FilesPurpose::put, folder);
  runner.list(tree);
  const int sent = runner.feed(tree, runner.wanted());
  REQUIRE(runner.client.expect<wire::FilesDone>());
  runner.goodbye();
  return sent;
}

}  // namespace sortie::test
