#include "common/files/manifest.h"

#include <fmt/core.h>

#include <utility>

#include "common/files/entry_path.h"
#include "common/files/piece.h"

namespace sortie::files {
namespace {

constexpr std::uint64_t kMessageBytes = 512u << 10;
constexpr std::size_t kRangesPerMessage = 32u << 10;
constexpr std::size_t kMaxLinkTarget = 4095;

std::unexpected<Error> bad(const wire::FileEntry& entry, std::string_view what) {
  return fail(ErrorCode::data, fmt::format("'{}': {}", shown_path(entry.path), what));
}

}  // namespace

std::uint64_t entry_bytes(const wire::FileEntry& entry) {
  return sizeof entry + entry.path.size() + entry.hashes.size() + entry.link_target.size();
}

Result<> ManifestReader::check(const wire::FileEntry& entry) {
  SORTIE_TRY(check_entry_path(entry.path));
  if (!entries_.empty() && !entry_path_less(entries_.back().path, entry.path))
    return bad(entry, "out of order, or twice");
  const std::string_view parent = parent_of(entry.path);
  while (!folders_.empty() && folders_.back() != parent) folders_.pop_back();
  if (!parent.empty() && folders_.empty()) return bad(entry, "its folder is not in the list");
  if (entry.mode > 0777) return bad(entry, "a mode beyond 0777");
  const bool file = entry.kind == wire::FileKind::file;
  if (!file && (entry.size != 0 || !entry.hashes.empty()))
    return bad(entry, "a size where there is none");
  // Compare by division, because a product could overflow.
  if (file && (entry.hashes.size() % wire::kPieceHashBytes != 0 ||
               entry.hashes.size() / wire::kPieceHashBytes != piece_count(entry.size)))
    return bad(entry, "its hashes do not fit its size");
  const bool link = entry.kind == wire::FileKind::symlink;
  if (link != !entry.link_target.empty() || entry.link_target.size() > kMaxLinkTarget ||
      entry.link_target.find('\0') != std::string::npos)
    return bad(entry, "no link target that can be");
  if (entry.kind == wire::FileKind::folder) folders_.push_back(entry.path);
  return {};
}

Result<> ManifestReader::add(wire::FilesManifest message) {
  if (complete_) return fail(ErrorCode::protocol, "a list of files after its end");
  for (wire::FileEntry& entry : message.entries) {
    SORTIE_TRY(check(entry));
    bytes_ += entry_bytes(entry);
    if (bytes_ > max_bytes_ || entries_.size() >= kMaxEntries)
      return fail(
          ErrorCode::data,
          fmt::format("more than {} files, or {} MiB of names and hashes; transfer parts of it",
                      kMaxEntries, max_bytes_ >> 20));
    entries_.push_back(std::move(entry));
  }
  complete_ = message.last != 0;
  return {};
}

Result<> WantedReader::add(const wire::FilesWanted& message,
                           const std::vector<wire::FileEntry>& entries) {
  if (complete_) return fail(ErrorCode::protocol, "a list of pieces after its end");
  for (const wire::PieceRange& range : message.ranges) {
    if (range.entry >= entries.size() || range.count == 0 ||
        std::uint64_t{range.first} + range.count > piece_count(entries[range.entry].size))
      return fail(ErrorCode::protocol, "pieces are asked for that no file has");
    if (ranges_.size() >= kMaxRanges) return fail(ErrorCode::protocol, "too many ranges of pieces");
    ranges_.push_back(range);
  }
  complete_ = message.last != 0;
  return {};
}

std::vector<wire::PieceRange> WantedReader::take() {
  complete_ = false;
  return std::exchange(ranges_, {});
}

wire::FilesManifest manifest_part(const std::vector<wire::FileEntry>& entries, std::size_t& at) {
  wire::FilesManifest message;
  for (std::uint64_t bytes = 0; at < entries.size(); ++at) {
    bytes += entry_bytes(entries[at]);
    if (!message.entries.empty() && bytes > kMessageBytes) return message;
    message.entries.push_back(entries[at]);
  }
  message.last = 1;
  return message;
}

void send_wanted(const std::vector<wire::PieceRange>& ranges, const wire::FilesWanted& frame,
                 const std::function<void(wire::FilesWanted)>& send) {
  wire::FilesWanted message = frame;
  message.last = 0;
  for (const wire::PieceRange& range : ranges) {
    if (message.ranges.size() >= kRangesPerMessage) {
      send(message);
      message.ranges.clear();
    }
    message.ranges.push_back(range);
  }
  message.last = 1;
  send(std::move(message));
}

}  // namespace sortie::files
