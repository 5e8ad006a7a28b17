#include "common/files/tree_write.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/files/entry_path.h"
#include "common/files/piece.h"
#include "common/files/tree_file.h"

namespace sortie::files {
namespace {

constexpr std::size_t kOpenParts = 32;

bool matches(int fd, std::string& buffer, const wire::FileEntry& entry, std::uint64_t piece) {
  return read_exactly(fd, buffer, piece * wire::kPieceBytes, piece_length(entry.size, piece)) &&
         hash_bytes(buffer) == piece_hash(entry, piece);
}

}  // namespace

TreeWriter::TreeWriter(Folder folder, std::vector<wire::FileEntry> entries)
    : folder_(std::move(folder)), entries_(std::move(entries)), states_(entries_.size()) {}

Error TreeWriter::at_entry(Error error, std::uint32_t entry) const {
  return with_context(std::move(error), folder_.shown(entries_[entry].path));
}

Error TreeWriter::with_part(Error error, std::uint32_t entry) const {
  const std::string_view path = entries_[entry].path, parent = parent_of(path);
  const std::string part =
      fmt::format("{}{}{}", parent, parent.empty() ? "" : "/", part_name(name_of(path)));
  error.message += fmt::format(
      "; what was copied stays in {}: the same command continues there, or "
      "remove that file",
      folder_.shown(part));
  return error;
}

Result<bool> TreeWriter::inspect() {
  if (entry_ == entries_.size()) return true;
  const wire::FileEntry& entry = entries_[entry_];
  SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(entry.path));
  if (entry.kind == wire::FileKind::folder) {
    if (auto made = make_folder(parent, name_of(entry.path)); !made)
      return std::unexpected(at_entry(std::move(made).error(), entry_));
  } else if (entry.kind == wire::FileKind::file) {
    auto done = inspect_file();
    if (!done) return std::unexpected(at_entry(std::move(done).error(), entry_));
    if (!*done) return false;
  }
  ++entry_;
  return entry_ == entries_.size();
}

Result<> TreeWriter::begin_file(int parent) {
  const wire::FileEntry& entry = entries_[entry_];
  const std::string_view name = name_of(entry.path);
  const auto there = look_at(parent, name);
  if (there && S_ISDIR(there->st_mode))
    return fail(ErrorCode::io,
                "a folder of this name exists; end the target with / to put the file into it, or "
                "remove it");
  target_ = open_existing(parent, name);
  same_size_ = target_ && there && static_cast<std::uint64_t>(there->st_size) == entry.size;
  had_part_ = static_cast<bool>(open_existing(parent, part_name(name)));
  in_target_.assign(static_cast<std::size_t>(piece_count(entry.size)), false);
  piece_ = 0;
  copying_ = false;
  begun_ = true;
  return {};
}

/// If the file is complete, nothing is left to do. Else prepares its part, to which the matching
/// pieces of the target are then copied.
Result<> TreeWriter::end_comparison(int parent) {
  const wire::FileEntry& entry = entries_[entry_];
  State& state = states_[entry_];
  const std::string_view name = name_of(entry.path);
  if (same_size_ && std::ranges::all_of(in_target_, [](bool b) { return b; })) {
    if (had_part_) remove_part(parent, name);
    begun_ = false;
    return {};
  }
  state.part = true;
  if (open_parts_.size() >= kOpenParts && !had_part_ &&
      std::ranges::none_of(in_target_, [](bool b) { return b; })) {
    // The first piece creates the part, which would have to be closed until then. The parts that
    // are open find another transfer to this folder before anything is sent.
    state.missing.assign(in_target_.size(), true);
    state.lacking = static_cast<std::uint32_t>(in_target_.size());
    missing_bytes_ += entry.size;
    target_.reset();
    begun_ = false;
    return {};
  }
  SORTIE_TRY(part_fd(entry_));
  copying_ = true;
  piece_ = 0;
  return {};
}

