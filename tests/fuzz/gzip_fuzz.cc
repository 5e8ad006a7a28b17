// Fuzzes GzipReader. The content does not depend on the read sizes, a read returns no more than was
// requested, and a broken file gives an error that names it.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/check.h"
#include "trainer/data/gzip_reader.h"

namespace {

constexpr std::size_t kMost = 1 << 20;

/// The first megabyte, read in pieces of `piece` bytes; nullopt if the file is broken.
std::optional<std::string> content(std::span<const std::byte> bytes, std::size_t piece) {
  sortie::trainer::GzipReader reader(bytes, "x.gz");
  std::string out;
  while (!reader.at_end() && out.size() < kMost) {
    const std::size_t before = out.size(), wanted = std::min(piece, kMost - before);
    if (const auto read = reader.read(wanted, out); !read) {
      SORTIE_CHECK(read.error().code == sortie::ErrorCode::data);
      SORTIE_CHECK(read.error().message.starts_with("x.gz"), "{}", read.error().message);
      return std::nullopt;
    }
    SORTIE_CHECK(out.size() - before <= wanted);
    SORTIE_CHECK(out.size() - before == wanted || reader.at_end());
    SORTIE_CHECK(reader.position() <= bytes.size());
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (!sortie::trainer::GzipReader::is_gzip(bytes)) return 0;
  const auto whole = content(bytes, kMost), parts = content(bytes, 4099);
  SORTIE_CHECK(whole == parts);
  return 0;
}
