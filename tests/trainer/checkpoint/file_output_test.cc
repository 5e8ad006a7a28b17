// Tests that files written past the page cache have the right bytes, even if a write is short,
// interrupted or fails.
#include "trainer/checkpoint/file_output.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "tests/support/temp_dir.h"
#include "tests/support/text.h"
#include "trainer/checkpoint/file_ops.h"

namespace sortie::trainer {
namespace {

using test::ScopedTempDir;

std::vector<std::byte> numbered_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  return bytes;
}

/// Writes `bytes` in parts whose sizes and addresses are not aligned to blocks.
Result<> write_in_parts(FileOutput& output, std::span<const std::byte> bytes) {
  std::size_t part = 1;
  while (!bytes.empty()) {
    const auto now = bytes.first(std::min(part, bytes.size()));
    SORTIE_TRY(output.write(now));
    bytes = bytes.subspan(now.size());
    part = part * 7 + 3;
  }
  return output.finish();
}

std::vector<std::byte> read_back(const std::filesystem::path& path) {
  const std::string text = test::read_text(path);
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return {bytes.begin(), bytes.end()};
}

/// Returns how many pages of the file are in the page cache.
std::size_t cached_pages(const std::filesystem::path& path, std::size_t bytes) {
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(file);
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  std::vector<unsigned char> present((bytes + page - 1) / page);
  const bool asked = ::mincore(mapped, bytes, present.data()) == 0;
  ::munmap(mapped, bytes);
  REQUIRE(asked);
  return static_cast<std::size_t>(
      std::ranges::count_if(present, [](unsigned char one) { return (one & 1) != 0; }));
}

}  // namespace

TEST_CASE("a file past the page cache is the same file, and none of its whole buffers is cached") {
  const ScopedTempDir dir;
  for (const std::size_t size : {0u, 1u, 4096u, 4u << 20, (9u << 20) + 12345u}) {
    CAPTURE(size);
    const auto bytes = numbered_bytes(size);
    for (const Caching caching : {Caching::kept, Caching::bypassed}) {
      const auto path = dir.path() / "file";
      std::filesystem::remove(path);
      auto output = FileOutput::create(path, caching);
      REQUIRE(output);
      REQUIRE(write_in_parts(*output, bytes));
      const bool has_buffers = size >= 4u << 20;
      if (has_buffers && caching == Caching::kept) CHECK(cached_pages(path, size) * 4096 >= size);
      // Not on tmpfs, whose files are always in the page cache.
      const Fd probe(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
      if (has_buffers && caching == Caching::bypassed && file_ops::set_direct(probe, true))
        CHECK(cached_pages(path, size) * 4096 <= (1u << 20) + 4096 + 12345u);
      CHECK(read_back(path) == bytes);
    }
  }
}

TEST_CASE("writes past the page cache that are cut short or interrupted leave the same bytes") {
  const ScopedTempDir dir;
  const auto bytes = numbered_bytes((13u << 20) + 77u);
  for (const char* action : {"short", "eintr"})
    for (int at = 2; at <= 5; ++at) {  // the first operation creates the file
      CAPTURE(action);
      CAPTURE(at);
      const auto path = dir.path() / fmt::format("{}-{}", action, at);
      REQUIRE(file_ops::set_fault(fmt::format("checkpoint:{}:{}", at, action)));
      auto output = FileOutput::create(path, Caching::bypassed);
      REQUIRE(output);
      const Result<> written = write_in_parts(*output, bytes);
      REQUIRE(file_ops::set_fault(""));
      REQUIRE(written);
      CHECK(read_back(path) == bytes);
    }
}

TEST_CASE("a disk that is full past the page cache is an error of the file") {
  const ScopedTempDir dir;
  REQUIRE(file_ops::set_fault("checkpoint:3:enospc"));
  auto output = FileOutput::create(dir.path() / "file", Caching::bypassed);
  REQUIRE(output);
  const Result<> written = write_in_parts(*output, numbered_bytes(9u << 20));
  REQUIRE(file_ops::set_fault(""));
  REQUIRE_FALSE(written);
  CHECK(written.error().message.starts_with("write " + (dir.path() / "file").string()));
}

}  // namespace sortie::trainer