Result<bool> TreeWriter::inspect_file() {
  const wire::FileEntry& entry = entries_[entry_];
  SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(entry.path));
  if (!begun_) {
    SORTIE_TRY(begin_file(parent));
    states_[entry_] = {};
  }
  const std::uint64_t count = in_target_.size();
  if (!copying_) {
    if (piece_ < count) {
      const auto at = static_cast<std::size_t>(piece_);
      in_target_[at] = target_ && matches(target_.get(), buffer_, entry, piece_);
      if (++piece_ < count) return false;
    }
    SORTIE_TRY(end_comparison(parent));
    if (!begun_) return true;
    if (count > 0) return false;
  }
  State& state = states_[entry_];
  if (piece_ < count) {
    const auto at = static_cast<std::size_t>(piece_);
    SORTIE_ASSIGN_OR_RETURN(const int part, part_fd(entry_));
    // Pieces of an old part are compared only now that it is locked: another transfer may have
    // renamed that part to its final name, and this one is then new.
    bool here = had_part_ && matches(part, buffer_, entry, piece_);
    if (!here && in_target_[at] && matches(target_.get(), buffer_, entry, piece_)) {
      if (auto written = write_sparse(part, buffer_, piece_ * wire::kPieceBytes); !written)
        return std::unexpected(with_part(std::move(written).error(), entry_));
      here = true;
    }
    if (!here) {
      state.missing.resize(static_cast<std::size_t>(count));
      state.missing[at] = true;
      ++state.lacking;
      missing_bytes_ += piece_length(entry.size, piece_);
    }
    if (++piece_ < count) return false;
  }
  target_.reset();
  begun_ = false;
  return true;
}

std::vector<wire::PieceRange> TreeWriter::missing() const {
  std::vector<wire::PieceRange> ranges;
  for (std::uint32_t entry = 0; entry < states_.size(); ++entry)
    for (std::size_t piece = 0; piece < states_[entry].missing.size(); ++piece)
      if (states_[entry].missing[piece])
        add_piece(ranges, entry, static_cast<std::uint32_t>(piece));
  return ranges;
}

bool TreeWriter::has(std::uint32_t entry, std::uint32_t piece) const {
  const std::vector<bool>& missing = states_[entry].missing;
  return missing.empty() || !missing[piece];
}

Result<int> TreeWriter::part_fd(std::uint32_t entry) {
  const auto open =
      std::ranges::find_if(open_parts_, [&](const OpenPart& part) { return part.entry == entry; });
  if (open != open_parts_.end()) {
    open_parts_.splice(open_parts_.begin(), open_parts_, open);
    return open->fd.get();
  }
  SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(entries_[entry].path));
  SORTIE_ASSIGN_OR_RETURN(Part opened, open_part(parent, name_of(entries_[entry].path)));
  State& state = states_[entry];
  if (!opened.locked) state.shared = true;
  // Set the final size now, because zeros at the end are not written.
  if (!std::exchange(state.sized, true) &&
      ::ftruncate(opened.fd.get(), static_cast<off_t>(entries_[entry].size)) != 0)
    return std::unexpected(os_error(errno, "truncate"));
  if (open_parts_.size() >= kOpenParts) {
    states_[open_parts_.back().entry].shared = true;
    open_parts_.pop_back();
  }
  open_parts_.push_front({entry, std::move(opened.fd)});
  return open_parts_.front().fd.get();
}

void TreeWriter::forget_part(std::uint32_t entry) {
  std::erase_if(open_parts_, [&](const OpenPart& part) { return part.entry == entry; });
}

Result<TreeWriter::Taken> TreeWriter::put(std::uint32_t entry, std::uint32_t piece,
                                          std::string_view bytes) {
  if (entry >= entries_.size() || piece >= piece_count(entries_[entry].size))
    return fail(ErrorCode::protocol, "a piece that no file has");
  if (has(entry, piece)) return Taken::had;
  const wire::FileEntry& file = entries_[entry];
  if (bytes.size() != piece_length(file.size, piece) ||
      hash_bytes(bytes) != piece_hash(file, piece))
    return Taken::wrong;
  auto part = part_fd(entry);
  if (!part) return std::unexpected(at_entry(std::move(part).error(), entry));
  if (auto written = write_sparse(*part, bytes, piece * wire::kPieceBytes); !written)
    return std::unexpected(with_part(at_entry(std::move(written).error(), entry), entry));
  std::vector<bool>& missing = states_[entry].missing;
  missing[piece] = false;
  missing_bytes_ -= bytes.size();
  if (--states_[entry].lacking == 0) missing.clear();
  return Taken::wrote;
}

Result<> TreeWriter::leave_out(std::uint32_t entry) {
  if (entry >= entries_.size() || states_[entry].lacking == 0)
    return fail(ErrorCode::protocol, "the sender gave up a file of which no piece is missing");
  const std::vector<bool>& missing = states_[entry].missing;
  for (std::size_t piece = 0; piece < missing.size(); ++piece)
    if (missing[piece]) missing_bytes_ -= piece_length(entries_[entry].size, piece);
  forget_part(entry);
  states_[entry] = {};
  states_[entry].left_out = true;
  SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(entries_[entry].path));
  remove_part(parent, name_of(entries_[entry].path));
  return {};
}

Result<> TreeWriter::read(std::uint32_t entry, std::uint32_t piece, std::string& bytes) {
  const wire::FileEntry& file = entries_[entry];
  int fd = -1;
  if (states_[entry].part) {
    SORTIE_ASSIGN_OR_RETURN(fd, part_fd(entry));
  } else {
    if (reading_ != entry) {
      SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(file.path));
      reading_fd_ = open_existing(parent, name_of(file.path));
      reading_ = entry;
    }
    fd = reading_fd_.get();
  }
  if (fd < 0 || !read_exactly(fd, bytes, piece * wire::kPieceBytes, piece_length(file.size, piece)))
    return fail(ErrorCode::io, folder_.shown(file.path) + ": can not be read any more");
  return {};
}

Result<bool> TreeWriter::settle_file(std::uint32_t index) {
  const wire::FileEntry& entry = entries_[index];
  const std::string_view name = name_of(entry.path);
  bool changed = false;
  if (states_[index].left_out) return true;
  SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(entry.path));
  if (entry.kind == wire::FileKind::symlink) {
    if (entry.link_target.empty()) return true;
    SORTIE_TRY(make_symlink(parent, name, entry.link_target, changed));
  } else if (!states_[index].part) {
    SORTIE_TRY(set_mode(parent, name, entry.mode, changed));
  } else {
    SORTIE_ASSIGN_OR_RETURN(const int part, part_fd(index));
    if (states_[index].shared && checked_ < piece_count(entry.size)) {
      if (!matches(part, buffer_, entry, checked_++))
        return fail(ErrorCode::io, "another transfer has changed it meanwhile; try again");
      return false;
    }
    if (::fchmod(part, entry.mode) != 0) return std::unexpected(os_error(errno, "chmod"));
    SORTIE_ASSIGN_OR_RETURN(const bool synced, sync_.sync_file(folder_.fd(), part));
    if (!synced) return false;
    checked_ = 0;
    const std::string from = part_name(name), to(name);
    if (::renameat(parent, from.c_str(), parent, to.c_str()) != 0)
      return std::unexpected(os_error(errno, "rename"));
    forget_part(index);
    states_[index].part = false;
    changed = true;
  }
  if (changed) ++files_changed_;
  return true;
}

Result<bool> TreeWriter::settle() {
  const auto count = static_cast<std::uint32_t>(entries_.size());
  while (settled_ < count && entries_[settled_].kind == wire::FileKind::folder) ++settled_;
  if (settled_ < count) {
    auto done = settle_file(settled_);
    if (!done) return std::unexpected(at_entry(std::move(done).error(), settled_));
    if (*done) ++settled_;
    return false;
  }
  // Innermost folders first; modes last, because they may forbid writing.
  while (folders_settled_ < count) {
    const std::uint32_t index = count - 1 - folders_settled_++;
    if (entries_[index].kind != wire::FileKind::folder) continue;
    SORTIE_ASSIGN_OR_RETURN(const int parent, folder_.parent(entries_[index].path));
    const std::string_view name = name_of(entries_[index].path);
    bool changed = false;
    auto done = sync_.sync_folder(parent, name);
    if (done) done = set_mode(parent, name, entries_[index].mode, changed);
    if (!done) return std::unexpected(at_entry(std::move(done).error(), index));
    return false;
  }
  auto synced = sync_.sync_tree(folder_.fd());
  if (!synced) return std::unexpected(with_context(std::move(synced).error(), folder_.path()));
  return synced;
}

}  // namespace sortie::files
